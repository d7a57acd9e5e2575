"""Calibration: fit an assumption set to a run table, or adapt it to a user's runs; its errors, and its YAML.

A set is adapted to one cluster and framework, from one run on. The set states the few fields in which software differs,
with a deviation and bounds for each: a normal prior around its values. One of them is `kernel_slowdown`, which stands
for the effects of the stack and of the devices. With p the positions of the fields between their bounds in [0, 1] (on a
log scale if they are positive), c the set's own, d their deviations, and t the residual log(predicted / measured) of a
run over the set's `noise`, the minimised sum is

    sum over runs of 2 (sqrt(1 + t^2) - 1) + sum over fields of ((p - c) / d)^2

So one run changes the fields that it depends on a little, many runs change them as far as the runs agree, and a run
that disagrees with the others counts less than its square (the loss of a fit).

To estimate the errors of a set that a user adapts to so many runs, it is adapted to runs of a source that it has not
seen (`dsx.runs.fit.leave_out`): runs are drawn at random, several times with one seed, and each time the rest of the
source is predicted.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import least_squares

from dsx.config.assumption_set import AdaptedSpec, AssumptionsSpec, IntervalSpec, MemoryIntervalSpec, TrainedOnSpec
from dsx.config.schema import bounds_of
from dsx.config.what_if import varied_field
from dsx.errors import RunTableError, SpecError
from dsx.runs.error_report import (
    LEAST_SOURCES,
    IntervalCoverage,
    coverage,
    ends,
    groups_of,
    make_intervals,
    memory_interval,
    resolution,
    rounded,
)
from dsx.runs.fit import (
    Between,
    Fit,
    HeldOut,
    LocalTimes,
    Progress,
    Values,
    at,
    fit,
    leave_out,
    local_times,
    position_of,
    sample_of,
    slope,
    softened,
)
from dsx.runs.observations import Observations, sources_by, usual_stack
from dsx.units import exact_quantity

MOST_FIELDS = 10
LEAST_ROWS = 2  # for each field: from fewer, a fit would state the prior with which it began


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit and the values that it began with; times are of the N rows of the observations."""

    start: dict[str, float]
    fit: Fit
    before_s: np.ndarray  # [N] predicted by the base
    after_s: np.ndarray  # [N] predicted by the fit
    held_out: HeldOut | None = None  # None = too few sources
    interval: Sequence[IntervalSpec] = ()  # empty = not known: the set keeps the interval of the base
    resolution: float | None = None  # None = not known
    coverage: Mapping[str, IntervalCoverage] = field(default_factory=dict)  # by source
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


def check_fitted(assumptions: AssumptionsSpec, between: Between) -> None:
    """Raise SpecError if there is no field to fit, or if there are more than `MOST_FIELDS`."""
    if not between:
        raise SpecError(
            f"assumption set {assumptions.name!r} has no field to fit: state 'between' with the value of one, as in "
            "matrix_efficiency: {value: 0.8, between: [0.5, 1]}"
        )
    if len(between) > MOST_FIELDS:
        most = f"at most {MOST_FIELDS} can be fitted at once"
        raise SpecError(f"assumption set {assumptions.name!r} has {len(between)} fields with 'between', but {most}")


def may_adapt(assumptions: AssumptionsSpec) -> bool:
    """Return whether a set states what a few runs may change, and their noise."""
    return bool(assumptions.specialise) and assumptions.noise is not None


