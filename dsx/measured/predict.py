"""Predictions of measured setups by the cost model of the searches."""

from collections.abc import Sequence

import jax
import numpy as np

from dsx.cost.assumptions import assumptions_from_spec
from dsx.measured.batches import batches, price
from dsx.measured.predictions import Predictions
from dsx.measured.setups import Setup
from dsx.spec.assumptions import AssumptionsSpec


def predict(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
    """Return the step time and memory of each setup; one that cannot be priced has a reason."""
    count = len(setups)
    step, peak = np.full(count, np.nan), np.full(count, np.nan)
    made, reasons = batches(setups, assumptions)
    for batch in made:
        with jax.enable_x64(True):
            costs = price(batch, assumptions_from_spec(batch.spec))
        step[batch.rows], peak[batch.rows] = np.asarray(costs.step_time_s), np.asarray(costs.peak_bytes)
    capacity = np.array([setup.cluster.device.hbm_capacity for setup in setups], dtype=np.float64)
    return Predictions(
        step_time_s=step,
        low=np.full(count, np.nan),
        high=np.full(count, np.nan),
        peak_bytes=peak,
        fits=peak <= capacity,
        reason=tuple(reasons.get(row) for row in range(count)),
    )
