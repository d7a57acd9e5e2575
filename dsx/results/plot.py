"""Figures of a result set: functions of a DataFrame that draw on `ax` and return it.

    ax = front(df, "step_time_s", "peak_bytes", by="strategy")
    save(ax, "front.png")

matplotlib is imported when a figure is drawn. Figures are made without pyplot, so they need no display
and are freed like any other object. Colours are taken from a map of rising lightness, and every category
has a marker of its own, so a figure can be read without colours.

Not covered: interactive pages, and figures of the parts of a step.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.errors import InputError, StoreError, did_you_mean
from dsx.results.pareto import column_of, pareto, require
from dsx.results.schema import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Numbers = NDArray[Any]

# More points than this only cost time and file size.
MAX_POINTS = 20_000
# A range that is wider than this hides its small values on a linear axis.
LINEAR_RANGE = 30.0

_SCALES = {
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days")),
    "days": ((1.0, "days"),),
    "bytes": ((1.0, "bytes"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
}
_QUANTITIES = {"s": "time", "bytes": "memory", "days": "time"}
_MARKERS = "osD^vPX*<>ph"


def front(
    df: "pd.DataFrame",
    x: str = "step_time_s",
    y: str = "peak_bytes",
    ax: "Axes | None" = None,
    by: str | None = None,
) -> "Axes":
    """Draw all rows as points, and the front of the feasible ones as a stepped line with markers.

    Args:
        df: a result set, or rows of one.
        x, y: objectives, as `pareto` takes them: "mfu" is minimised, "-mfu" maximised.
        ax: where to draw; by default on a new figure.
        by: a column whose values get markers of their own on the front.

    Raises what `pareto` raises.
    """
    best = pareto(df, x, y)
    groups = None if by is None else require(best, by)
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.0, 4.6), layout="constrained").subplots()
    x, y = column_of(x), column_of(y)
    all_x, all_y = require(df, x), require(df, y)
    shown = best if len(best) else df
    x_size, y_size = _label_axis(ax.xaxis, shown, x), _label_axis(ax.yaxis, shown, y)
    _draw_all(ax, all_x / x_size, all_y / y_size, require(df, "reject") == 0)
    _draw_front(ax, require(best, x) / x_size, require(best, y) / y_size, by, groups)
    for axis, values, set_scale in ((ax.xaxis, all_x, ax.set_xscale), (ax.yaxis, all_y, ax.set_yscale)):
        if _is_wide(values):
            set_scale("log")
            _thin_ticks(axis, values)
        _plain_numbers(axis)
    if len(best):
        # Above the axes: the front may run through any corner.
        ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    elif len(df):
        ax.legend(fontsize="small")
    return ax


def save(ax: "Axes", path: str | Path) -> None:
    """Write the figure of `ax`; the suffix of `path` decides the format.

    Raises InputError for a suffix that matplotlib cannot write, StoreError for an unwritable path.
    """
    path = Path(path)
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("these axes are not on a figure, so there is nothing to save")
    formats = figure.canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in formats:
        known = [f".{name}" for name in sorted(formats)]
        what = f"unknown image suffix {path.suffix!r}{did_you_mean(f'.{suffix}', known)}"
        raise InputError(f"{path}: {what} (known: {', '.join(known)})")
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format=suffix, dpi=200)
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another path") from error
    finally:
        if partial.is_file():
            partial.unlink()


def _draw_all(ax: "Axes", x: Numbers, y: Numbers, feasible: NDArray[np.bool_]) -> None:
    """Draw rejected rows as pale crosses and feasible ones as grey points, thinned to MAX_POINTS."""
    for rows, word, style in (
        (~feasible, "rejected", {"marker": "x", "color": "0.85", "s": 10, "linewidths": 0.6}),
        (feasible, "feasible", {"marker": ".", "color": "0.6", "s": 12, "linewidths": 0}),
    ):
        here = np.flatnonzero(rows)
        if len(here) == 0:
            continue
        label = f"{len(here):,} {word}"
        if len(x) > MAX_POINTS:
            # Drawn at random, because an even stride meets the order of the enumeration.
            share = MAX_POINTS * len(here) // len(x)
            here = np.random.default_rng(0).choice(here, share, replace=False)
            label += f" ({share:,} drawn)"
        ax.scatter(x[here], y[here], label=label, rasterized=True, **style)


def _draw_front(ax: "Axes", x: Numbers, y: Numbers, by: str | None, groups: NDArray[Any] | None) -> None:
    import matplotlib as mpl

    if len(x) == 0:
        ax.set_title("no feasible candidate", fontsize="medium")
        return
    # What a row on the front allows holds until the next row, whichever way the objectives point.
    ax.step(x, y, where="post", color="black", linewidth=1.2, zorder=3)
    if groups is None:
        ax.plot(x, y, "o", color="black", markersize=5, linestyle="none", zorder=4, label=f"front ({len(x)})")
        return
    found = sorted(set(groups))
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, len(found)))
    # Ever smaller: strategies often agree on a plan, and a marker must not hide the one below it.
    sizes = np.linspace(10.0, 5.0, len(found)) if len(found) > 1 else [6.5]
    for i, (value, colour, size) in enumerate(zip(found, colours, sizes, strict=True)):
        here = groups == value
        ax.plot(
            x[here],
            y[here],
            _MARKERS[i % len(_MARKERS)],
            color=colour,
            markeredgecolor="black",
            markeredgewidth=0.6,
            markersize=size,
            zorder=4,
            label=f"front, {by} {value} ({here.sum()})",
        )


def _label_axis(axis: "Axis", df: "pd.DataFrame", column: str) -> float:
    """Label an axis for the rows of `df`, and return the size in SI units of the unit that it shows.

    `step_time_s` in ms is "step time [ms]".
    """
    unit = ({c.name: c.unit for c in COLUMNS} | df.attrs.get("units", {})).get(column, "")
    words = column.removesuffix(f"_{unit}").replace("_", " ")
    if unit not in _QUANTITIES:
        axis.set_label_text(words)
        return 1.0
    quantity = _QUANTITIES[unit]
    size, shown = _scale(require(df, column), unit)
    axis.set_label_text(f"{words if words.endswith(quantity) else f'{words} {quantity}'} [{shown}]")
    return size


def _scale(values: Numbers, unit: str) -> tuple[float, str]:
    """Return (size, name) of the unit to show `values` in: the largest that the smallest of them reaches.

    The rows of interest are few among many slow or large ones, which would choose another unit.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    smallest = float(positive.min()) if len(positive) else 0.0
    steps = _SCALES[unit]
    return max((step for step in steps if step[0] <= smallest), default=steps[0])


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)]


def _is_wide(values: Numbers) -> bool:
    finite = _finite(values)
    return len(finite) > 0 and finite.min() > 0 and finite.max() > LINEAR_RANGE * finite.min()


def _thin_ticks(axis: "Axis", values: Numbers) -> None:
    """Put as many labels on a logarithmic axis as it has room for."""
    from matplotlib.ticker import LogLocator, NullFormatter

    finite = _finite(values)
    decades = np.log10(finite.max() / finite.min())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0, 3.0) if decades < 4 else (1.0,)))
    axis.set_minor_formatter(NullFormatter())


def _plain_numbers(axis: "Axis") -> None:
    """Write the numbers of an axis out, instead of as powers or with a common factor."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
