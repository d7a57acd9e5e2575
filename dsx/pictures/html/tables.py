"""The tables of a report: ranked rows, the best plan of each setting, and values with their sources.

The sources that files state for their values, which validation drops.

A file states a value with its source, ``{value: 80 GB, source: "data sheet"}`` (`dsx.config.values`).

The rows of a report, the best first: feasible ones before rejected ones, then by tokens per second and GPU.

Rows of one job have that order by step time. Jobs of several sizes are compared by what a GPU does in them, since more
GPUs always make a shorter step.

The table of rows as plain data: numbers as base64 of little-endian arrays, names as codes of a list.

Numbers keep the type that the set has, so a page shows the numbers of the set and no rounding of them. A column that is
the same in all rows is stated once, beside the table.

The best plan at each setting of a sweep: each cluster, number of GPUs, batch and what-if value.

What is assumed: the values of the assumption set and of the clusters, each with its source.

A manifest has the values without their sources, which the files of today state. A source is shown only where the file
of today has the value that was priced.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import ClusterSpec, load_cluster
from dsx.config.documents import KeyPath, is_sourced, merged
from dsx.config.load import Given, statements
from dsx.config.stack import with_stack
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import InputError
from dsx.pictures.breakdown import STACKS
from dsx.pictures.chosen_rows import fastest, settings
from dsx.pictures.html.markup import Markup, element, folded, markup, table
from dsx.plans.choices import PLAN_COLUMNS
from dsx.results.frames import pareto
from dsx.results.manifest import Manifest
from dsx.results.ranked_by import COST, DAYS, Priced, price_column
from dsx.results.schema import Column
from dsx.results.sets import as_plans, load_chosen, load_small
from dsx.tables.format import hardware_text, quantity, whole_plan_text
from dsx.tables.job import stated_text
from dsx.units import exact_quantity, format_quantity, stated_quantity

if TYPE_CHECKING:
    import pandas as pd


class SourcedValue(NamedTuple):
    """A value as a file states it, by its dotted path, with where it is from."""

    path: str
    value: Any
    source: str


def assumption_sources(given: Given, near: Path | None = None) -> tuple[AssumptionsSpec, list[SourcedValue]]:
    """Return an assumption set, and those of its values that state a source; those of its stack are among them.

    Raises what `load_assumptions` raises.
    """
    stated = tuple(statements("assumptions", "assumptions", AssumptionsSpec, given, near))
    return load_assumptions(given, (), near), [*_sourced(merged(with_stack(stated)).data)]


def cluster_sources(given: Given, near: Path | None = None) -> tuple[ClusterSpec, list[SourcedValue]]:
    """Return a cluster, and those of its values that state a source; raises what `load_cluster` raises."""
    stated = statements("clusters", "cluster", ClusterSpec, given, near)
    return load_cluster(given, (), near), [*_sourced(merged(stated).data)]


def _sourced(data: Any, path: KeyPath = ()) -> Iterator[SourcedValue]:
    if is_sourced(data):
        if source := data.get("source"):
            yield SourcedValue(".".join(map(str, path)), data["value"], str(source))
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _sourced(value, (*path, key))


MOST_ROWS = 20_000  # of the table
MOST_POINTS = 2_000  # of a cloud of points, besides those of a front
_NEAR = 2.0  # a cloud shows plans up to this many times the step time of the best

_COSTS = ("step_time_s", "step_time_s_low", "step_time_s_high", "peak_bytes", "tokens_per_s_per_gpu", "reject")


@dataclass(frozen=True)
class RankedRows:
    """The rows of a set that a report shows. Frames are without `attrs`, which pandas copies with every operation."""

    folder: Path
    manifest: Manifest
    every: "pd.DataFrame"  # all rows: choices, hardware and the costs that pictures need, in the order of the set
    best: "pd.DataFrame"  # the best `MOST_ROWS` of them, with all columns, the best first
    attrs: Mapping[Any, Any]  # of the set (`dsx.results.sets.load`)

    @property
    def settings(self) -> list[str]:
        """The columns of the job and the hardware."""
        return settings(self.every.columns)

    @property
    def varied(self) -> list[str]:
        """Those of them that have several values."""
        return [name for name in self.settings if distinct(self.every, name) > 1]

    @property
    def feasible(self) -> "pd.DataFrame":
        """The feasible ones of all rows."""
        return self._chosen((self.every["reject"] == 0).to_numpy())

    def alike(self, row: Any, columns: Sequence[str]) -> "pd.DataFrame":
        """Return the feasible rows that have the values of `row` in some columns."""
        same = (self.every["reject"] == 0).to_numpy()
        for name in columns:
            same = same & (self.every[name] == row[name]).to_numpy()
        return self._chosen(same)

    def _chosen(self, rows: np.ndarray) -> "pd.DataFrame":
        """Return the rows of a mask, without a copy if it has all."""
        return self.every if rows.all() else self.every.loc[rows]

    def at(self, candidate: int, hardware: Mapping[str, Any]) -> Any:
        """Return the row of a candidate at some hardware, which the set has."""
        same = (self.every["candidate"] == candidate).to_numpy()
        for name, value in hardware.items():
            same = same & (self.every[name] == value).to_numpy()
        return self.every.loc[same].iloc[0]

    def whole(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Return some of the rows of `every` with all columns, in their order."""
        keys = ["candidate", *self.settings]
        place = {key: at for at, key in enumerate(_keys(rows, keys))}

        def choose(frame: "pd.DataFrame") -> "pd.DataFrame":
            few: Any = frame[frame["candidate"].isin(rows["candidate"])]
            return few.loc[[key in place for key in _keys(few, keys)]]

        found: Any = _without_attrs(load_chosen(self.folder, keys, choose))
        at = [place[key] for key in _keys(found, keys)]
        return found.iloc[np.argsort(at)].reset_index(drop=True)

    def with_attrs(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Return rows with the `attrs` of the set."""
        found = rows.copy(deep=False)
        found.attrs = dict(self.attrs)
        return found

    def plans(self, rows: "pd.DataFrame") -> list[dict[str, Any]]:
        """Return rows with all columns as plain data."""
        return as_plans(self.with_attrs(rows)) if len(rows) else []


def distinct(rows: "pd.DataFrame", column: str) -> int:
    """Return how many values a column has."""
    values: Any = rows[column]
    return int(values.nunique(dropna=False))


def _keys(rows: "pd.DataFrame", columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return [*zip(*(rows[name].tolist() for name in columns), strict=True)]


def _without_attrs(rows: "pd.DataFrame") -> "pd.DataFrame":
    rows.attrs = {}
    return rows


def rate(rows: "pd.DataFrame") -> Any:
    """Return tokens per second and GPU of rows, [N] float64."""
    return rows["tokens_per_s_per_gpu"].to_numpy(np.float64)


def ranked_rows(folder: Path, manifest: Manifest) -> RankedRows:
    """Read the rows that a report of the set in `folder` shows; raises StoreError if the set cannot be read."""
    light = ["candidate", "cluster", *PLAN_COLUMNS, *(extra.name for extra in manifest.what_if), *_COSTS]
    best = load_chosen(folder, light, lambda frame: ranked(frame, MOST_ROWS)).reset_index(drop=True)
    attrs = dict(best.attrs)
    return RankedRows(folder, manifest, load_small(folder, light), _without_attrs(best), attrs)


def ranked(rows: "pd.DataFrame", most: int) -> "pd.DataFrame":
    """Return at most so many rows in their order, the best first."""
    # lexsort sorts by its last key first; a row without a time is last.
    slowness = np.nan_to_num(-rate(rows), nan=np.inf)
    return rows.iloc[np.lexsort((rows["candidate"].to_numpy(), slowness, rows["reject"].to_numpy() != 0))[:most]]


@dataclass(frozen=True)
class Cloud:
    """Feasible plans of one job by step time and memory."""

    front: "pd.DataFrame"  # with all columns, the fastest first
    others: "pd.DataFrame"  # some of the others, with all columns
    number: int  # of feasible plans of the job within the range


def cloud(rows: RankedRows, row: Any) -> Cloud:
    """Return the plans of the job and hardware of `row`, up to twice its step time, and their Pareto front."""
    job = rows.alike(row, rows.settings)
    near = job.loc[(job["step_time_s"] <= _NEAR * row["step_time_s"]).to_numpy()]
    front = pareto(near, "step_time_s", "peak_bytes")
    front = front.loc[~front.duplicated(["step_time_s", "peak_bytes"]).to_numpy()]
    rest = near.index.difference(front.index).to_numpy()
    # Chosen at random: an even stride would interfere with the order of the enumeration.
    drawn = rest if len(rest) <= MOST_POINTS else np.random.default_rng(0).choice(rest, MOST_POINTS, replace=False)
    return Cloud(rows.whole(front), rows.whole(near.loc[np.sort(drawn)]), len(near))


# JavaScript's name of each type of number.
_ARRAYS = {"i1": "Int8", "i2": "Int16", "i4": "Int32", "i8": "BigInt64", "f4": "Float32", "f8": "Float64"}
_PARTS = {name: f"parts of the {of}" for of, stack in STACKS.items() for name in stack.parts}
_SCALES = {"bytes": (1e9, "GB"), "": (1.0, "")}
_PERCENT = (0.01, "%")


@dataclass(frozen=True)
class TableData:
    """The table of a page."""

    columns: list[dict[str, Any]]  # plain data for the script of the page, in order
    constant: list[tuple[str, str]]  # columns with one value, and the value as text
    rows: int
    left_out: int  # rows of the set that the table does not have

    def to_data(self) -> dict[str, Any]:
        """Return what the script of the page reads."""
        return {"rows": self.rows, "columns": self.columns, "constant": dict(self.constant)}


def table_data(ranked: RankedRows) -> TableData:
    """Return the best rows of a set as a table."""
    rows = ranked.best
    columns: list[dict[str, Any]] = []
    constant: list[tuple[str, str]] = []
    for column in ranked.manifest.columns:
        values: Any = rows[column.name]
        single = len(rows) > 1 and distinct(rows, column.name) == 1
        if column.name == "reject":
            columns += [] if single and values[0] == 0 else [_reject(ranked)]
        elif single and column.kind != "id":
            constant += [(column.name, str(values[0]))] if values[0] == values[0] else []
        else:
            columns.append(_column(column, values))
    order = ["costs", "choices", *dict.fromkeys(_PARTS.values()), "interval", "id"]
    columns.sort(key=lambda one: order.index(one["group"]))
    return TableData(columns, constant, len(rows), len(ranked.every) - len(rows))


def _column(column: Column, values: "pd.Series") -> dict[str, Any]:
    size, unit = _PERCENT if column.name == "mfu" else _SCALES.get(column.unit, (1.0, column.unit))
    data: dict[str, Any] = {"name": column.name, "about": column.description, "group": _group(column), "unit": unit}
    if column.kind in ("name", "text"):
        names = [*dict.fromkeys(values.astype(str))]
        codes = values.astype(str).map({name: code for code, name in enumerate(names)}).to_numpy(np.int32)
        return data | {"names": names} | _encoded(_narrow(codes))
    numbers = values.to_numpy()
    return data | {"scale": size} | _encoded(numbers if numbers.dtype.kind == "f" else _narrow(numbers))


def _group(column: Column) -> str:
    if column.kind == "id":
        return "id"
    if column.name in StepInterval.__dataclass_fields__:
        return "interval"
    return _PARTS.get(column.name, "costs" if column.name in StepCosts.__dataclass_fields__ else "choices")


def _reject(ranked: RankedRows) -> dict[str, Any]:
    """Return the column of the reasons against each row, as names."""
    reasons = [reason.name for reason in ranked.manifest.reject_reasons]
    bits = ranked.best["reject"].to_numpy(np.int64)
    distinct, codes = np.unique(bits, return_inverse=True)
    names = [
        ", ".join(name for bit, name in enumerate(reasons) if value >> bit & 1) or "feasible" for value in distinct
    ]
    about = "the reasons against the candidate"
    head: dict[str, Any] = {"name": "reject", "about": about, "group": "costs", "unit": "", "names": names}
    return head | _encoded(_narrow(codes))


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the narrowest type that holds them."""
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.int64)


