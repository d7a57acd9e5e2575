"""The space of a search: its bounds, its key table and its blocks."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from dsx.errors import SpecError
from dsx.graph.expressions import RELATIONS
from dsx.pricing.problem import Problem
from dsx.space.blocks import Blocks
from dsx.space.choices import BY_NAME, CHOICE_COLUMNS, KEY_COLUMNS, SEARCHED_COLUMNS
from dsx.space.enumerate import Arrays, Bounds, shard_keys
from dsx.space.tiers import units
from dsx.spec.ranges import Limit

Selection = Mapping[str, Sequence[int | str]]
Limitation = Mapping[str, Sequence[Limit]]


class Space:
    """All candidates of a problem at given GPU counts and batch sizes, as keys and blocks."""

    def __init__(
        self,
        problem: Problem,
        num_gpus: Sequence[int],
        global_batch_size: Sequence[int],
        fix: Selection | None = None,
        limit: Limitation | None = None,
    ) -> None:
        problem.check_sizes(num_gpus)
        fixed = _searched_only(fix or {}, problem)
        limited = dict(limit or {})
        for column in limited:
            if fault := fault_of_limit(column):
                raise SpecError(f"limit: {fault}")
        self.bounds = Bounds(
            num_gpus=tuple(num_gpus),
            global_batch_size=tuple(global_batch_size),
            sequence_length=problem.sequence_length,
            limits=problem.limits(),
            searched=problem.workload.searched,
            keep_keys=_filter(KEY_COLUMNS, fixed, limited),
            keep_choices=_filter(CHOICE_COLUMNS, fixed, limited),
            expert_axes=problem.expert_axes,
            tiers=tuple(tier.name for tier in problem.cluster.network.middle),
            units=units(problem.cluster.network),
        )
        dimensions = problem.model.dimensions
        self.keys: Arrays = shard_keys([(kinds, dimensions) for kinds in problem.kinds], self.bounds)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks, with all candidates in a fixed order."""
        return Blocks(self.keys, self.bounds)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self.blocks.size

    def split(self, num_keys: int) -> "list[Space]":
        """Return spaces of at most `num_keys` shard keys each that together have all candidates."""
        count = len(self.keys["tp"])
        if count <= num_keys:
            return [self]
        found = []
        for start in range(0, count, num_keys):
            part = copy(self)
            part.keys = {name: column[start : start + num_keys] for name, column in self.keys.items()}
            vars(part).pop("blocks", None)  # the blocks of the whole space, if they were made
            found.append(part)
        return found


def _searched_only(fix: Selection, problem: Problem) -> dict[str, Sequence[int | str]]:
    """Return the fixed columns, names as codes; raises SpecError for a column that is not searched."""
    result: dict[str, Sequence[int | str]] = {}
    for column, values in fix.items():
        if fault := fault_of_fix(column, values):
            raise SpecError(f"fix: {fault}")
        result[column] = values
        if column in SEARCHED_COLUMNS:
            result[column] = [BY_NAME[column].code(value) for value in values]
            known = getattr(problem.workload.searched, column)
            if known and (wrong := set(result[column]) - set(known)):
                raise SpecError(f"fix: {column} = {min(wrong)} is not a choice of this problem: see Problem.searching")
    return result


def fault_of_fix(column: str, values: Sequence[int | str]) -> str:
    """Return why a column cannot be fixed to these values, whatever the other settings; empty if it can."""
    if column not in (*KEY_COLUMNS, *CHOICE_COLUMNS):
        return f"{column!r} is not a searched choice, so it cannot be fixed"
    if column in SEARCHED_COLUMNS:
        try:
            [BY_NAME[column].code(value) for value in values]
        except SpecError as error:
            return str(error)
    elif words := [value for value in values if isinstance(value, str)]:
        return f"{column} = {words[0]!r} must be a whole number"
    return ""


def fault_of_limit(column: str) -> str:
    """Return why a column cannot be limited; empty if it can."""
    searched = column in (*KEY_COLUMNS, *CHOICE_COLUMNS)
    return "" if searched else f"{column!r} is not a searched choice, so it cannot be limited"


def _filter(
    columns: Sequence[str], fix: Selection, limit: Limitation
) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return the filter of `fix` and `limit` for tables that have some of `columns`."""

    def keep(table: Mapping[str, np.ndarray]) -> np.ndarray:
        good = np.ones(len(next(iter(table.values()))), dtype=bool)
        for column in (name for name in columns if name in table):
            if column in fix:
                good &= np.isin(table[column], np.array(fix[column]))
            for bound in limit.get(column, ()):
                good &= RELATIONS[bound.relation](table[column], bound.bound)
        return good

    return keep
