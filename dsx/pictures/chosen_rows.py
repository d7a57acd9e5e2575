"""The rows of a picture: the best of each group, those near the best of a job, and what values are compared with.

A group is a combination of values of some columns. Groups are in ascending order; names, such as those of strategies
and clusters, are in the order of the sweep. A result set may have several jobs: numbers of GPUs, batches, clusters,
values of a what-if. Their plans cannot replace each other, so a front of all of them answers no question; the job of
the best row stands for them. The machine of today is what a sweep's own cluster and assumption set have in the fields
that it varies. A time is proportional to the step time of a job, a rate to its inverse: so follow the ideal of adding
GPUs without loss, and the 80 % interval of a column.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dsx.config.what_if import is_assumption, is_field, value_type
from dsx.errors import InputError
from dsx.results.frames import Conditions, Frame, column_of, matching, minimised, plain_plan, require, taken
from dsx.results.set_columns import LARGER_IS_BETTER
from dsx.text import DataFrame
from dsx.units import parse_quantity

if TYPE_CHECKING:
    pass

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
