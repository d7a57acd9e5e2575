"""The noise floor: how far repeated measurements of one configuration are from each other.

The rows of a source with the same job and configuration are repetitions of each other: with the same software, or with
any release of a framework. The spread of a configuration is the standard deviation of the logs of its times (over
n - 1); no prediction from the configuration alone can be expected to err less. Rows without a time, and configurations
that were measured once, are left out.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from dsx.calibration.regret import Grouped

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
