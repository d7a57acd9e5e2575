"""Whether plans meet the conditions of an assumption set's effects (`dsx.spec.conditions`).

A condition of the shard key has columns of axes and their shares alone, one of the step only columns of the step. So
one decides what a layer costs, the other which of its costs a plan has.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.graph.expressions import RELATIONS
from dsx.graph.notation import AXES
from dsx.space.choices import BY_NAME, KEY_COLUMNS, STEP_COLUMNS
from dsx.space.recompute_values import JOINED
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.conditions import PLATFORM, WITHOUT, Comparison, Need, worse

_OF_KEYS = tuple(name for name in KEY_COLUMNS if name.removesuffix("_nvs") in AXES)
_OF_STEPS = tuple(name for name in STEP_COLUMNS if name not in ("num_gpus", "global_batch_size"))


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison of a column with codes: a number, another column, or the codes of some names."""

    column: str
    relation: str  # of RELATIONS; "in" for codes
    bound: int | str | tuple[int, ...]

    def holds(self, columns: Mapping[str, Any]) -> Any:
        """Return whether it holds, elementwise."""
        value = columns[self.column]
        if isinstance(self.bound, tuple):
            return functools.reduce(operator.or_, [value == code for code in self.bound])
        return RELATIONS[self.relation](value, columns[self.bound] if isinstance(self.bound, str) else self.bound)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a field of an assumption set needs, and its value where a plan lacks that."""

    field: str
    needs: tuple[tuple[Test, ...], ...]  # all of them; of each one test
    otherwise: float

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        tests = [test for need in self.needs for test in need]
        others = [test.bound for test in tests if isinstance(test.bound, str)]
        return frozenset([*(test.column for test in tests), *others])

    @property
    def of_keys(self) -> bool:
        """Whether the shard key decides it; else the choices of the step do."""
        return self.columns <= {*_OF_KEYS}

    def holds(self, columns: Mapping[str, Any]) -> Any:
        """Return whether plans meet it, elementwise; names in `columns` are codes."""
        needs = [functools.reduce(operator.or_, [test.holds(columns) for test in need], False) for need in self.needs]
        return functools.reduce(operator.and_, needs)


def conditions_of(spec: AssumptionsSpec) -> tuple[Condition, ...]:
    """Return the conditions of an assumption set; its needs of the platform, which `on_platform` settles, count as met.

    Raises SpecError, with its file and line, for a column or a value that no plan has, and for a condition of both the
    shard key and the step.
    """
    found: list[Condition] = []
    for field, stated in spec.conditions.stated.items():
        fault = functools.partial(spec.fault, ("conditions", field, "needs"))
        of_plans = filter(_of_plans, stated.needs)
        needs = tuple(tuple(_test(comparison, fault) for comparison in need) for need in of_plans)
        condition = Condition(field, needs, float(stated.otherwise))
        if not needs:
            continue
        if not condition.of_keys and not condition.columns <= {*_OF_STEPS}:
            both = ", ".join(sorted(condition.columns))
            raise fault(f"{both}: a condition has either degrees and shares of tp, tp2, cp and ep, or other choices")
        found.append(condition)
    return tuple(found)


def on_platform(spec: AssumptionsSpec, platform: str) -> AssumptionsSpec:
    """Return an assumption set for devices of a platform: its effects without their needs of that."""

    def met(need: Need) -> bool:
        return any(
            comparison.column == PLATFORM and RELATIONS[comparison.relation](platform, *comparison.with_what)
            for comparison in need
        )

    def settle(needs: Sequence[Need]) -> list[Need]:
        open_needs = [need for need in needs if not met(need)]
        return [tuple(one for one in need if one.column != PLATFORM) for need in open_needs]

    changed: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for field, stated in spec.conditions.stated.items():
        needs = settle(stated.needs)
        if not all(needs):
            changed[field] = worse(field, getattr(spec, field), stated.otherwise, min, max)
        left[field] = stated.model_copy(update={"needs": needs}) if needs and all(needs) else None
    return spec.settled(changed, spec.conditions.model_copy(update=left)) if left else spec


def unmet_needs(spec: AssumptionsSpec, plan: Mapping[str, Any]) -> dict[str, list[Need]]:
    """Return the needs that a plan does not meet, by field of an assumption set; names in `plan` are codes.

    Needs of the platform, which `on_platform` settles, are left out.
    """
    found: dict[str, list[Need]] = {}
    for condition in conditions_of(spec):
        needs = [need for need in spec.conditions.stated[condition.field].needs if _of_plans(need)]
        found[condition.field] = [
            need
            for need, tests in zip(needs, condition.needs, strict=True)
            if not any(test.holds(plan) for test in tests)
        ]
    return {field: needs for field, needs in found.items() if needs}


def _of_plans(need: Need) -> bool:
    return all(comparison.column != PLATFORM for comparison in need)


def for_plan(spec: AssumptionsSpec, plan: Mapping[str, Any] | None) -> AssumptionsSpec:
    """Return an assumption set with the effects that a plan has, and no conditions; names in `plan` are codes.

    An unknown plan, None, has no effect that needs something of plans.
    """
    if not spec.conditions.stated:
        return spec
    changed: dict[str, Any] = {}
    for condition in conditions_of(spec):
        if plan is None or not condition.holds(plan):
            value = getattr(spec, condition.field)
            changed[condition.field] = worse(condition.field, value, condition.otherwise, min, max)
    return spec.settled(changed, type(spec.conditions)())


def _test(comparison: Comparison, fault: Callable[[str], SpecError]) -> Test:
    column, relation = comparison.column, comparison.relation
    known = (*_OF_KEYS, *_OF_STEPS)
    if column not in known:
        raise fault(f"unknown column {column!r}{did_you_mean(column, known)}")
    choice = BY_NAME[column]
    if relation == WITHOUT:
        parts = {part for name in choice.names for part in name.split(JOINED)}
        for name in comparison.with_what:
            if name not in parts:
                raise fault(f"{column} has no {name!r}{did_you_mean(name, parts)}")
        left = [name for name in choice.names if not {*comparison.with_what} & {*name.split(JOINED)}]
        return Test(column, "in", tuple(map(choice.code, left)))
    (bound,) = comparison.with_what
    if choice.names:
        try:
            code = choice.code(bound)
        except SpecError as error:
            raise fault(str(error)) from None
        return Test(column, relation, code)
    if bound in known:
        return Test(column, relation, bound)
    if not bound.isdecimal():
        raise fault(f"{column} {relation} {bound}: expected a whole number or a column{did_you_mean(bound, known)}")
    return Test(column, relation, int(bound))
