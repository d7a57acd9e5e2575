"""Calibration: fit the numbers of an assumption set to a run table, and estimate its errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.calibration.fit import Fit, determined
from dsx.calibration.held_out import LEAST_SOURCES, HeldOut, fit_to, leave_one_source_out
from dsx.calibration.intervals import Coverage, coverage, make_intervals, memory_interval
from dsx.calibration.observations import Observations
from dsx.calibration.regret import groups_of
from dsx.calibration.report import ALL_SOURCES
from dsx.calibration.resolution import resolution
from dsx.calibration.specialise import specialise_to
from dsx.calibration.weighted import weighted_mean, weighted_median, weights
from dsx.errors import RunTableError, SpecError
from dsx.spec.assumptions import AssumptionsSpec, IntervalSpec, MemoryIntervalSpec
from dsx.spec.between import Bounds

MOST_FIELDS = 32
ROWS_PER_FIELD = 2  # at least


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit and the values that it began with; times are those of the N rows of the observations."""

    start: dict[str, float]
    fit: Fit
    before_s: np.ndarray  # [N] predicted by the base
    after_s: np.ndarray  # [N] predicted by the fit
    held_out: HeldOut | None  # None = too few sources or rows
    interval: list[IntervalSpec]  # empty = not known: the set keeps the interval of the base
    resolution: float | None  # None = not known
    coverage: dict[str, Coverage]  # by source
    memory: MemoryIntervalSpec | None = None  # None = not known
    adapted: bool = False  # to a few rows of one cluster, which do not make an uncalibrated base calibrated


def check_fitted(assumptions: AssumptionsSpec, between: Mapping[str, Bounds]) -> None:
    """Raise SpecError if there is no field to fit, or if there are more than `MOST_FIELDS`."""
    if not between:
        raise SpecError(
            f"assumption set {assumptions.name!r} has no field to fit: state 'between' with the value of one, as in "
            "matrix_efficiency: {value: 0.8, between: [0.5, 1]}"
        )
    if len(between) > MOST_FIELDS:
        raise SpecError(
            f"assumption set {assumptions.name!r} has {len(between)} fields with 'between', but at most {MOST_FIELDS} "
            "can be fitted at once"
        )


def check_adapted(assumptions: AssumptionsSpec, between: Mapping[str, Bounds]) -> float:
    """Return the noise of a set that can be adapted to a few runs.

    Raises SpecError if the set does not state the fields that may change, their deviations, their bounds, or the noise.
    """
    where = f"assumption set {assumptions.name!r}"
    deviations = assumptions.specialise
    if not deviations or assumptions.noise is None:
        missing = "specialise" if not deviations else "noise"
        raise SpecError(f"{where} cannot be adapted to a few runs: it states no {missing!r}")
    for name in deviations:
        if name not in between:
            raise SpecError(f"{where}: specialise: {name!r} needs bounds: state 'between' with its value")
    return assumptions.noise


def calibrate(
    observations: Observations,
    assumptions: AssumptionsSpec,
    between: Mapping[str, Bounds],
    progress: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Return the fit of the fields `between` to all rows; calls `progress` after each of 1 + sources fits.

    Raises what `check_fitted` raises, and RunTableError if there are fewer than `ROWS_PER_FIELD` rows for each field
    that they depend on.
    """
    check_fitted(assumptions, between)
    start = {name: float(getattr(assumptions, name)) for name in between}
    names = determined(observations.step_times, start, between)
    rows = len(observations.source)
    if not names:
        raise RunTableError(f"no row depends on a field to fit: {', '.join(between)}")
    if rows < ROWS_PER_FIELD * len(names):
        raise RunTableError(
            f"{rows} usable row{'' if rows == 1 else 's'} for {len(names)} fields to fit, which need at least "
            f"{ROWS_PER_FIELD * len(names)}; to adapt a set to a few runs use --specialise"
        )
    fit = fit_to(observations, np.ones(rows, dtype=bool), start, between)
    progress(1)
    held_out = None
    counts = [observations.source.count(name) for name in observations.sources]
    if len(counts) >= LEAST_SOURCES and rows - max(counts) >= ROWS_PER_FIELD * len(names):
        held_out = leave_one_source_out(observations, start, between, progress, fit.values)
    after = observations.step_times(fit.values)
    found = Calibration(start, fit, observations.step_times(start), after, held_out, [], None, {})
    return found if held_out is None else _with_errors(found, observations, held_out)


def _with_errors(found: Calibration, observations: Observations, held_out: HeldOut) -> Calibration:
    residuals = np.log(observations.measured_s / held_out.predicted_s)
    return Calibration(
        found.start,
        found.fit,
        found.before_s,
        found.after_s,
        held_out,
        interval=make_intervals(residuals, observations.source, observations.facts),
        resolution=resolution(groups_of(observations, held_out.predicted_s)),
        coverage=coverage(residuals, observations.source, observations.facts),
        memory=memory_interval(*observations.memory_ratios(found.fit.values)),
    )


def adapt(observations: Observations, assumptions: AssumptionsSpec, between: Mapping[str, Bounds]) -> Calibration:
    """Return the set with the fields under its `specialise` adapted to all rows of `observations`.

    Raises what `check_adapted` raises.
    """
    noise = check_adapted(assumptions, between)
    deviations = assumptions.specialise
    start = {name: float(getattr(assumptions, name)) for name in deviations}
    rows = np.arange(len(observations.source))
    fit = specialise_to(observations, rows, start, between, deviations, noise)
    after = observations.step_times(fit.values)
    return Calibration(start, fit, observations.step_times(start), after, None, [], None, {}, adapted=True)


def errors(observations: Observations, predicted_s: np.ndarray) -> list[dict[str, Any]]:
    """Return the errors predicted / measured - 1 by source, then over all rows, every source with the same weight.

    `dsx.calibration.report` defines the figures.
    """
    error = predicted_s / observations.measured_s - 1
    source = np.array(observations.source)
    chosen = {name: source == name for name in observations.sources}
    return [
        {
            "source_id": name,
            "rows": int(own.sum()),
            "median_ape": weighted_median(np.abs(error[own]), weights(source[own])),
            "mape": weighted_mean(np.abs(error[own]), weights(source[own])),
            "bias": weighted_mean(error[own], weights(source[own])),
        }
        for name, own in (chosen | {ALL_SOURCES: np.ones(len(source), dtype=bool)}).items()
    ]
