"""What a column would be if GPUs were added without loss, and the 80 % interval of a column that follows the step time.

Both rest on how a column depends on the step time of one job and its number of GPUs: a time is proportional to the step
time, a rate to its inverse.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float64]

GPUS = "num_gpus"
PER_GPU = "tokens_per_s_per_gpu"
# The powers of the step time and of the number of GPUs to which a column is proportional. With ideal scaling the step
# time has the power -1 of the GPUs.
_POWERS = {
    "step_time_s": (1, 0),
    "training_days": (1, 0),
    "tokens_per_s": (-1, 0),
    "mfu": (-1, -1),
    **dict.fromkeys(("gpu_hours", "cost_usd", "energy_kwh"), (1, 1)),
    PER_GPU: (-1, -1),
}


def ideal(column: str, num_gpus: Numbers, values: Numbers) -> Numbers:
    """Return [n] values of a column as if each GPU did as much as on the least number of GPUs that has a value.

    NaN for a column that does not follow the step time, and without a value.
    """
    known = np.flatnonzero(np.isfinite(values))
    if column not in _POWERS or not len(known):
        return np.full(len(values), np.nan)
    first = known[np.argmin(num_gpus[known])]
    of_time, of_gpus = _POWERS[column]
    power = -of_time + of_gpus
    return np.where(num_gpus >= num_gpus[first], values[first] * (num_gpus / num_gpus[first]) ** power, np.nan)


def interval(rows: "pd.DataFrame", column: str) -> tuple[Numbers, Numbers] | None:
    """Return the lower and the upper end of the 80 % interval of a column, [n] each; None if the rows have none."""
    ends = ("step_time_s_low", "step_time_s_high")
    if column not in _POWERS or not {"step_time_s", *ends} <= {*rows.columns}:
        return None
    values, time = rows[column].to_numpy(np.float64), rows["step_time_s"].to_numpy(np.float64)
    given = [rows[end].to_numpy(np.float64) / time for end in ends]
    ratios = [np.where(ratio > 0.0, ratio, np.nan) ** _POWERS[column][0] for ratio in given]
    if not np.isfinite(ratios).any():
        return None
    return values * np.minimum(*ratios), values * np.maximum(*ratios)
