"""The resolution of a prediction: the relative difference of step time below which measurements cannot rank two plans.

Errors of two plans of a job are alike, since model, machine and software are the same; the difference of their errors
decides which is faster. The resolution is the 80 % quantile of |difference of log(measured / predicted)| over the pairs
of layouts of a group (`dsx.calibration.regret`). All sources have the same weight, so have the groups of a source, and
the pairs of a group.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dsx.calibration.intervals import LEVEL
from dsx.calibration.regret import Group
from dsx.calibration.weighted import weighted_quantile


def resolution(groups: Sequence[Group]) -> float | None:
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
