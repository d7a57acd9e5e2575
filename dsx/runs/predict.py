"""The predictions of measured setups, and the rows of a run table with their measurements and predictions.

A missing `recompute` is filled with the least that lets the run fit in memory, since a measured run did fit. Where it
does not fit without recomputation, it must have recomputed: selectively, one region of its layers
(`dsx.plans.choices`), or all of them. Of the values under which it fits the fastest is taken, since that is what its
authors would have chosen; if none fits, the one that needs least memory. Combinations of regions, and recomputation of
only some layers, are not tried: a table that states less than this cannot distinguish them.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec, TrainedOnSpec
from dsx.config.model_file import has_experts
from dsx.cost.interval import Likeness, PlanFacts, likeness, plan_facts, sources_like, step_interval, thinness, unlike
from dsx.plans.choices import CHOICES, MAIN, NONE, REGION_NAMES, value_of
from dsx.runs.batches import batches, counted_memory, price
from dsx.runs.setups import ALLOCATED, RESERVED, Setup, Setups, measured_bytes, measured_step_time
from dsx.runs.table import MeasuredRun, UnmodelledReason

# Over the memory of a GPU: predictions are not further off. A run that was filled under it fits with it.
MARGIN = 1.25
# The values that are tried, each with one region more or all of the layer.
TRIED = tuple(value for value in dict.fromkeys((*MAIN, *map(value_of, REGION_NAMES))) if value != NONE)


def is_inferred(setup: Setup) -> bool:
    """Return whether the recomputation of a setup is inferred from its memory."""
    return "recompute" in setup.filled and not setup.run.oom


def with_recompute(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> list[Setup]:
    """Return the setups, those with missing `recompute` with the least that fits; none if every value is too much."""
    filled = list(setups)
    missing = [row for row, setup in enumerate(setups) if is_inferred(setup)]
    peak, _ = _priced([setups[row] for row in missing], assumptions)
    short = [row for row, size in zip(missing, peak, strict=True) if size > _room(setups[row])]
    if not short:
        return filled
    tried = [replace(setups[row], plan=setups[row].plan | {"recompute": value}) for row in short for value in TRIED]
    peaks, seconds = (column.reshape(len(short), len(TRIED)) for column in _priced(tried, assumptions))
    for at, row in enumerate(short):
        fits = peaks[at] <= _room(setups[row])
        best = int(np.argmin(np.where(fits, seconds[at], np.inf) if fits.any() else peaks[at]))
        filled[row] = tried[at * len(TRIED) + best]
    return filled


def _room(setup: Setup) -> float:
    return MARGIN * setup.cluster.device.hbm_capacity


def _priced(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the peak bytes and the seconds of setups, [N]; NaN where a setup cannot be priced."""
    peak, seconds = np.full((2, len(setups)), np.nan)
    for batch in batches(setups, assumptions)[0]:
        costs = price(batch)
        peak[batch.rows], seconds[batch.rows] = costs.peak_bytes, costs.step_time_s
    return peak, seconds


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


# Prices setups under an assumption set; raises InputError if a layer definition or a table of the set is at fault.
Predict = Callable[[Sequence[Setup], AssumptionsSpec], Predictions]


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


