"""The spaces of a search for the fastest plans of a job: one for each kind of cut, within the framework and outside.

They share their shard keys. The layers of a key are priced only when a search takes the key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsx.pricing.layers import price_keys
from dsx.pricing.problem import Problem
from dsx.search.key_bounds import key_bounds
from dsx.search.priced_space import PricedSpace
from dsx.search.recompute_front import of_values, recomputing, representatives, undominated
from dsx.search.space import Space, of_used_keys
from dsx.space.boxes import Limitation, Selection
from dsx.space.choices import Choice
from dsx.space.codes import with_values
from dsx.space.enumerate import take
from dsx.space.plan_rules import optimal_cut_covers
from dsx.space.recompute_values import NONE_CODE
from dsx.space.variants import Variants, varied_last
from dsx.spec.model import has_experts
from dsx.spec.ranges import Limit


@dataclass(frozen=True, slots=True)
class PricedSpaces:
    """The spaces of some shard keys with their layer costs, without values of `recompute` that others dominate."""

    within: Sequence[PricedSpace]
    outside: Sequence[PricedSpace]
    whole: Sequence[Problem]  # the problems with all searched values of the choices that are searched last


@dataclass(frozen=True)
class SearchSpaces:
    """The spaces of a search, one for each problem."""

    whole: Sequence[Problem]  # they differ in their cuts alone
    problems: Sequence[Problem]  # with the defaults of the choices `varied`
    varied: Sequence[Choice]  # those whose other values are searched last, as variants of plans
    within: Sequence[Space]  # plans that the framework runs
    outside: Sequence[Space]  # all other plans; none for a framework without limits

    @property
    def num_keys(self) -> int:
        """The number of shard keys."""
        return len(self.within[0].keys["tp"])

    @cached_property
    def size(self) -> int:
        """The number of candidates that the framework runs, with all variants."""
        return sum(space.size for space in self.within) + sum(
            space.blocks.size_with(Variants(space.blocks, space.bounds, self.varied, problem.workload.searched).count)
            for problem, space in zip(self.whole, self.within, strict=True)
            if self.varied
        )

    def enumerating(self, name: str) -> "SearchSpaces":
        """Return the spaces with all values of one of the choices `varied`, which is then searched like the others."""
        values = {name: getattr(self.whole[0].workload.searched, name)}
        problems = [_with_values(problem, values) for problem in self.problems]
        every = [*problems, *problems[: len(self.outside)]]
        spaces = [space.searching(problem) for space, problem in zip((*self.within, *self.outside), every, strict=True)]
        varied = tuple(choice for choice in self.varied if choice.name != name)
        return SearchSpaces(self.whole, problems, varied, spaces[: len(problems)], spaces[len(problems) :])

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
        problems, whole = (
            [recomputing(problem, values) for problem in stated] for stated in (self.problems, self.whole)
        )

        def of_keys(spaces: Sequence[Space]) -> list[PricedSpace]:
            return [
                PricedSpace(problem, space.of_keys(keys).searching(problem), table, "float64", every)
                for problem, every, space in zip(problems, whole, spaces, strict=bool(spaces))
            ]

        return PricedSpaces(of_keys(self.within), of_keys(self.outside), whole)


def spaces_of(
    problems: Sequence[Problem],
    num_gpus: int,
    global_batch_size: int,
    fix: Selection,
    limit: Limitation | None = None,
    with_outside: bool = True,
) -> SearchSpaces:
    """Return the space of each problem.

    Where there are several, a plan with one chunk per stage has its optimal cut, and no even one too as far as
    schedules allow. A plan with several chunks has the even cut: its bounds are tight, and it costs little to price.

    `with_outside` asks for the plans that the framework does not run.
    """
    whole = problems
    one_chunk, chunks = _limits_of_chunks(whole, limit or {})
    boxes = [] if whole[0].framework is None else whole[0].framework.boxes(has_experts(whole[0].model.dimensions))
    varied = varied_last(whole[0].workload.searched, [*fix, *(limit or ())], boxes)
    usual = {choice.name: (choice.default_code,) for choice in varied}
    problems = [_with_values(problem, usual) for problem in whole]
    first = problems[0]
    spaces: list[Space] = []
    limited = first.framework is not None and not first.framework.unlimited
    for outside in (False, True) if limited and with_outside else (False,):
        for problem in problems:
            keys = spaces[0].keys if spaces else None
            here = one_chunk if problem.optimal_cuts else chunks
            spaces.append(Space(problem, [num_gpus], [global_batch_size], fix, here, outside, keys))
    # The keys that have plans are the same, and found faster, with few values of `recompute`.
    few = recomputing(first, representatives(first))
    used = of_used_keys(first, [space.searching(few) for space in spaces])
    spaces = [space.searching(first) for space in used]
    return SearchSpaces(whole, problems, varied, spaces[: len(problems)], spaces[len(problems) :])


def _limits_of_chunks(problems: Sequence[Problem], limit: Limitation) -> tuple[Limitation, Limitation]:
    """Return the limits of the plans with optimal cuts and of those with even ones."""
    if len(problems) == 1:
        return limit, limit
    one = {**limit, "vpp": [*limit.get("vpp", ()), Limit("<=", 1)]}
    covered = bool(optimal_cut_covers(problems[-1].workload.searched.schedule).all())
    return one, {**limit, "vpp": [*limit.get("vpp", ()), Limit(">=", 2)]} if covered else limit


def _with_values(problem: Problem, values: Mapping[str, tuple[int, ...]]) -> Problem:
    """Return the problem with some values of its searched choices, by their codes."""
    return replace(problem, workload=replace(problem.workload, searched=with_values(problem.workload.searched, values)))
