"""Effects that some plans lack: overlap that software gives to some plans only, graphs that it captures for some.

A condition of the shard key decides a parameter key by key, before a layer is priced. What a condition of the step
decides is not known then, so the passes of a layer are priced with the effect and, as `LayerCosts.without`, without
it; each plan has one of them. An effect never makes a plan slower, so a layer with all of them bounds the others.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.space.choices import SEARCHED_COLUMNS
from dsx.space.codes import Searched
from dsx.space.conditions import Condition, Test
from dsx.spec.conditions import worse

OF_STEP = ("pp_overlap", "dp_overlap")  # that no layer takes: `of_step`
Fields = tuple[str, ...]  # of an assumption set, whose effects a plan lacks


def of_keys(assumptions: Assumptions, columns: Mapping[str, Any], one: Any) -> Assumptions:
    """Return parameters with the effects of shard keys, [U] where they depend on the key.

    `columns` has those of the axes that divide the layer; of the others a key has `one`, 1.0 by key.
    """
    found: dict[str, Any] = {}
    for condition in assumptions.conditions:
        if condition.of_keys:
            known = {name: columns.get(name, one) for name in condition.columns}
            value = getattr(assumptions, condition.field)
            found[condition.field] = xp.where(condition.holds(known), value, _without(condition, value))
    return replace(assumptions, **found)


def without(assumptions: Assumptions, fields: Fields) -> Assumptions:
    """Return parameters without some effects."""
    found = {
        condition.field: _without(condition, getattr(assumptions, condition.field))
        for condition in assumptions.conditions
        if condition.field in fields
    }
    return replace(assumptions, **found)


def of_plan(assumptions: Assumptions, plan: Mapping[str, int]) -> Assumptions:
    """Return parameters without the effects that conditions of the step deny to one plan; names in it are codes."""
    steps = [condition for condition in assumptions.conditions if not condition.of_keys]
    return without(assumptions, tuple(condition.field for condition in steps if not condition.holds(plan)))


def of_step(assumptions: Assumptions, field: str, choices: Any, searched: Searched) -> Any:
    """Return an overlap that a step takes and no layer, as plans have it; `choices` has the columns of the step.

    It is the number 0.0 if no plan of the search can have any.
    """
    value = getattr(assumptions, field)
    for condition in of_steps(assumptions.conditions, searched):
        if condition.field == field:
            if () in condition.needs and condition.otherwise == 0.0:
                return 0.0
            held = condition.holds({name: getattr(choices, name) for name in condition.columns})
            value = xp.where(held, value, _without(condition, value))
    return value


def _without(condition: Condition, value: Any) -> Any:
    return worse(condition.field, value, xp.full_like(value, condition.otherwise), xp.minimum, xp.maximum)


def of_steps(conditions: Sequence[Condition], searched: Searched) -> tuple[Condition, ...]:
    """Return the conditions that some plans of a search may not meet, without what its searched values decide."""
    narrowed = (_narrowed(condition, searched) for condition in conditions if not condition.of_keys)
    return tuple(condition for condition in narrowed if condition.needs)


def _narrowed(condition: Condition, searched: Searched) -> Condition:
    needs: list[tuple[Test, ...]] = []
    for need in condition.needs:
        tests: list[Test] = []
        for test in need:
            codes = getattr(searched, test.column) if test.column in SEARCHED_COLUMNS else ()
            if not codes or isinstance(test.bound, str):
                tests.append(test)
                continue
            held = tuple(code for code in codes if test.holds({test.column: code}))
            if len(held) == len(codes):
                break
            tests += [Test(test.column, "in", held)] if held else []
        else:
            needs.append(tuple(tests))
    return replace(condition, needs=tuple(needs))


def lacked(conditions: Sequence[Condition], fields: Sequence[str]) -> tuple[Fields, ...]:
    """Return the sets of effects of `fields` that plans may lack together, by conditions of the step."""
    names = [condition.field for condition in conditions if condition.field in fields]
    return tuple(together for size in range(1, len(names) + 1) for together in combinations(names, size))


def of_plans(
    sets: Sequence[Fields], conditions: Sequence[Condition], columns: Mapping[str, Any]
) -> Callable[[Sequence[Any]], Any]:
    """Return what chooses the value of each plan: of values with all effects first, then without each of `sets`.

    `columns` has the choices of the step, names as codes.
    """
    names = {name for together in sets for name in together}
    holds = {one.field: one.holds(columns) for one in conditions if one.field in names}
    lacking = [
        functools.reduce(
            operator.and_, [xp.logical_not(held) if name in together else held for name, held in holds.items()]
        )
        for together in sets
    ]

    def chosen(values: Sequence[Any]) -> Any:
        found, *others = values
        for lack, value in zip(lacking, others, strict=True):
            found = xp.where(lack, value, found)
        return found

    return chosen
