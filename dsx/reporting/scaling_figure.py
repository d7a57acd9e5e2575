"""Scaling: tokens a second and GPU of the best plan at each number of GPUs, beside the ideal of no loss."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.display.quantities import whole_plan_text
from dsx.reporting.answer import Named
from dsx.reporting.figure import COLOURS, DASHES, SYMBOLS, Picture, blank, numbers, shown
from dsx.reporting.ranked_rows import RankedRows, rate
from dsx.results.plot.axes import words
from dsx.results.plot.selection import fastest
from dsx.units import counted, format_quantity

if TYPE_CHECKING:
    import pandas as pd

_X = "num_gpus"
_MOST_LINES = 8


def scaling_figure(rows: RankedRows, first: Named) -> Picture | None:
    """Return how the best plans scale; None if the set has one number of GPUs.

    A line is a cluster if the set has several, else a strategy; batch and hardware are otherwise those of the first
    plan.
    """
    import plotly.graph_objects as go

    if _X not in rows.varied:
        return None
    by = "cluster" if "cluster" in rows.varied else "strategy"
    same = [name for name in rows.settings if name not in (_X, by)]
    job = rows.alike(first.row, same)
    best = fastest(job, [_X])
    lines = [*dict.fromkeys(fastest(job, [by]).sort_values("step_time_s")[by])][:_MOST_LINES]
    figure = blank(420, hovermode="closest")
    figure.update_xaxes(title_text="GPUs", type="log", tickvals=[*map(int, best[_X])], ticktext=_ticks(best))
    figure.update_yaxes(title_text="tokens per second and GPU", rangemode="tozero")
    _band(figure, best)
    ideal = rate(best)[0]
    figure.add_trace(
        go.Scatter(
            x=numbers(best[_X]),
            y=numbers([ideal] * len(best)),
            name=f"no loss beyond {counted(int(best[_X].iloc[0]), 'GPU')}",
            mode="lines",
            line={"color": "#888888", "dash": "dash", "width": 1.5},
            hoverinfo="skip",
        )
    )
    for at, value in enumerate(lines):
        points = rows.whole(fastest(job.loc[(job[by] == value).to_numpy()], [_X]))
        figure.add_trace(
            go.Scatter(
                x=numbers(points[_X]),
                y=rate(points),
                name=shown(value),
                mode="lines+markers",
                marker={"size": 9, "symbol": SYMBOLS[at % len(SYMBOLS)], "color": COLOURS[at % len(COLOURS)]},
                line={"color": COLOURS[at % len(COLOURS)], "dash": DASHES[at % len(DASHES)], "width": 2},
                text=_hovers(rows, points),
                hovertemplate="%{text}<extra></extra>",
            )
        )
    about = f"Each point is the best plan of a {words(by)} at that number of GPUs; the step is the same, so batches of "
    about += "a GPU become smaller."
    return Picture("scaling", "Scaling", about, figure)


def _ticks(best: "pd.DataFrame") -> list[str]:
    return [f"{count:,}" for count in best[_X]]


def _hovers(rows: RankedRows, points: "pd.DataFrame") -> list[str]:
    return [
        f"<b>{counted(priced['plan'][_X], 'GPU')}: {speed:,.0f} tokens/s/GPU</b><br>"
        f"step {format_quantity(priced['step_time_s'], 's')}, MFU {100 * priced['mfu']:.1f} %<br>"
        f"{shown(whole_plan_text(priced['plan']))}"
        for priced, speed in zip(rows.plans(points), rate(points), strict=True)
    ]


def _band(figure: Any, best: "pd.DataFrame") -> None:
    """Draw the 80 % interval of the best line, if the assumption set states one."""
    import plotly.graph_objects as go

    low, high, step = (numbers(best[name]) for name in ("step_time_s_low", "step_time_s_high", "step_time_s"))
    if not np.isfinite(low).all():
        return
    speed = rate(best)
    figure.add_trace(
        go.Scatter(
            x=numbers([*best[_X], *best[_X][::-1]]),
            y=np.concatenate([speed * step / low, (speed * step / high)[::-1]]),
            name="80 % interval of the best",
            fill="toself",
            fillcolor="rgba(128,128,128,0.18)",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
        )
    )
