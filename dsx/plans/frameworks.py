"""A framework: the plans that it runs, as boxes of strategies and choices.

A framework from its file, whose columns, values and strategies are checked.

The boxes of a framework as filters of a search, and whether a plan is in one of them.

A box is a filter of shard keys and a filter of choices. Each key knows which boxes have it, as a set of bits, and the
choices of a block are those that one of these boxes has. So a search has each plan of overlapping boxes once. Boxes
that restrict keys alike share a bit.
"""

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
    JOINED,
    KEY_COLUMNS,
    NAMED,
    PLACEMENT_COLUMNS,
    PLAN_COLUMNS,
    REGION_NAMES,
    VALUES,
)

_RECOMPUTE = "recompute"
_EXCHANGES = (ALL_GATHER, ALL_TO_ALL, RING)
_CHOICES = tuple(
    name for name in PLAN_COLUMNS if name in (*KEY_COLUMNS, *PLACEMENT_COLUMNS) and name not in ("strategy", "num_gpus")
)
_NUMBERS = tuple(name for name in _CHOICES if name not in NAMED)
_COLUMNS = FrameworkColumns(
    choices=_CHOICES,
    job=tuple(name for name in PLAN_COLUMNS if name not in _CHOICES),
    named=NAMED,
)


def read_framework(given: Given, near: Path | None = None) -> FrameworkSpec:
    """Return a framework, given by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError with all faults of the file: an unknown column, value or strategy.
    """
    framework = load_framework(given, _COLUMNS, near)
    file = Path(given) if isinstance(given, str | Path) else near
    faults: list[str] = []
    boxes = [((), framework), *((("runs", number), box) for number, box in enumerate(framework.runs))]
    named = [(name, (*path, "strategy")) for path, part in boxes for name in part.strategy or ()]
    for name, path in [*named, *((name, ("tp_parts",)) for name in framework.tp_parts)]:
        try:
            check_strategy(name, file, f"{framework.place(*path)}: {path[-1]}")
        except InputError as error:
            faults.append(str(error))
    generations = [(("on_generation", name), own) for name, own in framework.on_generation.items()]
    for path, part in [*boxes, *generations]:
        for column, values in part.fix.items():
            faults += _faults_of(column, values, framework.place(*path, "fix", column), "fix")
    for column, values in framework.with_tied_head.items():
        faults += _faults_of(column, values, framework.place("with_tied_head", column), "with_tied_head")
    for need in framework.needs:
        faults += [fault for one in need if (fault := _fault_of_need(one, framework.place("needs")))]
    for name in {name for region, others in framework.recomputed_beside.items() for name in (region, *others)}:
        if name not in REGION_NAMES:
            place = framework.place("recomputed_beside")
            faults.append(f"{place}: recomputed_beside: unknown region {name!r}{did_you_mean(name, REGION_NAMES)}")
    for kind in dict.fromkeys(kind for kinds in framework.cp_exchanges.values() for kind in kinds):
        if kind not in _EXCHANGES:
            place = framework.place("cp_exchanges")
            known = f"{did_you_mean(kind, _EXCHANGES)} (known: {', '.join(_EXCHANGES)})"
            faults.append(f"{place}: cp_exchanges: unknown exchange {kind!r}{known}")
    if faults:
        raise SpecError("\n".join(faults))
    return framework


def _faults_of(column: str, values: Sequence[int | str], place: str, section: str) -> list[str]:
    try:
        for value in values:
            BY_NAME[column].code(value)
    except SpecError as error:
        return [f"{place}: {section}: {error}"]
    return []


def _fault_of_need(one: ColumnComparison, place: str) -> str:
    """Return what is wrong with a comparison: boxes compare numbers of the shard key, or of the other choices."""
    if one.relation == WITHOUT:
        return f"{place}: needs: {one}: a framework compares numbers, as in 'pp <= 8' or 'zero_replicas < dp'"
    (bound,) = one.with_what[:1]
    columns = [one.column] if bound.isdecimal() else [one.column, bound]
    for name in columns:
        if name not in _NUMBERS:
            return f"{place}: needs: {one}: {name!r} is no column of numbers{did_you_mean(name, _NUMBERS)}"
    if len({name in KEY_COLUMNS for name in columns}) > 1:
        return f"{place}: needs: {one}: of these columns only one belongs to the shard key ({', '.join(KEY_COLUMNS)})"
    return ""


def of_regions(framework: FrameworkSpec, regions: Collection[str]) -> FrameworkSpec:
    """Return a framework for a model with some regions: its boxes lack recomputation that it does not run there."""
    never = {region for region, others in framework.recomputed_beside.items() if not {*others} <= {*regions}}
    if not never or _RECOMPUTE in framework.fix:
        return framework
    left = [value for value in VALUES if not never & {*value.split(JOINED)}]
    boxes = [
        box.model_copy(
            update={"fix": box.fix | {_RECOMPUTE: [one for one in box.fix.get(_RECOMPUTE, left) if one in left]}}
        )
        for box in framework.runs
    ]
    return framework.model_copy(update={"runs": boxes})


