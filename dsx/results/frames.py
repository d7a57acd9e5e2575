"""Arguments of functions of a DataFrame: the frame itself, and the columns that are named."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.argument_types import one_text, texts
from dsx.errors import InputError, UnknownNameError
from dsx.results.schema import COLUMNS

if TYPE_CHECKING:
    import pandas as pd


def check_frame(df: object) -> None:
    """Raise InputError for what is no DataFrame, such as a folder, or an answer that has one."""
    if not hasattr(df, "columns"):
        what = repr(df) if isinstance(df, str) else type(df).__name__
        raise InputError(f"{what} is no DataFrame: dsx.load reads that of a folder, and `frame` is that of an answer")


def require(df: "pd.DataFrame", column: str) -> NDArray[Any]:
    """Return the values of a column, or raise UnknownNameError with the nearest that there is.

    Raises InputError for what is no DataFrame, and for what is no name.
    """
    check_frame(df)
    one_text("column", column, "step_time_s")
    if column not in df.columns:
        hint = "; were only some columns loaded?" if column in (known.name for known in COLUMNS) else ""
        raise UnknownNameError("column", column, map(str, df.columns), hint)
    return df[column].to_numpy()


def taken(df: "pd.DataFrame", rows: NDArray[Any]) -> "pd.DataFrame":
    """Return some rows of a frame, as [n] positions or one bool for each row, with its `attrs`."""
    found: Any = df.loc[rows] if rows.dtype == np.bool_ else df.iloc[rows]
    found.attrs = dict(df.attrs)
    return found


def column_list(name: str, columns: str | Sequence[str] | None) -> list[str]:
    """Return one column, several, or none as a list without repetitions.

    Raises InputError if the argument called `name` has something else than names.
    """
    if columns is None or isinstance(columns, str):
        return [] if columns is None else [columns]
    return list(dict.fromkeys(texts(name, columns, "num_gpus")))
