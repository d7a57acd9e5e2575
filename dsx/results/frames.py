"""Rows of a result set: conditions on them, their Pareto front and its knee, and the plain plan.

    parsed(["num_gpus=16384", "nvs.tp=8", "device.hbm_capacity=80 GB"])    # columns, and the value that each must have
    pareto(df, "step_time_s", "peak_bytes")    # the rows that no other feasible row beats in both; both minimised
    pareto(df, "num_gpus", "-tokens_per_s")    # a leading minus: as large as possible

`nvs.tp` is the column `tp_nvs`, as in a plan. A quantity has its unit, and equals what differs by rounding alone.
`dsx.search.ranking` has the algorithm of the front and its tie rule: rows that are equal in all objectives are all
kept. Rows with an objective that is NaN or infinite are left out.

The knee of a front is the row after which less of one objective costs most of the other. With both objectives scaled to
0 at their best and 1 at their worst on the front, it is the row that is farthest below the line between the ends: the
bulge of Das, "On characterizing the knee of the Pareto curve based on normal-boundary intersection" (Structural
Optimization 18, 1999). A front whose rows are all on that line, or above it, has none.

The plain plan is what one would run without a search, the baseline of what a search finds: tensor parallelism up to the
size of an NVLink domain, then pipeline stages until the model fits, the rule of thumb of Narayanan et al. (arXiv
2104.04473, takeaway 1). All else is as `dsx.plans.choices` has it by default: microbatches of one sequence, one chunk a
stage, no recomputation, no other parallelism.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from dsx.config.sweep_fields import check_direction
from dsx.errors import InputError, SpecError, UnknownNameError, did_you_mean, one_text, texts, wrong
from dsx.plans.choices import BY_NAME, SEARCHED_COLUMNS
from dsx.results.set_columns import COLUMNS, LARGER_IS_BETTER
from dsx.search.ranking import front
from dsx.text import DataFrame, printable
from dsx.units import Dimension, format_quantity, parse_number, parse_quantity

Frame = Any  # a DataFrame or a Series where the stubs of pandas do not know the types of columns


def check_frame(df: object) -> None:
    """Raise InputError for what is no DataFrame, such as a folder, or an answer that has one."""
    if not hasattr(df, "columns"):
        what = repr(df) if isinstance(df, str) else type(df).__name__
        raise InputError(f"{what} is no DataFrame: dsx.load reads that of a folder, and `frame` is that of an answer")


def require(df: DataFrame, column: str) -> np.ndarray:
    """Return the values of a column; UnknownNameError if there is none, InputError for no name or no DataFrame."""
    check_frame(df)
    one_text("column", column, "step_time_s")
    if column not in df.columns:
        hint = "; were only some columns loaded?" if column in (stored.name for stored in COLUMNS) else ""
        raise UnknownNameError("column", column, map(str, df.columns), hint)
    return df[column].to_numpy()


def taken(df: DataFrame, rows: np.ndarray) -> DataFrame:
    """Return some rows of a frame, as [n] positions or one bool for each row, with its `attrs`."""
    part: Frame = df.loc[rows] if rows.dtype == np.bool_ else df.iloc[rows]
    part.attrs = dict(df.attrs)
    return part


def column_list(name: str, columns: str | Sequence[str] | None) -> list[str]:
    """Return one column, several, or none as a list without repetitions; InputError for anything but names."""
    if columns is None or isinstance(columns, str):
        return [] if columns is None else [columns]
    return list(dict.fromkeys(texts(name, columns, "num_gpus")))


Conditions = Mapping[str, object]
_EXAMPLE = "COLUMN=VALUE, as in num_gpus=16384"


def parsed(name: str, conditions: Conditions | Sequence[str] | str | None) -> dict[str, object]:
    """Return conditions as a mapping; texts are "COLUMN=VALUE", and one text may have several, with blanks between.

    Raises InputError, which names the argument `name`, for a text without "=".
    """
    if conditions is None:
        return {}
    if isinstance(conditions, Mapping):
        return {column_name(str(column)): value for column, value in conditions.items()}
    if not isinstance(conditions, str | Sequence):
        raise wrong(name, conditions, f"{_EXAMPLE}, is wanted")
    by_column: dict[str, object] = {}
    for text in [conditions] if isinstance(conditions, str) else conditions:
        if not isinstance(text, str):
            raise wrong(name, text, f"{_EXAMPLE}, is wanted")
        for condition in re.split(r"\s+(?=[\w.]+=)", text.strip()):
            column, equals, value = condition.partition("=")
            if not (column.strip() and equals and value.strip()):
                raise InputError(f"{name} {printable(condition)!r} is no {_EXAMPLE}")
            by_column[column_name(column.strip())] = value.strip()
    return by_column


def column_name(text: str) -> str:
    """Return the column of a setting: "tp_nvs" of "nvs.tp"."""
    tier, dot, axis = text.partition(".")
    return f"{axis}_nvs" if dot and tier == "nvs" else text


def matching(df: DataFrame, conditions: Conditions, partial: bool = False) -> NDArray[np.bool_]:
    """Return which rows have all the values, [rows].

    Raises UnknownNameError for an unknown column, InputError if no row has all values; not if the rows are only a part
    of a set, `partial`.
    """
    same = np.ones(len(df), bool)
    for column, value in conditions.items():
        same &= _equal(df, column, require(df, column), value)
        if not (same.any() or partial) and len(df):
            unit = df.attrs.get("units", {}).get(column, "")
            stored = sorted(df[column].unique())[:12]
            choices = [text if isinstance(text, str) else format_quantity(text, unit) for text in stored]
            hint = f"{did_you_mean(str(value), choices)} (known: {', '.join(choices)})"
            raise InputError(f"no row has {text_of(conditions)}{hint}")
    return same


def text_of(conditions: Conditions) -> str:
    """Return conditions as they are written on a command line."""
    return " ".join(f"{column}={value}" for column, value in conditions.items())


def _equal(df: DataFrame, column: str, values: np.ndarray, value: object) -> NDArray[np.bool_]:
    if values.dtype.kind not in "iuf":
        return values.astype(str) == str(value)
    unit = df.attrs.get("units", {}).get(column, "")
    number: float | None = None
    with suppress(SpecError):
        quantity = unit in get_args(Dimension) and isinstance(value, str)
        number = float(parse_quantity(value, cast(Dimension, unit)) if quantity else parse_number(value))
    if number is None:
        return np.zeros(len(values), bool)
    return np.isclose(values.astype(np.float64), number, rtol=1e-6, atol=0.0)


def knee(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    """Return the position of the knee of a front of two minimised objectives, [n] each; None if it has none."""
    if len(x) < 3:
        return None
    ranges = x.max() - x.min(), y.max() - y.min()
    if min(ranges) <= 0.0:
        return None
    below = 1.0 - (x - x.min()) / ranges[0] - (y - y.min()) / ranges[1]
    place = int(below.argmax())
    return place if below[place] > 1e-9 else None


_NO_QUANTITIES = frozenset(column.name for column in COLUMNS if column.kind not in ("integer", "real"))


def pareto(df: DataFrame, *objectives: str | Sequence[str]) -> DataFrame:
    """Return the rows of `df` on the front, the best by the first objective first.

    Each objective is a numeric column to be minimised, or, as "-mfu", maximised; a list of them may be given too.
    `df.attrs` are kept.
    Raises UnknownNameError for a column that `df` does not have, InputError for one without numbers, one to be
    minimised that is better when larger, or for what is no DataFrame.
    """
    names = [name for objective in objectives for name in column_list("objectives", objective)]
    if not names:
        raise InputError("a front needs an objective, for example 'step_time_s', or '-mfu' to maximise")
    check_frame(df)
    feasible = df.loc[require(df, "reject") == 0]
    points = np.column_stack([minimised(feasible, objective) for objective in names])
    on_front = front(points)
    # lexsort sorts by its last key first.
    result = feasible.loc[on_front].iloc[np.lexsort(points[on_front].T[::-1])]
    result.attrs = dict(df.attrs)
    return result


def column_of(objective: str) -> str:
    """Return the column of an objective."""
    return objective.removeprefix("-")


def minimised(df: DataFrame, objective: str) -> NDArray[np.float64]:
    """Return the values of an objective, negated if it is maximised; raises what `pareto` raises."""
    try:
        check_direction(objective, LARGER_IS_BETTER)
    except ValueError as error:
        raise InputError(str(error)) from error
    values = require(df, column_of(objective))
    if values.dtype.kind not in "iuf" or column_of(objective) in _NO_QUANTITIES:
        raise InputError(f"{column_of(objective)!r} cannot be an objective: it does not hold quantities")
    numbers = values.astype(np.float64)
    return -numbers if objective.startswith("-") else numbers


WORDS = "TP fills the NVLink domain, fewest stages"
_AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")
# The order of ranks has an effect through the placement, which is compared itself.
_PLAIN = {name: BY_NAME[name].default for name in SEARCHED_COLUMNS if name not in (*_AXES, "order")}
_PLAIN |= dict.fromkeys(("tp2", "cp", "ep", "microbatch_size"), 1)
PLAIN_PLAN_COLUMNS = (*_PLAIN, "tp", "pp", "tp_nvs")


def plain_plan(df: DataFrame) -> int | None:
    """Return the position of the plain plan among the feasible rows, None if no row is one or a column is missing."""
    if not {*PLAIN_PLAN_COLUMNS} <= {*df.columns}:
        return None
    plain = (require(df, "reject") == 0) & (require(df, "tp_nvs") == require(df, "tp"))
    for name, value in _PLAIN.items():
        plain &= np.asarray(df[name].array == value)
    rows = np.flatnonzero(plain)
    # lexsort sorts by its last key first.
    keys = (require(df, "step_time_s")[rows], require(df, "pp")[rows], -require(df, "tp")[rows].astype(np.int64))
    return int(rows[np.lexsort(keys)[0]]) if len(rows) else None
