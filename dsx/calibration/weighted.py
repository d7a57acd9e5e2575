"""Statistics over rows in which every source has the same weight, however many rows it has."""

import numpy as np


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
