"""Parity plots: predicted over measured, one marker for each row of a run table, a shape and colour for each source."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dsx.predict.validation_rows import Rows
from dsx.results.plot.axes import log_ticks, plain_numbers
from dsx.results.plot.marks import marks

BAND = 1.1  # the grey band reaches this factor to either side
GIGABYTE = 1e9


def draw_step_time(rows: Rows, path: Path) -> None:
    """Draw the step times of `rows` [s] into the file `path`."""
    _draw(rows, rows.measured_s, rows.predicted_s, "step time [s]", path)


def draw_memory(rows: Rows, path: Path) -> None:
    """Draw the memory of `rows` that ran [GB] into the file `path`."""
    measured = np.where(rows.oom == 1, np.nan, rows.measured_bytes) / GIGABYTE
    _draw(rows, measured, rows.predicted_bytes / GIGABYTE, "memory [GB]", path)


def _draw(rows: Rows, measured: np.ndarray, predicted: np.ndarray, quantity: str, path: Path) -> None:
    figure = Figure(figsize=(6.5, 6.5), layout="constrained")
    ax = figure.subplots()
    known = np.isfinite(measured) & np.isfinite(predicted)
    sources = [source for source in dict.fromkeys(rows.source) if known[_of(rows, source)].any()]
    limits = np.array([0.8, 1.25]) * (_range(measured[known], predicted[known]) if known.any() else np.ones(2))
    ax.fill_between(limits, limits / BAND, limits * BAND, color="0.9", linewidth=0)
    ax.plot(limits, limits, color="0.5", linewidth=1)
    for source, mark in zip(sources, marks(len(sources), largest=6.0), strict=True):
        chosen = known & _of(rows, source)
        ax.plot(measured[chosen], predicted[chosen], linestyle="", label=source, **(mark | {"markeredgewidth": 0.2}))
    ax.set(xscale="log", yscale="log", xlim=tuple(limits), ylim=tuple(limits))
    ax.set(xlabel=f"measured {quantity}", ylabel=f"predicted {quantity}")
    for axis in (ax.xaxis, ax.yaxis):
        log_ticks(axis, limits)
        plain_numbers(axis)
    if sources:
        ax.legend(fontsize="small", frameon=False)
    # Without a palette: thousands of overlapping markers have too many shades to compute one in reasonable time.
    figure.savefig(path, dpi=150)


def _of(rows: Rows, source: str) -> np.ndarray:
    return np.array([name == source for name in rows.source], dtype=bool)


def _range(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    return np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
