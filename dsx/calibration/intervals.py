"""Intervals of the step time from log residuals, log(measured / predicted), of sources that were held out.

The ends are quantiles, every source with the same weight. A new source may be outside of all S known ones: 1 / (S + 1)
of the weight is assumed to be beyond the ends, half on either side, as in conformal prediction over groups (Dunn,
Wasserman and Ramdas, arXiv 1809.07441). Plans of which the measurements have little like them
(`dsx.cost.interval.thinness`) have intervals of their own, never narrower than those of other plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.calibration.held_out import LEAST_SOURCES
from dsx.calibration.weighted import weighted_median, weighted_quantile, weights
from dsx.cost.interval import PlanFacts, step_interval
from dsx.spec.known_errors import IntervalSpec, MemoryIntervalSpec, WhereSpec

LEVEL = 0.8  # share of the measurements in an interval
_DIGITS = 4

_MOST_THIN = 3  # ways in which measurements have little like a plan that are told apart


@dataclass(frozen=True, slots=True)
class Coverage:
    """How well an interval from the other sources covers a source."""

    inside: float  # share of its rows
    width: float  # mean of high / low - 1 over its rows


def make_intervals(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> list[IntervalSpec]:
    """Return the intervals of [N] log residuals, the thinnest plans first, then any plan.

    An interval for thin plans is left out where too few sources have any. The list is empty if there are too few
    sources for any interval.
    """
    found: list[IntervalSpec] = []
    low, high = 0.0, 0.0
    for thin in range(_MOST_THIN + 1):
        here = (facts.thin >= thin) if thin else np.ones(len(residuals), dtype=bool)
        names = np.array(source)[here]
        if len(set(names)) < LEAST_SOURCES:
            break
        own_low, own_high = ends(residuals[here], names)
        low, high = min(low, own_low), max(high, own_high)
        where = WhereSpec(thin=thin) if thin else WhereSpec()
        found.append(IntervalSpec(where=where, low=_rounded(np.exp(low)), high=_rounded(np.exp(high))))
    return found[::-1]


def _rounded(ratio: float) -> float:
    return float(f"{ratio:.{_DIGITS}g}")


def ends(residuals: np.ndarray, source: np.ndarray) -> tuple[float, float]:
    """Return the lower and upper end of an interval from [N] log residuals, every source with the same weight."""
    sources = len(set(source.tolist()))
    unseen = 1 / (sources + 1)
    tail = max((1 - LEVEL) / 2 - unseen / 2, 0.0) / (1 - unseen)
    own = weights(source)
    return weighted_quantile(residuals, own, tail), -weighted_quantile(-residuals, own, tail)


def memory_interval(ratio: np.ndarray, stack: Sequence[str]) -> MemoryIntervalSpec | None:
    """Return the quantiles of [N] ratios of measured and predicted memory; None if there are too few stacks.

    What software keeps decides memory, so every stack has the same weight. No number of memory is fitted, so the rows
    are those of a set that has not seen them.
    """
    own, tail = weights(np.array(stack)), (1 - LEVEL) / 2
    median = weighted_median(ratio, own)
    if median is None or len(set(stack)) < LEAST_SOURCES:
        return None
    low, high = weighted_quantile(ratio, own, tail), -weighted_quantile(-ratio, own, tail)
    return MemoryIntervalSpec(low=_rounded(low), median=_rounded(median), high=_rounded(high))


def unseen_intervals(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the interval for each of [N] rows, as ratios, from the residuals of all other sources.

    NaN if there are too few others.
    """
    low, high = np.full(len(residuals), np.nan), np.full(len(residuals), np.nan)
    names = np.array(source)
    for name in dict.fromkeys(source):
        own = names == name
        others = make_intervals(residuals[~own], names[~own].tolist(), facts.of(~own))
        interval = step_interval(others, np.ones(int(own.sum())), facts.of(own))
        low[own], high[own] = interval.step_time_s_low, interval.step_time_s_high
    return low, high


def coverage(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> dict[str, Coverage]:
    """Return, by source, how well the intervals from the residuals of the other sources cover it.

    Sources without such an interval are left out.
    """
    low, high = unseen_intervals(residuals, source, facts)
    ratio, names = np.exp(residuals), np.array(source)
    found: dict[str, Coverage] = {}
    for name in dict.fromkeys(source):
        own = (names == name) & np.isfinite(low)
        if own.any():
            inside = (low[own] <= ratio[own]) & (ratio[own] <= high[own])
            found[name] = Coverage(float(inside.mean()), float(np.mean(high[own] / low[own] - 1)))
    return found
