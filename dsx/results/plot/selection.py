"""The rows and values of a picture: the best feasible value of a group of rows, or its fastest row.

A group is a combination of values of some columns. Groups are in ascending order; names, such as those of strategies
and clusters, are in the order of the sweep.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.errors import InputError
from dsx.results.frames import require
from dsx.results.pareto_rows import minimised

if TYPE_CHECKING:
    import pandas as pd

# In every other column the smallest value is the best.
LARGER_IS_BETTER = frozenset(("mfu", "tokens_per_s", "tokens_per_s_per_gpu", "goodput"))

_SETTINGS = ("cluster", "num_gpus", "global_batch_size", "sequence_length")


def settings(columns: Iterable[str]) -> list[str]:
    """Return the ones of `columns` that a sweep states and does not search: cluster, job, and what-if columns."""
    # Only what-if columns are dotted paths.
    return [name for name in columns if name in _SETTINGS or "." in name]


@dataclass(frozen=True)
class BestTable:
    """The best feasible values of some rows, as a table whose rows and columns are ascending."""

    rows: list[tuple[object, ...]]  # for each table row, the values of its columns
    columns: list[Any]  # for each table column, the value of its column
    values: NDArray[np.float64]  # [rows, columns]; NaN if no row is feasible and has a number
    places: NDArray[np.int64]  # [rows, columns]: which row of the frame has the value; -1 if none


def best_table(df: "pd.DataFrame", rows: Sequence[str], column: str, value: str) -> BestTable:
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
    groups: Any = pd.Series(np.where(usable, numbers, np.nan)).groupby(keys, observed=True)
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


def fastest(df: "pd.DataFrame", columns: Sequence[str]) -> "pd.DataFrame":
    """Return the fastest feasible row of each group; the fastest row of a group without a feasible one.

    Among equally fast rows it has the smallest `candidate`, if that column is loaded. Raises UnknownNameError for a
    column that `df` does not have.
    """
    for column in columns:
        require(df, column)
    ties = [require(df, "candidate")] if "candidate" in df.columns else []
    # lexsort sorts by its last key first.
    order = np.lexsort((*ties, require(df, "step_time_s"), require(df, "reject") != 0))
    first = ~df[list(columns)].iloc[order].duplicated().to_numpy()
    rows = df.iloc[order[first]].sort_values(list(columns))
    rows.attrs = dict(df.attrs)
    return rows


def refuse_many(found: int, room: int, what: str, columns: Sequence[str]) -> None:
    """Raise InputError if a picture would have more bars, lines, ... than a reader can distinguish."""
    if found > room:
        names = " and ".join(columns)
        raise InputError(
            f"{names}: {found:,} {what}, but a picture has room for {room}; take another column, or fewer rows"
        )
