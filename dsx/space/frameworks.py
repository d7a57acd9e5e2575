"""A framework from its file, whose columns, values and strategies are checked."""

from collections.abc import Collection, Sequence
from pathlib import Path

from dsx.errors import InputError, SpecError, did_you_mean
from dsx.graph.layer import RING
from dsx.graph.library import check_strategy
from dsx.graph.match import ALL_GATHER, ALL_TO_ALL
from dsx.space.choices import BY_NAME, KEY_COLUMNS, NAMED, PLACEMENT_COLUMNS, PLAN_COLUMNS
from dsx.space.recompute_values import JOINED, REGION_NAMES, VALUES
from dsx.spec.conditions import WITHOUT, Comparison
from dsx.spec.framework import FrameworkColumns, FrameworkSpec, load_framework
from dsx.spec.load import Given

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


def _fault_of_need(one: Comparison, place: str) -> str:
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
