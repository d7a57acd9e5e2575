"""Which differences between two plans of one job the measurements tell apart from error.

Two plans of a job err together: model, machine and software are the same. What decides between them is how much their
errors differ, so the bound is the 80 % quantile of |difference of log(measured / predicted)| over the pairs of
layouts of a group (`dsx.calibration.regret`). Sources weigh the same, in a source its groups, in a group its pairs.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dsx.calibration.intervals import LEVEL
from dsx.calibration.regret import Group
from dsx.calibration.weighted import weighted_quantile


def told_apart(groups: Sequence[Group]) -> float | None:
    """Return by which share of the step time two plans of a job must differ to be told apart; None of no group."""
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
