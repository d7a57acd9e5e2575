"""``dsx validate``: the errors of predictions for a table of measured runs."""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from dsx.config.assumption_set import files_of, load_assumptions
from dsx.config.load import Given
from dsx.config.search_path import shown
from dsx.errors import RunTableError, file_path, function
from dsx.progress import warn
from dsx.runs.error_report import CLOSE, report
from dsx.runs.observations import outliers, wrong_table
from dsx.runs.predict import Predict, PredictedRows, compare, count_unlike, predict
from dsx.runs.setups import Setup, count_rows_by, setups
from dsx.runs.table import MeasuredRun, UnmodelledReason, read_runs
from dsx.tables.format import table
from dsx.text import Data, DataFrame, DataView, printable
from dsx.units import counted
from dsx.verbs.arguments import Answer, check_output_file, optional_path, write_output_file
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, warn_of_unknown

SHOWN_ROWS = 3  # invalid rows that an error or a remark lists
# A spreadsheet takes a cell with such a prefix, in half or full width, for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
SHOWN_IDS = 5  # ids of rows listed for one reason
_OUTLIERS_STAY = "outliers are in all figures: they affect medians little, means and biases more"


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Answer):
    """Measured runs and their predictions."""

    runs: Path  # the table of runs
    assumptions: str  # name of the assumption set
    figures: DataView  # errors by source and overall, regret, memory
    rows: PredictedRows  # the rows of the table as arrays; `frame` has them as a DataFrame

    @cached_property
    def frame(self) -> DataFrame:
        """The rows of the table: measured_s, predicted_s and its interval, bytes, and why a row is not modelled."""
        import pandas as pd

        times, sizes = ("measured_s", "predicted_s", "low", "high"), ("measured_bytes", "predicted_bytes")
        names = ("id", "source", *times, *sizes, "fits")
        frame = pd.DataFrame({name: getattr(self.rows, name) for name in names})
        frame["reason"] = [str(reason) if reason else "" for reason in self.rows.reason]
        frame.attrs["units"] = dict.fromkeys(times, "s") | dict.fromkeys(sizes, "bytes")
        return frame

    def _data(self) -> Data:
        return dict(self.figures)

    def __str__(self) -> str:
        overall, regret, pairs, oom = (self.figures[name] for name in ("overall", "regret", "pairs", "oom"))
        body = [
            [source["source_id"], *(f"{source[count]:,}" for count in ("rows", "modelled"))]
            + [_percent(source[column]) for column in _COLUMNS]
            for source in [*self.figures["sources"], overall]
        ]
        correlation = self.figures["spearman_median"]
        lines = [
            f"{shown(self.runs)} under {self.assumptions!r}: {counted(overall['rows'], 'row')}, "
            f"{overall['modelled']:,} modelled",
            table(["source", "rows", "modelled", *_COLUMNS.values()], body),
            "",
        ]
        for key, what in {"same_software": "one release", "all_releases": "all releases"}.items():
            noise = self.figures["noise_floor"][key]
            lines.append(
                f"noise floor, {what}: {counted(noise['configurations'], 'repeated configuration')}, spread "
                f"{_percent(noise['median'])} in the median, {_percent(noise['p90'])} at 90 %"
            )
        lines += [
            f"regret over {counted(regret['groups'], 'group')} of four layouts or more: median "
            f"{_percent(regret['median'])}, 95th percentile {_percent(regret['p95'])}, within 5 % in "
            f"{_percent(regret['within_5_percent'])} of them",
            f"ranked right: {_percent(pairs['right'])} of {counted(pairs['pairs'], 'pair')} of layouts that differ by "
            f"more than {100 * CLOSE:.0f} %",
            f"rank correlation (Spearman), median over groups: {'-' if correlation is None else f'{correlation:.3f}'}",
            f"memory: {oom['fit_correct']:,} of {oom['fit']:,} that ran and {oom['oom_correct']:,} of {oom['oom']:,} "
            "out of memory predicted so",
        ]
        titles = {
            "filled": "blank, filled",
            "from_notes": "blank, in the notes",
            "unread": "in the notes, not read",
            "inferred_recompute": "recompute, inferred",
        }
        counts = {title: self.figures[key] for key, title in titles.items() if self.figures[key]}
        for part, numbers in self.figures["extrapolated"].items():
            counts[f"extrapolated, no such {part} in the measurements of the set"] = numbers
        for title, numbers in counts.items():
            listed = ", ".join(f"{name or 'none'} ({number:,})" for name, number in numbers.items())
            lines.append(f"{title}: {listed}")
        parts = ("\n".join(lines), _not_modelled_text(self.rows))
        return "\n".join(filter(None, parts))


