"""What stands under the bars of a breakdown: the values that tell them apart, and in small print their plans.

Both are rows of a table whose heading is at the left of the axis. Values that are too wide are turned, and plans
that are too wide are left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsx.results.plot.axes import unit_of, value_texts, words
from dsx.results.plot.layout import Layout, text_sizes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_DEGREES = ("tp", "tp2", "cp", "ep", "pp", "dp", "panels")
_FONT, _SMALL_FONT = 8.0, 6.5  # points
_PAD = 4.0  # points between axis and labels


def label_bars(layout: Layout, rows: "pd.DataFrame", columns: Sequence[str]) -> None:
    """Write under bar i, at place i, the values of `columns` in row i of `rows`, and the plan of that row.

    They go under the lowest axis.
    """
    ax = layout.axes[-1]
    places = list(range(len(rows)))
    values = [value_texts(rows, column, rows[column].tolist()) for column in columns]
    heads = [words(column, unit_of(rows, column)) for column in columns]
    ax.tick_params("x", labelsize=_FONT, pad=_PAD, length=0)
    below = ["\n".join(texts) for texts in zip(*values, strict=True)]
    if layout.fit_ticks(ax.xaxis, places, below):
        # Turned, one below the other would be side by side.
        layout.fit_ticks(ax.xaxis, places, [", ".join(texts) for texts in zip(*values, strict=True)])
        _heading(ax, ", ".join(heads), _PAD, _FONT)
    else:
        _heading(ax, "\n".join(heads), _PAD, _FONT)
    plan = [name for name in _plan_columns(rows) if name not in columns]
    if plan and places:
        _small_print(layout, rows, plan)


def _plan_columns(rows: "pd.DataFrame") -> list[str]:
    """Return the columns that say the plans; a degree that is 1 everywhere is left out."""
    used = [name for name in _DEGREES if name in rows.columns and max(rows[name], default=1) > 1]
    return [name for name in ("strategy", *used, "microbatch_size") if name in rows.columns]


def _small_print(layout: Layout, rows: "pd.DataFrame", columns: Sequence[str]) -> None:
    ax = layout.axes[-1]
    pad = _PAD + max(height for _, height in text_sizes(ax.get_xticklabels())) + 3.0
    texts = ["\n".join(map(str, row)) for row in zip(*(rows[column] for column in columns), strict=True)]
    # Minor ticks at the places of the major ones are a second row of labels.
    ax.xaxis.remove_overlapping_locs = False
    places = list(range(len(texts)))
    ax.set_xticks(places, labels=texts, minor=True)
    ax.tick_params("x", which="minor", labelsize=_SMALL_FONT, labelcolor="0.25", pad=pad, length=0)
    if len(layout.apart(ax.xaxis, places, ax.get_xticklabels(minor=True))) < len(texts):
        ax.set_xticks([], minor=True)
    else:
        _heading(ax, "\n".join(map(words, columns)), pad, _SMALL_FONT)


def _heading(ax: "Axes", text: str, pad: float, size: float) -> None:
    """Write text to the left of the labels that are `pad` points below the axis."""
    place = {"xy": (0.0, 0.0), "xycoords": "axes fraction", "xytext": (-6.0, -pad), "textcoords": "offset points"}
    ax.annotate(text, **place, ha="right", va="top", fontsize=size, color="0.25", annotation_clip=False)
