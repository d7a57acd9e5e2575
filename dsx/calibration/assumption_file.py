"""A calibrated assumption set as YAML: the fields that differ from the set that it extends."""

import json
import math
from collections.abc import Mapping

from dsx.calibration.calibration import Calibration
from dsx.calibration.fit import Effects
from dsx.spec.between import Bounds
from dsx.spec.known_errors import IntervalSpec
from dsx.spec.what_if import field
from dsx.units import exact_quantity

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
    return exact_quantity(float(f"{value:.{digits}g}"), field(f"assumptions.{name}").unit)


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
