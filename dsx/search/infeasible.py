"""Why a space has no candidate: the values that are stated of the plans, and leave none.

A stated value is to blame if there are candidates without it, beside everything else that is stated. Where no single
one is, the values are taken one after the other, degrees first, and to blame is each that leaves nothing of what the
ones before it left. The nearest value is the one that the candidates without it have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dsx.pricing.problem import Problem
from dsx.search.space import Limitation, Selection, Space
from dsx.space.choices import BY_NAME, CHOICE_COLUMNS, CODES, KEY_COLUMNS, MODEL_AXES, OPEN
from dsx.space.expert_nesting import REPLICA_AXES
from dsx.space.plan_rules import OPTIMAL_SCHEDULES

Section = Literal["fix", "limit", "fixed"]

# Degrees first, and what others depend on before these.
_ORDER = (*KEY_COLUMNS, *CHOICE_COLUMNS)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What is stated of a column and leaves no candidate; `section` is that of the sweep, or of the assumption set."""

    section: Section
    column: str
    said: str  # "pp = 5 or 7", "pp >= 100"
    rule: str  # what a value must be
    nearest: str  # "pp = 4"; empty if no value leaves a candidate
    alone: bool  # whether that change is enough


@dataclass(frozen=True, slots=True)
class _Statement:
    section: Section
    column: str
    values: tuple[Any, ...]  # numbers and names, or bounds

    @property
    def said(self) -> str:
        if self.section == "limit":
            return " and ".join(f"{self.column} {bound.relation} {bound.bound}" for bound in self.values)
        return f"{self.column} = {' or '.join(map(str, self.values))}"


@dataclass(frozen=True, slots=True)
class _Search:
    problem: Problem
    num_gpus: Sequence[int]
    global_batch_size: Sequence[int]

    def space(self, stated: Sequence[_Statement], others_open: Sequence[str]) -> Space:
        """Return the space of some statements; of the columns `others_open` any value goes, if nothing is stated."""
        fix = {one.column: one.values for one in stated if one.section == "fix"}
        limit = {one.column: one.values for one in stated if one.section == "limit"}
        values = {one.column: one.values for one in stated if one.section != "limit"}
        free = {*others_open, *limit}
        # What is not stated takes a value that restricts no other.
        unstated = {name: BY_NAME[name].values if name in free else (BY_NAME[name].default,) for name in OPEN}
        opened = unstated | {name: values[name] for name in OPEN if name in values}
        return Space(self.problem.opening(opened), self.num_gpus, self.global_batch_size, fix, limit)


def blockers(
    problem: Problem,
    num_gpus: Sequence[int],
    global_batch_size: Sequence[int],
    fix: Selection | None = None,
    limit: Limitation | None = None,
) -> list[Blocker]:
    """Return what leaves no candidate of an empty space; nothing if the GPUs, the batch and the strategies do.

    `problem` is as it was made: what `fix` opens, its assumption set may hold fixed.
    """
    held = {name: value for name, value in problem.assumptions_spec.fixed.items() if name not in (fix or {})}
    statements = [
        *(_Statement("fixed", name, (value,)) for name, value in held.items()),
        *(_Statement("fix", name, tuple(values)) for name, values in (fix or {}).items()),
        *(_Statement("limit", name, tuple(bounds)) for name, bounds in (limit or {}).items()),
    ]
    statements.sort(key=lambda one: (_ORDER.index(one.column) if one.column in _ORDER else 0, one.section))
    search = _Search(problem, num_gpus, global_batch_size)
    if not search.space([], ["ep"]).size:
        return []
    single = [_blocker(search, one, [o for o in statements if o is not one], alone=True) for one in statements]
    found = [blocker for blocker in single if blocker.nearest]
    return found or _one_by_one(search, statements)


def _one_by_one(search: _Search, statements: Sequence[_Statement]) -> list[Blocker]:
    kept: list[_Statement] = []
    found: list[Blocker] = []
    for one in statements:
        if search.space([*kept, one], ["ep"]).size:
            kept.append(one)
        else:
            found.append(_blocker(search, one, kept, alone=False))
    return found


def _blocker(search: _Search, one: _Statement, others: Sequence[_Statement], alone: bool) -> Blocker:
    values = _values(search.space(others, ["ep", one.column]), one.column)
    return Blocker(one.section, one.column, one.said, _rule(one.column, search.problem), _nearest(one, values), alone)


def _values(space: Space, column: str) -> np.ndarray:
    """Return the values of a column that candidates of a space have."""
    if not space.size:
        return np.zeros(0, dtype=np.int64)
    if column in KEY_COLUMNS:
        return np.unique(space.keys[column][space.blocks.keys])
    blocks = space.blocks
    return np.unique(blocks.choices(blocks.segments(0, len(blocks)))[column])


def _nearest(one: _Statement, values: np.ndarray) -> str:
    if not len(values):
        return ""
    if one.column in CODES:
        return f"{one.column} = {' or '.join(CODES[one.column][value] for value in values)}"
    wanted = [value.bound if one.section == "limit" else int(value) for value in one.values]
    near = min(values.tolist(), key=lambda value: (min(abs(value - number) for number in wanted), value))
    return f"{one.column} = {near}"


def _rule(column: str, problem: Problem) -> str:
    """Return what a value of a column must be for a search to have it."""
    strategies = " and ".join(problem.strategies)
    if column.endswith("_nvs"):
        axis = column.removesuffix("_nvs")
        domain = f"together the shares fill a fast domain of {problem.nvs_size} GPUs as far as the GPUs allow"
        return f"a share divides {axis}, and {domain}"
    if column in MODEL_AXES and not any(column in layer.axes for kinds in problem.kinds for layer in kinds):
        return f"nothing of {problem.model.name} is divided over {column} under {strategies}"
    if column in REPLICA_AXES:
        return f"{column} divides num_gpus, and what the rules of {strategies} say"
    rule = _RULES_OF_ANY_CUT.get(column) if problem.optimal_cuts else None
    return (rule or BY_NAME[column].rule).format(
        layers=problem.num_layers, stages=problem.limits().max_stages, values=_or(BY_NAME[column].values)
    )


def _or(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}" if values else ""


# In place of those where each plan has the cut that is best for it.
_RULES_OF_ANY_CUT: dict[str, str] = {
    "pp": "pp divides num_gpus and is at most {stages}, the layers with both ends",
    "vpp": "partition optimal covers vpp = 1",
    "schedule": f"partition optimal covers {OPTIMAL_SCHEDULES}",
}
