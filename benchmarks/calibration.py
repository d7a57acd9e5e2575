"""Fit the packaged assumption set `default` to the published runs (`make calibration`).

    python benchmarks/calibration.py [--write data/assumptions/default.yaml]

The result is that of `dsx calibrate` for data/validation/runs.csv, from the set `uncalibrated`, without some rows: the
runs of DeepSpeed's ZeRO stage 3 in the paper on Megatron-LM (narayanan_sc21). They take up to five times as long as the
same traffic takes any other framework in the table. docs/validation.md states their errors.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from dsx.spec.locate import packaged_data

BASE = "uncalibrated"


def left_out(source_id: str, zero_stage: str | int | None) -> bool:
    """Return whether a row is left out of the fit, given two of its cells."""
    return source_id == "narayanan_sc21" and str(zero_stage) == "3"


def main() -> None:
    """Fit the set, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="SET.yaml")
    options = parser.parse_args()
    with (packaged_data() / "validation" / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "runs.csv"
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for row in rows if not left_out(row["source_id"], row["zero_stage"]))
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
