"""Errors over runs that were collected after the fit, beside those of sources that the fit left out.

    python benchmarks/collected_runs.py [--write docs/validation.md]

No number is fitted to `data/validation/runs_2026-11.csv`. What the rules and the stacks assume was settled before its
rows were collected, so they say what to expect of a run that nobody here has seen; a source that a fit leaves out says
less, since its rows were known when rules were made. `AT_COLLECTION` is what the rows were first predicted with.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from error_tables import cell
from sections import put_section, table

from dsx.config.assumption_set import load_assumptions
from dsx.config.search_path import packaged_data
from dsx.runs.error_report import report
from dsx.runs.predict import compare, predict
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

RUNS = packaged_data() / "validation" / "runs_2026-11.csv"
_COLUMNS = {
    "median_ape": "median",
    "mape": "mean",
    "bias": "bias",
    "inside_interval": "inside the 80 % interval",
}
# Median and mean error and the share of rows inside the interval, every source with the same weight, on 2026-11-26:
# `dsx validate` of the table at commit 00c502e, before anything was changed with its rows in sight.
AT_COLLECTION = {"median_ape": 0.230, "mape": 0.280, "inside_interval": 0.514}


def figures() -> Mapping[str, Any]:
    """Return every figure of a validation of the collected runs under `default`."""
    runs = read_runs(RUNS)
    return report(compare(runs, setups(runs), predict, load_assumptions("default")), runs)


def section(found: Mapping[str, Any]) -> str:
    """Return the section as Markdown."""
    overall = found["overall"]
    lines = [
        [one["source_id"], str(one["rows"]), *(cell(one[name]) for name in _COLUMNS)] for one in found["sources"]
    ]  # fmt: skip
    lines.append(["all", str(overall["rows"]), *(cell(overall[name]) for name in _COLUMNS)])
    before = {name: cell(value) for name, value in AT_COLLECTION.items()}
    return (
        f"{overall['rows']} runs of {len(found['sources'])} sources (`data/validation/runs_2026-11.csv`) were "
        "collected after the fit, and predicted once on\n2026-11-26, before anything was changed: median error "
        f"{before['median_ape']}, mean {before['mape']}, every source counting once;\n{before['inside_interval']} of "
        "the rows inside the 80 % interval. That is what to expect of a run that nobody here has seen.\n\n"
        f"The figures of today, {cell(overall['median_ape'])} and {cell(overall['mape'])}, are less blind: prices have "
        "changed with these rows known, though no number is\nfitted to them.\n\n"
        + table(["source", "rows", *_COLUMNS.values()], lines, numbers=len(_COLUMNS) + 1)
    )


def main() -> None:
    """Predict the collected runs, and print the section or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the section between the markers of FILE")
    chosen = parser.parse_args()
    text = section(figures())
    if chosen.write:
        put_section(chosen.write, "Runs collected afterwards", "collected_runs", text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