def predict(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
    """Return the step time and memory of each setup, or the reason why it cannot be priced."""
    setups = with_recompute(setups, assumptions)
    step, peak, allocated, reserved = np.full((4, len(setups)), np.nan)
    priced, reasons = batches(setups, assumptions)
    for batch in priced:
        costs = price(batch)
        step[batch.rows], peak[batch.rows] = costs.step_time_s, costs.peak_bytes
        memory = counted_memory(costs, batch.assumptions)
        allocated[batch.rows], reserved[batch.rows] = memory[ALLOCATED], memory[RESERVED]
    thin = [thinness(sources_like(likeness_of(setup), assumptions.trained_on), bool(setup.filled)) for setup in setups]
    interval = step_interval(assumptions.interval, step, facts_of(setups, np.array(thin, dtype=np.int64)))
    inferred = [is_inferred(setup) for setup in setups]
    capacity = np.array([setup.cluster.device.hbm_capacity for setup in setups], dtype=np.float64)
    return Predictions(
        step_time_s=step,
        low=interval.step_time_s_low,
        high=interval.step_time_s_high,
        peak_bytes=peak,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        fits=peak <= np.where(inferred, MARGIN, 1.0) * capacity,
        inferred_recompute=tuple(str(s.plan["recompute"]) if is_inferred(s) else None for s in setups),
        reason=tuple(reasons.get(row) for row in range(len(setups))),
    )


def compare(
    runs: Sequence[MeasuredRun], setups: Setups, predict: Predict, assumptions: AssumptionsSpec
) -> PredictedRows:
    """Return `runs` with the predictions of their `setups`; a run whose setup is a Reason is not predicted."""
    priced = [setup if isinstance(setup, Setup) else None for setup in setups]
    rows = [row for row, setup in enumerate(priced) if setup]
    predictions = predict([setup for setup in priced if setup], assumptions)
    position = {row: place for place, row in enumerate(rows)}  # in the predictions
    inferred = dict(zip(rows, predictions.inferred_recompute, strict=True))
    pairs = [*zip(runs, priced, strict=True)]
    seconds = [measured_step_time(setup) if setup else run.measured_iter_s for run, setup in pairs]
    memory = [measured_bytes(run) for run in runs]
    reasons: list[UnmodelledReason | None] = []
    for row, (run, setup) in enumerate(zip(runs, setups, strict=True)):
        faults = [fault for fault in (setup, seconds[row], memory[row]) if isinstance(fault, UnmodelledReason)]
        if not faults and seconds[row] is None and memory[row] is None and run.oom is None:
            faults = [UnmodelledReason("nothing was measured")]
        reasons.append(faults[0] if faults else predictions.reason[position[row]])
    modelled = np.array([reason is None for reason in reasons], dtype=bool)

    def predicted(values: np.ndarray) -> np.ndarray:
        of_runs = np.full(len(runs), np.nan)
        of_runs[rows] = values
        return np.where(modelled, of_runs, np.nan)

    def counts(kind: str) -> np.ndarray:
        return np.array([setup is not None and setup.counted == kind for setup in priced], dtype=bool)

    # If the table does not say, a run with a measured time did not run out of memory.
    failed = [
        False if run.oom is None and isinstance(time, float) else run.oom
        for run, time in zip(runs, seconds, strict=True)
    ]
    return PredictedRows(
        id=tuple(run.id for run in runs),
        source=tuple(run.source_id for run in runs),
        measured_s=_numbers(seconds),
        predicted_s=predicted(predictions.step_time_s),
        low=predicted(predictions.low),
        high=predicted(predictions.high),
        measured_bytes=_numbers(memory),
        predicted_bytes=np.select(
            [counts(ALLOCATED), counts(RESERVED)],
            [predicted(predictions.allocated_bytes), predicted(predictions.reserved_bytes)],
            predicted(predictions.peak_bytes),
        ),
        oom=_numbers(failed),
        fits=predicted(predictions.fits) == 1,
        group=tuple(setup and group_of(setup) for setup in priced),
        layout=tuple(setup and layout_of(setup) for setup in priced),
        inferred_recompute=tuple(inferred.get(row) for row in range(len(runs))),
        reason=tuple(reasons),
    )


def _numbers(values: Sequence[float | bool | UnmodelledReason | None]) -> np.ndarray:
    numbers = [math.nan if value is None or isinstance(value, UnmodelledReason) else float(value) for value in values]
    return np.array(numbers, dtype=np.float64)


def group_of(setup: Setup) -> Hashable:
    """Return what is the same in rows that differ only in configuration: source, model, machine, job and precision."""
    network = setup.cluster.network.net
    machine = ((setup.run.gpu or "").lower(), setup.gpus_per_node, network.bandwidth, network.nic_bandwidth)
    job = tuple(setup.plan[choice.name] for choice in CHOICES if choice.level == "job")
    return (setup.run.source_id, setup.sizes, *machine, *job, setup.precision)


def layout_of(setup: Setup) -> Hashable:
    """Return the configuration of a setup: its plan, sequence parallelism, kernels."""
    return (*setup.plan.codes.values(), setup.plan.layers, setup.sp, setup.fused_attention, setup.unfused)


def facts_of(setups: Sequence[Setup], thin: np.ndarray | int = 0) -> PlanFacts:
    """Return the facts of these setups that select an interval; `thin` is `dsx.cost.interval.thinness` of each."""
    return plan_facts(
        np.array([setup.plan["num_gpus"] for setup in setups]),
        np.array([setup.cluster.network.nvs.size for setup in setups]),
        np.array([has_experts(setup.model.dimensions) for setup in setups]),
        thin,
    )


def count_unlike(setups: Setups, trained_on: TrainedOnSpec) -> dict[str, dict[str, int]]:
    """Return how many setups have what no source has to which a set was fitted, by part of the likeness and value."""
    counts: dict[str, Counter[str]] = {}
    for setup in setups:
        if isinstance(setup, Setup):
            for part, value in unlike(likeness_of(setup), trained_on).items():
                counts.setdefault(part, Counter())[value] += 1
    return {part: dict(values.most_common()) for part, values in counts.items()}


def likeness_of(setup: Setup) -> Likeness:
    """Return what measurements may share with a setup."""
    return likeness(setup.stack, setup.cluster.device, setup.model)
