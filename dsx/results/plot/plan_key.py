"""The key of a picture: the plans that have a name in it, in full, as lines below the axes."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from dsx.results.pareto_rows import column_of
from dsx.results.plot.axes import quantity_texts
from dsx.results.plot.layout import Layout
from dsx.space.choices import PLAN_COLUMNS
from dsx.space.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

_FONT = 7.5  # points
_LETTER = 0.603  # the width of a letter of the font, which is monospaced, in its heights
_BELOW = 40.0  # points from the axis to the first line, with ticks and label between


class Keyed(NamedTuple):
    """A plan with a name: a frame of one row."""

    name: str
    row: "pd.DataFrame"


def draw_key(layout: Layout, plans: Sequence[Keyed], *objectives: str) -> None:
    """Write below the lowest axis a line for each plan: its name, its objectives, its choices.

    Rows without all columns of a plan have no choices there.
    """
    if not plans:
        return
    ax = layout.axes[-1]
    letters = max(int(layout.room(ax)[0] / (_LETTER * _FONT)), 40)
    cells = [
        [one.name, *(quantity_texts(one.row, column_of(objective))[0] for objective in objectives)] for one in plans
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    indent = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for one, row in zip(plans, cells, strict=True):
        name, *quantities = row
        head = "  ".join([name.ljust(widths[0]), *(q.rjust(w) for q, w in zip(quantities, widths[1:], strict=True))])
        text = wrap(plan_text(one.row), max(letters - indent, 24)) or [""]
        lines += [f"{head}  {text[0]}".rstrip(), *(" " * indent + part for part in text[1:])]
    place: dict[str, Any] = {"xy": (0.0, 0.0), "xycoords": "axes fraction", "textcoords": "offset points"}
    style: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": _FONT, "linespacing": 1.3, "color": "0.15"}
    ax.annotate("\n".join(lines), gid="plans", **place, xytext=(0.0, -_BELOW), va="top", annotation_clip=False, **style)


def plan_text(row: "pd.DataFrame") -> str:
    """Return the strategy and the choices of the plan of a frame of one row, "" if a column is missing."""
    if not {*PLAN_COLUMNS} <= {*row.columns}:
        return ""
    plan: Any = row[list(PLAN_COLUMNS)]
    (values,) = plan.to_dict(orient="records")
    return f"{values['strategy']} {Plan(values).text}"
