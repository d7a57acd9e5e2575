"""The pictures of a report, drawn by Plotly: the front, a heat map, scaling, and the breakdown.

Each draws the record of `dsx.pictures` that matplotlib draws too, of the rows of a report. Plotly reads a few HTML tags
in labels, so names are escaped. Colours of text and grid are set by the page (assets/figures.js), which knows whether
it is dark.
"""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dsx.pictures.breakdown import StackPicture, stack_picture
from dsx.pictures.figure import Style
from dsx.pictures.front import NamedPlan, front_picture
from dsx.pictures.heatmap import heat_picture
from dsx.pictures.html.answer import Named
from dsx.pictures.html.ranked_rows import RankedRows, distinct, ranked, rate
from dsx.pictures.scaling import ScalingLine, ScalingPicture
from dsx.pictures.shown_rows import GPUS, PER_GPU, AxisUnit, Numbers, fastest, ideal, interval, words
from dsx.plans.rules import DEGREES
from dsx.results.frames import Frame, pareto
from dsx.results.ranked_by import Priced
from dsx.tables.format import whole_plan_text
from dsx.text import DataFrame, printable
from dsx.units import counted, format_quantity

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


# Marks of lines and groups: colour-blind safe, and of different lightness (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800")
_SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_FRONT = ("step_time_s", "peak_bytes")
_NEAR = 2.0  # times the step time of the plan, up to which its front has other plans
_MOST_POINTS = 2_000  # of a front, besides those on it
_MOST_VALUES = 40  # of an axis of a heat map
_WORST = 2.0  # times the best, where the colours end
_MOST_LINES = 8
_MOST_BARS = 24
_HOVER = "%{text}<extra></extra>"
_ROW, _REST = 40, 150  # pixels of a bar, and of what is around them


@dataclass(frozen=True)
class Picture:
    """A picture of the page."""

    identity: str  # of its element
    title: str
    about: str  # what it shows, a sentence or two
    figure: "Figure"


def pictures(rows: RankedRows, named: Sequence[Named]) -> list[Picture]:
    """Return front, breakdowns, scaling and heat map, as far as the set has something feasible for them."""
    if rows.feasible.empty:
        return []
    varied = [*_scaling(rows, named[0]), *_heat(rows, named[0])]
    first: Frame = named[0].row
    job = rows.alike(first, rows.settings)
    near = job.loc[(job[_FRONT[0]] <= _NEAR * first[_FRONT[0]]).to_numpy()]
    front = pareto(near, *_FRONT)
    front = front.loc[~front.duplicated([*_FRONT]).to_numpy()]
    cloud = near.index.difference(front.index).to_numpy()
    if len(cloud) > _MOST_POINTS:
        # Chosen at random: an even stride would interfere with the order of the enumeration.
        cloud = np.random.default_rng(0).choice(cloud, _MOST_POINTS, replace=False)
    best, sample = (rows.with_attrs(rows.whole(plans)) for plans in (front, near.loc[np.sort(cloud)]))
    marked = [NamedPlan(plan.title, plan.row.to_frame().T) for plan in named]
    picture = front_picture(sample, best, _FRONT, marked, len(near))
    figure = _blank(440, {"title_text": picture.x.label}, {"title_text": picture.y.label})
    beside = picture.number - len(picture.best)
    drawn = f", {len(picture.plans):,} drawn" if len(picture.plans) < beside else ""
    beside_front = f"{counted(beside, 'other plan')}{drawn}"
    unbeaten = f"front: {counted(len(picture.best), 'plan')} that no other beats in both"
    for label, plans, mode, marker in (
        (beside_front, picture.plans, "markers", {"size": 5, "color": "#9aa5b1", "opacity": 0.6}),
        (unbeaten, picture.best, "lines+markers", {"size": 7, "color": "#0072b2"}),
    ):
        style: Style = {"marker": marker, "line": {"shape": "hv", "color": "#0072b2", "width": 1.5}}
        x, y = (_numbers(plans[unit.column]) / unit.size for unit in (picture.x, picture.y))
        texts = [_plan_hover(priced) for priced in rows.plans(plans)]
        _scatter(figure, label, (x, y), texts, mode=mode, **style)
    for plan, role, symbol in zip(picture.marked, named, _SYMBOLS[1:], strict=False):
        marker = {"size": 14, "symbol": symbol, "color": "#d55e00", "line": {"color": "#222222", "width": 1.5}}
        place = _numbers(picture.x.place(plan.row)), _numbers(picture.y.place(plan.row))
        _scatter(figure, _escaped(plan.name), place, [_plan_hover(role.priced)], mode="markers", marker=marker)
    if picture.capacity is not None:
        line, name = {"dash": "dash", "width": 1, "color": "#888888"}, {"text": "memory of a GPU", "font": {"size": 12}}
        figure.add_hline(y=picture.capacity / picture.y.size, line=line, annotation=name)
    step = f"{counted(int(first['num_gpus']), 'GPU')} and {counted(int(first['global_batch_size']), 'sequence')} a step"
    about = f"The {picture.number:,} feasible plans of the set for {step}, up to twice the step time of the first."
    return [Picture("front", "Step time and memory", about, figure), *_stacks(rows, named), *varied]


