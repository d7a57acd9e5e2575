"""The breakdown: what the step time and the memory of plans are made of, one bar a plan."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsx.display.quantities import whole_plan_text
from dsx.reporting.answer import Named
from dsx.reporting.figure import Picture, blank, broken, numbers, shown
from dsx.reporting.ranked_rows import RankedRows, ranked
from dsx.results.plot.axes import scale_of
from dsx.results.plot.selection import fastest
from dsx.results.plot.stacks import STACKS
from dsx.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

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
