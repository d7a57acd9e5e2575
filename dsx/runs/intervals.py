"""Intervals of the step time and of memory from residuals of sources that were held out, every source weighing alike.

The ends are quantiles of log residuals, log(measured / predicted). A new source may be outside of all S known ones:
1 / (S + 1) of the weight is assumed to be beyond the ends, half on either side, as in conformal prediction over groups
(Dunn, Wasserman and Ramdas, arXiv 1809.07441). Plans with few similar measurements (`dsx.cost.interval.thinness`) have
intervals of their own, never narrower than other plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.config.evidence import IntervalSpec, MemoryIntervalSpec, WhereSpec
from dsx.cost.interval import PlanFacts, step_interval

LEAST_SOURCES = 3  # to judge a source by the others
LEVEL = 0.8  # share of the measurements in an interval
_DIGITS = 4
_MOST_THIN = 3  # ways in which measurements have little like a plan that are distinguished


def weights(source: np.ndarray) -> np.ndarray:
    """Return the weight of each row from the [N] sources: every source has the same weight, all rows together 1."""
    _, inverse, counts = np.unique(source, return_inverse=True, return_counts=True)
    return 1 / (counts[inverse] * max(len(counts), 1))


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float | None:
    """Return the mean of `values` under `weights`; None if there are no values."""
    return float(np.sum(values * weights) / np.sum(weights)) if len(values) else None


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float | None:
    """Return the value with half of the weight on either side, or the mean of two such; None of no values."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ordered, share = values[order], np.cumsum(weights[order])
    half = share[-1] / 2
    # A tolerance: weights of 1 / count do not add up to the half exactly.
    lower = ordered[np.searchsorted(share, half * (1 - 1e-9))]
    upper = ordered[min(np.searchsorted(share, half * (1 + 1e-9), side="right"), len(ordered) - 1)]
    return float((lower + upper) / 2)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Return the largest of [N] values with at most `share` of the weight below it."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order]
    # A tolerance: weights of 1 / count do not add up exactly.
    last = np.searchsorted(below, share * weights.sum() + 1e-9, side="right") - 1
    return float(values[order][last])


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """How well an interval from the other sources covers a source."""

    inside: float  # share of its rows
    width: float  # mean of high / low - 1 over its rows


def make_intervals(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> list[IntervalSpec]:
    """Return the intervals of [N] log residuals, the thinnest plans first, then any plan.

    Those for thin plans that too few sources have are left out.
    """
    intervals: list[IntervalSpec] = []
    low, high = 0.0, 0.0
    for thin in range(_MOST_THIN + 1):
        rows = (facts.thin >= thin) if thin else np.ones(len(residuals), dtype=bool)
        names = np.array(source)[rows]
        if len(set(names)) < LEAST_SOURCES:
            break
        thin_low, thin_high = ends(residuals[rows], names)
        low, high = min(low, thin_low), max(high, thin_high)
        where = WhereSpec(thin=thin) if thin else WhereSpec()
        intervals.append(IntervalSpec(where=where, low=rounded(np.exp(low)), high=rounded(np.exp(high))))
    return intervals[::-1]


def rounded(ratio: float) -> float:
    """Return a ratio as an assumption set states it."""
    return float(f"{ratio:.{_DIGITS}g}")


def ends(residuals: np.ndarray, source: np.ndarray) -> tuple[float, float]:
    """Return the lower and upper end of an interval from [N] log residuals, every source with the same weight."""
    sources = len(set(source.tolist()))
    unseen = 1 / (sources + 1)
    tail = max((1 - LEVEL) / 2 - unseen / 2, 0.0) / (1 - unseen)
    shares = weights(source)
    return weighted_quantile(residuals, shares, tail), -weighted_quantile(-residuals, shares, tail)


def memory_interval(ratio: np.ndarray, stack: Sequence[str]) -> MemoryIntervalSpec | None:
    """Return the quantiles of [N] ratios of measured and predicted memory; None if there are too few stacks.

    What software keeps decides memory, so every stack has the same weight. No number of memory is fitted, so the set
    has not seen these rows.
    """
    shares, tail = weights(np.array(stack)), (1 - LEVEL) / 2
    median = weighted_median(ratio, shares)
    if median is None or len(set(stack)) < LEAST_SOURCES:
        return None
    low, high = weighted_quantile(ratio, shares, tail), -weighted_quantile(-ratio, shares, tail)
    return MemoryIntervalSpec(low=rounded(low), median=rounded(median), high=rounded(high))


def unseen_intervals(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends for each of [N] rows, as ratios, from all other sources; NaN if those are too few."""
    low, high = np.full(len(residuals), np.nan), np.full(len(residuals), np.nan)
    names = np.array(source)
    for name in dict.fromkeys(source):
        rows = names == name
        intervals = make_intervals(residuals[~rows], names[~rows].tolist(), facts.of(~rows))
        interval = step_interval(intervals, np.ones(int(rows.sum())), facts.of(rows))
        low[rows], high[rows] = interval.step_time_s_low, interval.step_time_s_high
    return low, high


def coverage(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> dict[str, IntervalCoverage]:
    """Return how well the intervals from the other sources cover a source, for sources that have them."""
    low, high = unseen_intervals(residuals, source, facts)
    ratio, names = np.exp(residuals), np.array(source)
    by_source: dict[str, IntervalCoverage] = {}
    for name in dict.fromkeys(source):
        rows = (names == name) & np.isfinite(low)
        if rows.any():
            inside = (low[rows] <= ratio[rows]) & (ratio[rows] <= high[rows])
            by_source[name] = IntervalCoverage(float(inside.mean()), float(np.mean(high[rows] / low[rows] - 1)))
    return by_source
