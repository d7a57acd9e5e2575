"""A framework: the plans that it runs, as boxes of strategies and choices, and as filters of a search.

A box is a filter of shard keys and a filter of choices. Each key knows which boxes have it, as a set of bits, and the
choices of a block are those that one of these boxes has. So a search has each plan of overlapping boxes once. Boxes
that restrict keys alike share a bit.
"""

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsx.config.framework_file import BoxSpec, FrameworkColumns, FrameworkSpec, load_framework
from dsx.config.load import Given
from dsx.config.stack import WITHOUT, ColumnComparison
from dsx.config.sweep_fields import ColumnLimit, Limit, PlanLimit, ProductLimit
from dsx.errors import InputError, SpecError, did_you_mean
from dsx.notation.expressions import RELATIONS
from dsx.notation.library import check_strategy
from dsx.notation.sharded_layer import ALL_GATHER, ALL_TO_ALL, RING
from dsx.plans.choices import (
    BY_NAME,
    CHOICE_COLUMNS,
    KEY_COLUMNS,
    NAMED,
    PLACEMENT_COLUMNS,
    PLAN_COLUMNS,
    REGION_NAMES,
    VALUES,
    names_in,
)
from dsx.plans.experts import Truth, Whole
from dsx.records import Bool, Int

_EXCHANGES = (ALL_GATHER, ALL_TO_ALL, RING)
_CHOICES = tuple(
    name for name in PLAN_COLUMNS if name in (*KEY_COLUMNS, *PLACEMENT_COLUMNS) and name not in ("strategy", "num_gpus")
)
_COMPARED = 8  # values of a filter that are compared one by one
_NUMBERS = tuple(name for name in _CHOICES if name not in NAMED)
_COLUMNS = FrameworkColumns(_CHOICES, tuple(name for name in PLAN_COLUMNS if name not in _CHOICES), NAMED)


def read_framework(reference: Given, near: Path | None = None) -> FrameworkSpec:
    """Return a framework, given by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError with all faults of the file: an unknown column, value or strategy.
    """
    framework = load_framework(reference, _COLUMNS, near)
    file = Path(reference) if isinstance(reference, str | Path) else near
    faults: list[str] = []
    boxes = [((), framework), *((("runs", number), box) for number, box in enumerate(framework.runs))]
    named = [(name, (*path, "strategy")) for path, part in boxes for name in part.strategy or ()]
    for name, path in [*named, *((name, ("tp_parts",)) for name in framework.tp_parts)]:
        try:
            check_strategy(name, file, f"{framework.place(*path)}: {path[-1]}")
        except InputError as error:
            faults.append(str(error))
    generations = [(("on_generation", name), part) for name, part in framework.on_generation.items()]
    sections = [((*path, "fix"), part.fix) for path, part in [*boxes, *generations]]
    for path, fix in [*sections, (("with_tied_head",), framework.with_tied_head)]:
        for column, values in fix.items():
            try:
                for value in values:
                    BY_NAME[column].code(value)
            except SpecError as error:
                faults.append(f"{framework.place(*path, column)}: {path[-1]}: {error}")
    for comparison in (comparison for need in framework.needs for comparison in need):
        if fault := _fault_of_need(comparison):
            faults.append(f"{framework.place('needs')}: needs: {comparison}: {fault}")
    for name in {name for region, beside in framework.recomputed_beside.items() for name in (region, *beside)}:
        if name not in REGION_NAMES:
            place = framework.place("recomputed_beside")
            faults.append(f"{place}: recomputed_beside: unknown region {name!r}{did_you_mean(name, REGION_NAMES)}")
    for kind in dict.fromkeys(kind for kinds in framework.cp_exchanges.values() for kind in kinds):
        if kind not in _EXCHANGES:
            place = framework.place("cp_exchanges")
            hint = f"{did_you_mean(kind, _EXCHANGES)} (known: {', '.join(_EXCHANGES)})"
            faults.append(f"{place}: cp_exchanges: unknown exchange {kind!r}{hint}")
    if faults:
        raise SpecError("\n".join(faults))
    return framework


