"""A heat map of two columns: the settings of the sweep that vary most, else two degrees of the plans.

A cell has the best feasible value, relative to the best of all, so one bad cell does not take the colours of the rest:
they end at twice the best.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.reporting.answer import Named
from dsx.reporting.figure import Picture, blank, numbers, shown_all
from dsx.reporting.ranked_rows import RankedRows, alike
from dsx.results.plot.axes import unit_of, value_texts, words
from dsx.results.plot.selection import best_table
from dsx.space.limits import DEGREES

if TYPE_CHECKING:
    import pandas as pd

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
    job = alike(rows.every, first.row, same)
    job.attrs = dict(rows.best.attrs)
    job = job.assign(slowness=numbers(job["num_gpus"]) / numbers(job["tokens_per_s"]))
    table = best_table(job, [y], x, "slowness")
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
            colorbar={"title": {"text": "times the best"}, "thickness": 12},
            texttemplate="%{z:.2f}" if few else None,
            hoverongaps=False,
            hovertemplate=f"{x_title} %{{x}}, {y_title} %{{y}}: %{{z:.3f}} times the best<extra></extra>",
        )
    )
    over = "time per token and GPU" if x == "num_gpus" or y == "num_gpus" else "step time"
    about = f"Best {over} for each pair, relative to the best of all, over the other choices. Empty: no feasible plan; "
    about += f"colours end at {_WORST:g} times the best."
    return Picture("heat", f"{x_title} and {y_title}", about, figure)


def _columns(rows: RankedRows, first: Named) -> tuple[str, str] | None:
    """Return the columns along x and y."""
    varied = sorted((name for name in rows.varied if _few(rows.every, name)), key=lambda n: -_distinct(rows.every, n))
    if len(varied) >= 2:
        return varied[0], varied[1]
    job = alike(rows.every, first.row, rows.settings)
    degrees = sorted((name for name in DEGREES if name != "dp"), key=lambda name: -_distinct(job, name))
    if _distinct(job, degrees[1]) > 1:
        return degrees[0], degrees[1]
    return None


def _distinct(frame: "pd.DataFrame", name: str) -> int:
    found: Any = frame[name].nunique()
    return int(found)


def _few(frame: "pd.DataFrame", name: str) -> bool:
    return 1 < _distinct(frame, name) <= _MOST_VALUES
