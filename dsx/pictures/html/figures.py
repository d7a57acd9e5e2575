"""The pictures of a report: the front, a heat map, scaling, and the breakdown.

What the pictures of a report share: their titles, and a style that the page adapts to light and dark.

Plotly reads a few HTML tags in labels, so names are escaped. Colours of text and grid are set by the page
(assets/figures.js), which knows whether it is dark.

The front of step time and memory: plans of one job on one machine, up to twice the step time of the best.

A heat map of two columns: the settings of the sweep that vary most, else two degrees of the plans.

A cell has the best feasible value, relative to the best of all, so one bad cell does not take the colours of the rest:
they end at twice the best. A frame marks the machine of today, where its own values are on an axis.

Scaling: tokens a second and GPU of the best plan at each number of GPUs, beside the ideal of no loss.

The breakdown: what the step time and the memory of plans are made of, one bar a plan.
"""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.pictures.axes import scale_of, unit_of, value_texts, words
from dsx.pictures.breakdown import STACKS
from dsx.pictures.chosen_rows import best_table, capacities, fastest
from dsx.pictures.heatmap import reference
from dsx.pictures.html.answer import Named
from dsx.pictures.html.tables import Cloud, RankedRows, cloud, distinct, ranked, rate
from dsx.plans.rules import DEGREES
from dsx.tables.format import whole_plan_text
from dsx.text import printable
from dsx.units import counted, format_quantity

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure
    from plotly.graph_objects import Figure as PlotlyFigure


# Marks of lines and groups: colour-blind safe, and of different lightness (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Picture:
    """A picture of the page."""

    identity: str  # of its element
    title: str
    about: str  # what it shows, a sentence or two
    figure: "PlotlyFigure"


def shown(text: object) -> str:
    """Return a name as Plotly shows it, with what it would take for a tag escaped."""
    return html.escape(printable(str(text)), quote=False)


def broken(label: str) -> str:
    """Return a label with a line for each of its parts, which would else take the width of a narrow page."""
    return shown(label).replace(", ", ",<br>")


def shown_all(texts: Sequence[object]) -> list[str]:
    """Return names as Plotly shows them."""
    return [shown(text) for text in texts]


def numbers(values: Any) -> NDArray[np.float64]:
    """Return values as float64, which Plotly writes as base64."""
    return np.ascontiguousarray(values, dtype=np.float64)


def blank(height: int, **layout: Any) -> "PlotlyFigure":
    """Return a figure without marks: transparent, of a height in pixels, its legend above."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 64, "r": 16, "t": 16, "b": 56},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8a94a0", "activecolor": "#d55e00"},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_layout(**layout)
    return figure


_FRONT_X, _FRONT_Y = "step_time_s", "peak_bytes"


def front_figure(rows: RankedRows, named: Sequence[Named]) -> Picture:
    """Return the front of the job of the first plan, with the plans of the answer marked."""
    import plotly.graph_objects as go

    found = cloud(rows, named[0].row)
    (x_size, x_title), (y_size, y_title) = (
        scale_of(rows.best, name, numbers(found.front[name])) for name in (_FRONT_X, _FRONT_Y)
    )
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
                x=numbers(plans[_FRONT_X]) / x_size,
                y=numbers(plans[_FRONT_Y]) / y_size,
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
                x=numbers([one.row[_FRONT_X] / x_size]),
                y=numbers([one.row[_FRONT_Y] / y_size]),
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
    figures = f"{format_quantity(priced[_FRONT_X], 's')}, {format_quantity(priced[_FRONT_Y], 'bytes')}"
    lines = [
        f"<b>{figures}</b>",
        *shown_all(_lines(f"{priced['plan']['strategy']}: {whole_plan_text(priced['plan'])}")),
    ]
    return "<br>".join(lines)


def _lines(text: str, width: int = 60) -> list[str]:
    """Return a plan over several lines, which Plotly does not break itself."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


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


_SCALING_X = "num_gpus"
_MOST_LINES = 8


