"""Calibration: fit the numbers of an assumption set to a run table, estimate its errors, and write it down.

The errors of predictions, as `dsx validate --json` states them.

Over the rows of one source, with the relative error e = predicted / measured - 1:

    rows            rows of the table
    modelled        rows without a reason
    median_ape      median of |e| of the step time
    mape            mean of |e|
    bias            mean of e
    inside_interval share of the rows with low <= measured <= high, among rows with an interval
    memory_mape     mean of |e| of the memory, over rows that ran

`overall` has the same fields over all rows, every source with the same weight: a row weighs 1 / (rows of its source
in the figure). So a mean is the mean over sources of their means, and a median is a weighted one. A figure over no rows
is None. `dsx.runs.intervals` and `dsx.runs.intervals` define the others.

Calibration: fit the numbers of an assumption set to a run table, and estimate its errors.

A calibrated assumption set as YAML: the fields that differ from the set that it extends.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.evidence import AdaptedSpec, IntervalSpec, MemoryIntervalSpec, TrainedOnSpec
from dsx.config.values import Bounds
from dsx.config.what_if import varied_field
from dsx.errors import RunTableError, SpecError
from dsx.runs.fit import Effects, Fit, fit, sample_of
from dsx.runs.intervals import (
    LEAST_SOURCES,
    HeldOut,
    IntervalCoverage,
    coverage,
    groups,
    groups_of,
    leave_out,
    make_intervals,
    memory_interval,
    pairs,
    regret,
    regret_figures,
    resolution,
    spearman,
    spread_figures,
    spreads,
    weighted_mean,
    weighted_median,
    weights,
)
from dsx.runs.observations import Observations, sources_by, usual_stack
from dsx.runs.predicted_rows import PredictedRows
from dsx.runs.specialise import Prior, adapted_errors, after_few_runs, specialise_to
from dsx.runs.table import MeasuredRun
from dsx.units import exact_quantity

ALL_SOURCES = "all"  # the source_id of `overall`


def report(rows: PredictedRows, runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Return every figure of a validation of `runs` as plain data; fractions, not percentages."""
    sources = list(dict.fromkeys(rows.source))
    source = np.array([sources.index(name) for name in rows.source])
    found = groups(rows)
    correlations = np.array([spearman(group) for group in found])
    correlations = correlations[np.isfinite(correlations)]
    return {
        "noise_floor": noise_floor(rows, runs),
        "overall": _figures(rows, np.ones(len(source), dtype=bool), source, ALL_SOURCES),
        "sources": [_figures(rows, source == number, source, name) for number, name in enumerate(sources)],
        "regret": regret_figures([regret(group) for group in found]),
        "pairs": pairs(groups(rows, least=2)),
        "spearman_median": float(np.median(correlations)) if len(correlations) else None,
        "oom": _oom(rows),
        "not_modelled": not_modelled(rows),
    }


def not_modelled(rows: PredictedRows) -> dict[str, int]:
    """Return how many rows are not modelled, by reason, the most frequent one first."""
    return dict(Counter(reason.rule for reason in rows.reason if reason is not None).most_common())


