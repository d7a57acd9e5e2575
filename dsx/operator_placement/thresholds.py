"""The thresholds of a reduction: the longest an operator may be to be fused away (alpha), and to join a group (beta).

A percentile of the delays of operators that take time (QuickP); or the delay at which the fitted distribution of all
delays is as steep as a share of its steepest point (the thesis, whose equation states slopes where delays are meant):
(max + min) / 4 of the slopes for alpha, (max + min) / 2 for beta.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from dsx.operator_placement.op_graph import OpGraph

_BINS = 500
_USUAL = 90.0  # percentile where no distribution can be fitted


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Seconds, and how they were chosen."""

    alpha_s: float
    beta_s: float
    source: str


def by_percentile(graph: OpGraph, percentile: float) -> Thresholds:
    """Return a percentile of the delays of operators that take time as both thresholds; none is short for 0."""
    delays = graph.mean_s[graph.mean_s > 0]
    seconds = float(np.percentile(delays, percentile)) if percentile and len(delays) else 0.0
    return Thresholds(seconds, seconds, f"p{percentile:g}")


def by_distribution(graph: OpGraph) -> Thresholds:
    """Return the thresholds of the distribution of delays; those of the 90th percentile if a fit fails."""
    from scipy.optimize import curve_fit

    delays = graph.mean_s * 1e6  # microseconds: numbers of ordinary size
    if not delays.max(initial=0.0) > 0.0:
        return by_percentile(graph, _USUAL)
    try:
        counts, edges = np.histogram(delays, _BINS)
    except ValueError:  # equal delays so long that bins cannot be told apart
        return by_percentile(graph, _USUAL)
    share, at = np.cumsum(counts) / len(delays), edges[1:]

    def logistic(x: np.ndarray, top: float, steepness: float, middle: float) -> np.ndarray:
        return top / (1.0 + np.exp(np.clip(-steepness * (x - middle), -500.0, 500.0)))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (top, steepness, middle), _ = curve_fit(logistic, at, share, p0=(1.0, 10.0 / at[-1], 0.0), maxfev=20_000)
    except RuntimeError:
        return by_percentile(graph, _USUAL)
    low = logistic(at, 1.0, steepness, middle)
    slope = top * steepness * low * (1.0 - low)
    if not np.isfinite(slope).all() or slope.max() <= 0.0:
        return by_percentile(graph, _USUAL)
    alpha, beta = (at[np.abs(slope - (slope.max() + slope.min()) / part).argmin()] * 1e-6 for part in (4, 2))
    return Thresholds(float(alpha), float(beta), "distribution")
