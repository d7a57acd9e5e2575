"""``dsx validate``: how far the predictions are from a table of measured runs."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.output import counted, note, print_json, print_table
from dsx.cli.output_file import check_output_file, write_output_file
from dsx.errors import RunTableError
from dsx.printable import printable
from dsx.spec.assumptions import files_of, load_assumptions
from dsx.spec.locate import shown

if TYPE_CHECKING:
    from dsx.calibrate.outliers import Outlier
    from dsx.predict.predictions import Predict
    from dsx.predict.rows import Rows
    from dsx.runs.reasons import Reason
    from dsx.runs.setups import Setup
    from dsx.runs.table import Run

SHOWN_ROWS = 3  # of those that no run can be, in an error or a remark
# A spreadsheet takes a cell that begins so, in half or full width, for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
SHOWN_IDS = 5  # of the rows that one reason keeps from being modelled


def validate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Table of measured runs.")],
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    as_json: options.Json = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="ROWS.csv", help="Write the times of all rows to this file (replaced)."),
    ] = None,
) -> None:
    """Compare measured runs with what dsx predicts for them.

    A row that cannot be modelled is counted with its reason, a blank cell filled by a documented default. Errors are
    relative; the sources of the table weigh the same in the last line.
    """
    from dsx.predict.of_setups import predict

    validated(runs, assumptions, predict, as_json, output)


def validated(path: Path, assumptions: str, predict: "Predict", as_json: bool, output: Path | None) -> None:
    """Compare the run table at `path` with what `predict` says of it, print the figures, and write the rows.

    Raises SpecError, UnknownNameError, or RunTableError for a table that cannot be read or holds no row that a
    training run could be; StoreError if `output` cannot be written.
    """
    from dsx.calibrate.outliers import outliers
    from dsx.calibrate.report import report
    from dsx.predict.rows import compare
    from dsx.runs.setups import count_filled, count_from_notes, setups
    from dsx.runs.table import read_runs

    if output is not None:
        check_output_file(output, [path, *files_of(assumptions)])
    assumed = load_assumptions(assumptions)
    runs = read_runs(path)
    made = setups(runs)
    _check(path, runs, made)
    rows = compare(runs, made, predict, assumed)
    if output is not None:
        write_rows(rows, output)
    found = [*outliers(rows.id, rows.measured_s, rows.predicted_s).values()]
    _note_outliers(found)
    figures = report(rows) | {"filled": count_filled(made), "from_notes": count_from_notes(made)}
    figures |= {"outliers": [asdict(outlier) for outlier in found]}
    if as_json:
        print_json(figures)
    else:
        _print(figures, path, assumed.name)
        _print_not_modelled(rows)


def _check(path: Path, runs: "Sequence[Run]", made: "Sequence[Setup | Reason]") -> None:
    """Say which rows can be no setup; raise RunTableError if that is every row."""
    from dsx.runs.reasons import Reason

    faults = [
        f"{path}:{run.line}: {printable(run.id)}: {setup}"
        for run, setup in zip(runs, made, strict=True)
        if isinstance(setup, Reason)
    ]
    more = [f"and {counted(len(faults) - SHOWN_ROWS, 'row')} more"] if len(faults) > SHOWN_ROWS else []
    lines = [*faults[:SHOWN_ROWS], *more]
    if len(faults) == len(runs):
        raise RunTableError("no row of the table can be modelled\n" + "\n".join(lines))
    for line in lines:
        note(f"not modelled: {line}")


def _note_outliers(found: "Sequence[Outlier]") -> None:
    """Name the outliers; they stay in all figures, of which medians hardly move and means do."""
    for outlier in found[:SHOWN_ROWS]:
        note(f"an outlier: {outlier}")
    if found:
        more = f"and {counted(len(found) - SHOWN_ROWS, 'outlier')} more; " if len(found) > SHOWN_ROWS else ""
        note(f"{more}outliers are in all figures: medians hardly move with them, means and biases do")


def write_rows(rows: "Rows", path: Path) -> None:
    """Write id, measured_s, predicted_s, low, high and reason of every row as CSV; StoreError if that fails.

    A text that a spreadsheet would run as a formula has an apostrophe before it; control characters are escaped.
    """
    times = (rows.measured_s, rows.predicted_s, rows.low, rows.high)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "measured_s", "predicted_s", "low", "high", "reason"])
    for name, reason, *seconds in zip(rows.id, rows.reason, *times, strict=True):
        writer.writerow([_inert(name), *map(_number, seconds), _inert(str(reason or ""))])
    write_output_file(path, text.getvalue())


def _inert(text: str) -> str:
    return f"'{printable(text)}" if text.startswith(_FORMULA) else printable(text)


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ""


_COLUMNS = {
    "median_ape": "median\nerror",
    "mape": "mean\nerror",
    "bias": "bias",
    "inside_interval": "inside\ninterval",
    "memory_mape": "memory\nerror",
}


def _print(figures: dict[str, Any], path: Path, assumptions: str) -> None:
    overall = figures["overall"]
    print(f"{shown(path)} under {assumptions!r}: {counted(overall['rows'], 'row')}, {overall['modelled']:,} modelled")
    header = ["source", "rows", "modelled", *_COLUMNS.values()]
    body = [
        [source["source_id"], *(f"{source[count]:,}" for count in ("rows", "modelled"))]
        + [_percent(source[column]) for column in _COLUMNS]
        for source in [*figures["sources"], overall]
    ]
    print_table(header, body)
    regret, oom = figures["regret"], figures["oom"]
    print()
    print(
        f"regret over {counted(regret['groups'], 'group')} of four layouts or more: median "
        f"{_percent(regret['median'])}, 95th percentile {_percent(regret['p95'])}, within 5 % in "
        f"{_percent(regret['within_5_percent'])} of them"
    )
    correlation = figures["spearman_median"]
    print(f"rank correlation (Spearman), median over groups: {'-' if correlation is None else f'{correlation:.3f}'}")
    print(
        f"memory: {oom['fit_correct']:,} of {oom['fit']:,} that ran and {oom['oom_correct']:,} of {oom['oom']:,} "
        "out of memory predicted so"
    )
    for title, counts in (("blank, filled", figures["filled"]), ("blank, in the notes", figures["from_notes"])):
        if counts:
            print(f"{title}: {', '.join(f'{name} ({number:,})' for name, number in counts.items())}")


def _print_not_modelled(rows: "Rows") -> None:
    """Print why rows are not modelled, the most frequent reason first, and the ids of the first ones."""
    found: dict[str, list[str]] = {}
    for name, reason in zip(rows.id, rows.reason, strict=True):
        if reason is not None:
            found.setdefault(reason.rule, []).append(name)
    if found:
        print("not modelled:")
    for rule, names in sorted(found.items(), key=lambda entry: -len(entry[1])):
        more = ", ..." if len(names) > SHOWN_IDS else ""
        print(f"  {rule}: {counted(len(names), 'row')} ({', '.join(map(printable, names[:SHOWN_IDS]))}{more})")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
