"""The space of a search: its bounds, its key table and its blocks."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from dsx.errors import SpecError
from dsx.pricing.problem import Problem
from dsx.pricing.same_plans import first_of_each_plan
from dsx.space.blocks import Blocks
from dsx.space.boxes import Limitation, Selection, selecting
from dsx.space.choices import BY_NAME, CHOICE_COLUMNS, KEY_COLUMNS, SEARCHED_COLUMNS
from dsx.space.enumerate import Arrays, Bounds, shard_keys, take
from dsx.space.tiers import units


class Space:
    """All candidates of a problem at given GPU counts and batch sizes, as keys and blocks.

    `keys` are those of another space that differs in its cuts, its searched values or its limits of choices alone.
    """

    def __init__(
        self,
        problem: Problem,
        num_gpus: Sequence[int],
        global_batch_size: Sequence[int],
        fix: Selection | None = None,
        limit: Limitation | None = None,
        keys: Arrays | None = None,
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
            keep_keys=selecting(KEY_COLUMNS, fixed, limited),
            keep_choices=selecting(CHOICE_COLUMNS, fixed, limited),
            expert_axes=problem.expert_axes,
            tiers=tuple(tier.name for tier in problem.cluster.network.middle),
            units=units(problem.cluster.network),
            boxes=problem.boxes,
        )
        if keys is None:
            dimensions = problem.model.dimensions
            keys = shard_keys([(kinds, dimensions) for kinds in problem.kinds], self.bounds)
        self.keys: Arrays = keys
        self.strategies_before: frozenset[int] = frozenset()  # those with plans before each plan was left to the first

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks, with all candidates in a fixed order."""
        return Blocks(self.keys, self.bounds)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self.blocks.size

    def searching(self, problem: Problem) -> "Space":
        """Return the space with the searched values of `problem`, which are some of its own, of choices of the step."""
        part = copy(self)
        part.bounds = replace(self.bounds, searched=problem.workload.searched)
        vars(part).pop("blocks", None)  # the blocks of all values, if they were made
        return part

    def as_launched(self, node_size: int, in_rank_order: bool) -> "Space":
        """Return the space of the plans that need the fewest domains and nodes, or of those that are in rank order too.

        Nodes have `node_size` GPUs, and all but the last are full. That divides the size of a fast domain.
        """
        part = copy(self)
        limits = replace(self.bounds.limits, node_size=node_size, in_rank_order=in_rank_order)
        part.bounds = replace(self.bounds, limits=limits)
        vars(part).pop("blocks", None)
        return part

    def split(self, num_keys: int) -> "list[Space]":
        """Return spaces of at most `num_keys` shard keys each that together have all candidates."""
        count = len(self.keys["tp"])
        if count <= num_keys:
            return [self]
        starts = range(0, count, num_keys)
        return [self.of_keys(take(self.keys, slice(start, start + num_keys))) for start in starts]

    def of_keys(self, keys: Arrays) -> "Space":
        """Return the space of other keys."""
        part = copy(self)
        part.keys = keys
        for made in ("blocks", "strategies"):  # of the keys before
            vars(part).pop(made, None)
        return part

    @cached_property
    def strategies(self) -> frozenset[int]:
        """The codes of the strategies of all candidates."""
        return frozenset(np.unique(self.keys["strategy"][self.blocks.keys]).tolist())


def of_used_keys(problem: Problem, spaces: Sequence[Space]) -> list[Space]:
    """Return spaces that share their keys without those that no candidate has.

    Where the problem is `merged`, they are also without those that are the plan of an earlier strategy.
    """
    used = np.unique(np.concatenate([space.blocks.keys for space in spaces]))
    keys = take(spaces[0].keys, used)
    if problem.merged:
        keys = first_of_each_plan(problem, keys)
    all_used = len(keys["tp"]) == len(spaces[0].keys["tp"])
    found = [copy(space) if all_used else space.of_keys(keys) for space in spaces]
    for space, before in zip(found, spaces, strict=True):
        space.strategies_before = before.strategies
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
