"""What the cells of a heat map are compared with: the machine of today, or else the best cell.

Where both axes are fields of the machine, its own values are one cell. Where one axis is, they are a row or a column,
and each cell is compared with that of today at the same value of the other axis.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsx.results.plot.selection import BestTable
from dsx.results.plot.today import place_today, value_today

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float64]  # [rows, columns]


@dataclass(frozen=True)
class Reference:
    """The values that cells are compared with, and which cells have them."""

    values: Numbers  # [rows, columns]
    cells: NDArray[np.bool_]  # [rows, columns]: the cells that are the reference
    today: bool  # whether they are the machine of today; else the best cell
    missing: tuple[str, ...]  # columns of the machine in which today's value is not on the axis


def reference(df: "pd.DataFrame", table: BestTable, x: str, y: str, larger_is_better: bool) -> Reference:
    """Return what the cells of a table, of which at least one has a value, are compared with."""
    rows = [row for (row,) in table.rows]
    places = {x: place_today(df, x, table.columns), y: place_today(df, y, rows)}
    machine = [name for name in (x, y) if value_today(df, name) is not None]
    missing = tuple(name for name in machine if places[name] is None)
    cells = np.zeros(table.values.shape, bool)
    if machine and not missing:
        across, down = places[x], places[y]
        cells[slice(None) if down is None else down, slice(None) if across is None else across] = True
        values = np.where(cells, table.values, np.nan)
        # A row or a column of today, spread over the others.
        axis = 1 if down is None else 0
        own = np.full(values.shape, values[cells][0]) if len(machine) == 2 else _spread(values, axis)
        if (np.isfinite(own) | ~np.isfinite(table.values)).all():
            return Reference(own, cells, True, ())
    best = np.nanmax(table.values) if larger_is_better else np.nanmin(table.values)
    first = np.argwhere(table.values == best)[0]
    cells = np.zeros(table.values.shape, bool)
    cells[tuple(first)] = True
    return Reference(np.full(table.values.shape, best), cells, False, missing)


def _spread(values: Numbers, axis: int) -> Numbers:
    """Return the one value along an axis, NaN if there is none, in all its cells."""
    there = np.isfinite(values)
    one = np.where(there, values, 0.0).sum(axis=axis, keepdims=True)
    return np.broadcast_to(np.where(there.any(axis=axis, keepdims=True), one, np.nan), values.shape)