Filter = Callable[[Mapping[str, np.ndarray]], np.ndarray]
Selection = Mapping[str, Sequence[int | str]]
Limitation = Mapping[str, Sequence[Limit]]

_FEW = 8  # values that are compared one by one


@dataclass(frozen=True, slots=True)
class _Selecting:
    """A filter of columns; equal ones share what is cached of them."""

    columns: tuple[tuple[str, tuple[int | str, ...] | None, tuple[PlanLimit, ...]], ...]  # with values and bounds

    def __call__(self, table: Mapping[str, np.ndarray]) -> np.ndarray:
        good = np.ones(len(next(iter(table.values()))), dtype=bool)
        for column, values, bounds in self.columns:
            if column not in table:
                continue
            if values is not None:
                good &= _one_of(table[column], values)
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


def _within(bound: PlanLimit, value: Any, columns: Mapping[str, Any]) -> Any:
    """Return whether values are within a bound, elementwise, as far as `columns` tell."""
    if isinstance(bound, ProductLimit):
        return bound.number % (value * columns.get(bound.column, 1)) == 0
    other = columns.get(bound.column) if isinstance(bound, ColumnLimit) else bound.bound
    return True if other is None else RELATIONS[bound.relation](value, other)


def _one_of(column: np.ndarray, values: Sequence[int | str]) -> np.ndarray:
    if len(values) > _FEW:
        return np.isin(column, np.array(values))
    # Tables of placements are small and many, and this is several times as fast.
    found = np.zeros(len(column), dtype=bool)
    for value in values:
        found |= column == value
    return found


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

    def of_keys(self, keys: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return [U] the boxes that have each key: bit i is box i."""
        found = np.zeros(len(keys["strategy"]), dtype=np.int64)
        for bit, box in enumerate(self.boxes):
            found |= box.keys(keys).astype(np.int64) << bit
        return found

    def keep(self, boxes: int, choices: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the [N] mask of the choices that go with keys of some `boxes`."""
        found = np.zeros(len(next(iter(choices.values()))), dtype=bool)
        for bit, box in enumerate(self.boxes):
            if boxes >> bit & 1:
                for choices_of_box in box.choices:
                    found |= choices_of_box(choices)
        return found

    @property
    def restricted(self) -> frozenset[str]:
        """The columns that a box restricts."""
        return frozenset[str]().union(*(box.restricted for box in self.boxes))


EVERYTHING = Boxes((Box(selecting((), {}, {}), (selecting((), {}, {}),)),))


def boxes_of(framework: FrameworkSpec | None, strategies: Sequence[str], experts: bool) -> Boxes:
    """Return the boxes of a framework for a model with or without `experts`; without one, everything is in a box."""
    if framework is None:
        return EVERYTHING
    alike: dict[str, list[BoxSpec]] = {}
    for box in framework.boxes(experts):
        of_keys = [(name, part[name]) for part in (box.fix, box.limit) for name in sorted(part) if name in KEY_COLUMNS]
        alike.setdefault(repr((box.strategy, of_keys)), []).append(box)
    return Boxes(tuple(_box(specs, strategies) for specs in alike.values()))


def _box(specs: Sequence[BoxSpec], strategies: Sequence[str]) -> Box:
    """Return the plans of boxes that restrict keys alike."""
    first, restricted = specs[0], frozenset[str]().union(*(_restricted(spec) for spec in specs))
    fix: dict[str, Sequence[int | str]] = dict(_codes(first))
    if first.strategy is not None:
        fix["strategy"] = [code for code, name in enumerate(strategies) if name in first.strategy]
        restricted |= {"strategy"}
    choices = tuple(selecting(CHOICE_COLUMNS, _codes(spec), spec.limit) for spec in specs)
    return Box(selecting(KEY_COLUMNS, fix, first.limit), choices, restricted)


def _restricted(spec: BoxSpec) -> set[str]:
    others = {one.column for bounds in spec.limit.values() for one in bounds if not isinstance(one, Limit)}
    return {*spec.fix, *spec.limit} | others


def _codes(spec: BoxSpec) -> dict[str, list[int]]:
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
    return value in box.fix.get(column, [value]) and all(_within(one, value, plan) for one in box.limit.get(column, ()))


def broken(box: BoxSpec, plan: Mapping[str, Any]) -> list[str]:
    """Return the columns of a plan, by column with names as names, whose values a box does not have."""
    found = [] if box.strategy is None or plan["strategy"] in box.strategy else ["strategy"]
    restricted = dict.fromkeys([*box.fix, *box.limit])
    return found + [column for column in restricted if not _has(box, column, plan[column], plan)]