def _encoded(values: NDArray[Any]) -> dict[str, str]:
    kind = values.dtype.str[1:]
    plain = np.ascontiguousarray(values, dtype=f"<{kind}")
    return {"array": _ARRAYS[kind], "data": base64.b64encode(plain.tobytes()).decode("ascii")}


_MOST = 60


def setting_table(rows: RankedRows) -> Markup:
    """Return the table; nothing if the sweep has one setting."""
    if not rows.varied:
        return markup()
    best = fastest(rows.feasible, rows.varied)
    plans = rows.plans(rows.whole(best.iloc[:_MOST]))
    run = _of_a_run(plans)
    lines = [
        [
            ", ".join(_setting(name, priced) for name in rows.varied),
            format_quantity(priced["step_time_s"], "s"),
            f"{priced['tokens_per_s_per_gpu']:,.0f}",
            quantity("mfu", priced["mfu"]),
            format_quantity(priced["peak_bytes"], "bytes"),
            *(quantity(column, priced[column]) for column in run.values()),
            priced["plan"]["strategy"],
            whole_plan_text(priced["plan"]),
        ]
        for priced in plans
    ]
    header = [", ".join(rows.varied), "step", "tokens/s/GPU", "MFU", "memory", *run, "strategy", "plan"]
    more = f" The first {_MOST} of {len(best):,} settings are shown." if len(best) > _MOST else ""
    return markup(
        table(header, lines, "The best plan of each setting"),
        element("p", more) if more else "",
    )


