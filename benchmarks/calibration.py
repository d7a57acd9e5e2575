"""Fit the packaged assumption set `default` to the published runs (`make calibration`).

    python benchmarks/calibration.py [--write data/assumptions/default.yaml]

The result is that of `dsx calibrate` for data/validation/runs.csv, from the set `uncalibrated`. Rows that state too
little, or something impossible, are left out, since `dsx calibrate` refuses a table with such rows; docs/validation.md
counts them.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from dsx.config.search_path import packaged_data
from dsx.runs.setups import Setup, setups
from dsx.runs.table import read_runs

BASE = "uncalibrated"


def valid_rows(table: Path) -> list[dict[str, str]]:
    """Return the cells of the rows of a table that describe a run."""
    valid = [isinstance(setup, Setup) for setup in setups(read_runs(table))]
    with table.open(encoding="utf-8", newline="") as file:
        return [row for row, kept in zip(csv.DictReader(file), valid, strict=True) if kept]


def main() -> None:
    """Fit the set, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="SET.yaml")
    options = parser.parse_args()
    rows = valid_rows(packaged_data() / "validation" / "runs.csv")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "runs.csv"
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        # The name of the file becomes that of the set.
        output = Path(folder) / "default.yaml"
        dsx = str(Path(sys.executable).with_name("dsx"))
        command = [dsx, "calibrate", str(table), "--assumptions", BASE, "-o", str(output)]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("dsx calibrate failed: nothing was written")
        if options.write:
            options.write.write_text(output.read_text("utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
