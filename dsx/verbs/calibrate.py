"""An assumption set fitted to measured runs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dsx.config.assumption_set import AssumptionsSpec, files_of, load_assumptions, load_fitted
from dsx.config.schema import Bounds
from dsx.config.search_path import find, is_path, shown
from dsx.config.what_if import varied_field as field_of
from dsx.errors import InputError, RunTableError, StoreError, file_path
from dsx.files import OpenFolder
from dsx.progress import Watch, progress, warn
from dsx.runs.calibration import Calibration, adapt, check_fitted, may_adapt, prior_of, text_of
from dsx.runs.calibration import calibrate as fit_all
from dsx.runs.error_report import LEAST_SOURCES, errors
from dsx.runs.fit import ROUNDS, Effects
from dsx.runs.observations import Observations, Outlier, observe, without_outliers
from dsx.runs.setups import count_rows_by, setups
from dsx.runs.table import read_runs
from dsx.tables.format import table
from dsx.text import Data, printable
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import Answer, check_output_file, paragraphs, watcher
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, warn_of_unknown
from dsx.verbs.validate import invalid_rows

_FAR_OFF = 0.5  # a median error that no cluster or framework explains
_SHOWN_EFFECTS = 3
_SUFFIX = ".yaml"
_WRITTEN_BY = "by dsx calibrate."  # ends the first line of a set that was fitted or adapted


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated(Answer):
    """A fitted assumption set, the file that it was written to, and its errors."""

    out: Path  # the file of the set
    calibration: Calibration
    between: Mapping[str, Bounds]
    observations: Observations
    outliers: Sequence[Outlier]  # rows left out of the fit

    @property
    def values(self) -> Mapping[str, float]:
        """The fitted numbers by field."""
        return self.calibration.fit.values

    def _errors(self) -> dict[str, list[Data] | None]:
        """Return the errors of the set before and after the fit, and without each source, if it was held out."""
        calibration, held_out = self.calibration, self.calibration.held_out
        return {
            "before": errors(self.observations, calibration.before_s),
            "after": errors(self.observations, calibration.after_s),
            "held_out": None if held_out is None else errors(self.observations, held_out.predicted_s),
        }

    def _data(self) -> Data:
        calibration, fit, between = self.calibration, self.calibration.fit, self.between
        return {
            "rows": len(self.observations.source),
            "left_out": self.observations.left_out,
            "fields": [
                {
                    "name": name,
                    "before": calibration.start[name],
                    "after": value,
                    "between": [between[name].low, between[name].high],
                    "standard_error": fit.standard_errors[name],
                    "at_bound": name in fit.at_bound,
                    "determined": name not in fit.undetermined,
                }
                for name, value in fit.values.items()
            ],
            "effects": asdict(fit.effects),
            "errors": self._errors(),
            "interval": [entry.model_dump(mode="json") for entry in calibration.interval],
            "coverage": {name: asdict(covered) for name, covered in calibration.coverage.items()},
            "memory_interval": calibration.memory and calibration.memory.model_dump(mode="json"),
            "resolution": calibration.resolution,
            "outliers": [asdict(outlier) for outlier in self.outliers],
        }

    def __str__(self) -> str:
        calibration, fit = self.calibration, self.calibration.fit
        rows: list[list[str]] = []
        for name, value in fit.values.items():
            unit, bounds = field_of(f"assumptions.{name}").unit, self.between[name]
            numbers = (calibration.start[name], value, bounds.low, bounds.high, fit.standard_errors[name])
            start, fitted, low, high, error = ("-" if n != n else format_quantity(n, unit) for n in numbers)
            remark = "not determined" if name in fit.undetermined else "at a bound" if name in fit.at_bound else ""
            rows.append([name, start, fitted, f"{low} to {high}", error, remark])
        fields = table(["field", "before", "after", "bounds", "standard\nerror", ""], rows, text=(0, 5))
        tables = [(name.replace("_", " "), of) for name, of in self._errors().items() if of is not None]
        titles = [f"{what}{',' if of == 'held out' else ''}\n{of}" for of, _ in tables for what in ("median", "mean")]
        body = [
            [first["source_id"], f"{first['rows']:,}"]
            + [f"{100 * figures[figure]:.1f} %" for figures in (first, *later) for figure in ("median_ape", "mape")]
            for first, *later in zip(*(of for _, of in tables), strict=True)
        ]
        if calibration.coverage:
            titles.append("inside others'\ninterval")
            covered = {name: f"{100 * figures.inside:.0f} %" for name, figures in calibration.coverage.items()}
            body = [[*row, covered.get(row[0], "")] for row in body]
        lines = [] if calibration.adapted else _effects_lines(fit.effects)
        if calibration.held_out is None and not calibration.adapted:
            lines.append(
                f"no source was held out: that needs {LEAST_SOURCES} of them; the error for other runs is unknown, and "
                "the set has no interval of its own"
            )
        for entry in calibration.interval:
            conditions = entry.where.model_dump(exclude_none=True)
            where = ", ".join(f"{key}: {str(value).lower()}" for key, value in conditions.items()) or "any other plan"
            lines.append(f"80 % interval, {where}: {entry.low:g} to {entry.high:g} times the predicted step time")
        if (memory := calibration.memory) is not None:
            lines.append(
                f"measured peak memory is {memory.low:g} to {memory.high:g} times the predicted one in 80 % of the "
                f"rows, {memory.median:g} times in the median"
            )
        if calibration.resolution is not None:
            of = f"{100 * calibration.resolution:.2g} %"
            lines.append(f"resolution: the measurements cannot rank plans of one job within {of}")
        lines.append(f"written: {shown(self.out)}")
        return paragraphs([fields, table(["source", "rows", *titles], body), "\n".join(lines)])


def calibrate(
    runs: str | Path,
    out: str | Path,
    *,
    assumptions: str | Path | None = None,
    specialise: str | Path | None = None,
    watch: Watch | None = None,
) -> Calibrated:
    """Fit an assumption set to measured runs, and write it.

        fitted = dsx.calibrate("my-runs.csv", "mine.yaml", specialise="default")
        job = job.replace(assumptions=fitted.out)

    The fit changes the numbers that state `between`; every source of the table has the same weight. Outliers, whose
    times no cluster explains together with the other rows, are named and left out.

    Args:
        runs: a table of measured runs (CSV).
        out: file of the new set; a file that a fit wrote is replaced, any other is kept.
        assumptions: the assumption set to begin with; by default `default`.
        specialise: adapt a few numbers of this set to one cluster and framework instead; a single run is enough.
        watch: called with the work done, its total and its kind; by default a bar is shown.

    Raises RunTableError for invalid rows, StoreError if `out` cannot be written.
    """
    if assumptions is not None and specialise is not None:
        raise InputError("--assumptions and --specialise both name the set to begin with: give one of them")
    path, output = file_path("runs", runs), file_path("out", out)
    watch = watcher(watch)
    named = specialise if specialise is not None else assumptions
    base = DEFAULT_ASSUMPTIONS if named is None else str(file_path("assumptions", named))
    assumed, between = load_fitted(base)
    if specialise is None:
        check_fitted(assumed, between)
    else:
        between = prior_of(assumed).bounds
    if output.suffix != _SUFFIX:
        raise StoreError(f"-o {shown(output)}: the file of an assumption set ends in {_SUFFIX}")
    check_output_file(output, [path, *files_of(base)])
    if output.is_file() and _WRITTEN_BY not in output.read_text(encoding="utf-8", errors="replace").partition("\n")[0]:
        raise StoreError(f"-o {shown(output)}: exists, and dsx calibrate did not write it; choose another file")
    observations, left_out = _observed(path, assumed)
    if specialise is not None:
        calibration = adapt(observations, assumed)
    else:
        sources = len(observations.sources)
        passes = 0 if sources < LEAST_SOURCES else 2 if may_adapt(assumed) else 1
        with progress(ROUNDS + passes * sources, "fitting, then without each source", watch) as advance:
            calibration = fit_all(observations, assumed, between, advance)
    median = errors(observations, calibration.after_s)[-1]["median_ape"]
    if median > _FAR_OFF:
        warn(f"the median error of the set is still {100 * median:.3g} %: are the times seconds of one step?")
    fitted_to = f"{counted(len(observations.source), 'row')} of {path.name}"
    _write(output, base, calibration, between, fitted_to, "Adapted" if specialise else "Fitted")
    return Calibrated(output, calibration, between, observations, left_out)


def _observed(path: Path, assumed: AssumptionsSpec) -> tuple[Observations, list[Outlier]]:
    """Return the usable rows of a table without its outliers, and the outliers.

    Raises RunTableError if no row is usable, if a row is invalid, or if too many are outliers.
    """
    runs = read_runs(path)
    run_setups = setups(runs)
    if faults := invalid_rows(path, runs, run_setups)[1]:
        raise RunTableError("\n".join(faults))
    if assumed.stack:
        warn_of_unknown(count_rows_by(run_setups, "remark"))
    observations = observe(runs, run_setups, assumed)
    left_out = ", ".join(f"{reason} ({count:,})" for reason, count in observations.left_out.items())
    if not observations.source:
        raise RunTableError(f"{path}: no row can be used in the fit: {left_out}")
    if left_out:
        warn(f"not used in the fit: {left_out}")
    kept, outliers = without_outliers(observations, runs, run_setups, assumed)
    for outlier in outliers:
        warn(f"not used in the fit, an outlier: {outlier}")
    return kept, outliers


def _write(
    output: Path, base: str, calibration: Calibration, between: Mapping[str, Bounds], fitted_to: str, verb: str
) -> None:
    """Write the set atomically; raise StoreError if that fails."""
    file = find("assumptions", base, _SUFFIX)
    # A path is relative to the new file.
    extends = Path(os.path.relpath(file, output.absolute().parent)).as_posix() if is_path(base, _SUFFIX) else base
    text = text_of(calibration, between, output.stem, extends, fitted_to, f"{verb} to {fitted_to} {_WRITTEN_BY}")
    try:
        with OpenFolder(output.parent) as folder, folder.temporary_name(_SUFFIX) as draft:
            folder.create(draft, text.encode("utf-8"))
            load_assumptions(output.absolute().with_name(draft))
            folder.rename(draft, folder, output.name)
    except OSError as error:
        raise StoreError(f"cannot write {shown(output)}: {error.strerror}") from error


def _effects_lines(effects: Effects) -> list[str]:
    """Return the deviations of effects, each with the effects that are furthest from zero."""
    lines: list[str] = []
    for part in ("stack", "generation"):
        deviation = getattr(effects.deviations, part)
        largest = sorted(getattr(effects, part).items(), key=lambda effect: -abs(effect[1]))[:_SHOWN_EFFECTS]
        first = ", ".join(f"{printable(name) or 'none'} {100 * value:+.1f} %" for name, value in largest)
        lines.append(f"effects of the {part} on the time of kernels: deviation {100 * deviation:.2g} %, {first}")
    return [*lines, f"mean errors of sources beyond effects: deviation {100 * effects.deviations.rest:.2g} %"]
