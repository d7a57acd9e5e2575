"""A heat map of two columns: the settings of the sweep that vary most, else two degrees of the plans.

A cell has the best feasible value, relative to the best of all, so one bad cell does not take the colours of the rest:
they end at twice the best. A frame marks the machine of today, where its own values are on an axis.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsx.reporting.answer import Named
from dsx.reporting.figure import Picture, blank, shown_all
from dsx.reporting.ranked_rows import RankedRows, distinct, rate
from dsx.results.plot.axes import unit_of, value_texts, words
from dsx.results.plot.reference import reference
from dsx.results.plot.selection import best_table
from dsx.space.limits import DEGREES

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

_MOST_VALUES = 40  # of an axis
_WORST = 2.0  # times the best, where the colours end


def heat_figure(rows: RankedRows, first: Named) -> Picture | None:
    """Return the heat map; None if no two columns of the set have several values each."""
    import plotly.graph_objects as go

    columns = _columns(rows, first)
    if columns is None:
        return None
    x, y = columns
    same = [name for name in rows.settings if name not in (x, y)]
    job = rows.alike(first.row, same)
    table = best_table(job[[x, y, "reject"]].assign(slowness=1 / rate(job)), [y], x, "slowness")
    ratios = table.values / np.nanmin(table.values)
    x_texts, y_texts = (
        shown_all(value_texts(job, name, values))
        for name, values in ((x, table.columns), (y, [row for (row,) in table.rows]))
    )
    figure = blank(110 + 34 * max(len(y_texts), 4), hovermode="closest")
    x_title, y_title = words(x, unit_of(job, x)), words(y, unit_of(job, y))
    figure.update_xaxes(title_text=x_title, type="category", showgrid=False)
    figure.update_yaxes(title_text=y_title, type="category", showgrid=False)
    few = ratios.size <= 150
    figure.add_trace(
        go.Heatmap(
            x=x_texts,
            y=y_texts,
            z=ratios,
            zmin=1.0,
            zmax=_WORST,
            colorscale="Viridis",
            reversescale=True,
            colorbar={
                "title": {"text": "times<br>the best"},
                "thickness": 12,
                "tickvals": [1.0, 1.25, 1.5, 1.75, _WORST],
            },
            texttemplate="%{z:.2f}" if few else None,
            hoverongaps=False,
            hovertemplate=f"{x_title} %{{x}}, {y_title} %{{y}}: %{{z:.3f}} times the best<extra></extra>",
        )
    )
    over = "time per token and GPU" if {"num_gpus", "global_batch_size"} & {x, y} else "step time"
    about = f"Best {over} for each pair, relative to the best of all, over the other choices. Empty: no feasible plan "
    about += f"in the set; colours end at {_WORST:g} times the best."
    compared = reference(rows.with_attrs(job), table, x, y, larger_is_better=False)
    if compared.today:
        _frame(figure, compared.cells)
        about += " Framed: the machine as the cluster file states it."
    return Picture("heat", f"{over[0].upper()}{over[1:]} by {x_title} and {y_title}", about, figure)


def _frame(figure: "Figure", cells: NDArray[np.bool_]) -> None:
    """Frame cells, [rows, columns], in a dark and a light line, one of which is seen on every colour."""
    for row, column in np.argwhere(cells).tolist():
        place = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        figure.add_shape(type="rect", **place, line={"color": "black", "width": 4})
        figure.add_shape(type="rect", **place, line={"color": "white", "width": 1.5})


def _columns(rows: RankedRows, first: Named) -> tuple[str, str] | None:
    """Return the columns along x and y."""
    varied = sorted((name for name in rows.varied if _few(rows.every, name)), key=lambda n: -distinct(rows.every, n))
    if len(varied) >= 2:
        return varied[0], varied[1]
    job = rows.alike(first.row, rows.settings)
    degrees = [name for name in ("pp", "tp", *DEGREES) if name != "dp" and distinct(job, name) > 1]
    several = list(dict.fromkeys(degrees))[:2]
    return (several[0], several[1]) if len(several) == 2 else None


def _few(frame: "pd.DataFrame", name: str) -> bool:
    return 1 < distinct(frame, name) <= _MOST_VALUES
