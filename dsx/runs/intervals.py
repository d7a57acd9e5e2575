"""Errors of predictions: of sources that were held out, as intervals, and as the regret of what they choose.

Statistics over rows in which every source has the same weight, however many rows it has.

Whether predictions find the fastest configuration: regret, pairs and rank correlation in groups of configurations.

A group holds the rows of one source that differ only in configuration. A layout that was measured several times (with
several software versions, say) has the median of its times. Groups of fewer than `LEAST_LAYOUTS` layouts say little and
are left out, as are rows without a measured or a predicted time.

    regret = measured time of the layout that is predicted fastest / shortest measured time of the group - 1

If several layouts are predicted equally fast, the slowest of them counts: a model that predicts the same time for all
layouts must not profit from their order.

Two layouts whose measured times differ by more than `CLOSE` are a pair, in groups of two layouts already: it is ranked
right if the faster one is predicted faster. Pairs that differ by less are ties of the measurement, which count neither
way.

The noise floor: how far repeated measurements of one configuration are from each other.

The rows of a source with the same job and configuration are repetitions of each other: with the same software, or with
any release of a framework. The spread of a configuration is the standard deviation of the logs of its times (over
n - 1); no prediction from the configuration alone can be expected to err less. Rows without a time, and configurations
that were measured once, are left out.

Predict every source by a fit to the others: the errors of dsx on machines, software and sizes it has not seen.

The same for whole stacks, which says more about software that nobody has measured: structure is chosen by it.

Intervals of the step time from log residuals, log(measured / predicted), of sources that were held out.

The ends are quantiles, every source with the same weight. A new source may be outside of all S known ones: 1 / (S + 1)
of the weight is assumed to be beyond the ends, half on either side, as in conformal prediction over groups (Dunn,
Wasserman and Ramdas, arXiv 1809.07441). Plans of which the measurements have little like them
(`dsx.cost.interval.thinness`) have intervals of their own, never narrower than those of other plans.

The resolution of a prediction: the relative difference of step time below which measurements cannot rank two plans.

Errors of two plans of a job are alike, since model, machine and software are the same; the difference of their errors
decides which is faster. The resolution is the 80 % quantile of |difference of log(measured / predicted)| over the pairs
of layouts of a group (`dsx.runs.intervals`). All sources have the same weight, so have the groups of a source, and
the pairs of a group.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsx.config.evidence import IntervalSpec, MemoryIntervalSpec, WhereSpec
from dsx.config.values import Bounds
from dsx.cost.interval import PlanFacts, step_interval
from dsx.runs.fit import Fit, LocalTimes, Sample, Solution, Values, fit_of, position_of, solve
from dsx.runs.observations import Observations
from dsx.runs.predicted_rows import PredictedRows


def weights(source: np.ndarray) -> np.ndarray:
    """Return the weight of each row from the [N] sources: every source has the same weight, all rows together 1."""
    _, inverse, counts = np.unique(source, return_inverse=True, return_counts=True)
    return 1 / (counts[inverse] * max(len(counts), 1))


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float | None:
    """Return the mean of `values` under `weights`; None if there are no values."""
    return float(np.sum(values * weights) / np.sum(weights)) if len(values) else None


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float | None:
    """Return the value with half of the weight on either side; under equal weights this is the median.

    If the half falls between two values it is their mean; None if there are no values.
    """
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


LEAST_LAYOUTS = 4
CLOSE = 0.05  # a negligible regret, a tie of a pair


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """The layouts of a group, one entry each."""

    source: str

    measured_s: np.ndarray  # [L]
    predicted_s: np.ndarray  # [L]


class Grouped(Protocol):
    """Measured rows with their groups: a table, or the rows of a table that a fit uses."""

    @property
    def source(self) -> Sequence[str]:
        """[N] the source of each row."""
        ...

    @property
    def group(self) -> Sequence[Hashable]:
        """[N] the same for rows that differ only in configuration."""
        ...

    @property
    def layout(self) -> Sequence[Hashable]:
        """[N] the configuration."""
        ...

    @property
    def measured_s(self) -> np.ndarray:
        """[N] measured step time."""
        ...


def groups(rows: PredictedRows, least: int = LEAST_LAYOUTS) -> list[LayoutGroup]:
    """Return the groups of `rows` that have `least` layouts or more, in the order of their first rows."""
    return groups_of(rows, np.where(rows.modelled, rows.predicted_s, np.nan), least)


def groups_of(rows: Grouped, predicted_s: np.ndarray, least: int = LEAST_LAYOUTS) -> list[LayoutGroup]:
    """Return the groups of `rows` under other predictions, [N]; rows whose prediction is not finite are left out."""
    members: dict[Hashable, dict[Hashable, list[int]]] = {}
    for row in map(int, np.flatnonzero(np.isfinite(rows.measured_s) & np.isfinite(predicted_s))):
        members.setdefault(rows.group[row], {}).setdefault(rows.layout[row], []).append(row)
    return [
        LayoutGroup(
            rows.source[next(iter(layouts.values()))[0]],
            np.array([np.median(rows.measured_s[layout]) for layout in layouts.values()]),
            np.array([np.median(predicted_s[layout]) for layout in layouts.values()]),
        )
        for layouts in members.values()
        if len(layouts) >= least
    ]


def regret(group: LayoutGroup) -> float:
    """Return how much longer the layout that is predicted fastest takes than the best, as a fraction."""
    chosen = group.predicted_s == group.predicted_s.min()
    return float(group.measured_s[chosen].max() / group.measured_s.min() - 1)


def pairs(groups: Sequence[LayoutGroup]) -> dict[str, Any]:
    """Return how many pairs groups have, and the share that is ranked right, of all and by source; None if none."""
    by_source: dict[str, np.ndarray] = {}
    for group in groups:
        by_source[group.source] = by_source.get(group.source, np.zeros(2, np.int64)) + ranked_right(group)
    right, count = map(int, sum(by_source.values(), np.zeros(2, np.int64)))
    return {
        "pairs": count,
        "right": right / count if count else None,
        "sources": {source: float(right / count) for source, (right, count) in by_source.items() if count},
    }


def ranked_right(group: LayoutGroup) -> np.ndarray:
    """Return how many pairs of a group are predicted in their order, and how many it has, [2] int64.

    It takes the memory of a row, however many pairs there are.
    """
    order = np.argsort(group.measured_s, kind="stable")
    measured, predicted = np.log(group.measured_s[order]), np.log(group.predicted_s[order])
    behind = np.searchsorted(measured, measured + np.log1p(CLOSE), side="right")
    right = sum(
        int((predicted[first:] > own).sum()) for own, first in zip(predicted.tolist(), behind.tolist(), strict=True)
    )
    return np.array([right, (len(order) - behind).sum()])


def spearman(group: LayoutGroup) -> float:
    """Return the rank correlation of predicted and measured times; NaN if either is constant."""
    from scipy.stats import spearmanr  # importing it takes a quarter of a second, for one figure of a report

    if np.ptp(group.predicted_s) == 0 or np.ptp(group.measured_s) == 0:  # scipy warns of it
        return float("nan")
    found: Any = spearmanr(group.predicted_s, group.measured_s)
    return float(found.statistic)


def regret_figures(regrets: Sequence[float]) -> dict[str, float | int | None]:
    """Return the statistics of `regrets` over groups; None if there is no group."""
    values = np.array(regrets, dtype=np.float64)
    some = len(values) > 0
    return {
        "groups": len(values),
        "median": float(np.median(values)) if some else None,
        "p95": float(np.quantile(values, 0.95)) if some else None,
        "within_5_percent": float(np.mean(values <= CLOSE)) if some else None,
    }


_HIGH = 0.9  # quantile


def spreads(rows: Grouped, software: Sequence[Hashable]) -> dict[str, list[float]]:
    """Return, by source, the spreads of its repeated configurations.

    A row repeats others of the same job, configuration and [N] software.
    """
    members: dict[Hashable, list[int]] = {}
    for row in map(int, np.flatnonzero(np.isfinite(rows.measured_s))):
        if rows.group[row] is not None:
            members.setdefault((rows.group[row], rows.layout[row], software[row]), []).append(row)
    found: dict[str, list[float]] = {}
    for repeated in members.values():
        if len(repeated) > 1:
            spread = float(np.std(np.log(rows.measured_s[repeated]), ddof=1))
            found.setdefault(rows.source[repeated[0]], []).append(spread)
    return found


def spread_figures(spreads: Iterable[float]) -> dict[str, Any]:
    """Return the number of repeated configurations, and the median and 90 % quantile of their spreads; None of none."""
    values = np.array([*spreads])
    return {
        "configurations": len(values),
        "median": float(np.median(values)) if len(values) else None,
        "p90": float(np.quantile(values, _HIGH)) if len(values) else None,
    }


LEAST_SOURCES = 3  # to judge a source by the others


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The predictions of N rows, each by the fit without its own part of the rows."""

    predicted_s: np.ndarray  # [N]
    fits: dict[str, Fit]  # by the part that is left out
    slowdown: np.ndarray  # [N] factor on kernel times by the effects of that fit


