"""Write docs/validation.md: published runs and the predictions of dsx for them.

    python benchmarks/accuracy.py [--assumptions NAME] [--runs RUNS.csv] [--write docs/validation.md]
                                    [--freeze data/validation/predictions.csv]

A second table has the errors for unseen sources: the numbers of the set that state `between` are fitted again without
each source. With --write the pictures go to figures/ next to the document, and sections that other scripts write
between markers are kept. --freeze writes the predictions of every row, so that a test can detect any change.
"""

import argparse
import csv
import dataclasses
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from calibration import BASE, left_out
from parity import draw_memory, draw_step_time

from dsx.calibration.held_out import LEAST_SOURCES, leave_one_source_out
from dsx.calibration.intervals import Coverage, coverage, unseen_intervals
from dsx.calibration.observations import Observations, is_trusted, observe
from dsx.calibration.report import ALL_SOURCES, report
from dsx.calibration.specialise import REPETITIONS, RUNS, specialised
from dsx.predict.predictor import predict
from dsx.predict.validation_rows import Rows, compare
from dsx.runs.run_table import read_runs
from dsx.runs.setups import count_filled, count_from_notes, setups
from dsx.spec.assumptions import AssumptionsSpec, load_fitted
from dsx.spec.between import Bounds
from dsx.spec.locate import packaged_data

DIGITS = 6  # of a frozen prediction
FITTED = "default"  # the set that is fitted to the published runs, from the set BASE

_HEAD = """\
# Validation

<!-- Written by benchmarks/accuracy.py (`make validation`); change it there. -->

Published measurements of training runs, from [data/validation/runs.csv](../data/validation/runs.csv), are compared with
the predictions of dsx under the assumption set `{assumptions}`. An error is predicted / measured - 1. In the last line
every source has the same weight. [how-to/measured-runs.md](how-to/measured-runs.md) describes the comparison.
"""
_FIGURES = {
    "rows": "rows",
    "modelled": "modelled",
    "median_ape": "median error",
    "mape": "mean error",
    "bias": "bias",
    "inside_interval": "inside interval",
    "memory_mape": "memory error",
}


def main() -> None:
    """Predict all rows, and write or print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assumptions", default="default", metavar="NAME")
    parser.add_argument("--runs", type=Path, default=packaged_data() / "validation" / "runs.csv", metavar="RUNS.csv")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--freeze", type=Path, metavar="FILE")
    options = parser.parse_args()
    runs = read_runs(options.runs)
    resolved = setups(runs)
    assumptions, between = load_fitted(options.assumptions)
    rows = compare(runs, resolved, predict, assumptions)
    if options.freeze:
        freeze(rows, options.freeze)
    aside = [left_out(run.source_id, run.zero_stage) for run in runs]
    kept = chosen(rows, [is_trusted(run) and not left for run, left in zip(runs, aside, strict=True)])
    fitted = [pair for *pair, left in zip(runs, resolved, aside, strict=True) if not left]
    observations = observe([run for run, _ in fitted], [setup for _, setup in fitted], assumptions)
    # The fitted set has seen every source, so fits without one begin with the set that it was fitted from.
    base = load_fitted(BASE)[0] if options.assumptions == FITTED else assumptions
    start = {name: float(getattr(base, name)) for name in between}
    unseen = predicted_unseen(kept, observations, assumptions, between, start)
    blank = {"were filled": count_filled(resolved), "were read from the notes": count_from_notes(resolved)}
    text = document(kept, unseen, options.assumptions, blank, chosen(rows, aside), len(runs))
    if options.write:
        pictures = options.write.parent / "figures"
        pictures.mkdir(parents=True, exist_ok=True)
        draw_step_time(kept, pictures / "validation-step-time.png")
        draw_memory(kept, pictures / "validation-memory.png")
        options.write.write_text(text + others_sections(options.write), encoding="utf-8")
    else:
        print(text, end="")


def freeze(rows: Rows, path: Path) -> None:
    """Write id, predicted seconds and bytes of every row, and whether it fits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "predicted_s", "predicted_bytes", "fits"])
        for name, seconds, size, fits in zip(rows.id, rows.predicted_s, rows.predicted_bytes, rows.fits, strict=True):
            writer.writerow([name, f"{seconds:.{DIGITS}g}", f"{size:.{DIGITS}g}", int(fits)])


def chosen(rows: Rows, mask: Sequence[bool]) -> Rows:
    """Return the rows where `mask` is true."""
    places = np.flatnonzero(mask)
    return Rows(
        **{
            field.name: values[places] if isinstance(values, np.ndarray) else tuple(values[place] for place in places)
            for field in dataclasses.fields(Rows)
            for values in [getattr(rows, field.name)]
        }
    )


@dataclass(frozen=True)
class Unseen:
    """Predictions for sources that a set is not fitted to."""

    rows: Rows  # each predicted by a fit to all other sources, with the interval of their residuals
    coverage: dict[str, Coverage]  # by source
    specialised: dict[str, float]  # by source: median error after adapting the set to five runs


