"""The seconds of a sweep with optimal cuts, compared with the same sweep with even cuts.

    python benchmarks/partition_sweep.py [--repeat 3] [--write docs/performance.md]

Whole `dsx sweep` commands are timed, including start-up and the written files, with about 100,000 candidates: once they
keep all rows, once the best ten. The first run of each compiles; the median of `--repeat` later runs follows. With
optimal cuts there are more candidates, since a pipeline need not divide the layers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sections import table, write_section

SWEEP = """model: llama-3-70b
cluster: h100-nvs8
num_gpus: [128, 256, 512]
global_batch_size: [512, 1024]
strategy: [1d, 2d]
fix: {recompute: [none, full]}
"""
KEPT = {"all rows": "all", "the best ten": "{top: 10}"}


@dataclass(frozen=True, slots=True)
class Timed:
    """The candidates of a sweep, and the seconds of its first run and of later runs."""

    candidates: int
    first_s: float
    later_s: float


def main() -> None:
    """Time the sweeps, and print or write their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs after the first; the median is reported")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into the section of this document")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for kept, keep in KEPT.items():
        even, optimal = (timed(keep, partition, options.repeat) for partition in ("even", "optimal"))
        for partition, found in (("even", even), ("optimal", optimal)):
            ratios = f"{found.first_s / even.first_s:.2f}", f"{found.later_s / even.later_s:.2f}"
            seconds = f"{found.first_s:.1f}", f"{found.later_s:.1f}"
            rows.append((kept, partition, f"{found.candidates:,}", *seconds, *ratios))
    head = ("kept", "partition", "candidates", "first run, s", "later, s", "first over even", "later over even")
    text = table(head, rows, 5)
    print(text, end="")
    if options.write:
        write_section(options.write, "partition_sweep", text)


def timed(keep: str, partition: str, repeat: int) -> Timed:
    """Run a sweep `repeat` times, after a first run without compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "sweep.yaml"
        spec.write_text(f"{SWEEP}partition: {partition}\nkeep: {keep}\n", encoding="utf-8")
        runs = [_run(spec, Path(folder), number) for number in range(1 + repeat)]
    (_, first), *later = runs
    print(f"{partition}, {keep}: {first:.1f} s, then {[round(seconds, 1) for _, seconds in later]}", file=sys.stderr)
    return Timed(runs[0][0], first, statistics.median(seconds for _, seconds in later))


def _run(spec: Path, folder: Path, number: int) -> tuple[int, float]:
    command = [Path(sys.executable).parent / "dsx", "sweep", spec, "-o", folder / f"run-{number}", "--json"]
    start = time.perf_counter()
    own = os.environ | {"XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["candidates"], time.perf_counter() - start


if __name__ == "__main__":
    main()
