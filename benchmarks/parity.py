"""Parity plots: predicted over measured, one marker for each run, a shape and a colour for each family of devices.

The colours are those of Okabe and Ito (Color Universal Design, 2008), which readers of any colour vision can tell
apart; shapes and dark edges keep families apart in grey.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsx.pictures.figure import log_ticks, plain_numbers

BAND = 1.1  # the grey band reaches this factor to either side
GIGABYTE = 1e9
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442", "#000000")
_MARKERS = "osD^vP*Xh<>"
_PANEL_INCHES = 4.6


def draw(
    path: Path, quantity: str, panels: Sequence[tuple[str, np.ndarray, np.ndarray]], family: Sequence[str]
) -> None:
    """Draw panels of [N] measured and predicted values into a file; all have the same axes.

    Args:
        path: the picture.
        quantity: what is measured, with its unit.
        panels: a title, measured and predicted values each; NaN is left out.
        family: of the device of each of the N rows.
    """
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(_PANEL_INCHES * columns, _PANEL_INCHES * lines + 0.6), layout="constrained")
    names, styles = np.array(family), _styles(family)
    values = np.concatenate([np.concatenate([m, p])[np.tile(_known(m, p), 2)] for _, m, p in panels])
    limits = np.array([0.8 * values.min(), 1.25 * values.max()]) if len(values) else np.array([0.8, 1.25])
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, (title, measured, predicted) in zip(axes, panels, strict=False):
        _draw_panel(ax, limits, quantity)
        ax.set_title(title)
        for name, style in styles.items():
            own = _known(measured, predicted) & (names == name)
            if own.any():
                ax.plot(measured[own], predicted[own], linestyle="", label=name, **style)
    drawn = {line.get_label(): line for ax in axes for line in ax.lines if str(line.get_label()) in styles}
    if drawn:
        drawn |= {band.get_label(): band for band in axes[0].collections}
        figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=3 * columns, frameon=False)
    # Without a palette: thousands of overlapping markers have too many shades to compute one in reasonable time.
    figure.savefig(path, dpi=120)


def _draw_panel(ax: Axes, limits: np.ndarray, quantity: str) -> None:
    ax.fill_between(limits, limits / BAND, limits * BAND, color="0.9", linewidth=0, label=f"within {BAND - 1:.0%}")
    ax.plot(limits, limits, color="0.5", linewidth=1)
    ax.set(xscale="log", yscale="log", xlim=tuple(limits), ylim=tuple(limits))
    ax.set(xlabel=f"measured {quantity}", ylabel=f"predicted {quantity}")
    for axis in (ax.xaxis, ax.yaxis):
        log_ticks(axis, limits)
        plain_numbers(axis)


def _styles(family: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    """Return the marker of each family, as keywords of matplotlib's `plot`."""
    edge = {"markeredgecolor": "black", "markeredgewidth": 0.3, "markersize": 5.0, "alpha": 0.8}
    return {
        name: {"marker": _MARKERS[at % len(_MARKERS)], "color": COLOURS[at % len(COLOURS)], **edge}
        for at, name in enumerate(sorted({*family}))
    }


def _known(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    return np.isfinite(measured) & np.isfinite(predicted)