def noise_floor(rows: PredictedRows, runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Return the spreads of repeated configurations, of one release and of all releases of a framework."""
    releases: dict[str, Sequence[Hashable]] = {
        "same_software": [(run.framework, run.software, run.year) for run in runs],
        "all_releases": [run.framework for run in runs],
    }
    found: dict[str, Any] = {}
    for name, software in releases.items():
        by_source = spreads(rows, software)
        found[name] = spread_figures(one for of_source in by_source.values() for one in of_source)
        found[name]["sources"] = {source: spread_figures(own) for source, own in by_source.items()}
    return found


def _figures(rows: PredictedRows, chosen: np.ndarray, source: np.ndarray, name: str) -> dict[str, Any]:
    error = _relative(rows.predicted_s, rows.measured_s)
    memory = _relative(rows.predicted_bytes, np.where(rows.oom == 1, np.nan, rows.measured_bytes))
    inside = (rows.low <= rows.measured_s) & (rows.measured_s <= rows.high)
    timed = chosen & np.isfinite(error)
    bounded = timed & np.isfinite(rows.low) & np.isfinite(rows.high)
    weighed = chosen & np.isfinite(memory)
    return {
        "source_id": name,
        "rows": int(chosen.sum()),
        "modelled": int((chosen & rows.modelled).sum()),
        "median_ape": weighted_median(np.abs(error[timed]), weights(source[timed])),
        "mape": weighted_mean(np.abs(error[timed]), weights(source[timed])),
        "bias": weighted_mean(error[timed], weights(source[timed])),
        "inside_interval": weighted_mean(inside[bounded], weights(source[bounded])),
        "memory_mape": weighted_mean(np.abs(memory[weighed]), weights(source[weighed])),
    }


def _relative(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return predicted / measured - 1


def _oom(rows: PredictedRows) -> dict[str, int]:
    """Return how many rows ran and how many ran out of memory, each with the number predicted correctly."""
    ran, failed = (rows.modelled & (rows.oom == value) for value in (0, 1))
    return {
        "fit": int(ran.sum()),
        "fit_correct": int((ran & rows.fits).sum()),
        "oom": int(failed.sum()),
        "oom_correct": int((failed & ~rows.fits).sum()),
    }


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

    `dsx.runs.calibration` defines the figures.
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


_DIGITS = 6  # of a fitted value
_ERROR_DIGITS = 2


def text_of(
    calibration: Calibration, between: Mapping[str, Bounds], name: str, extends: str, fitted_to: str, title: str
) -> str:
    """Return the YAML of a set called `name` that extends the set `extends`.

    `fitted_to` names the rows, as in "34 rows of runs.csv"; `title` is the first line, a comment. A set adapted to a
    few rows does not state `calibrated`: it inherits it from the set that it extends.
    """
    lines = [
        f"# {title}",
        f"extends: {json.dumps(extends, ensure_ascii=False)}",
        f"name: {json.dumps(name, ensure_ascii=False)}",
        f"description: {json.dumps(f'{title} Other fields are those of the set that it extends.', ensure_ascii=False)}",
        f"source: {json.dumps(f'fitted to {fitted_to}', ensure_ascii=False)}",
        *([] if calibration.adapted else ["calibrated: true"]),
        *([f"stack: {calibration.adapted_stack}"] if calibration.adapted_stack else []),
        "",
    ]
    fit = calibration.fit
    for field_name, value in fit.values.items():
        if field_name not in fit.undetermined:
            lines.append(_field(calibration, field_name, value, between[field_name], fitted_to))
    if fit.undetermined:
        lines += ["", f"# Kept, since no row depends on them: {', '.join(fit.undetermined)}."]
    if not calibration.adapted:
        lines += ["", "# What the fit leaves to stacks and device generations: log factors on the time of kernels."]
        lines += _effects(fit.effects)
        lines += ["", "# Sources that the fit has seen, by what they have."]
        lines += ["trained_on:"]
        lines += [f"  {part}: {_counts(known)}" for part, known in calibration.trained_on.model_dump().items() if known]
    if calibration.interval:
        lines += [
            "",
            "# 80 % of measured / predicted step time, of sources that a fit had not seen.",
            "interval:",
        ]
        lines += [f"  - {_interval(entry)}" for entry in calibration.interval]
    if (memory := calibration.memory) is not None:
        lines += ["", "# Quantiles of measured / predicted peak memory; a search leaves room for the last one."]
        lines += [f"memory_interval: {{low: {memory.low:g}, median: {memory.median:g}, high: {memory.high:g}}}"]
        margin = f"{max(memory.high - 1, 0):.{_ERROR_DIGITS}g}"
        lines += [f'memory_margin: {{value: {margin}, source: "the high end of memory_interval"}}']
    if calibration.resolution is not None:
        lines += ["", "# By how much the errors of two plans of one job differ, in 80 % of the pairs."]
        lines += [f"resolution: {calibration.resolution:.{_ERROR_DIGITS}g}"]
    if calibration.after_runs:
        lines += ["", "# Both after the set is adapted to so many runs of a source that was left out."]
        lines += ["adapted:"]
        for one in calibration.after_runs:
            of_pairs = "" if one.resolution is None else f", resolution: {one.resolution:.{_ERROR_DIGITS}g}"
            lines += [f"  - {{runs: {one.runs}, low: {one.low:g}, high: {one.high:g}{of_pairs}}}"]
    return "\n".join(lines) + "\n"


def _field(calibration: Calibration, name: str, value: float, bounds: Bounds, fitted_to: str) -> str:
    error = calibration.fit.standard_errors[name]
    said = f"standard error {written(name, error, _ERROR_DIGITS)}" if math.isfinite(error) else "no standard error"
    source = json.dumps(f"fitted to {fitted_to}, {said}", ensure_ascii=False)
    # Rounding must not leave the bounds.
    inside = min(max(float(f"{value:.{_DIGITS}g}"), bounds.low), bounds.high)
    if calibration.adapted:  # its bounds are those under `specialise`
        return f"{name}: {{value: {written(name, inside)}, source: {source}}}"
    between = ", ".join(written(name, bound) for bound in (bounds.low, bounds.high))
    return f"{name}: {{value: {written(name, inside)}, between: [{between}], source: {source}}}"


def written(name: str, value: float, digits: int = 15) -> str:
    """Return a value of a field as the file of an assumption set states it, with its unit."""
    return exact_quantity(float(f"{value:.{digits}g}"), varied_field(f"assumptions.{name}").unit)


def _effects(effects: Effects) -> list[str]:
    lines = ["effects:"]
    for part in ("stack", "generation"):
        known = {name: float(f"{value:.{_ERROR_DIGITS}g}") for name, value in getattr(effects, part).items() if name}
        lines += [f"  {part}: {_counts(known)}"] if known else []
        lines += [f"  {part}_deviation: {getattr(effects.deviations, part):.{_ERROR_DIGITS}g}"]
    return [*lines, f"  source_deviation: {effects.deviations.rest:.{_ERROR_DIGITS}g}"]


def _counts(known: Mapping[str, float]) -> str:
    return f"{{{', '.join(f'{json.dumps(name)}: {value:g}' for name, value in sorted(known.items()))}}}"


def _interval(entry: IntervalSpec) -> str:
    stated = entry.where.model_dump()
    where = ", ".join(
        f"{key}: {json.dumps(value) if isinstance(value, bool) else value}"
        for key, value in stated.items()
        if value is not None
    )
    return f"{{{f'where: {{{where}}}, ' if where else ''}low: {entry.low:g}, high: {entry.high:g}}}"