def _of_a_run(plans: Sequence[Priced]) -> dict[str, str]:
    """Return the heading and the column of what a whole training takes; nothing where its tokens are not stated."""
    if not any(math.isfinite(priced[DAYS]) for priced in plans):
        return {}
    paid = price_column(plans)
    return {"training": DAYS, "cost" if paid == COST else "GPU hours": paid}


def _setting(name: str, priced: Any) -> str:
    value = priced["hardware"][name] if name in priced["hardware"] else priced["plan"][name]
    return hardware_text(name, value) if "." in name else f"{value:,}" if isinstance(value, int) else str(value)


_Read = Callable[[Given, Path | None], tuple[BaseModel, list[SourcedValue]]]
_CHANGED = "stated by the sweep"
_UNKNOWN = "no source in a file of today"


def stated_values(manifest: Manifest) -> Markup:
    """Return the tables of the assumption set and of each cluster, and the source of the model."""
    spec, resolved = manifest.spec, manifest.spec["resolved"]
    near = Path(manifest.spec_file) if manifest.spec_file else None
    named = spec["cluster"] if isinstance(spec["cluster"], list) else [spec["cluster"]]
    parts = [_file("Assumption set", resolved["assumptions"], _today(assumption_sources, spec["assumptions"], near))]
    for given, content in zip(named, resolved["clusters"], strict=True):
        parts.append(_file("Cluster", content, _today(cluster_sources, given, near)))
    model = resolved["model"]
    source = f": {model['source']}" if model.get("source") else ""
    return markup(element("p", f"Model {model['name']}{source}."), parts)