def calibrate(
    observations: Observations,
    assumptions: AssumptionsSpec,
    between: Between,
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
    full = fit(observations, sample_of(observations), start, between, progress)
    fitted = full.fit
    num_determined = len(between) - len(fitted.undetermined)
    if not num_determined:
        raise RunTableError(f"no row depends on a field to fit: {', '.join(between)}")
    if len(observations.source) < LEAST_ROWS * num_determined:
        raise RunTableError(
            f"usable rows: {len(observations.source)}, fields to fit: {num_determined}, which need at least "
            f"{LEAST_ROWS * num_determined} rows; to adapt a set to a few runs use --specialise"
        )
    faults = [f"{name} is at a bound, {fitted.values[name]:.4g}" for name in fitted.at_bound]
    errors = [(name, fitted.values[name], fitted.standard_errors[name]) for name in fitted.uncertain]
    faults += [f"{name} is {value:.4g} with a standard error of {error:.2g}" for name, value, error in errors]
    if faults:
        raise RunTableError(
            f"the rows do not determine every field: {'; '.join(faults)}; state no 'between' with their values, which "
            "keeps them, or give more rows; to adapt a set to a few runs use --specialise"
        )
    by_value = sources_by(observations.setups)
    sources = {part: {value: len(names) for value, names in values.items()} for part, values in by_value.items()}
    result = Calibration(
        start=start,
        fit=fitted,
        before_s=before_s,
        after_s=observations.step_times(fitted.values, slowdown=full.slowdown),
        trained_on=TrainedOnSpec.model_validate(sources),
    )
    if len(observations.sources) < LEAST_SOURCES:
        return result
    held_out = leave_out(observations, observations.source, full, progress)
    after_runs: Sequence[AdaptedSpec] = ()
    if may_adapt(assumptions):
        adapted = after_few_runs(observations, held_out, prior_of(assumptions), progress)
        after_runs = adapted_errors(observations, adapted)
    residuals = np.log(observations.measured_s / held_out.predicted_s)
    return replace(
        result,
        held_out=held_out,
        interval=make_intervals(residuals, observations.source, observations.facts),
        resolution=resolution(groups_of(observations, held_out.predicted_s)),
        coverage=coverage(residuals, observations.source, observations.facts),
        memory=memory_interval(*observations.memory_ratios(fitted.values)),
        after_runs=after_runs,
    )


def adapt(observations: Observations, assumptions: AssumptionsSpec) -> Calibration:
    """Return the set adapted to all rows, with its interval for so many runs; raises what `prior_of` raises."""
    prior = prior_of(assumptions)
    stack = usual_stack(observations.stack)
    base = assumptions.of_stack(stack) if stack else assumptions
    start = {name: float(getattr(base, name)) for name in prior.bounds}
    fitted = specialise_to(observations, start, prior)
    of_fewer = [entry for entry in assumptions.adapted if entry.runs <= len(observations.source)]
    nearest = max(of_fewer, key=lambda entry: entry.runs, default=None)
    return Calibration(
        start=start,
        fit=fitted,
        before_s=observations.step_times({}),
        after_s=observations.step_times(fitted.values),
        interval=[IntervalSpec(low=nearest.low, high=nearest.high)] if nearest else (),
        resolution=nearest.resolution if nearest else None,
        adapted_stack=stack,
    )


_DIGITS = 6  # of a fitted value
_ERROR_DIGITS = 2


def text_of(calibration: Calibration, between: Between, name: str, extends: str, fitted_to: str, title: str) -> str:
    """Return the YAML of a set called `name` that extends the set `extends`.

    `fitted_to` names the rows, as in "34 rows of runs.csv"; `title` is the first line, a comment. A set adapted to a
    few rows does not state `calibrated`: it inherits it from the set that it extends.
    """
    fit, adapted = calibration.fit, calibration.adapted
    lines = [
        f"# {title}",
        f"extends: {_quoted(extends)}",
        f"name: {_quoted(name)}",
        f"description: {_quoted(f'{title} Other fields are those of the set that it extends.')}",
        f"source: {_quoted(f'fitted to {fitted_to}')}",
        *([] if adapted else ["calibrated: true"]),
        *([f"stack: {calibration.adapted_stack}"] if calibration.adapted_stack else []),
        "",
    ]
    for field_name in (field_name for field_name in fit.values if field_name not in fit.undetermined):
        error, bounds = fit.standard_errors[field_name], between[field_name]
        certainty = "no standard error"
        if math.isfinite(error):
            certainty = f"standard error {written(field_name, error, _ERROR_DIGITS)}"
        # Rounding must not leave the bounds.
        inside = min(max(float(f"{fit.values[field_name]:.{_DIGITS}g}"), bounds.low), bounds.high)
        ends = ", ".join(written(field_name, bound) for bound in (bounds.low, bounds.high))
        bounded = "" if adapted else f", between: [{ends}]"  # the bounds of an adapted set are those under `specialise`
        source = _quoted(f"fitted to {fitted_to}, {certainty}")
        lines.append(f"{field_name}: {{value: {written(field_name, inside)}{bounded}, source: {source}}}")
    if fit.undetermined:
        lines += ["", f"# Kept, since no row depends on them: {', '.join(fit.undetermined)}."]
    if not adapted:
        lines += ["", "# What the fit leaves to stacks and device generations: log factors on the time of kernels."]
        lines += ["effects:"]
        effects, deviations = fit.effects, fit.effects.deviations
        for part in ("stack", "generation"):
            named = {key: float(f"{value:.{_ERROR_DIGITS}g}") for key, value in getattr(effects, part).items() if key}
            lines += [f"  {part}: {_numbers(named)}"] if named else []
            lines += [f"  {part}_deviation: {getattr(deviations, part):.{_ERROR_DIGITS}g}"]
        lines += [f"  source_deviation: {deviations.rest:.{_ERROR_DIGITS}g}"]
        lines += ["", "# Sources that the fit has seen, by what they have.", "trained_on:"]
        sources = calibration.trained_on.model_dump()
        lines += [f"  {part}: {_numbers(counts)}" for part, counts in sources.items() if counts]
    if calibration.interval:
        lines += ["", "# 80 % of measured / predicted step time, of sources that a fit had not seen.", "interval:"]
        for entry in calibration.interval:
            parts = entry.where.model_dump(exclude_none=True).items()
            where = ", ".join(
                f"{key}: {json.dumps(value) if isinstance(value, bool) else value}" for key, value in parts
            )
            lines += [f"  - {{{f'where: {{{where}}}, ' if where else ''}low: {entry.low:g}, high: {entry.high:g}}}"]
    if (memory := calibration.memory) is not None:
        lines += ["", "# Quantiles of measured / predicted peak memory; a search leaves room for the last one."]
        lines += [f"memory_interval: {{low: {memory.low:g}, median: {memory.median:g}, high: {memory.high:g}}}"]
        margin = f"{max(memory.high - 1, 0):.{_ERROR_DIGITS}g}"
        lines += [f'memory_margin: {{value: {margin}, source: "the high end of memory_interval"}}']
    if calibration.resolution is not None:
        lines += ["", "# By how much the errors of two plans of one job differ, in 80 % of the pairs."]
        lines += [f"resolution: {calibration.resolution:.{_ERROR_DIGITS}g}"]
    if calibration.after_runs:
        lines += ["", "# Both after the set is adapted to so many runs of a source that was left out.", "adapted:"]
        for entry in calibration.after_runs:
            of_pairs = "" if entry.resolution is None else f", resolution: {entry.resolution:.{_ERROR_DIGITS}g}"
            lines += [f"  - {{runs: {entry.runs}, low: {entry.low:g}, high: {entry.high:g}{of_pairs}}}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def written(name: str, value: float, digits: int = 15) -> str:
    """Return a value of a field as the file of an assumption set states it, with its unit."""
    return exact_quantity(float(f"{value:.{digits}g}"), varied_field(f"assumptions.{name}").unit)


def _numbers(values: Mapping[str, float]) -> str:
    return f"{{{', '.join(f'{json.dumps(name)}: {value:g}' for name, value in sorted(values.items()))}}}"


_FURTHER = 2  # rounds of prices around the last result


@dataclass(frozen=True, slots=True)
class Prior:
    """The fields that a few runs may change."""

    bounds: Between
    deviations: np.ndarray  # [P] as shares of the distance between the bounds
    noise: float  # deviation of a run's log error


def prior_of(assumptions: AssumptionsSpec) -> Prior:
    """Return the prior that an assumption set states; SpecError without the fields that may change, or the noise."""
    free, noise = assumptions.specialise, assumptions.noise
    if not free or noise is None:
        missing = "noise" if free else "specialise"
        name = assumptions.name
        raise SpecError(f"assumption set {name!r} cannot be adapted to a few runs: it states no {missing!r}")
    fields = AssumptionsSpec.model_fields
    bounds = {name: bounds_of(fields[name], entry.between) for name, entry in free.items()}
    return Prior(bounds, np.array([entry.deviation for entry in free.values()]), noise)


def specialise(
    times: LocalTimes, measured_s: np.ndarray, centre: np.ndarray, prior: Prior
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely [P] positions after [N] runs, and their errors; `centre` are the set's own positions."""
    measured = np.log(measured_s)

    def residuals(position: np.ndarray) -> np.ndarray:
        errors = (times.at(position) - measured) / prior.noise
        return np.concatenate([softened(errors, 1.0), (position - centre) / prior.deviations])

    def jacobian(position: np.ndarray) -> np.ndarray:
        errors = (times.at(position) - measured) / prior.noise
        root = np.sqrt(1 + errors**2)
        rows = (np.sqrt((1 + root) / 2) / root / prior.noise)[:, None] * times.derivative(position)
        return np.concatenate([rows, np.diag(1 / prior.deviations)])

    start = np.clip(centre, 0.0, 1.0)
    optimum = least_squares(residuals, start, jac=jacobian, bounds=(0, 1))  # pyright: ignore[reportArgumentType]
    # The prior makes this matrix regular, whatever the runs.
    return optimum.x, np.sqrt(np.diag(np.linalg.inv(optimum.jac.T @ optimum.jac)))


def specialise_to(observations: Observations, base: Values, prior: Prior) -> Fit:
    """Return the fields after all runs; `base` has the values of the set, which a field without runs keeps."""
    centre = first = position_of(base, prior.bounds)
    times = local_times(observations, centre, prior.bounds)
    for _ in range(_FURTHER):
        centre, _ = specialise(times, observations.measured_s, first, prior)
        times = local_times(observations, centre, prior.bounds)
    centre, errors = specialise(times, observations.measured_s, first, prior)
    idle = times.undetermined
    values, sizes = at(centre, prior.bounds), errors * slope(centre, prior.bounds)
    return Fit(
        values={name: base[name] if name in idle else value for name, value in values.items()},
        standard_errors=dict(zip(values, sizes.tolist(), strict=True)) | dict.fromkeys(idle, np.nan),
        at_bound=times.at_bound(centre),
        undetermined=idle,
    )


RUNS = (1, 3, 5)  # that a set is adapted to
REPETITIONS = 20

# By number of runs, [REPETITIONS, N] seconds: NaN for the runs that were drawn, and for sources with no more rows.
Adapted = Mapping[int, np.ndarray]


def after_few_runs(
    observations: Observations, held_out: HeldOut, prior: Prior, progress: Progress = lambda done: None
) -> Adapted:
    """Return the predicted step times of the N rows after the set is adapted to some of their source.

    `held_out` has left out the sources. A source has the values of its usual stack before it is adapted. Calls
    `progress` after each source.
    """
    adapted = {count: np.full((REPETITIONS, len(observations.source)), np.nan) for count in RUNS}
    for source, fitted in held_out.fits.items():
        rows = np.flatnonzero(observations.of_source(source))
        stack = usual_stack([observations.stack[row] for row in rows])
        spec = observations.assumptions.of_stack(stack) if stack else observations.assumptions
        base = {name: float(getattr(spec, name)) for name in prior.bounds} | fitted.values
        centre = position_of(base, prior.bounds)
        times = local_times(observations.only(rows, fitted.values, held_out.slowdown), centre, prior.bounds)
        measured_s = observations.measured_s[rows]
        for count in (count for count in RUNS if len(rows) > count):
            random = np.random.default_rng(0)
            for draw in adapted[count]:
                runs = random.choice(len(rows), count, replace=False)
                position, _ = specialise(times.of(runs), measured_s[runs], times.centre, prior)
                draw[rows] = np.exp(times.at(position))
                draw[rows[runs]] = np.nan
        progress(1)
    return adapted


def median_errors(observations: Observations, adapted: Adapted) -> dict[str, dict[int, float]]:
    """Return the median |relative error| of the other rows of a source, by source and fewer runs than it has."""
    medians: dict[str, dict[int, float]] = {}
    for source in observations.sources:
        rows = observations.of_source(source)
        medians[source] = {
            count: float(np.nanmedian(np.abs(times[:, rows] / observations.measured_s[rows] - 1)))
            for count, times in adapted.items()
            if rows.sum() > count
        }
    return medians


def adapted_errors(observations: Observations, adapted: Adapted) -> list[AdaptedSpec]:
    """Return the 80 % interval and the resolution after each number of runs, the fewest first.

    The resolution is the mean over the draws, None where no group of layouts is left. Numbers of runs that too few
    sources have are left out.
    """
    source = np.array(observations.source)
    entries: list[AdaptedSpec] = []
    for count, times in adapted.items():
        predicted = np.isfinite(times)
        names = np.broadcast_to(source, times.shape)[predicted]
        if len(set(names.tolist())) < LEAST_SOURCES:
            break
        low, high = np.exp(ends(np.log(observations.measured_s / times)[predicted], names))
        resolutions = [resolution(groups_of(observations, draw)) for draw in times]
        of_groups = [share for share in resolutions if share is not None]
        mean = rounded(float(np.mean(of_groups))) if of_groups else None
        entries.append(AdaptedSpec(runs=count, low=rounded(low), high=rounded(high), resolution=mean))
    return entries
