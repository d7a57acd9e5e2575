"""The rows that a picture shows, and its words for them: names, units, values as text.

A group is a combination of values of some columns. Groups are in ascending order; names, such as those of strategies
and clusters, are in the order of the sweep. A result set may have several jobs: numbers of GPUs, batches, clusters,
values of a what-if. Their plans cannot replace each other, so a front of all of them answers no question; the job of
the best row stands for them. The machine of today is what a sweep's own cluster and assumption set have in the fields
that it varies. A time is proportional to the step time of a job, a rate to its inverse: so follow the ideal of adding
GPUs without loss, and the 80 % interval of a column.

An axis of numbers has one unit, which its label names ("HBM capacity [GB]"). If each value has its own tick, as in a
heat map, the ticks name the units ("80 GB", "1.1 TB/s"). A setting (cluster, GPUs, batch, a what-if column) that has
one value in the rows is part of the job. One that has several, and is no axis, is among those over which a point is
the best. Every renderer takes its words from here.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dsx.config.what_if import is_assumption, is_field, value_type, varied_field
from dsx.errors import InputError, SpecError
from dsx.plans.rules import DEGREES
from dsx.results.frames import Conditions, Frame, column_of, matching, minimised, plain_plan, require, taken
from dsx.results.manifest import StatedCluster
from dsx.results.set_columns import COLUMNS, LARGER_IS_BETTER, NEEDS
from dsx.text import DataFrame, printable
from dsx.units import counted, format_quantity, format_total, parse_quantity

Numbers = NDArray[np.float64]
Value = float | str  # of a column

GPUS = "num_gpus"
PER_GPU = "tokens_per_s_per_gpu"

_SETTINGS = ("cluster", GPUS, "global_batch_size", "sequence_length")
_CAPACITY = "device.hbm_capacity"
# The powers of the step time and of the number of GPUs to which a column is proportional. With ideal scaling the step
# time has the power -1 of the GPUs.
_POWERS = {
    **dict.fromkeys(("step_time_s", "training_days"), (1, 0)),
    "tokens_per_s": (-1, 0),
    **dict.fromkeys(("mfu", PER_GPU), (-1, -1)),
    **dict.fromkeys(("gpu_hours", "cost_usd", "energy_kwh"), (1, 1)),
}
_FACTOR = 2.0  # of the best value: a plan that takes longer is no alternative


def settings(columns: Iterable[str]) -> list[str]:
    """Return the ones of `columns` that a sweep states and does not search: cluster, job, and what-if columns."""
    # Only what-if columns are dotted paths.
    return [name for name in columns if name in _SETTINGS or "." in name]


def varied_settings(df: DataFrame) -> list[str]:
    """Return the settings in which rows differ."""
    return [name for name in settings(df.columns) if len(df[name].drop_duplicates()) > 1]


def capacities(df: DataFrame) -> NDArray[np.float64]:
    """Return [n] bytes of HBM of each row's GPU; NaN if neither a column nor the sweep states it."""
    if _CAPACITY in df.columns:
        return df[_CAPACITY].to_numpy(np.float64)
    resolved = df.attrs.get("spec", {}).get("resolved", {})
    clusters = {cluster["name"]: cluster["device"]["hbm_capacity"] for cluster in resolved.get("clusters", ())}
    by_name = {name: parse_quantity(capacity, "bytes") for name, capacity in clusters.items()}
    names = df["cluster"] if "cluster" in df.columns else [""] * len(df)
    return np.array([by_name.get(name, np.nan) for name in names], np.float64)


@dataclass(frozen=True)
class BestTable:
    """The best feasible values of some rows, as a table whose rows and columns are ascending."""

    rows: list[tuple[Value, ...]]  # for each table row, the values of its columns
    columns: list[Value]  # for each table column, the value of its column
    values: Numbers  # [rows, columns]; NaN if no row is feasible and has a number
    places: NDArray[np.int64]  # [rows, columns]: which row of the frame has the value; -1 if none


