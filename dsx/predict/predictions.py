"""The predictions of measured setups, which `dsx validate` and the fits compare with the measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsx.runs.reasons import Reason
from dsx.runs.setups import Setup
from dsx.spec.assumptions import AssumptionsSpec


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of N setups, in order. A setup with a reason has NaN, and its `fits` is meaningless."""

    step_time_s: np.ndarray  # [N] float64
    low: np.ndarray  # [N] s, lower end of the 80 % interval; NaN if the assumption set states none
    high: np.ndarray  # [N] s, its upper end
    peak_bytes: np.ndarray  # [N] on the fullest GPU
    allocated_bytes: np.ndarray  # [N] the part of peak_bytes in tensors
    reserved_bytes: np.ndarray  # [N] the part of peak_bytes that the framework's allocator holds
    # [N] bool, whether peak_bytes fit in the memory of a GPU; with the margin of the inference where the recomputation
    # is inferred.
    fits: np.ndarray
    inferred_recompute: tuple[str | None, ...]  # [N] the value of `recompute` where it is inferred
    reason: tuple[Reason | None, ...]  # [N] why a setup cannot be priced; None if it was


class Predict(Protocol):
    """A function that prices setups under an assumption set."""

    def __call__(self, setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
        """Return one prediction per setup; a setup that cannot be priced gets a reason.

        Raises InputError if a layer definition or a table of the assumption set is at fault.
        """
        ...
