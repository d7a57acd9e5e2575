"""The spaces of a search for the fastest plans of a job: one for each kind of cut, within the framework and outside.

They share their shard keys. The layers of a key are priced only when a search takes the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.pricing.layers import price_keys
from dsx.pricing.problem import Problem
from dsx.search.key_bounds import key_bounds
from dsx.search.priced_space import PricedSpace
from dsx.search.recompute_front import of_values, recomputing, representatives, undominated
from dsx.search.space import Space, of_used_keys
from dsx.space.boxes import Limitation, Selection
from dsx.space.enumerate import take
from dsx.space.plan_rules import optimal_cut_covers
from dsx.space.recompute_values import NONE_CODE


@dataclass(frozen=True, slots=True)
class PricedSpaces:
    """The spaces of some shard keys with their layer costs, without values of `recompute` that others dominate."""

    within: Sequence[PricedSpace]
    outside: Sequence[PricedSpace]


@dataclass(frozen=True, slots=True)
class SearchSpaces:
    """The spaces of a search, one for each problem."""

    problems: Sequence[Problem]  # they differ in their cuts alone
    within: Sequence[Space]  # plans that the framework runs
    outside: Sequence[Space]  # all other plans; none for a framework without limits

    @property
    def num_keys(self) -> int:
        """The number of shard keys."""
        return len(self.within[0].keys["tp"])

    @property
    def size(self) -> int:
        """The number of candidates that the framework runs."""
        return sum(space.size for space in self.within)

    def key_bounds(self) -> np.ndarray:
        """Return [U] the least seconds of a step of any plan of each shard key."""
        without_recomputation = recomputing(self.problems[0], [NONE_CODE])
        table = price_keys(without_recomputation, self.within[0].keys)
        return key_bounds(self.within[0], table, without_recomputation.workload)

    def priced(self, where: np.ndarray | slice) -> PricedSpaces:
        """Return the spaces of some of the shard keys with their layer costs."""
        first, keys = self.problems[0], take(self.within[0].keys, where)
        table = price_keys(first, keys)
        values = undominated(first, table)
        table = of_values(table, values)
        problems = [recomputing(problem, values) for problem in self.problems]

        def of_keys(spaces: Sequence[Space]) -> list[PricedSpace]:
            return [
                PricedSpace(problem, space.of_keys(keys).searching(problem), table, "float64")
                for problem, space in zip(problems, spaces, strict=bool(spaces))
            ]

        return PricedSpaces(of_keys(self.within), of_keys(self.outside))


def spaces_of(
    problems: Sequence[Problem], num_gpus: int, global_batch_size: int, fix: Selection, limit: Limitation | None = None
) -> SearchSpaces:
    """Return the space of each problem; of the last one alone, if its cuts are optimal and all schedules have one."""
    if problems[-1].optimal_cuts and bool(optimal_cut_covers(problems[-1].workload.searched.schedule).all()):
        problems = problems[-1:]
    first = problems[0]
    spaces: list[Space] = []
    limited = first.framework is not None and not first.framework.unlimited
    for outside in (False, True) if limited else (False,):
        for problem in problems:
            keys = spaces[0].keys if spaces else None
            spaces.append(Space(problem, [num_gpus], [global_batch_size], fix, limit, outside, keys))
    # The keys that have plans are the same, and found faster, with few values of `recompute`.
    few = recomputing(first, representatives(first))
    used = of_used_keys(first, [space.searching(few) for space in spaces])
    spaces = [space.searching(first) for space in used]
    return SearchSpaces(problems, spaces[: len(problems)], spaces[len(problems) :])