def scaling_figure(rows: RankedRows, first: Named) -> Picture | None:
    """Return how the best plans scale; None if the set has one number of GPUs.

    A line is a cluster if the set has several, else a strategy; batch and hardware are otherwise those of the first
    plan.
    """
    import plotly.graph_objects as go

    if _SCALING_X not in rows.varied:
        return None
    by = "cluster" if "cluster" in rows.varied else "strategy"
    same = [name for name in rows.settings if name not in (_SCALING_X, by)]
    job = rows.alike(first.row, same)
    best = fastest(job, [_SCALING_X])
    lines = [*dict.fromkeys(fastest(job, [by]).sort_values("step_time_s")[by])][:_MOST_LINES]
    figure = blank(420, hovermode="closest")
    figure.update_xaxes(title_text="GPUs", type="log", tickvals=[*map(int, best[_SCALING_X])], ticktext=_ticks(best))
    figure.update_yaxes(title_text="tokens per second and GPU", rangemode="tozero")
    _band(figure, best)
    ideal = rate(best)[0]
    figure.add_trace(
        go.Scatter(
            x=numbers(best[_SCALING_X]),
            y=numbers([ideal] * len(best)),
            name=f"no loss beyond {counted(int(best[_SCALING_X].iloc[0]), 'GPU')}",
            mode="lines",
            line={"color": "#888888", "dash": "dash", "width": 1.5},
            hoverinfo="skip",
        )
    )
    for at, value in enumerate(lines):
        points = rows.whole(fastest(job.loc[(job[by] == value).to_numpy()], [_SCALING_X]))
        figure.add_trace(
            go.Scatter(
                x=numbers(points[_SCALING_X]),
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
    return [f"{count:,}" for count in best[_SCALING_X]]


def _hovers(rows: RankedRows, points: "pd.DataFrame") -> list[str]:
    return [
        f"<b>{counted(priced['plan'][_SCALING_X], 'GPU')}: {speed:,.0f} tokens/s/GPU</b><br>"
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
            x=numbers([*best[_SCALING_X], *best[_SCALING_X][::-1]]),
            y=np.concatenate([speed * step / low, (speed * step / high)[::-1]]),
            name="80 % interval of the best",
            fill="toself",
            fillcolor="rgba(128,128,128,0.18)",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
        )
    )


_MOST_BARS = 24
_ROW, _REST = 40, 150  # pixels of a bar, and of what is around them


def stack_figures(rows: RankedRows, named: Sequence[Named]) -> list[Picture]:
    """Return the time and the memory of the plans of the answer, and of the fastest plan of each strategy."""
    bars, labels = _bars(rows, named)
    about = "The plans of the answer, and the fastest plan of each strategy for the same job."
    titles = {"time": "What the step time is made of", "memory": "What the memory is made of"}
    return [Picture(f"stack-{of}", title, about, _stacked(of, rows, bars, labels)) for of, title in titles.items()]


def _bars(rows: RankedRows, named: Sequence[Named]) -> tuple["pd.DataFrame", list[str]]:
    import pandas as pd

    job = rows.alike(named[0].row, rows.settings)
    best = ranked(fastest(job, ["strategy"]), _MOST_BARS) if len(job) else job
    others = rows.whole(best) if len(best) else rows.best.iloc[:0]
    known = [one.row["candidate"] for one in named]
    others = others.loc[(~others["candidate"].isin(known)).to_numpy()]
    answered = pd.DataFrame([one.row for one in named])
    bars: Any = pd.concat([answered, others], ignore_index=True) if len(others) else answered.reset_index(drop=True)
    labels = [*(one.title for one in named), *(f"{strategy}, fastest" for strategy in others["strategy"])]
    return bars, [broken(label) for label in labels]


def _stacked(of: str, rows: RankedRows, bars: "pd.DataFrame", labels: Sequence[str]) -> Any:
    import plotly.graph_objects as go

    stack = STACKS[of]
    unit = "s" if stack.total.endswith("_s") else "bytes"
    size, title = scale_of(bars, stack.total, numbers(bars[stack.total]))
    figure = blank(_ROW * len(bars) + _REST, barmode="stack", hovermode="closest")
    figure.update_xaxes(title_text=title, rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    plans = [shown(whole_plan_text(priced["plan"])) for priced in rows.plans(bars)]
    for name, part in stack.parts.items():
        values = numbers(bars[name])
        if not values.any():
            continue
        share = values / numbers(bars[stack.total])
        texts = [
            f"<b>{part.label}: {format_quantity(value, unit)}</b> ({100 * of_whole:.1f} %)<br>{plan}"
            for value, of_whole, plan in zip(values, share, plans, strict=True)
        ]
        figure.add_trace(
            go.Bar(
                y=list(labels),
                x=values / size,
                orientation="h",
                name=part.label,
                marker={
                    "color": part.colour,
                    "line": {"color": "rgba(128,128,128,0.6)", "width": 0.5},
                    "pattern": {
                        "shape": "\\" if part.hatch else "",
                        "fillmode": "overlay",
                        "fgcolor": part.hatch,
                        "size": 6,
                    },
                },
                text=texts,
                textposition="none",
                hovertemplate="%{text}<extra></extra>",
            )
        )
    return figure
