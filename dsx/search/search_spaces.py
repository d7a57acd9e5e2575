"""The spaces of a search for the fastest plans of a job: one for each way in which its plans are cut.

They share their shard keys. The layers of a key are priced only when a search takes the key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

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
from dsx.space.enumerate import Arrays, take
from dsx.space.plan_rules import optimal_cut_covers
from dsx.space.recompute_values import NONE_CODE
from dsx.space.variants import Variants, varied_last
from dsx.spec.model import has_experts
from dsx.spec.ranges import Limit, Relation

_SAVES_MEMORY = "offload"  # of the choices that are searched last, the one whose default needs most memory


class SearchedSpace(NamedTuple):
    """The plans of a search that are cut in one way."""

    whole: Problem  # with all searched values of the choices that are searched last
    problem: Problem  # with their defaults
    space: Space


@dataclass(frozen=True)
class SearchSpaces:
    """The spaces of a search."""

    problem: Problem  # of all spaces but for their cuts, with the defaults of the choices `varied`
    varied: Sequence[Choice]  # those whose other values are searched last, as variants of plans
    parts: Sequence[SearchedSpace]

    @property
    def spaces(self) -> list[Space]:
        """The space of each part."""
        return [part.space for part in self.parts]

    @property
    def keys(self) -> Arrays:
        """The shard keys of all spaces."""
        return self.parts[0].space.keys

    @property
    def num_keys(self) -> int:
        """The number of shard keys."""
        return len(self.keys["tp"])

    @cached_property
    def size(self) -> int:
        """The number of candidates, with all variants."""
        size = sum(space.size for space in self.spaces)
        for whole, _, space in self.parts if self.varied else ():
            variants = Variants(space.blocks, space.bounds, self.varied, whole.workload.searched)
            size += space.blocks.size_with(variants.count)
        return size

    @property
    def with_least_memory(self) -> "SearchSpaces":
        """The spaces that have the plans of least memory, which no other value of `varied` has than of offload."""
        saves = any(choice.name == _SAVES_MEMORY for choice in self.varied)
        return self.enumerating(_SAVES_MEMORY) if saves else self

    def enumerating(self, name: str) -> "SearchSpaces":
        """Return the spaces with all values of one of the choices `varied`, which is then searched like the others."""
        values = {name: getattr(self.parts[0].whole.workload.searched, name)}
        parts: list[SearchedSpace] = []
        for whole, problem, space in self.parts:
            changed = _with_values(problem, values)
            parts.append(SearchedSpace(whole, changed, space.searching(changed)))
        varied = tuple(choice for choice in self.varied if choice.name != name)
        return SearchSpaces(_with_values(self.problem, values), varied, parts)

    @property
    def as_launched(self) -> "SearchSpaces":
        """The spaces of the plans that need the fewest domains and nodes, all full but the last.

        If a framework launches them, domains have consecutive ranks.
        """
        framework = self.problem.framework
        in_rank_order = framework is not None and not framework.unlimited
        spaces = [space.as_launched(problem.node_size, in_rank_order) for _, problem, space in self.parts]
        used = of_used_keys(self.problem, spaces)
        parts = [part._replace(space=space) for part, space in zip(self.parts, used, strict=True)]
        return SearchSpaces(self.problem, self.varied, parts)

    @cached_property
    def key_bounds(self) -> np.ndarray:
        """Return [U] the least seconds of a step of any plan of each shard key."""
        without_recomputation = recomputing(self.problem, [NONE_CODE])
        table = price_keys(without_recomputation, self.keys)
        return key_bounds(self.parts[0].space, table, without_recomputation.workload)

    def priced(self, where: np.ndarray | slice) -> list[PricedSpace]:
        """Return the parts for some of the shard keys with their layer costs.

        They are without values of `recompute` that others dominate.
        """
        keys = take(self.keys, where)
        table = price_keys(self.problem, keys)
        values = undominated(self.problem, table)
        table = of_values(table, values)
        found: list[PricedSpace] = []
        for whole, problem, space in self.parts:
            few, space_of_keys = recomputing(problem, values), space.of_keys(keys)
            found.append(PricedSpace(few, space_of_keys.searching(few), table, "float64", recomputing(whole, values)))
        return found


def spaces_of(
    problems: Sequence[Problem],
    num_gpus: int,
    global_batch_size: int,
    fix: Selection,
    limit: Limitation | None = None,
) -> SearchSpaces:
    """Return the spaces of problems that differ in their cuts alone.

    Where there are several, a plan has its best cut if one is known for its schedule, and else an even one.
    """
    first = problems[0]
    boxes = [] if first.framework is None else first.framework.boxes(has_experts(first.model.dimensions))
    varied = varied_last(first.workload.searched, [*fix, *(limit or ())], boxes)
    usual = {choice.name: (choice.default_code,) for choice in varied}
    usually = _with_values(first, usual)
    unscheduled = {name: values for name, values in fix.items() if name != "schedule"}  # parts have their own schedules
    parts: list[SearchedSpace] = []
    for whole, limited in _parts(problems, limit or {}):
        problem = _with_values(whole, usual)
        keys = parts[0].space.keys if parts else None
        space = Space(problem, [num_gpus], [global_batch_size], unscheduled, limited, keys)
        parts.append(SearchedSpace(whole, problem, space))
    # The keys that have plans are the same, and found faster, with few values of `recompute`.
    few = representatives(usually)
    used = of_used_keys(usually, [space.searching(recomputing(problem, few)) for _, problem, space in parts])
    return SearchSpaces(
        usually,
        varied,
        [part._replace(space=space.searching(part.problem)) for part, space in zip(parts, used, strict=True)],
    )


def _parts(problems: Sequence[Problem], limit: Limitation) -> list[tuple[Problem, Limitation]]:
    """Return the problem of each way to cut a plan, and the limits of its plans; optimal cuts come last."""
    if len(problems) == 1:
        return [(problems[0], limit)]
    even, optimal = problems
    schedules = even.workload.searched.schedule
    covered = tuple(code for code in schedules if optimal_cut_covers(code))
    others = tuple(code for code in schedules if code not in covered)
    found: list[tuple[Problem, Limitation]] = []
    if others:
        # One stage has no schedule, so that its plans are those of the first one.
        few = _limited(limit, "pp", ">=", 2) if covered else limit
        found.append((_with_values(even, {"schedule": others}), few))
    if covered:
        found.append((_with_values(optimal, {"schedule": covered}), limit))
    return found


def _limited(limit: Limitation, column: str, relation: Relation, bound: int) -> Limitation:
    return {**limit, column: [*limit.get(column, ()), Limit(relation, bound)]}


def _with_values(problem: Problem, values: Mapping[str, tuple[int, ...]]) -> Problem:
    """Return the problem with some values of its searched choices, by their codes."""
    return replace(problem, workload=replace(problem.workload, searched=with_values(problem.workload.searched, values)))
