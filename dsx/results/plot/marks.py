"""Marks that distinguish categories without colour: shape, lightness and size of markers, and dashes of lines."""

from typing import Any

import numpy as np

# With more categories a reader cannot find one.
MAX_CATEGORIES = 40

_MARKERS = "osD^vPX*<>ph"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def marks(count: int, largest: float = 10.0) -> list[dict[str, Any]]:
    """Return the markers of `count` categories, as keywords of matplotlib's `plot`.

    Their sizes decrease from `largest` points to half of it: strategies often agree on a plan, and a marker must not
    hide the one below it.
    """
    import matplotlib as mpl

    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, count))
    sizes = np.linspace(largest, largest / 2, count) if count != 1 else [0.65 * largest]
    edge = {"markeredgecolor": "black", "markeredgewidth": 0.6}
    return [
        {"marker": _MARKERS[i % len(_MARKERS)], "color": tuple(colour), "markersize": float(size)} | edge
        for i, (colour, size) in enumerate(zip(colours, sizes, strict=True))
    ]


def dashes(count: int) -> list[Any]:
    """Return the line styles of `count` categories; combined with the markers they repeat after 60."""
    return [_DASHES[i % len(_DASHES)] for i in range(count)]