def _escaped(text: object) -> str:
    """Return a name as Plotly shows it, with what it would take for a tag escaped."""
    return html.escape(printable(str(text)), quote=False)


def _numbers(values: ArrayLike) -> Numbers:
    """Return values as float64, which Plotly writes as base64."""
    return np.ascontiguousarray(values, dtype=np.float64)


def _blank(height: int, x: Style, y: Style, barmode: str | None = None) -> "Figure":
    """Return a figure without marks: transparent, of a height in pixels, its legend above; `x` and `y` are its axes."""
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
        hovermode="closest",
        barmode=barmode,
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=8, **x)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8, **y)
    return figure


def _scatter(
    figure: "Figure", name: str, places: tuple[Numbers, Numbers], texts: Sequence[str] | None = None, **style: object
) -> None:
    """Add points or a line; without `texts` it says nothing under the pointer."""
    import plotly.graph_objects as go

    hover: Style = {"text": texts, "hovertemplate": _HOVER} if texts is not None else {"hoverinfo": "skip"}
    figure.add_trace(go.Scatter(x=places[0], y=places[1], name=name, **hover, **style))


def _plan_hover(priced: Priced) -> str:
    """Return the text of a plan over several lines, which Plotly does not break itself."""
    figures = f"{format_quantity(priced['step_time_s'], 's')}, {format_quantity(priced['peak_bytes'], 'bytes')}"
    text = f"{priced['plan']['strategy']}: {whole_plan_text(priced['plan'])}"
    lines = textwrap.wrap(text, 60, break_long_words=False, break_on_hyphens=False) or [""]
    return "<br>".join([f"<b>{figures}</b>", *map(_escaped, lines)])