def _fault_of_need(comparison: ColumnComparison) -> str:
    """Return what is wrong with a comparison: boxes compare numbers of the shard key, or of the other choices."""
    if comparison.relation == WITHOUT:
        return "a framework compares numbers, as in 'pp <= 8' or 'zero_replicas < dp'"
    bound = comparison.with_what[0]
    columns = [comparison.column] if bound.isdecimal() else [comparison.column, bound]
    for name in columns:
        if name not in _NUMBERS:
            return f"{name!r} is no column of numbers{did_you_mean(name, _NUMBERS)}"
    if len({name in KEY_COLUMNS for name in columns}) > 1:
        return f"of these columns only one belongs to the shard key ({', '.join(KEY_COLUMNS)})"
    return ""


def of_regions(framework: FrameworkSpec, regions: Collection[str]) -> FrameworkSpec:
    """Return a framework for a model with some regions: its boxes lack recomputation that it does not run there."""
    never = {region for region, beside in framework.recomputed_beside.items() if not {*beside} <= {*regions}}
    if not never or "recompute" in framework.fix:
        return framework
    run = [value for value in VALUES if not never & names_in(value)]
    boxes: list[BoxSpec] = []
    for box in framework.runs:
        values = [value for value in box.fix.get("recompute", run) if value in run]
        boxes.append(box.model_copy(update={"fix": box.fix | {"recompute": values}}))
    return framework.model_copy(update={"runs": boxes})


Filter = Callable[[Mapping[str, Int[np.ndarray, "rows"]]], Bool[np.ndarray, "rows"]]
Selection = Mapping[str, Sequence[int | str]]
Limitation = Mapping[str, Sequence[Limit]]


@dataclass(frozen=True, slots=True)
class _Selecting:
    """A filter of columns; equal ones share what is cached of them."""

    columns: tuple[tuple[str, tuple[int | str, ...] | None, tuple[PlanLimit, ...]], ...]  # with values and bounds

    def __call__(self, table: Mapping[str, Int[np.ndarray, "rows"]]) -> Bool[np.ndarray, "rows"]:
        good = np.ones(len(next(iter(table.values()))), dtype=bool)
        for column, values, bounds in self.columns:
            if column not in table:
                continue
            if values is not None and len(values) <= _COMPARED:
                # Tables of placements are small and many, and this is several times as fast.
                good &= functools.reduce(operator.or_, [table[column] == value for value in values], np.False_)
            elif values is not None:
                good &= np.isin(table[column], np.array(values))
            for bound in bounds:
                good &= _within(bound, table[column], table)
        return good


def selecting(columns: Sequence[str], fix: Selection, limit: Mapping[str, Sequence[PlanLimit]]) -> Filter:
    """Return the filter of fixed values, as codes, and of bounds, for tables that have some of `columns`."""
    return _Selecting(
        tuple(
            (name, tuple(fix[name]) if name in fix else None, tuple(limit.get(name, ())))
            for name in columns
            if name in fix or name in limit
        )
    )


def _within(bound: PlanLimit, value: Whole, columns: Mapping[str, Any]) -> Truth:
    """Return whether values are within a bound, elementwise, as far as `columns` tell."""
    if isinstance(bound, ProductLimit):
        return bound.number % (value * columns.get(bound.column, 1)) == 0
    other = columns.get(bound.column) if isinstance(bound, ColumnLimit) else bound.bound
    return True if other is None else RELATIONS[bound.relation](value, other)


@dataclass(frozen=True, slots=True)
class Box:
    """Every combination of some shard keys and the choices that one of some filters keeps."""

    keys: Filter
    choices: tuple[Filter, ...]
    restricted: frozenset[str] = frozenset()  # columns