def best_table(df: DataFrame, rows: Sequence[str], column: str, value: str) -> BestTable:
    """Return the best feasible `value` for each combination of the values of `rows`, and each value of `column`.

    The best is the smallest, or for `LARGER_IS_BETTER` the largest. Without `rows` the table has one row. Raises
    UnknownNameError for a column that `df` does not have, InputError if `value` does not hold quantities.
    """
    import pandas as pd

    for name in (*rows, column):
        require(df, name)
    largest = value in LARGER_IS_BETTER
    # A value to maximise is negated and minimised.
    numbers = minimised(df, f"-{value}" if largest else value)
    usable = (require(df, "reject") == 0) & np.isfinite(numbers)
    # Not as NumPy arrays, in which names lose their order. The first key is constant, in case `rows` is empty.
    keys = [np.zeros(len(df), np.int8), *(pd.Series(df[name].array) for name in (*rows, column))]
    groups: Frame = pd.Series(np.where(usable, numbers, np.nan)).groupby(keys, observed=True)
    best = groups.min()
    table = best.unstack(level=-1)
    group = groups.ngroup().to_numpy()
    order = np.lexsort((np.where(usable, numbers, np.inf), group))
    # Rows without a value in a key are of no group, -1.
    order = order[group[order] >= 0]
    first = order[np.unique(group[order], return_index=True)[1]]
    places = pd.Series(np.where(usable[first], first, -1), index=best.index).unstack(level=-1, fill_value=-1)
    names = [key[1:] if isinstance(key, tuple) else () for key in table.index]
    least = table.to_numpy(np.float64)
    return BestTable(names, list(table.columns), -least if largest else least, places.to_numpy(np.int64))