def _heat(rows: RankedRows, first: Named) -> list[Picture]:
    """Draw the two settings that vary most, else two degrees of the plans; empty if no two have several values."""
    import plotly.graph_objects as go

    counts = {name: distinct(rows.every, name) for name in rows.varied}
    columns = sorted((name for name in counts if 1 < counts[name] <= _MOST_VALUES), key=lambda name: -counts[name])
    if len(columns) < 2:
        job = rows.alike(first.row, rows.settings)
        degrees = dict.fromkeys(("pp", "tp", *DEGREES))
        columns = [name for name in degrees if name != "dp" and distinct(job, name) > 1]
    if len(columns) < 2:
        return []
    x, y = columns[:2]
    job = rows.alike(first.row, [name for name in rows.settings if name not in (x, y)])
    light = job[[*dict.fromkeys((x, y, "cluster", "reject"))]].assign(slowness=1 / rate(job))
    picture = heat_picture(rows.with_attrs(light), x, y, "slowness")
    ratios = picture.values / np.nanmin(picture.values)
    across, up = ({"title_text": name, "type": "category", "showgrid": False} for name in (picture.x, picture.y))
    figure = _blank(110 + 34 * max(len(picture.y_texts), 4), across, up)
    bar = {"title": {"text": "times<br>the best"}, "thickness": 12, "tickvals": [1.0, 1.25, 1.5, 1.75, _WORST]}
    hover = f"{picture.x} %{{x}}, {picture.y} %{{y}}: %{{z:.3f}} times the best<extra></extra>"
    colours: Style = {"zmin": 1.0, "zmax": _WORST, "colorscale": "Viridis", "reversescale": True, "colorbar": bar}
    texts: Style = {"texttemplate": "%{z:.2f}" if ratios.size <= 150 else None, "hovertemplate": hover}
    names = ([_escaped(text) for text in of_axis] for of_axis in (picture.x_texts, picture.y_texts))
    figure.add_trace(go.Heatmap(**dict(zip("xy", names, strict=True)), z=ratios, hoverongaps=False, **colours, **texts))
    over = "time per token and GPU" if {"num_gpus", "global_batch_size"} & {x, y} else "step time"
    about = f"Best {over} for each pair, relative to the best of all, over the other choices. Empty: no feasible plan "
    about += f"in the set; colours end at {_WORST:g} times the best."
    if picture.compared is not None and picture.compared.today:
        about += " Framed: the machine as the cluster file states it."
        for row, column in np.argwhere(picture.compared.cells).tolist():
            place = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
            # A dark and a light line, one of which is seen on every colour.
            figure.add_shape(type="rect", **place, line={"color": "black", "width": 4})
            figure.add_shape(type="rect", **place, line={"color": "white", "width": 1.5})
    return [Picture("heat", f"{over[0].upper()}{over[1:]} by {picture.x} and {picture.y}", about, figure)]


def _scaling(rows: RankedRows, first: Named) -> list[Picture]:
    """Draw how the best plan of each cluster, or strategy, scales; empty if the set has one number of GPUs."""
    if GPUS not in rows.varied:
        return []
    by = "cluster" if "cluster" in rows.varied else "strategy"
    job = rows.alike(first.row, [name for name in rows.settings if name not in (GPUS, by)])
    names = [*dict.fromkeys(fastest(job, [by]).sort_values("step_time_s")[by])][:_MOST_LINES]
    points = [rows.whole(fastest(job.loc[(job[by] == name).to_numpy()], [GPUS])) for name in names]
    best = _line("best", fastest(job, [GPUS]))
    picture = ScalingPicture(
        AxisUnit(PER_GPU, 1.0, "tokens per second and GPU"),
        [_line(str(name), plans) for name, plans in zip(names, points, strict=True)],
        [ideal(PER_GPU, _numbers(best.x), best.y)],
    )
    ticks: Style = {"tickvals": [*best.x], "ticktext": [f"{count:,}" for count in best.x]}
    y: Style = {"title_text": picture.y.label, "rangemode": "tozero"}
    figure = _blank(420, {"title_text": "GPUs", "type": "log"} | ticks, y)
    if np.isfinite(best.low).all():
        around = _numbers([*best.x, *best.x[::-1]]), np.concatenate([best.high, best.low[::-1]])
        band: Style = {"fill": "toself", "fillcolor": "rgba(128,128,128,0.18)", "line": {"width": 0}}
        _scatter(figure, "80 % interval of the best", around, mode="lines", **band)
    grey = {"color": "#888888", "dash": "dash", "width": 1.5}
    label = f"no loss beyond {counted(int(best.x[0]), 'GPU')}"
    _scatter(figure, label, (_numbers(best.x), picture.ideal[0]), mode="lines", line=grey)
    for at, (line, plans) in enumerate(zip(picture.lines, points, strict=True)):
        texts = [
            f"<b>{counted(priced['plan'][GPUS], 'GPU')}: {speed:,.0f} tokens/s/GPU</b><br>"
            f"step {format_quantity(priced['step_time_s'], 's')}, MFU {100 * priced['mfu']:.1f} %<br>"
            f"{_escaped(whole_plan_text(priced['plan']))}"
            for priced, speed in zip(rows.plans(plans), line.y, strict=True)
        ]
        colour = _COLOURS[at % len(_COLOURS)]
        marker = {"size": 9, "symbol": _SYMBOLS[at % len(_SYMBOLS)], "color": colour}
        dash = {"color": colour, "dash": _DASHES[at % len(_DASHES)], "width": 2}
        style: Style = {"mode": "lines+markers", "marker": marker, "line": dash}
        _scatter(figure, _escaped(line.name), (_numbers(line.x), line.y), texts, **style)
    about = f"Each point is the best plan of a {words(by)} at that number of GPUs; the step is the same, so batches of "
    return [Picture("scaling", "Scaling", f"{about}a GPU become smaller.", figure)]