def leave_out(
    observations: Observations,
    part: Sequence[str],
    sample: Sample,
    start: Values,
    between: Mapping[str, Bounds],
    whole: tuple[Solution, LocalTimes],
    progress: Callable[[int], None] = lambda done: None,
) -> HeldOut:
    """Return the predictions of each part of the rows by a fit to the other parts.

    Args:
        observations: N measured rows.
        part: [N] the source of each row, say, or its stack.
        sample: the rows with their weights.
        start: the beliefs.
        between: the bounds of the fitted fields.
        whole: the fit to all rows and the times around it, which serve the fits to fewer.
        progress: called after each part.

    A part's own effects are unknown to its fit, so they are zero unless other parts share its stack or generation.
    """
    near, times = whole
    beliefs = position_of(start, times.names, between)
    names = np.array(part)
    predicted, slowdown = np.full(len(names), np.nan), np.ones(len(names))
    fits: dict[str, Fit] = {}
    for name in dict.fromkeys(part):
        own = names == name
        found = solve(sample.without(own), times, beliefs, near)
        fits[name] = fit_of(found, times, sample.members, start, between)
        slowdown[own] = found.slowdown(sample.members)[own]
        predicted[own] = observations.step_times(fits[name].values, own, slowdown)[own]
        progress(1)
    return HeldOut(predicted, fits, slowdown)


