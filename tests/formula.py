"""Measured runs of a cost model that is a formula, in place of a run table: compute, traffic and a constant."""

from dataclasses import dataclass

import numpy as np

from dsx.config.schema import Bounds
from dsx.runs.fit import Sample, memberships, row_weights

N = 40
WORK, TRAFFIC = np.random.default_rng(1).uniform(0.2, 3.0, (2, N))
BETWEEN = {"compute": Bounds(0.3, 1.0), "memory": Bounds(0.2, 1.0), "extra": Bounds(0.0, 0.5), "idle": Bounds(1.0, 9.0)}
START = {"compute": 0.8, "memory": 0.9, "extra": 0.1, "idle": 3.0}
TRUE = {"compute": 0.6, "memory": 0.7, "extra": 0.2}


@dataclass(frozen=True)
class Formula:
    """Rows whose times are a formula of the fields, as `dsx.runs.observations.Observations` prices them."""

    measured_s: np.ndarray
    base: dict[str, float]

    def step_times(self, values, rows=None, slowdown=1.0):
        """Return the seconds; only compute and traffic are kernels."""
        own = self.base | values
        found = slowdown * (WORK / own["compute"] + TRAFFIC / own["memory"]) + own["extra"]
        return found if rows is None else np.where(rows, found, np.nan)


def step_times(values):
    """Return the [N] seconds under these values of the fields."""
    return Formula(np.zeros(N), START).step_times(values)


def sample(measured, source=None, stack=None):
    """Return rows of these sources, by default one for each row, of one stack and generation unless stated."""
    names = list(range(N)) if source is None else list(source)
    _, place = np.unique(np.array([str(name) for name in names]), return_inverse=True)
    members = memberships(["s"] * N if stack is None else stack, ["g"] * N)
    return Sample(measured, place, row_weights(names, list(range(N))), members)
