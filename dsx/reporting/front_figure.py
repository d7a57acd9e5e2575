"""The front of step time and memory: plans of one job on one machine, up to twice the step time of the best."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsx.display.quantities import whole_plan_text
from dsx.reporting.answer import Named
from dsx.reporting.figure import SYMBOLS, Picture, blank, numbers, shown, shown_all
from dsx.reporting.ranked_rows import Cloud, RankedRows, cloud
from dsx.results.plot.axes import scale_of
from dsx.results.plot.capacity import capacities
from dsx.units import counted, format_quantity

_X, _Y = "step_time_s", "peak_bytes"


def front_figure(rows: RankedRows, named: Sequence[Named]) -> Picture:
    """Return the front of the job of the first plan, with the plans of the answer marked."""
    import plotly.graph_objects as go

    found = cloud(rows, named[0].row)
    (x_size, x_title), (y_size, y_title) = (scale_of(rows.best, name, numbers(found.front[name])) for name in (_X, _Y))
    figure = blank(440, hovermode="closest")
    figure.update_xaxes(title_text=x_title)
    figure.update_yaxes(title_text=y_title)
    cloud_style = {"size": 5, "color": "#9aa5b1", "opacity": 0.6}
    front_style = {"size": 7, "color": "#0072b2"}
    of_front = f"front: {counted(len(found.front), 'plan')} that no other beats in both"
    for label, plans, style, mode in (
        (_cloud_label(found), found.others, cloud_style, "markers"),
        (of_front, found.front, front_style, "lines+markers"),
    ):
        figure.add_trace(
            go.Scatter(
                x=numbers(plans[_X]) / x_size,
                y=numbers(plans[_Y]) / y_size,
                name=label,
                mode=mode,
                marker=style,
                line={"shape": "hv", "color": "#0072b2", "width": 1.5},
                text=[_hover(priced) for priced in rows.plans(plans)],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    for one, symbol in zip(named, SYMBOLS[1:], strict=False):
        figure.add_trace(
            go.Scatter(
                x=numbers([one.row[_X] / x_size]),
                y=numbers([one.row[_Y] / y_size]),
                name=shown(one.title),
                mode="markers",
                marker={"size": 14, "symbol": symbol, "color": "#d55e00", "line": {"color": "#222222", "width": 1.5}},
                text=[_hover(one.priced)],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    _mark_capacity(figure, rows, named[0], y_size)
    gpus, batch = (int(named[0].row[name]) for name in ("num_gpus", "global_batch_size"))
    job = f"{counted(gpus, 'GPU')} and {counted(batch, 'sequence')} a step"
    about = f"The {found.number:,} feasible plans of the set for {job}, up to twice the step time of the first."
    return Picture("front", "Step time and memory", about, figure)


def _cloud_label(found: Cloud) -> str:
    of = found.number - len(found.front)
    drawn = f", {len(found.others):,} drawn" if len(found.others) < of else ""
    return f"{counted(of, 'other plan')}{drawn}"


def _mark_capacity(figure: Any, rows: RankedRows, first: Named, size: float) -> None:
    """Draw the memory of a GPU if the plans come near it."""
    (capacity,) = capacities(rows.with_attrs(first.row.to_frame().T))
    if np.isfinite(capacity):
        figure.add_hline(
            y=capacity / size,
            line={"dash": "dash", "width": 1, "color": "#888888"},
            annotation={"text": "memory of a GPU", "font": {"size": 12}},
        )


def _hover(priced: Any) -> str:
    figures = f"{format_quantity(priced[_X], 's')}, {format_quantity(priced[_Y], 'bytes')}"
    lines = [
        f"<b>{figures}</b>",
        *shown_all(_lines(f"{priced['plan']['strategy']}: {whole_plan_text(priced['plan'])}")),
    ]
    return "<br>".join(lines)


def _lines(text: str, width: int = 60) -> list[str]:
    """Return a plan over several lines, which Plotly does not break itself."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