@dataclass(frozen=True, slots=True)
class Boxes:
    """The plans of a framework."""

    boxes: tuple[Box, ...]

    def of_keys(self, keys: Mapping[str, Int[np.ndarray, "keys"]]) -> Int[np.ndarray, "keys"]:
        """Return the boxes that have each key: bit i is box i."""
        bits = [box.keys(keys).astype(np.int64) << bit for bit, box in enumerate(self.boxes)]
        return functools.reduce(operator.or_, bits, np.zeros(len(keys["strategy"]), dtype=np.int64))

    def keep(self, boxes: int, choices: Mapping[str, Int[np.ndarray, "plans"]]) -> Bool[np.ndarray, "plans"]:
        """Return the mask of the choices that go with keys of some `boxes`."""
        kept = np.zeros(len(next(iter(choices.values()))), dtype=bool)
        for bit, box in enumerate(self.boxes):
            if boxes >> bit & 1:
                for choices_of_box in box.choices:
                    kept |= choices_of_box(choices)
        return kept

    @property
    def restricted(self) -> frozenset[str]:
        """The columns that a box restricts."""
        return frozenset[str]().union(*(box.restricted for box in self.boxes))


EVERYTHING = Boxes((Box(selecting((), {}, {}), (selecting((), {}, {}),)),))


def boxes_of(framework: FrameworkSpec | None, strategies: Sequence[str], experts: bool) -> Boxes:
    """Return the boxes of a framework for a model with or without `experts`; without one, everything is in a box."""
    if framework is None:
        return EVERYTHING
    by_keys: dict[tuple[Filter, tuple[str, ...] | None], list[BoxSpec]] = {}
    for box in framework.boxes(experts):
        fix = codes_of(box)
        if box.strategy is not None:
            fix["strategy"] = [code for code, name in enumerate(strategies) if name in box.strategy]
        strategies_of_box = None if box.strategy is None else tuple(box.strategy)
        by_keys.setdefault((selecting(KEY_COLUMNS, fix, box.limit), strategies_of_box), []).append(box)
    boxes: list[Box] = []
    for (of_keys, _), specs in by_keys.items():  # boxes that restrict keys alike
        bounds = [bound for spec in specs for of_column in spec.limit.values() for bound in of_column]
        restricted = {name for spec in specs for name in (*spec.fix, *spec.limit)}
        restricted |= {bound.column for bound in bounds if not isinstance(bound, Limit)}
        restricted |= set() if specs[0].strategy is None else {"strategy"}
        choices = tuple(selecting(CHOICE_COLUMNS, codes_of(spec), spec.limit) for spec in specs)
        boxes.append(Box(of_keys, choices, frozenset(restricted)))
    return Boxes(tuple(boxes))


def codes_of(spec: BoxSpec) -> dict[str, list[int]]:
    """Return the values that a box fixes as codes, by column."""
    return {column: [BY_NAME[column].code(value) for value in values] for column, values in spec.fix.items()}


def plans_of(framework: FrameworkSpec, strategies: Sequence[str], experts: bool) -> list[BoxSpec]:
    """Return the boxes that have one of some strategies, for a model with or without experts."""
    return [
        box
        for box in framework.boxes(experts)
        if box.strategy is None or any(name in strategies for name in box.strategy)
    ]


def compatible(box: BoxSpec, fix: Selection) -> bool:
    """Return whether a box has plans with one of the values of each column, as far as these columns tell."""
    return all(any(_has(box, column, value, {}) for value in values) for column, values in fix.items())


def _has(box: BoxSpec, column: str, value: Any, plan: Mapping[str, Any]) -> bool:
    bounds = box.limit.get(column, ())
    return value in box.fix.get(column, [value]) and all(_within(bound, value, plan) for bound in bounds)


def broken(box: BoxSpec, plan: Mapping[str, Any]) -> list[str]:
    """Return the columns of a plan, by column with names as names, whose values a box does not have."""
    of_strategy = [] if box.strategy is None or plan["strategy"] in box.strategy else ["strategy"]
    restricted = dict.fromkeys([*box.fix, *box.limit])
    return of_strategy + [column for column in restricted if not _has(box, column, plan[column], plan)]