def _today(read: _Read, given: Any, near: Path | None) -> tuple[Mapping[str, Any], Iterable[SourcedValue]]:
    """Return the content of a file as a manifest would have it, and its sources; nothing if it cannot be read."""
    try:
        content, sourced = read(given, near)
    except InputError:
        return {}, ()
    return content.model_dump(mode="json"), sourced


def _file(kind: str, content: Mapping[str, Any], today: tuple[Mapping[str, Any], Iterable[SourcedValue]]) -> Markup:
    there, sourced = today
    sources = {one.path: one.source for one in sourced}
    values = dict(_leaves(content, sources))
    rows = [
        [path, stated_text(value), _source(path, value, there, sources)]
        for path, value in values.items()
        if path not in ("name", "description", "source")
    ]
    said = [content[key] for key in ("description", "source") if content.get(key)]
    summary = f"{kind} {content['name']}: {len(rows)} values"
    return folded(
        summary,
        element("p", " Source: ".join(said)) if said else "",
        table(["field", "value", "source"], rows, summary, numbers=False),
    )


def _leaves(value: Any, whole: Mapping[str, str], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values of a file by dotted path; lists, and what has a source as a whole, are one value."""
    if isinstance(value, dict) and path not in whole:
        for key, inner in value.items():
            yield from _leaves(inner, whole, f"{path}.{key}" if path else key)
    elif value not in (None, [], ""):
        yield path, value


def _source(path: str, value: Any, there: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    at: Any = there
    for key in path.split("."):
        at = at.get(key) if isinstance(at, Mapping) else None
    if there and at != value:
        return _CHANGED
    return sources.get(path, "" if there else _UNKNOWN)


def _exact(text: str) -> str:
    """Return a quantity as people write it, so that it reads back exactly; any other text unchanged."""
    return text if (found := stated_quantity(text)) is None else exact_quantity(*found)


def assignments(manifest: Manifest) -> list[str]:
    """Return what the sweep was told by --set, as far as its files of today tell: FIELD=VALUE each.

    Of several clusters nothing is said, since --set holds for all of them.
    """
    spec, resolved = manifest.spec, manifest.spec["resolved"]
    near = Path(manifest.spec_file) if manifest.spec_file else None
    files = [("assumptions", resolved["assumptions"], _today(assumption_sources, spec["assumptions"], near))]
    if len(resolved["clusters"]) == 1:
        given = spec["cluster"][0] if isinstance(spec["cluster"], list) else spec["cluster"]
        files.append(("cluster", resolved["clusters"][0], _today(cluster_sources, given, near)))
    return [
        f"{target}.{path}={_exact(value) if isinstance(value, str) else json.dumps(value)}"
        for target, content, (there, sourced) in files
        if there
        for path, value in _leaves(content, {one.path: "" for one in sourced})
        if _source(path, value, there, {}) == _CHANGED
    ]