def predicted_unseen(
    rows: Rows,
    observations: Observations,
    assumptions: AssumptionsSpec,
    between: Mapping[str, Bounds],
    start: Mapping[str, float],
) -> Unseen | None:
    """Return the rows, each predicted by a fit from `start` without its own source.

    None if there is nothing to fit, or if there are too few sources.
    """
    if not between or len(observations.sources) < LEAST_SOURCES:
        return None
    done = itertools.count(1)

    def told(number: int) -> None:
        del number
        print(f"fits without a source: {next(done)} of {len(observations.sources)}", file=sys.stderr, flush=True)

    held_out = leave_one_source_out(observations, start, between, told)
    residuals = np.log(observations.measured_s / held_out.predicted_s)
    low, high = unseen_intervals(residuals, observations.source, observations.facts)
    place = {setup.run.id: at for at, setup in enumerate(observations.setups)}

    def column(values: np.ndarray) -> np.ndarray:
        return np.array([values[place[name]] if name in place else np.nan for name in rows.id])

    adapted: dict[str, float] = {}
    if assumptions.specialise and assumptions.noise is not None:
        bases = {name: found.values for name, found in held_out.fits.items()}
        adapted = specialised(observations, bases, between, assumptions.specialise, assumptions.noise)
    return Unseen(
        rows=dataclasses.replace(
            rows,
            predicted_s=column(held_out.predicted_s),
            low=column(low * held_out.predicted_s),
            high=column(high * held_out.predicted_s),
        ),
        coverage=coverage(residuals, observations.source, observations.facts),
        specialised=adapted,
    )


def others_sections(path: Path) -> str:
    """Return the sections of a document that other scripts write, with their titles and markers."""
    if not path.exists():
        return ""
    found = re.findall(r"^## [^\n]*\n\n<!-- (?:\w+): .*?<!-- end of \w+ -->$", path.read_text("utf-8"), re.M | re.S)
    return "".join(f"\n{section}\n" for section in found)


def document(
    rows: Rows, unseen: Unseen | None, assumptions: str, blank: Mapping[str, dict[str, int]], aside: Rows, count: int
) -> str:
    """Return the document.

    `unseen` holds the predictions of the same rows without their own source, `blank` counts missing values by what
    became of them and by column, `aside` are rows that are not fitted to, and `count` is the number of rows.
    """
    figures = report(rows)
    parts = [
        _HEAD.format(assumptions=assumptions),
        f"{len(rows.id):,} rows of trust A and B; {count - len(rows.id) - len(aside.id)} of less trust are left out.\n",
        *_aside(aside),
        _by_source("By source", figures),
    ]
    if unseen is not None:
        parts.append(_by_unseen_source(unseen))
    parts += [
        _ranking(figures),
        "## Pictures\n\n![Step time](figures/validation-step-time.png)\n\n![Memory](figures/validation-memory.png)\n",
        _counts("Not modelled", "reason", figures["not_modelled"]),
        *(_counts(f"Missing values that {what}", "column", counts) for what, counts in blank.items()),
    ]
    return "\n".join(parts)


def _aside(rows: Rows) -> list[str]:
    """Return the paragraph on rows that are not fitted to, if there are any; benchmarks/calibration.py says why."""
    if not rows.id:
        return []
    error = rows.predicted_s / rows.measured_s - 1
    error = error[np.isfinite(error)]
    return [
        f"{len(error)} timed runs of ZeRO 3 in {rows.source[0]} are left out of the fit and of the figures. Their "
        f"errors are {_cell(float(error.min()))} to {_cell(float(error.max()))}.\n"
    ]


def _by_source(title: str, figures: dict[str, Any]) -> str:
    body = [
        [source["source_id"], *(_cell(source[name]) for name in _FIGURES)]
        for source in [*figures["sources"], figures["overall"]]
    ]
    return f"## {title}\n\n{_table(['source', *_FIGURES.values()], body)}"


def _by_unseen_source(unseen: Unseen) -> str:
    figures = report(unseen.rows)
    names = ("median_ape", "mape", "bias", "inside_interval")
    widths = {name: found.width for name, found in unseen.coverage.items()}
    body = [
        [
            source["source_id"],
            *(_cell(source[name]) for name in names),
            _cell(widths.get(source["source_id"])),
            _cell(unseen.specialised.get(source["source_id"])),
        ]
        for source in figures["sources"]
    ]
    middle = [float(np.median([*known.values()])) if known else None for known in (widths, unseen.specialised)]
    body.append([ALL_SOURCES, *(_cell(figures["overall"][name]) for name in names), *map(_cell, middle)])
    header = ["source", *(_FIGURES[name] for name in names), "width of the interval", "median error after five runs"]
    return (
        "## By source, each predicted by a fit to all the others\n\n"
        "The 80 % interval of a source is derived from the residuals of the others; its width is high / low - 1. For "
        f"the last column the set is adapted to {RUNS} runs of the source (`dsx calibrate --specialise`) and predicts "
        f"the rest, {REPETITIONS} times; sources with no more rows have no value. The last line of both columns is the "
        "median over sources.\n\n"
        f"{_table(header, body)}"
    )


def _ranking(figures: dict[str, Any]) -> str:
    regret, oom, correlation = figures["regret"], figures["oom"], figures["spearman_median"]
    ranks = "-" if correlation is None else f"{correlation:.3f}"
    return (
        "## Ranking and memory\n\n"
        f"* Regret over {regret['groups']} groups of four layouts or more: median {_cell(regret['median'])}, 95th "
        f"percentile {_cell(regret['p95'])}; within 5 % in {_cell(regret['within_5_percent'])} of the groups.\n"
        f"* Rank correlation (Spearman), median over the groups: {ranks}.\n"
        f"* Of {oom['fit']:,} runs that fit, {oom['fit_correct']:,} are predicted to fit; of {oom['oom']:,} that ran "
        f"out of memory, {oom['oom_correct']:,} are predicted not to fit.\n"
    )


def _counts(title: str, what: str, counts: dict[str, int]) -> str:
    if not counts:
        return f"## {title}\n\nNone.\n"
    return f"## {title}\n\n{_table([what, 'rows'], [[name, f'{count:,}'] for name, count in counts.items()])}"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.1f} %"


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