def fastest(df: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the fastest row of each group, feasible if it has one, of equal ones the smallest `candidate`."""
    for column in columns:
        require(df, column)
    ties = [require(df, "candidate")] if "candidate" in df.columns else []
    # lexsort sorts by its last key first.
    order = np.lexsort((*ties, require(df, "step_time_s"), require(df, "reject") != 0))
    first = ~df[list(columns)].iloc[order].duplicated().to_numpy()
    rows = df.iloc[order[first]].sort_values(list(columns))
    rows.attrs = dict(df.attrs)
    return rows


def refuse_many(count: int, room: int, what: str, columns: Sequence[str]) -> None:
    """Raise InputError if a picture would have more bars, lines, ... than a reader can distinguish."""
    if count > room:
        names = " and ".join(columns)
        has = f"a picture has room for {room}; take another column, or fewer rows"
        raise InputError(f"{names}: {count:,} {what}, but {has}")


def ideal(column: str, num_gpus: Numbers, values: Numbers) -> Numbers:
    """Return [n] values as if each GPU did as much as on the fewest; NaN without a value, or for no time or rate."""
    finite = np.flatnonzero(np.isfinite(values))
    if column not in _POWERS or not len(finite):
        return np.full(len(values), np.nan)
    first = finite[np.argmin(num_gpus[finite])]
    of_time, of_gpus = _POWERS[column]
    scaled = values[first] * (num_gpus / num_gpus[first]) ** (of_gpus - of_time)
    return np.where(num_gpus >= num_gpus[first], scaled, np.nan)


def interval(rows: DataFrame, column: str) -> tuple[Numbers, Numbers] | None:
    """Return the lower and the upper end of the 80 % interval of a column, [n] each; None if the rows have none."""
    ends = ("step_time_s_low", "step_time_s_high")
    if column not in _POWERS or not {"step_time_s", *ends} <= {*rows.columns}:
        return None
    values, time = rows[column].to_numpy(np.float64), rows["step_time_s"].to_numpy(np.float64)
    ratios = [rows[end].to_numpy(np.float64) / time for end in ends]
    ratios = [np.where(ratio > 0.0, ratio, np.nan) ** _POWERS[column][0] for ratio in ratios]
    if not np.isfinite(ratios).any():
        return None
    return values * np.minimum(*ratios), values * np.maximum(*ratios)


def job_of_best(df: DataFrame, objective: str, free: Collection[str] = ()) -> dict[str, Value]:
    """Return the values that the best feasible row has in the settings that vary, but for those that are `free`."""
    values = minimised(df, objective)
    usable = (require(df, "reject") == 0) & np.isfinite(values)
    if not usable.any():
        return {}
    best = df.iloc[int(np.argmin(np.where(usable, values, np.inf)))]
    names = [name for name in settings(df.columns) if name not in free]
    return {name: best[name] for name in names if (df[name].array != best[name]).any()}


def of_job(df: DataFrame, job: Mapping[str, Value]) -> NDArray[np.bool_]:
    """Return which rows have the values of `job`, [rows]."""
    same = np.ones(len(df), bool)
    for name, value in job.items():
        same &= np.asarray(df[name].array == value)
    return same


def near_best(df: DataFrame, objective: str) -> NDArray[np.bool_]:
    """Return which rows, [rows], are feasible and within a factor of two of the best positive value in their job."""
    import pandas as pd

    values = minimised(df, objective)
    feasible = (require(df, "reject") == 0) & np.isfinite(values)
    keys = [pd.Series(df[name].array) for name in varied_settings(df)] or [np.zeros(len(df), np.int8)]
    best = pd.Series(np.where(feasible, values, np.nan)).groupby(keys, observed=True).transform("min")
    least = best.to_numpy(np.float64)
    return feasible & (values <= np.where(least > 0.0, least * _FACTOR, np.where(least < 0.0, least / _FACTOR, np.inf)))


def limiting(x: str, y: str) -> str:
    """Return the one of two objectives that limits which rows are near the best: the first that is no setting."""
    return x if not settings([column_of(x)]) else y


def drawn_rows(df: DataFrame, objectives: tuple[str, str], job: Mapping[str, Value], baseline: Conditions) -> DataFrame:
    """Return the feasible rows of a job that a front may draw: those near the best, and what may be the baseline."""
    rows = taken(df, of_job(df, job) & (require(df, "reject") == 0))
    if not len(rows):
        return rows
    keep = near_best(rows, limiting(*objectives))
    if baseline:
        keep |= matching(rows, baseline, partial=True)
    elif not varied_settings(rows) and (place := plain_plan(rows)) is not None:
        keep[place] = True
    return taken(rows, keep)


def value_today(df: DataFrame, column: str) -> float | None:
    """Return what the only cluster, or the assumption set, has in a what-if column, in SI units; None if unknown."""
    if not is_field(column):
        return None
    resolved = df.attrs.get("spec", {}).get("resolved", {})
    names = {str(name) for name in df["cluster"].unique()} if "cluster" in df.columns else set()
    clusters = [cluster for cluster in resolved.get("clusters", ()) if not names or cluster["name"] in names]
    value: object = resolved if is_assumption(column) else clusters[0] if len(clusters) == 1 else None
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    with suppress(ValidationError):
        return None if value is None else float(value_type(column).validate_python(value))
    return None


def place_today(df: DataFrame, column: str, values: Sequence[Value]) -> int | None:
    """Return the position of today's value among `values` of a column, None if it is not among them."""
    today = value_today(df, column)
    if today is None:
        return None
    same = np.flatnonzero(np.isclose(np.asarray(values, np.float64), today, rtol=1e-9, atol=0.0))
    return int(same[0]) if len(same) else None


NOTHING = "no feasible candidate"  # the title of an empty picture

_SI = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_SCALES = {
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days")),
    "days": ((1.0, "days"),),
    "bytes": ((1.0, "bytes"), *((size, f"{prefix}B") for size, prefix in _SI[1:])),
    "bytes/s": tuple((size, f"{prefix}B/s") for size, prefix in _SI),
    "flop/s": tuple((size, f"{prefix}FLOP/s") for size, prefix in _SI),
    "h": ((1.0, "h"), (1e3, "thousand h"), (1e6, "million h")),
    "USD": ((1.0, "USD"), (1e3, "thousand USD"), (1e6, "million USD")),
    "kWh": ((1.0, "kWh"), (1e3, "MWh"), (1e6, "GWh")),
    "1/s": ((1.0, "1/s"), (1e3, "thousand/s"), (1e6, "million/s")),
}
# The quantity of a column whose name ends in its unit.
_QUANTITIES = {"s": "time", "bytes": "memory", "days": "time"}
_WORDS = {"hbm": "HBM", "nvs": "NVLink domain", "net": "network", "mfu": "MFU", "comm": "communication"}
_WORDS |= {"num": "number of", "gpu": "GPU", "gpus": "GPUs", "flops": "FLOP/s"}
_WORDS |= {axis: axis.upper() for axis in ("tp", "tp2", "cp", "ep", "pp", "dp", "vpp")}
# Rates whose name is their unit.
_RATES = {"tokens_per_s_per_gpu": "tokens/s/GPU"}


def unit_of(df: DataFrame, column: str) -> str:
    """Return the SI unit of a column, "" if it has none; of a merged frame without `attrs` as dsx knows it."""
    units = {stored.name: stored.unit for stored in COLUMNS} | df.attrs.get("units", {})
    if column not in units and "." in column:
        with suppress(SpecError):
            return varied_field(column).unit
    return units.get(column, "")


def words(column: str, unit: str = "") -> str:
    """Return a column's name as text, with its quantity instead of its unit: "step time", "HBM capacity"."""
    if column in _RATES:
        return _RATES[column]
    name = column.split(".", 1)[-1]
    if (axis := name.removesuffix("_nvs")) != name:
        return f"{words(axis)} in an {_WORDS['nvs']}"
    without_unit = name.removesuffix("_per_s" if unit == "1/s" else f"_{unit.lower()}") if unit else name
    text = " ".join(_WORDS.get(word, word) for word in re.split(r"[._]", without_unit))
    quantity = _QUANTITIES.get(unit, "")
    return text if without_unit == name or text.endswith(quantity) else f"{text} {quantity}"


def named(df: DataFrame, column: str) -> str:
    """Return the name of a column of a frame as text, as on its axis but without a unit."""
    return words(column, unit_of(df, column))


class AxisUnit(NamedTuple):
    """The unit of an axis that shows a column: its size in SI units, and the label that names it."""

    column: str
    size: float
    label: str

    def place(self, rows: DataFrame) -> Numbers:
        """Return where rows are on the axis, [n]."""
        return rows[self.column].to_numpy() / self.size


def axis_unit(df: DataFrame, column: str, values: Numbers) -> AxisUnit:
    """Return the largest unit that the smallest value reaches: of interest are the few fast or small rows."""
    unit = unit_of(df, column)
    text = words(column, unit)
    if column in _RATES or unit not in _SCALES:
        return AxisUnit(column, 1.0, f"{text} [{unit}]" if unit and column not in _RATES else text)
    size, name = _unit_step(unit, values)
    return AxisUnit(column, size, f"{text} [{name}]")


def _unit_step(unit: str, values: Numbers) -> tuple[float, str]:
    positive = values[np.isfinite(values) & (values > 0)]
    smallest = float(positive.min()) if len(positive) else 1.0
    return max((step for step in _SCALES[unit] if step[0] <= smallest), default=_SCALES[unit][0])


def name_text(name: str) -> str:
    """Return a name, possibly of several lines, as a picture shows it: matplotlib reads no formula in it."""
    return printable(name, keep="\n").replace("$", r"\$")


def value_texts(df: DataFrame, column: str, values: Sequence[Value]) -> list[str]:
    """Return values of a column as text, each with its unit: "80 GB", "1.1 TB/s", "4096", "8"."""
    unit = unit_of(df, column)
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return [name_text(str(value)) for value in values]
    texts: list[str] = []
    for number in numbers:  # without trailing zeros, and with the sign for micro
        figure, _, name = format_quantity(number, unit).partition(" ")
        if "." in figure and "e" not in figure:
            figure = figure.rstrip("0").rstrip(".")
        texts.append(f"{figure} {'µs' if name == 'us' else name}".rstrip())
    if len(set(texts)) < len(set(values)):
        # With three digits some values would look equal.
        size, name = _unit_step(unit, np.asarray(numbers, np.float64)) if unit in _SCALES else (1.0, unit)
        texts = [f"{number / size:.10g} {name}".rstrip() for number in numbers]
    return texts


def quantity_texts(df: DataFrame, column: str, values: Numbers) -> list[str]:
    """Return values of a column with three digits, in the unit of their common axis: "265 s", "3.23 s"."""
    unit = unit_of(df, column)
    size, name = 1.0, _RATES.get(column, unit)
    if unit in _SCALES and column not in _RATES:
        size, name = _unit_step(unit, values)
    return [f"{three_digits(value / size)} {name}".rstrip() for value in values]


def three_digits(value: float) -> str:
    """Return "1.23", "45.6", "789", "12345"."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def job_text(df: DataFrame, axes: Collection[str] = ()) -> str:
    """Return the job of the rows without the settings that are `axes`: "gpt3-1t, 8,192 GPUs of b200-nvs8, ...".

    The tokens of the training are part of it if an axis depends on them; so is what the sweep left of its plans: the
    one strategy that it names, and the degrees that it fixes.
    """
    spec = df.attrs.get("spec", {})
    resolved = spec.get("resolved", {})
    job = {name: df[name].iloc[0] for name in _common_settings(df) if name not in axes}
    gpus = counted(int(job["num_gpus"]), "GPU") if "num_gpus" in job else ""
    labels = {file["name"]: StatedCluster.model_validate(file).label for file in resolved.get("clusters", ())}
    cluster = name_text(labels.get(job["cluster"], str(job["cluster"]))) if "cluster" in job else ""
    batch = counted(int(job["global_batch_size"]), "sequence") if "global_batch_size" in job else ""
    batch += f" of {counted(int(job['sequence_length']), 'token')}" if batch and "sequence_length" in job else ""
    tokens = spec.get("train_tokens")
    of_tokens = any("train_tokens" in NEEDS.get(axis, ()) for axis in axes)
    training = f"{format_total(tokens)} tokens in all" if tokens and of_tokens else ""
    hardware = [f"{named(df, name)} {value_texts(df, name, [value])[0]}" for name, value in job.items() if "." in name]
    strategies = spec.get("strategy") or []
    fixed = {name: values for name, values in (spec.get("fix") or {}).items() if name in DEGREES and name not in axes}
    single = len(strategies) == 1 and "strategy" not in axes
    restrictions = [f"strategy {name_text(str(strategies[0]))}"] if single else []
    restrictions += [f"{name}={values[0]}" for name, values in fixed.items() if len(values) == 1]
    only = f"only {' '.join(restrictions)}" if restrictions else ""
    machine = " of ".join(filter(None, (gpus, cluster)))
    model = name_text(resolved.get("model", {}).get("name", ""))
    return ", ".join(filter(None, (model, machine, batch, training, *hardware, only)))


def best_over(df: DataFrame, point: str, axes: Collection[str], best: str = "best") -> str:
    """Return over what a point with one value of `axes` is the best: "each point: the best feasible plan, and ..."."""
    common = _common_settings(df)
    varied = [name for name in settings(df.columns) if name not in (*common, *axes)]
    of_point = [name for name in axes if name in df.columns]
    points: Frame = df[of_point + varied].drop_duplicates()
    number = len(points[of_point].drop_duplicates())
    # What has one value at each point varies with it, and not beside it.
    several = [name for name in varied if len(points[[*of_point, name]].drop_duplicates()) > number]
    beside = f", and over {', '.join(named(df, name) for name in several)}" if several else ""
    return f"each {point}: the {best} feasible plan{beside}"


def _common_settings(df: DataFrame) -> list[str]:
    """Return the settings that have one value in all rows."""
    return [name for name in settings(df.columns) if len(df) and (df[name].array == df[name].iloc[0]).all()]