def validate(
    runs: str | Path,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
    out: str | Path | None = None,
    *,
    predict: Predict = predict,
) -> Validation:
    """Compare measured runs with the predictions of dsx.

        dsx.validate("runs.csv").frame.dropna(subset="predicted_s")

    Rows that cannot be modelled are counted by reason; missing values have documented defaults.

    Args:
        runs: a table of measured runs (CSV).
        assumptions: the assumption set.
        out: write the times of all rows to this file; a .csv file is replaced.
        predict: a function that predicts in place of dsx, to compare it on the same runs.

    Raises RunTableError for a table that cannot be read or has no valid row; StoreError if `out` cannot be written.
    """
    path, output = file_path("runs", runs), optional_path("out", out)
    function("predict", predict)
    if output is not None:
        read = files_of(str(assumptions)) if isinstance(assumptions, str | Path) else []
        check_output_file(output, [path, *read], suffix=".csv")
    assumed = load_assumptions(assumptions)
    measured = read_runs(path)
    run_setups = setups(measured)
    number, faults = invalid_rows(path, measured, run_setups)
    if number == len(measured):
        raise RunTableError("\n".join(["no row of the table can be modelled", *faults]))
    for fault in faults:
        warn(f"not modelled: {fault}")
    rows = compare(measured, run_setups, predict, assumed)
    if output is not None:
        write_rows(rows, output)
    if wrong := wrong_table(rows.measured_s, rows.predicted_s):
        warn(wrong)
    far_off = [*outliers(rows.id, rows.measured_s, rows.predicted_s).values()]
    for outlier in far_off[:SHOWN_ROWS]:
        warn(f"an outlier: {outlier}")
    if further := len(far_off[SHOWN_ROWS:]):
        warn(f"and {counted(further, 'outlier')} more; {_OUTLIERS_STAY}")
    elif far_off:
        warn(_OUTLIERS_STAY)
    counts = {name: count_rows_by(run_setups, name) for name in ("filled", "from_notes", "unread")}
    unknown = count_rows_by(run_setups, "remark") if assumed.stack else {}
    warn_of_unknown(unknown)
    figures = {**report(rows, measured), **counts, "unknown_software": unknown}
    figures |= {"extrapolated": count_unlike(run_setups, assumed.trained_on)}
    figures |= {"inferred_recompute": dict(Counter(filter(None, rows.inferred_recompute)).most_common())}
    figures |= {"outliers": [asdict(outlier) for outlier in far_off]}
    return Validation(path, assumed.name, figures, rows)


def invalid_rows(
    path: Path, runs: Sequence[MeasuredRun], run_setups: Sequence[Setup | UnmodelledReason]
) -> tuple[int, list[str]]:
    """Return how many rows of a table cannot be modelled, and lines on the first of them and on how many follow."""
    faults = [
        f"{path}:{run.line}: {printable(run.id)}: {setup}"
        for run, setup in zip(runs, run_setups, strict=True)
        if isinstance(setup, UnmodelledReason)
    ]
    more = [f"and {counted(len(faults) - SHOWN_ROWS, 'row')} more"] if len(faults) > SHOWN_ROWS else []
    return len(faults), [*faults[:SHOWN_ROWS], *more]


def write_rows(rows: PredictedRows, path: Path) -> None:
    """Write id, measured_s, predicted_s, low, high and reason of every row as CSV; StoreError if that fails.

    An apostrophe precedes a text that a spreadsheet would run as a formula; control characters are escaped.
    """

    def inert(text: str) -> str:
        return f"'{printable(text)}" if text.startswith(_FORMULA) else printable(text)

    times = (rows.measured_s, rows.predicted_s, rows.low, rows.high)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "measured_s", "predicted_s", "low", "high", "reason"])
    for name, reason, *seconds in zip(rows.id, rows.reason, *times, strict=True):
        numbers = [repr(float(value)) if math.isfinite(value) else "" for value in seconds]
        writer.writerow([inert(name), *numbers, inert(str(reason or ""))])
    write_output_file(path, text.getvalue())


_COLUMNS = {
    "median_ape": "median\nerror",
    "mape": "mean\nerror",
    "bias": "bias",
    "inside_interval": "inside\ninterval",
    "memory_mape": "memory\nerror",
}


def _not_modelled_text(rows: PredictedRows) -> str:
    """Return why rows are not modelled, the most frequent reason first, and the ids of the first ones."""
    by_rule: dict[str, list[str]] = {}
    for name, reason in zip(rows.id, rows.reason, strict=True):
        if reason is not None:
            by_rule.setdefault(reason.rule, []).append(name)
    lines = ["not modelled:"] if by_rule else []
    for rule, names in sorted(by_rule.items(), key=lambda entry: -len(entry[1])):
        more = ", ..." if len(names) > SHOWN_IDS else ""
        lines.append(f"  {rule}: {counted(len(names), 'row')} ({', '.join(map(printable, names[:SHOWN_IDS]))}{more})")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
