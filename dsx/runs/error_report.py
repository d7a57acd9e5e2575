"""The errors of predictions, as `dsx validate --json` states them: do they find the fastest plan? And intervals.

Over the rows of one source, with the relative error e = predicted / measured - 1:

    rows            rows of the table
    modelled        rows without a reason
    median_ape      median of |e| of the step time
    mape            mean of |e|
    bias            mean of e
    inside_interval share of the rows with low <= measured <= high, among rows with an interval
    memory_mape     mean of |e| of the memory, over rows that ran

`overall` has the same fields over all rows, every source with the same weight: a row weighs 1 / (rows of its source
in the figure). So a mean is the mean over sources of their means, and a median is a weighted one. A figure over no rows
is None.

A group holds the rows of one source that differ only in configuration. A layout that was measured several times (with
several software versions, say) has the median of its times. Groups of fewer than `LEAST_LAYOUTS` layouts say little and
are left out, as are rows without a measured or a predicted time.

    regret = measured time of the layout that is predicted fastest / shortest measured time of the group - 1

If several layouts are predicted equally fast, the slowest of them counts: a model that predicts the same time for all
layouts must not profit from their order.

Two layouts whose measured times differ by more than `CLOSE` are a pair, in groups of two layouts already: it is ranked
right if the faster one is predicted faster. Pairs that differ by less are ties of the measurement, which count neither
way.

The noise floor is how far repeated measurements of one configuration are from each other. The rows of a source with the
same job and configuration are repetitions of each other: with the same software, or with any release of a framework.
The spread of a configuration is the standard deviation of the logs of its times (over n - 1); no prediction from the
configuration alone can be expected to err less. Configurations that were measured once are left out.

The resolution is the relative difference of step time below which measurements cannot rank two plans. Errors of two
plans of a job are alike, since model, machine and software are the same; the difference of their errors decides which
is faster. The resolution is the 80 % quantile of |difference of log(measured / predicted)| over the pairs of layouts of
a group. All sources have the same weight, so have the groups of a source, and the pairs of a group.

Intervals of the step time and of memory come from residuals of sources that were held out, every source weighing alike.
The ends are quantiles of log residuals, log(measured / predicted). A new source may be outside of all S known ones: 1 /
(S + 1) of the weight is assumed to be beyond the ends, half on either side, as in conformal prediction over groups
(Dunn, Wasserman and Ramdas, arXiv 1809.07441). Plans with few similar measurements (`dsx.cost.interval.thinness`) have
intervals of their own, never narrower than other plans.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dsx.config.assumption_set import IntervalSpec, MemoryIntervalSpec, WhereSpec
from dsx.cost.interval import PlanFacts, step_interval
from dsx.runs.observations import Observations
from dsx.runs.predict import PredictedRows
from dsx.runs.table import MeasuredRun
from dsx.text import Data

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


ALL_SOURCES = "all"  # the source_id of `overall`


def report(rows: PredictedRows, runs: Sequence[MeasuredRun]) -> Data:
    """Return every figure of a validation of `runs` as plain data; fractions, not percentages."""
    source, of_layouts = np.array(rows.source), groups(rows)
    correlations = np.array([spearman(group) for group in of_layouts])
    correlations = correlations[np.isfinite(correlations)]
    regrets = np.array([regret(group) for group in of_layouts], dtype=np.float64)
    # How many rows ran and how many ran out of memory, each with the number predicted correctly.
    ran, failed = (rows.modelled & (rows.oom == value) for value in (0, 1))
    return {
        "noise_floor": noise_floor(rows, runs),
        "overall": _figures(rows, np.ones(len(source), dtype=bool), ALL_SOURCES),
        "sources": [_figures(rows, source == name, name) for name in dict.fromkeys(rows.source)],
        "regret": {
            "groups": len(regrets),
            "median": _quantile(regrets, 0.5),
            "p95": _quantile(regrets, 0.95),
            "within_5_percent": float(np.mean(regrets <= CLOSE)) if len(regrets) else None,
        },
        "pairs": pairs(groups(rows, least=2)),
        "spearman_median": _quantile(correlations, 0.5),
        "oom": {
            "fit": int(ran.sum()),
            "fit_correct": int((ran & rows.fits).sum()),
            "oom": int(failed.sum()),
            "oom_correct": int((failed & ~rows.fits).sum()),
        },
        "not_modelled": not_modelled(rows),
    }


def _quantile(values: np.ndarray, share: float) -> float | None:
    if not len(values):
        return None
    return float(np.median(values) if share == 0.5 else np.quantile(values, share))


def not_modelled(rows: PredictedRows) -> dict[str, int]:
    """Return how many rows are not modelled, by reason, the most frequent one first."""
    return dict(Counter(reason.rule for reason in rows.reason if reason is not None).most_common())


def noise_floor(rows: PredictedRows, runs: Sequence[MeasuredRun]) -> dict[str, dict[str, object]]:
    """Return the spreads of repeated configurations, of one release and of all releases of a framework."""
    releases: dict[str, Sequence[Hashable]] = {
        "same_software": [(run.framework, run.software, run.year) for run in runs],
        "all_releases": [run.framework for run in runs],
    }
    figures: dict[str, dict[str, object]] = {}
    for name, software in releases.items():
        by_source = spreads(rows, software)
        of_sources = {source: _of_spreads(of_source) for source, of_source in by_source.items()}
        figures[name] = _of_spreads([*chain(*by_source.values())]) | {"sources": of_sources}
    return figures


def _of_spreads(spreads: Sequence[float]) -> dict[str, object]:
    """Return the number of repeated configurations, and the median and 90 % quantile of their spreads; None of none."""
    values = np.array(spreads)
    return {"configurations": len(values), "median": _quantile(values, 0.5), "p90": _quantile(values, 0.9)}


def _figures(rows: PredictedRows, chosen: np.ndarray, name: str) -> dict[str, object]:
    """Return the figures of the rows where [N] bools are true."""
    source = np.array(rows.source)
    error = rows.predicted_s / rows.measured_s - 1
    memory = rows.predicted_bytes / np.where(rows.oom == 1, np.nan, rows.measured_bytes) - 1
    inside = (rows.low <= rows.measured_s) & (rows.measured_s <= rows.high)
    timed = chosen & np.isfinite(error)
    bounded = timed & np.isfinite(rows.low) & np.isfinite(rows.high)
    weighed = chosen & np.isfinite(memory)
    return {
        "source_id": name,
        "rows": int(chosen.sum()),
        "modelled": int((chosen & rows.modelled).sum()),
        **_of_errors(error[timed], source[timed]),
        "inside_interval": weighted_mean(inside[bounded], weights(source[bounded])),
        "memory_mape": weighted_mean(np.abs(memory[weighed]), weights(source[weighed])),
    }


def _of_errors(error: np.ndarray, source: np.ndarray) -> dict[str, float | None]:
    shares = weights(source)
    return {
        "median_ape": weighted_median(np.abs(error), shares),
        "mape": weighted_mean(np.abs(error), shares),
        "bias": weighted_mean(error, shares),
    }


def errors(observations: Observations, predicted_s: np.ndarray) -> list[Data]:
    """Return the errors of [N] predictions by source, then over all rows, every source with the same weight."""
    error, source = predicted_s / observations.measured_s - 1, np.array(observations.source)
    chosen = {name: source == name for name in observations.sources}
    return [
        {"source_id": name, "rows": int(rows.sum()), **_of_errors(error[rows], source[rows])}
        for name, rows in (chosen | {ALL_SOURCES: np.ones(len(source), dtype=bool)}).items()
    ]


LEAST_LAYOUTS = 4
CLOSE = 0.05  # a negligible regret, a tie of a pair


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """The layouts of a group, one entry each."""

    source: str
    measured_s: np.ndarray  # [L]
    predicted_s: np.ndarray  # [L]


def groups(rows: PredictedRows, least: int = LEAST_LAYOUTS) -> list[LayoutGroup]:
    """Return the groups of `rows` that have `least` layouts or more, in the order of their first rows."""
    return groups_of(rows, np.where(rows.modelled, rows.predicted_s, np.nan), least)


def groups_of(
    rows: PredictedRows | Observations, predicted_s: np.ndarray, least: int = LEAST_LAYOUTS
) -> list[LayoutGroup]:
    """Return the groups of `rows` under other predictions, [N]; rows whose prediction is not finite are left out."""
    members: dict[Hashable, dict[Hashable, list[int]]] = {}
    for row in map(int, np.flatnonzero(np.isfinite(rows.measured_s) & np.isfinite(predicted_s))):
        members.setdefault(rows.group[row], {}).setdefault(rows.layout[row], []).append(row)
    layout_groups: list[LayoutGroup] = []
    for layouts in (of_group for of_group in members.values() if len(of_group) >= least):
        of_layouts = [*layouts.values()]
        times = (rows.measured_s, predicted_s)
        medians = (np.array([np.median(seconds[at]) for at in of_layouts]) for seconds in times)
        layout_groups.append(LayoutGroup(rows.source[of_layouts[0][0]], *medians))
    return layout_groups


def regret(group: LayoutGroup) -> float:
    """Return how much longer the layout that is predicted fastest takes than the best, as a fraction."""
    chosen = group.predicted_s == group.predicted_s.min()
    return float(group.measured_s[chosen].max() / group.measured_s.min() - 1)


def pairs(groups: Sequence[LayoutGroup]) -> dict[str, object]:
    """Return how many pairs groups have, and the share that is ranked right, of all and by source; None if none."""
    by_source: dict[str, np.ndarray] = {}  # how many pairs are predicted in their order, and how many there are
    for group in groups:
        order = np.argsort(group.measured_s, kind="stable")
        measured, predicted = np.log(group.measured_s[order]), np.log(group.predicted_s[order])
        behind = np.searchsorted(measured, measured + np.log1p(CLOSE), side="right")
        # One row at a time, which takes the memory of a row, however many pairs there are.
        right = sum(int((predicted[first:] > time).sum()) for time, first in zip(predicted, behind, strict=True))
        counts = np.array([right, (len(order) - behind).sum()])
        by_source[group.source] = by_source.get(group.source, np.zeros(2, np.int64)) + counts
    right, count = map(int, sum(by_source.values(), np.zeros(2, np.int64)))
    return {
        "pairs": count,
        "right": right / count if count else None,
        "sources": {source: float(right / count) for source, (right, count) in by_source.items() if count},
    }


def spearman(group: LayoutGroup) -> float:
    """Return the rank correlation of predicted and measured times; NaN if either is constant."""
    from scipy.stats import spearmanr  # importing it takes a quarter of a second, for one figure of a report

    if np.ptp(group.predicted_s) == 0 or np.ptp(group.measured_s) == 0:  # scipy warns of it
        return float("nan")
    return float(spearmanr(group.predicted_s, group.measured_s).statistic)  # pyright: ignore[reportAttributeAccessIssue]


def spreads(rows: PredictedRows | Observations, software: Sequence[Hashable]) -> dict[str, list[float]]:
    """Return, by source, the spreads of repeated job, configuration and [N] software."""
    members: dict[Hashable, list[int]] = {}
    for row in map(int, np.flatnonzero(np.isfinite(rows.measured_s))):
        if rows.group[row] is not None:
            members.setdefault((rows.group[row], rows.layout[row], software[row]), []).append(row)
    by_source: dict[str, list[float]] = {}
    for repeated in members.values():
        if len(repeated) > 1:
            spread = float(np.std(np.log(rows.measured_s[repeated]), ddof=1))
            by_source.setdefault(rows.source[repeated[0]], []).append(spread)
    return by_source


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
