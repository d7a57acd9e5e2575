"""Random effects of software stacks and device generations: what the physics leaves over, shrunk towards zero.

The log of measured / predicted time of a source has a mean y, with

    y = share of kernels * (effect of its stack + effect of its device generation) + rest

Effects of stacks, of generations, and the rests are independent and normal with mean zero; their three deviations are
the most likely ones for the sources at hand (maximum likelihood of the y). A source counts once, however many rows it
has, since the rows of a source err together. An effect is then the posterior mean: nearly nothing for a stack of one
source, nearly the whole mean for one of many sources that agree (Robinson, Statistical Science 6, 1991).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

_LEAST, _MOST = 0.005, 0.5  # deviations, log
_FARTHEST = 0.3  # mean of a source that counts: what is further off is no effect but another program
_START = 0.1


@dataclass(frozen=True, slots=True)
class Deviations:
    """Standard deviations of log times."""

    stack: float = _START  # of the effects of stacks
    generation: float = _START  # of those of device generations
    rest: float = _START  # of the mean of a source beyond them


@dataclass(frozen=True, slots=True)
class Memberships:
    """The stack and the device generation of each of N rows, as positions in their names."""

    stacks: tuple[str, ...]
    generations: tuple[str, ...]
    stack: np.ndarray  # [N]
    generation: np.ndarray  # [N]

    def effect(self, of_stack: np.ndarray, of_generation: np.ndarray) -> np.ndarray:
        """Return the [N] log effect of rows, from those of stacks and generations."""
        return of_stack[self.stack] + of_generation[self.generation]


def memberships(stacks: Sequence[str], generations: Sequence[str]) -> Memberships:
    """Return the memberships of N rows."""
    (of_stack, stack), (of_generation, generation) = (
        np.unique(np.array(names, dtype=object).astype(str), return_inverse=True) for names in (stacks, generations)
    )
    return Memberships(tuple(of_stack.tolist()), tuple(of_generation.tolist()), stack, generation)


def deviations(
    residuals: np.ndarray, kernels: np.ndarray, source: np.ndarray, weights: np.ndarray, members: Memberships
) -> Deviations:
    """Return the most likely deviations.

    Args:
        residuals: [N] log(measured / predicted) without effects.
        kernels: [N] share of a row's time that effects scale.
        source: [N] the source of each row, as a position.
        weights: [N] weight of each row; rows without weight do not count.
        members: stack and generation of each row.
    """
    used = weights > 0
    _, of_source = np.unique(source[used], return_inverse=True)
    count = of_source.max(initial=-1) + 1
    share = weights[used] / np.bincount(of_source, weights[used], count)[of_source]
    means = np.clip(np.bincount(of_source, share * residuals[used], count), -_FARTHEST, _FARTHEST)

    def design(member: np.ndarray, size: int) -> np.ndarray:
        found = np.zeros((count, size))
        np.add.at(found, (of_source, member[used]), share * kernels[used])
        return found @ found.T

    by_stack = design(members.stack, len(members.stacks))
    by_generation = design(members.generation, len(members.generations))

    def unlikeliness(logs: np.ndarray) -> float:
        stack, generation, rest = np.exp(2 * logs)
        covariance = stack * by_stack + generation * by_generation + rest * np.eye(count)
        return float(np.linalg.slogdet(covariance)[1] + means @ np.linalg.solve(covariance, means))

    bounds = [(np.log(_LEAST), np.log(_MOST))] * 3
    found = minimize(unlikeliness, np.full(3, np.log(_START)), bounds=bounds, method="L-BFGS-B")
    return Deviations(*map(float, np.exp(found.x)))
