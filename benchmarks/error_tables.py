"""Errors of predictions as tables: by source, by classes of rows, and their means over sources.

A source is scored if it has `SCORED` timed rows or more. The mean of medians is the mean over scored sources of the
median absolute error of a source, the mean of means that of its mean absolute error: every source counts once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SCORED = 5  # timed rows of a source that is scored


@dataclass(frozen=True)
class SourceErrors:
    """The errors of a source, predicted / measured - 1."""

    rows: int
    median: float  # of absolute errors
    mean: float
    bias: float


def by_source(error: np.ndarray, source: Sequence[str]) -> dict[str, SourceErrors]:
    """Return the errors of each source with a finite one, in the order of their first rows."""
    names, found = np.array(source), {}
    for name in dict.fromkeys(source):
        own = error[(names == name) & np.isfinite(error)]
        if len(own):
            size = np.abs(own)
            found[name] = SourceErrors(len(own), float(np.median(size)), float(size.mean()), float(own.mean()))
    return found


def scored(errors: Mapping[str, SourceErrors]) -> dict[str, SourceErrors]:
    """Return the sources with enough rows."""
    return {name: own for name, own in errors.items() if own.rows >= SCORED}


def means(errors: Mapping[str, SourceErrors]) -> tuple[float | None, float | None]:
    """Return the mean of medians and the mean of means over scored sources; None if there are none."""
    known = [*scored(errors).values()]
    if not known:
        return None, None
    return float(np.mean([own.median for own in known])), float(np.mean([own.mean for own in known]))


def by_class(error: np.ndarray, source: Sequence[str], classes: Sequence[str]) -> dict[str, dict[str, SourceErrors]]:
    """Return, for each class of rows, the errors of its part of each source; [N] `classes` names that of each row."""
    names = np.array(classes)
    return {name: by_source(np.where(names == name, error, np.nan), source) for name in sorted({*classes})}


def cell(value: float | None) -> str:
    """Return a figure as text: a count, or a share in percent."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.1f} %"


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
