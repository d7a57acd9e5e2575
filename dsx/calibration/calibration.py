"""Calibration: fit the numbers of an assumption set to a run table, and estimate its errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsx.calibration.few_runs import adapted_errors, after_few_runs
from dsx.calibration.fit import Fit, fit, sample_of
from dsx.calibration.held_out import LEAST_SOURCES, HeldOut, leave_out
from dsx.calibration.intervals import Coverage, coverage, make_intervals, memory_interval
from dsx.calibration.observations import Observations, sources_by, usual_stack
from dsx.calibration.regret import groups_of
from dsx.calibration.report import ALL_SOURCES
from dsx.calibration.resolution import resolution
from dsx.calibration.specialise import Prior, specialise_to
from dsx.calibration.weighted import weighted_mean, weighted_median, weights
from dsx.errors import RunTableError, SpecError
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.between import Bounds
from dsx.spec.known_errors import AdaptedSpec, IntervalSpec, MemoryIntervalSpec, TrainedOnSpec

MOST_FIELDS = 10
LEAST_ROWS = 2  # for each field: from fewer, a fit would state the beliefs with which it began


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit and the values that it began with; times are those of the N rows of the observations."""

    start: dict[str, float]
    fit: Fit
    before_s: np.ndarray  # [N] predicted by the base
    after_s: np.ndarray  # [N] predicted by the fit
    held_out: HeldOut | None  # None = too few sources
    interval: Sequence[IntervalSpec] = ()  # empty = not known: the set keeps the interval of the base
    resolution: float | None = None  # None = not known
    coverage: Mapping[str, Coverage] = field(default_factory=dict)  # by source
    memory: MemoryIntervalSpec | None = None  # None = not known
    trained_on: TrainedOnSpec = field(default_factory=TrainedOnSpec)
    # What is left of the errors after the set is adapted to a few runs; empty = not known.
    after_runs: Sequence[AdaptedSpec] = ()
    # The stack of the few rows of one cluster to which a set was adapted, which do not make an uncalibrated base
    # calibrated; "" = they have none, None = the set was fitted.
    adapted_stack: str | None = None

    @property
    def adapted(self) -> bool:
        """Whether a set was adapted to a few rows of one cluster."""
        return self.adapted_stack is not None


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


def may_adapt(assumptions: AssumptionsSpec) -> bool:
    """Return whether a set states what a few runs may change, and their noise."""
    return bool(assumptions.specialise) and assumptions.noise is not None


def check_adapted(assumptions: AssumptionsSpec) -> float:
    """Return the noise of a set that can be adapted to a few runs.

    Raises SpecError if the set does not state the fields that may change, or the noise.
    """
    if not assumptions.specialise or assumptions.noise is None:
        missing = "noise" if assumptions.specialise else "specialise"
        raise SpecError(
            f"assumption set {assumptions.name!r} cannot be adapted to a few runs: it states no {missing!r}"
        )
    return assumptions.noise


def calibrate(
    observations: Observations,
    assumptions: AssumptionsSpec,
    between: Mapping[str, Bounds],
    progress: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Return the fit of the fields `between` to all rows.

    Calls `progress` after each round and each source, and for a set that may be adapted after each source once more.
    `observations` are priced under `assumptions`, whose effects are no part of what the fit begins with. Raises what
    `check_fitted` raises, and RunTableError if there are few rows, if none depends on a field, if a fitted value is at
    a bound, or if it is less certain than its size.
    """
    check_fitted(assumptions, between)
    start = {name: float(getattr(assumptions, name)) for name in between}
    before_s, observations = observations.step_times({}), observations.without_effects()
    sample = sample_of(observations)
    found, solution, times = fit(observations, sample, start, between, progress)
    if len(found.undetermined) == len(between):
        raise RunTableError(f"no row depends on a field to fit: {', '.join(between)}")
    _check_enough(len(observations.source), len(between) - len(found.undetermined))
    _check_certain(found)
    held_out = None
    if len(observations.sources) >= LEAST_SOURCES:
        whole = (solution, times)
        held_out = leave_out(observations, observations.source, sample, start, between, whole, progress)
    result = Calibration(
        start=start,
        fit=found,
        before_s=before_s,
        after_s=observations.step_times(found.values, slowdown=solution.slowdown(sample.members)),
        held_out=held_out,
        trained_on=_trained_on(observations),
    )
    return result if held_out is None else _with_errors(result, observations, held_out, assumptions, progress)


def _check_enough(rows: int, fields: int) -> None:
    """Raise RunTableError for fewer than `LEAST_ROWS` rows for each field that some row depends on."""
    if rows < LEAST_ROWS * fields:
        raise RunTableError(
            f"usable rows: {rows}, fields to fit: {fields}, which need at least {LEAST_ROWS * fields} rows; to adapt a "
            "set to a few runs use --specialise"
        )


def _check_certain(found: Fit) -> None:
    """Raise RunTableError that lists fitted fields at a bound, and those that are less certain than large."""
    faults = [f"{name} is at a bound, {found.values[name]:.4g}" for name in found.at_bound]
    faults += [
        f"{name} is {found.values[name]:.4g} with a standard error of {found.standard_errors[name]:.2g}"
        for name in found.uncertain
    ]
    if faults:
        raise RunTableError(
            f"the rows do not determine every field: {'; '.join(faults)}; state no 'between' with their values, which "
            "keeps them, or give more rows; to adapt a set to a few runs use --specialise"
        )


def _trained_on(observations: Observations) -> TrainedOnSpec:
    counts = sources_by(observations.setups)
    return TrainedOnSpec.model_validate(
        {part: {value: len(names) for value, names in by_value.items()} for part, by_value in counts.items()}
    )


def _with_errors(
    found: Calibration,
    observations: Observations,
    held_out: HeldOut,
    assumptions: AssumptionsSpec,
    progress: Callable[[int], None],
) -> Calibration:
    residuals = np.log(observations.measured_s / held_out.predicted_s)
    after_runs: Sequence[AdaptedSpec] = ()
    if may_adapt(assumptions):
        prior = Prior.of(assumptions.specialise, check_adapted(assumptions))
        after_runs = adapted_errors(observations, after_few_runs(observations, held_out, prior, progress))
    return replace(
        found,
        interval=make_intervals(residuals, observations.source, observations.facts),
        resolution=resolution(groups_of(observations, held_out.predicted_s)),
        coverage=coverage(residuals, observations.source, observations.facts),
        memory=memory_interval(*observations.memory_ratios(found.fit.values)),
        after_runs=after_runs,
    )


def adapt(observations: Observations, assumptions: AssumptionsSpec) -> Calibration:
    """Return the set with the fields under its `specialise` adapted to all rows of `observations`.

    Its interval and resolution are those that the set states for so many runs. Raises what `check_adapted` raises.
    """
    prior = Prior.of(assumptions.specialise, check_adapted(assumptions))
    stack = usual_stack(observations.stack)
    own = assumptions.of_stack(stack) if stack else assumptions
    start = {name: float(getattr(own, name)) for name in prior.bounds}
    found = specialise_to(observations, start, prior)
    before, after = observations.step_times({}), observations.step_times(found.values)
    known = [one for one in assumptions.adapted if one.runs <= len(observations.source)]
    left = max(known, key=lambda one: one.runs, default=None)
    return Calibration(
        start,
        found,
        before,
        after,
        None,
        interval=[IntervalSpec(low=left.low, high=left.high)] if left else (),
        resolution=left.resolution if left else None,
        adapted_stack=stack,
    )


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