LEVEL = 0.8  # share of the measurements in an interval
_DIGITS = 4

_MOST_THIN = 3  # ways in which measurements have little like a plan that are told apart


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
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


def coverage(residuals: np.ndarray, source: Sequence[str], facts: PlanFacts) -> dict[str, IntervalCoverage]:
    """Return, by source, how well the intervals from the residuals of the other sources cover it.

    Sources without such an interval are left out.
    """
    low, high = unseen_intervals(residuals, source, facts)
    ratio, names = np.exp(residuals), np.array(source)
    found: dict[str, IntervalCoverage] = {}
    for name in dict.fromkeys(source):
        own = (names == name) & np.isfinite(low)
        if own.any():
            inside = (low[own] <= ratio[own]) & (ratio[own] <= high[own])
            found[name] = IntervalCoverage(float(inside.mean()), float(np.mean(high[own] / low[own] - 1)))
    return found


def resolution(groups: Sequence[LayoutGroup]) -> float | None:
    """Return the resolution as a share of the step time; None without groups."""
    of_source = Counter(group.source for group in groups)
    differences: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for group in groups:
        errors = np.log(group.measured_s / group.predicted_s)
        first, second = np.triu_indices(len(errors), 1)
        differences.append(np.abs(errors[first] - errors[second]))
        weights.append(np.full(len(first), 1 / (of_source[group.source] * len(first))))
    if not differences:
        return None
    # From above: at least that share of the pairs differ by no more.
    quantile = -weighted_quantile(-np.concatenate(differences), np.concatenate(weights), 1 - LEVEL)
    return float(np.expm1(quantile))
