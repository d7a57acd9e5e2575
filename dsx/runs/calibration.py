"""Calibration: fit the numbers of an assumption set to a run table, estimate its errors, and write it as YAML."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.evidence import AdaptedSpec, IntervalSpec, MemoryIntervalSpec, TrainedOnSpec
from dsx.config.what_if import varied_field
from dsx.errors import RunTableError, SpecError
from dsx.runs.error_report import groups_of, resolution
from dsx.runs.fit import Fit, HeldOut, fit, leave_out, sample_of
from dsx.runs.intervals import LEAST_SOURCES, IntervalCoverage, coverage, make_intervals, memory_interval
from dsx.runs.local_times import Between
from dsx.runs.observations import Observations, sources_by, usual_stack
from dsx.runs.specialise import adapted_errors, after_few_runs, prior_of, specialise_to
from dsx.units import exact_quantity

MOST_FIELDS = 10
LEAST_ROWS = 2  # for each field: from fewer, a fit would state the beliefs with which it began


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
