"""The measurements and predictions of all rows of a run table, modelled or not, as one record of arrays.

The predictions of measured setups, which `dsx validate` and the fits compare with the measurements.

The measurements and predictions of all rows of a run table, modelled or not, as one record of arrays.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.plans.choices import CHOICES
from dsx.plans.layer_layout import LAYOUT
from dsx.runs.setups import ALLOCATED, RESERVED, Setup, measured_bytes, measured_step_time
from dsx.runs.table import MeasuredRun, UnmodelledReason


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
    reason: tuple[UnmodelledReason | None, ...]  # [N] why a setup cannot be priced; None if it was


class Predict(Protocol):
    """A function that prices setups under an assumption set."""

    def __call__(self, setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
        """Return one prediction per setup; a setup that cannot be priced gets a reason.

        Raises InputError if a layer definition or a table of the assumption set is at fault.
        """
        ...


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """N rows of a run table, in order; NaN is a missing value."""

    id: tuple[str, ...]
    source: tuple[str, ...]
    measured_s: np.ndarray  # [N] step time
    predicted_s: np.ndarray  # [N]
    low: np.ndarray  # [N] s
    high: np.ndarray  # [N] s
    measured_bytes: np.ndarray  # [N] on the fullest GPU
    predicted_bytes: np.ndarray  # [N] counted as the measured bytes: tensors, the allocator's, or all
    oom: np.ndarray  # [N] 1 ran out of memory, 0 ran, NaN not known
    fits: np.ndarray  # [N] bool, as predicted; false in rows with a reason
    group: tuple[Hashable, ...]  # [N] the same for rows that differ only in configuration
    layout: tuple[Hashable, ...]  # [N] the configuration
    inferred_recompute: tuple[str | None, ...]  # [N] the value of `recompute` where it is inferred
    reason: tuple[UnmodelledReason | None, ...]  # [N] why a row is not modelled

    @property
    def modelled(self) -> np.ndarray:
        """[N] bool: rows without a reason."""
        return np.array([reason is None for reason in self.reason], dtype=bool)


def compare(
    runs: Sequence[MeasuredRun],
    setups: Sequence[Setup | UnmodelledReason],
    predict: Predict,
    assumptions: AssumptionsSpec,
) -> PredictedRows:
    """Return `runs` with the predictions of their `setups`; a run whose setup is a Reason is not predicted."""
    has_setup = np.array([isinstance(setup, Setup) for setup in setups], dtype=bool)
    predictions = predict([setup for setup in setups if isinstance(setup, Setup)], assumptions)
    predicted_reasons, inferred = iter(predictions.reason), iter(predictions.inferred_recompute)
    seconds = [_measured_step_time(run, setup) for run, setup in zip(runs, setups, strict=True)]
    memory = [measured_bytes(run) for run in runs]
    reasons = [
        setup if isinstance(setup, UnmodelledReason) else _reason(run, time, size, next(predicted_reasons))
        for run, setup, time, size in zip(runs, setups, seconds, memory, strict=True)
    ]
    modelled = np.array([reason is None for reason in reasons], dtype=bool)
    counted = [setup.counted if isinstance(setup, Setup) else None for setup in setups]

    def predicted(values: np.ndarray) -> np.ndarray:
        of_runs = np.full(len(runs), np.nan)
        of_runs[has_setup] = values
        return np.where(modelled, of_runs, np.nan)

    return PredictedRows(
        id=tuple(run.id for run in runs),
        source=tuple(run.source_id for run in runs),
        measured_s=_numbers(seconds),
        predicted_s=predicted(predictions.step_time_s),
        low=predicted(predictions.low),
        high=predicted(predictions.high),
        measured_bytes=_numbers(memory),
        predicted_bytes=np.select(
            [np.array([one == kind for one in counted], dtype=bool) for kind in (ALLOCATED, RESERVED)],
            [predicted(predictions.allocated_bytes), predicted(predictions.reserved_bytes)],
            predicted(predictions.peak_bytes),
        ),
        oom=_numbers([_ran_out(run, time) for run, time in zip(runs, seconds, strict=True)]),
        fits=predicted(predictions.fits) == 1,
        group=tuple(group_of(setup) if isinstance(setup, Setup) else None for setup in setups),
        layout=tuple(layout_of(setup) if isinstance(setup, Setup) else None for setup in setups),
        inferred_recompute=tuple(next(inferred) if isinstance(setup, Setup) else None for setup in setups),
        reason=tuple(reasons),
    )


def _ran_out(run: MeasuredRun, seconds: float | UnmodelledReason | None) -> bool | None:
    """Return whether a run ran out of memory; if the table does not say, a run with a measured time did not."""
    return False if run.oom is None and isinstance(seconds, float) else run.oom


def _measured_step_time(run: MeasuredRun, setup: Setup | UnmodelledReason) -> float | UnmodelledReason | None:
    return measured_step_time(setup) if isinstance(setup, Setup) else run.measured_iter_s


def _reason(
    run: MeasuredRun,
    seconds: float | UnmodelledReason | None,
    memory: float | UnmodelledReason | None,
    predicted: UnmodelledReason | None,
) -> UnmodelledReason | None:
    for value in (seconds, memory):
        if isinstance(value, UnmodelledReason):
            return value
    if seconds is None and memory is None and run.oom is None:
        return UnmodelledReason("nothing was measured")
    return predicted


def _numbers(values: Sequence[float | bool | UnmodelledReason | None]) -> np.ndarray:
    known = (math.nan if value is None or isinstance(value, UnmodelledReason) else float(value) for value in values)
    return np.array([*known], dtype=np.float64)


def group_of(setup: Setup) -> Hashable:
    """Return what is the same in rows that differ only in configuration: source, model, machine, job and precision."""
    network = setup.cluster.network.net
    machine = ((setup.run.gpu or "").lower(), setup.gpus_per_node, network.bandwidth, network.nic_bandwidth)
    job = tuple(setup.plan[choice.name] for choice in CHOICES if choice.level == "job")
    return (setup.run.source_id, setup.sizes, *machine, *job, setup.precision)


def layout_of(setup: Setup) -> Hashable:
    """Return the configuration of a setup: its plan, sequence parallelism, kernels."""
    return (*setup.plan.codes.values(), setup.plan.get(LAYOUT), setup.sp, setup.fused_attention, setup.unfused)
