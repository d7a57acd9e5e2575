"""Write docs/validation.md: published runs beside what dsx predicts for them.

    python benchmarks/accuracy.py [--assumptions NAME] [--held-out ROWS.csv] [--write docs/validation.md]
                                    [--freeze data/validation/predictions.csv]

--held-out names a file as `dsx validate -o` writes it, whose predictions were made without the row's own source; its
figures then stand beside the others. With --write the pictures go to figures/ beside the document. --freeze writes the
predictions of every row, with which a test finds out that a change moved one.
"""

import argparse
import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from parity import draw_memory, draw_step_time

from dsx.measured.predict import predict
from dsx.measured.report import report
from dsx.measured.rows import Rows, compare
from dsx.measured.runs import Run, read_runs
from dsx.measured.setups import count_filled, setups
from dsx.spec.assumptions import load_assumptions
from dsx.spec.locate import packaged_data

TRUSTED = ("A", "B")
DIGITS = 6  # of a frozen prediction

_HEAD = """\
# Validation

<!-- Written by benchmarks/accuracy.py (`make validation`); change it there. -->

Published measurements of training runs, in [data/validation/runs.csv](../data/validation/runs.csv), beside what dsx
predicts for them under the assumption set `{assumptions}`. An error is predicted / measured - 1. Sources weigh the same
in the last line. What is compared and how is said in [how-to/measured-runs.md](how-to/measured-runs.md).
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
    """Predict all rows, and write or print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assumptions", default="default", metavar="NAME")
    parser.add_argument("--held-out", type=Path, metavar="ROWS.csv")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--freeze", type=Path, metavar="FILE")
    options = parser.parse_args()
    runs = read_runs(packaged_data() / "validation" / "runs.csv")
    made = setups(runs)
    rows = compare(runs, made, predict, load_assumptions(options.assumptions))
    if options.freeze:
        freeze(rows, options.freeze)
    trusted = [run.trust in TRUSTED for run in runs]
    kept = chosen(rows, trusted)
    held_out = chosen(predicted_by(rows, options.held_out), trusted) if options.held_out else None
    text = document(kept, held_out, options.assumptions, count_filled(made), runs)
    if options.write:
        pictures = options.write.parent / "figures"
        pictures.mkdir(parents=True, exist_ok=True)
        draw_step_time(kept, pictures / "validation-step-time.png")
        draw_memory(kept, pictures / "validation-memory.png")
        options.write.write_text(text, encoding="utf-8")
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
    """Return the rows where `mask` holds."""
    places = np.flatnonzero(mask)
    return Rows(
        **{
            field.name: values[places] if isinstance(values, np.ndarray) else tuple(values[place] for place in places)
            for field in dataclasses.fields(Rows)
            for values in [getattr(rows, field.name)]
        }
    )


def predicted_by(rows: Rows, path: Path) -> Rows:
    """Return `rows` with the predictions that a file of `dsx validate -o` has."""
    with path.open(encoding="utf-8", newline="") as file:
        found = {row["id"]: row for row in csv.DictReader(file)}

    def column(name: str) -> np.ndarray:
        return np.array([float(found[key][name] or "nan") if key in found else np.nan for key in rows.id])

    return dataclasses.replace(rows, predicted_s=column("predicted_s"), low=column("low"), high=column("high"))


def document(rows: Rows, held_out: Rows | None, assumptions: str, filled: dict[str, int], runs: Sequence[Run]) -> str:
    """Return the document; `held_out` are the same rows as predicted without their own source."""
    figures = report(rows)
    parts = [
        _HEAD.format(assumptions=assumptions),
        f"{len(rows.id):,} rows of trust A and B; {len(runs) - len(rows.id)} of less trust are left out.\n",
        _by_source("By source", figures),
    ]
    if held_out is not None:
        title = "By source, each predicted by a fit to all the others"
        parts.append(_by_source(title, report(held_out)))
    parts += [
        _ranking(figures),
        "## Pictures\n\n![Step time](figures/validation-step-time.png)\n\n![Memory](figures/validation-memory.png)\n",
        _counts("Not modelled", "reason", figures["not_modelled"]),
        _counts("Blank cells that were filled", "column", filled),
    ]
    return "\n".join(parts)


def _by_source(title: str, figures: dict[str, Any]) -> str:
    body = [
        [source["source_id"], *(_cell(source[name]) for name in _FIGURES)]
        for source in [*figures["sources"], figures["overall"]]
    ]
    return f"## {title}\n\n{_table(['source', *_FIGURES.values()], body)}"


def _ranking(figures: dict[str, Any]) -> str:
    regret, oom, correlation = figures["regret"], figures["oom"], figures["spearman_median"]
    ranks = "-" if correlation is None else f"{correlation:.3f}"
    return (
        "## Ranking and memory\n\n"
        f"* Regret over {regret['groups']} groups of four layouts or more: median {_cell(regret['median'])}, 95th "
        f"percentile {_cell(regret['p95'])}; within 5 % in {_cell(regret['within_5_percent'])} of the groups.\n"
        f"* Rank correlation (Spearman), median over the groups: {ranks}.\n"
        f"* Of {oom['fit']:,} runs that fit {oom['fit_correct']:,} are predicted to fit, of {oom['oom']:,} that ran "
        f"out of memory {oom['oom_correct']:,} are predicted not to.\n"
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