def _line(name: str, plans: DataFrame) -> ScalingLine:
    missing = np.full(len(plans), np.nan)
    low, high = interval(plans, PER_GPU) or (missing, missing)
    return ScalingLine((name,), name, plans[GPUS].tolist(), rate(plans), low, high)


def _stacks(rows: RankedRows, named: Sequence[Named]) -> list[Picture]:
    """Draw the time and the memory of the plans of the answer, and of the fastest plan of each strategy."""
    import pandas as pd

    job = rows.alike(named[0].row, rows.settings)
    best = ranked(fastest(job, ["strategy"]), _MOST_BARS) if len(job) else job
    unnamed = rows.whole(best) if len(best) else rows.best.iloc[:0]
    unnamed = unnamed.loc[(~unnamed["candidate"].isin([plan.row["candidate"] for plan in named])).to_numpy()]
    answered = pd.DataFrame([plan.row for plan in named])
    bars = pd.concat([answered, unnamed], ignore_index=True) if len(unnamed) else answered.reset_index(drop=True)
    labels = [*(plan.title for plan in named), *(f"{strategy}, fastest" for strategy in unnamed["strategy"])]
    # A line for each part of a label, which would else take the width of a narrow page.
    broken = [_escaped(label).replace(", ", ",<br>") for label in labels]
    plans = [_escaped(whole_plan_text(priced["plan"])) for priced in rows.plans(bars)]
    about = "The plans of the answer, and the fastest plan of each strategy for the same job."
    stacks = (("time", "s", "What the step time is made of"), ("memory", "bytes", "What the memory is made of"))
    return [
        Picture(f"stack-{of}", title, about, _draw_stack(stack_picture(bars, of), unit, broken, plans))
        for of, unit, title in stacks
    ]


def _draw_stack(picture: StackPicture, unit: str, labels: Sequence[str], plans: Sequence[str]) -> "Figure":
    import plotly.graph_objects as go

    x: Style = {"title_text": picture.label, "rangemode": "tozero"}
    y: Style = {"autorange": "reversed", "type": "category"}
    figure = _blank(_ROW * len(labels) + _REST, x, y, barmode="stack")
    for part, heights in picture.parts:
        values = _numbers(heights)
        texts = [
            f"<b>{part.label}: {format_quantity(value, unit)}</b> ({100 * share:.1f} %)<br>{plan}"
            for value, share, plan in zip(values, values / _numbers(picture.total), plans, strict=True)
        ]
        marker: Style = {"color": part.colour, "line": {"color": "rgba(128,128,128,0.6)", "width": 0.5}}
        pattern = {"shape": "\\" if part.hatch else "", "fillmode": "overlay", "fgcolor": part.hatch, "size": 6}
        hover = {"text": texts, "textposition": "none", "hovertemplate": _HOVER}
        bars = {"y": [*labels], "x": values / picture.size, "orientation": "h", "name": part.label}
        figure.add_trace(go.Bar(**bars, marker=marker | {"pattern": pattern}, **hover))
    return figure
