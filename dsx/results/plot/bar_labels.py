"""The labels above and below the bars of a breakdown.

Above each bar is its total. Below it are the values of the grouping columns, and in small print the other choices that
differ between the plans: rows of a table with its heading to the left of the axis. Totals and values that are too wide
are rotated; small print that is too wide is left out, the placement first.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsx.results.plot.axes import named, value_texts, words
from dsx.results.plot.layout import Layout, figure_of, text_sizes
from dsx.results.plot.selection import settings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Heights = NDArray[np.float64]  # [bars], on the y axis

_DEGREES = ("tp", "tp2", "cp", "ep", "pp", "dp")
_ZERO, _RECOMPUTE = ("zero_stage", "zero_replicas"), ("recompute", "stored_layers")
_CHOICES = (
    "strategy",
    *_DEGREES,
    "vpp",
    "panels",
    "microbatch_size",
    *_ZERO,
    *_RECOMPUTE,
    "schedule",
    "offload",
    "order",
)
_FONT, _SMALL_FONT = 8.0, 6.5  # points
_PAD = 4.0  # points between axis and labels
_ABOVE = 2.0  # points between a bar and its total


def label_totals(layout: Layout, ax: "Axes", tops: Heights, lines: Heights, texts: Sequence[str]) -> None:
    """Write a text above each bar, whose top is at `tops` [n]; the y axis grows to make room.

    If a line over the bar, at `lines` [n] (NaN without one), would cross a text, the text is above the line. Texts that
    are too wide are rotated, and all are left out if they would still touch.
    """
    from matplotlib.transforms import offset_copy

    above = offset_copy(ax.transData, figure_of(ax), y=_ABOVE, units="points")
    style = {"transform": above, "ha": "center", "va": "bottom", "fontsize": _SMALL_FONT, "color": "0.25"}
    labels = [ax.text(place, top, text, **style) for place, (top, text) in enumerate(zip(tops, texts, strict=True))]
    places = range(len(labels))
    if len(layout.without_overlap(ax.xaxis, places, labels)) < len(labels):
        for label in labels:
            label.set_rotation(90)
    if not labels or len(layout.without_overlap(ax.xaxis, places, labels)) < len(labels):
        # With only a few of them, each would extend over neighbouring bars.
        for label in labels:
            label.remove()
        return
    # On a very low axis the bars keep half of the height.
    heights = np.array([height for _, height in text_sizes(labels)]) + 2 * _ABOVE
    shares = np.minimum(heights / layout.room(ax)[1], 0.5)
    ax.set_ylim(top=max(ax.get_ylim()[1], *(tops / (1.0 - shares))))
    crossed = (tops <= lines) & (lines <= tops + shares * ax.get_ylim()[1])
    feet = np.where(crossed, lines, tops)
    ax.set_ylim(top=max(ax.get_ylim()[1], *(feet / (1.0 - shares))))
    for label, foot in zip(labels, feet, strict=True):
        label.set_y(foot)


def label_bars(layout: Layout, rows: "pd.DataFrame", columns: Sequence[str]) -> None:
    """Write below bar i the values of `columns` in row i of `rows`, and the other choices that differ between plans.

    The labels are below the lowest axis.
    """
    ax = layout.axes[-1]
    places = list(range(len(rows)))
    values = [value_texts(rows, column, rows[column].tolist()) for column in columns]
    heads = [named(rows, column) for column in columns]
    ax.tick_params("x", labelsize=_FONT, pad=_PAD, length=0)
    below = ["\n".join(texts) for texts in zip(*values, strict=True)]
    if layout.fit_ticks(ax.xaxis, places, below):
        # Rotated lines would be side by side, so join them.
        layout.fit_ticks(ax.xaxis, places, [", ".join(texts) for texts in zip(*values, strict=True)])
        _heading(ax, ", ".join(heads), _PAD, _FONT)
    else:
        _heading(ax, "\n".join(heads), _PAD, _FONT)
    # The title has the settings that all bars share.
    varied = [name for name in settings(rows.columns) if len(set(rows[name])) > 1]
    shown = [*varied, *(name for name in _CHOICES if _differs(rows, name))]
    plan = {named(rows, name): value_texts(rows, name, rows[name].tolist()) for name in shown if name not in columns}
    placement = _placement(rows, columns)
    if not _small_print(layout, plan | placement) and placement:
        _small_print(layout, plan)


def _differs(rows: "pd.DataFrame", column: str) -> bool:
    """Return whether a column differs between the bars; if there is only one bar, whether its value is above 1."""
    found = set(rows[column]) if column in rows.columns else set()
    return len(found) > 1 or (len(rows) == 1 and not found <= {0, 1})


def _placement(rows: "pd.DataFrame", columns: Sequence[str]) -> dict[str, list[str]]:
    """Return a row of the small print with the members of each axis in a fast domain, as in "4 TP, 2 DP".

    It is empty if no bar differs. An axis whose share is among `columns` is left out.
    """
    shares = {axis: f"{axis}_nvs" for axis in _DEGREES}
    shown = {axis: name for axis, name in shares.items() if name in rows.columns and name not in columns}
    if not any(_differs(rows, name) for name in shown.values()):
        return {}
    members = [dict(zip(shown, row, strict=True)) for row in zip(*(rows[name] for name in shown.values()), strict=True)]
    lines = [[f"{share} {words(axis)}" for axis, share in row.items() if share > 1] for row in members]
    return {words("nvs"): ["\n".join(texts) or "-" for texts in lines]}


def _small_print(layout: Layout, table: dict[str, list[str]]) -> bool:
    """Write a table (heading -> cells) below the labels of the bars; return whether there was room for it."""
    if not table:
        return True
    ax = layout.axes[-1]
    pad = _PAD + max(height for _, height in text_sizes(ax.get_xticklabels())) + 3.0
    texts = ["\n".join(cells) for cells in zip(*table.values(), strict=True)]
    # Minor ticks at the positions of the major ones give a second row of labels.
    ax.xaxis.remove_overlapping_locs = False
    places = list(range(len(texts)))
    ax.set_xticks(places, labels=texts, minor=True)
    ax.tick_params("x", which="minor", labelsize=_SMALL_FONT, labelcolor="0.25", pad=pad, length=0)
    fits = len(layout.without_overlap(ax.xaxis, places, ax.get_xticklabels(minor=True))) == len(texts)
    if fits:
        _heading(ax, "\n".join(table), pad, _SMALL_FONT)
    else:
        ax.set_xticks([], minor=True)
    return fits


def _heading(ax: "Axes", text: str, pad: float, size: float) -> None:
    """Write text to the left of the labels that are `pad` points below the axis."""
    place = {"xy": (0.0, 0.0), "xycoords": "axes fraction", "xytext": (-6.0, -pad), "textcoords": "offset points"}
    ax.annotate(text, **place, ha="right", va="top", fontsize=size, color="0.25", annotation_clip=False)
