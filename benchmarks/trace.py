"""Seconds and peak memory of traces: writing, a further rank, inspect and replay.

    python benchmarks/trace.py [--repeat 3] [--write docs/performance.md]

Whole `dsx trace` commands are run, each in a process of its own; the median of `--repeat` runs follows. CPU seconds are
those of user and system. What is written, some 6 GB, goes to new folders in $TMPDIR. Python's own byte
code is there already, as after an installation.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sections import table, write_section

GPT = ("--model", "gpt3-5b", "--num-gpus", "8", "--global-batch-size")
LAYERS = "model.layers.1.count={}"
PALM = "--model palm-540b --strategy 2d-copied-kv --num-gpus 32768 --global-batch-size 2048 tp=8 pp=2 dp=2048".split()
# What is written: in words, ranks, and the command. The seconds and MB beside it are those of the STAGE generator for
# the same job, measured on two cores (CPU seconds), or those of its paper.
WRITTEN = (
    (
        "GPT of 4 layers, tp=8 dp=512, one microbatch",
        (*"--model gpt3-5b --num-gpus 4096 --global-batch-size 512 tp=8 dp=512 --set".split(), LAYERS.format(4)),
        "30 CPU s",
    ),
    ("GPT-3 5B, tp=8, 128 microbatches", (*GPT, "128", "tp=8"), "32 CPU s, 595 MB"),
    (
        "PaLM 540B on 32,768 GPUs, tp=8 pp=2, a rank of each stage",
        (*PALM, "--ranks", "stages"),
        "28 minutes",
    ),
)
MILLION = (*GPT, "160", "tp=8")  # 8 ranks with a million nodes together
PRODUCTS = ((24, 128), (48, 128), (24, 256), (48, 256), (24, 512), (48, 512))  # layers and microbatches of one rank


@dataclass(frozen=True, slots=True)
class Used:
    """What a process used."""

    seconds: float
    cpu_s: float
    peak_mb: float
    out: str


def main() -> None:
    """Run all commands, and print or write their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each command; the median is reported")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the section of this document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.repeat)
        run(("write", *GPT, "8", "tp=8", "--ranks", "0", "-o", bench.out))  # writes byte code
        text = "\n".join((written(bench), further(bench), read(bench), linear(bench)))
    print(text, end="")
    if options.write:
        write_section(options.write, "trace", text)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where commands write, and how often they run."""

    folder: Path
    repeat: int

    @property
    def out(self) -> Path:
        """The folder that `dsx trace write` writes."""
        return self.folder / "trace"

    def writes(self, command: Sequence[str]) -> Used:
        """Return what writing a trace takes, each time into an empty folder."""
        return self.median("write", *command, "-o", self.out, before=self.clear)

    def clear(self) -> None:
        """Put aside what was written, and let the disk settle: where files were deleted, new ones take longer."""
        if self.out.exists():
            self.out.rename(self.folder / f"before {len([*self.folder.iterdir()])}")
        os.sync()

    def median(self, *words: str | Path, before: Callable[[], None] = lambda: None) -> Used:
        """Return the medians of the runs of a command."""
        runs: list[Used] = []
        for _ in range(self.repeat):
            before()
            runs.append(run(words))
        print(f"{' '.join(map(str, words))}: {[round(one.seconds, 2) for one in runs]} s", file=sys.stderr)
        found = (statistics.median(getattr(one, name) for one in runs) for name in ("seconds", "cpu_s", "peak_mb"))
        return Used(*found, runs[-1].out)


def run(words: Sequence[str | Path]) -> Used:
    """Run a `dsx trace` command."""
    command = [Path(sys.executable).parent / "dsx", "trace", *words]
    known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(command, env=known, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        out.seek(0)
        text = out.read().decode()
    if process.returncode not in (0, 3):  # 3: a plan that breaks rules is written too
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {process.returncode}:\n{text}")
    return Used(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, text)


def written(bench: Bench) -> str:
    """Return what writing takes, as a table."""
    rows = []
    for name, command, stage in WRITTEN:
        used = bench.writes(command)
        files = [path.stat().st_size for path in bench.out.glob("*.et")]
        size = f"{sum(files) / 1e6:,.0f}"
        rows.append((name, f"{len(files):,}", size, *figures(used), stage))
    return table(("write", "files", "MB", "seconds", "CPU s", "peak, MB", "STAGE"), rows, 6)


def figures(used: Used) -> tuple[str, ...]:
    """Return the cells of what a process used."""
    return f"{used.seconds:.1f}", f"{used.cpu_s:.1f}", f"{used.peak_mb:,.0f}"


def further(bench: Bench) -> str:
    """Return what a further rank takes beside a copy of its file."""
    command = WRITTEN[1][1]
    one, all_ranks = (bench.writes((*command, "--ranks", ranks)) for ranks in ("0", "all"))
    copies = []
    os.sync()
    for file in bench.out.glob("*.et"):
        start, cpu = time.perf_counter(), time.process_time()
        # Through memory and into a new file, as a rank is written: the pages of a deleted one would be at hand.
        (bench.out / f"copy of {file.name}").write_bytes(file.read_bytes())
        copies.append((time.perf_counter() - start, time.process_time() - cpu))
    copied = [statistics.median(each) for each in zip(*copies, strict=True)]
    each = (all_ranks.seconds - one.seconds) / 7, (all_ranks.cpu_s - one.cpu_s) / 7
    size = (bench.out / "trace.7.et").stat().st_size / 1e6
    rows = [
        (f"a further rank of GPT-3 5B, {size:.0f} MB", *(f"{1e3 * value:.0f}" for value in each)),
        ("a copy of its file", *(f"{1e3 * value:.0f}" for value in copied)),
        ("times as long", *(f"{own / copy:.1f}" for own, copy in zip(each, copied, strict=True))),
    ]
    return table(("", "ms", "CPU ms"), rows, 2)


def read(bench: Bench) -> str:
    """Return what inspect and replay take, as a table."""
    bench.clear()
    run(("write", *MILLION, "-o", bench.out))
    inspected = bench.median("inspect", bench.out)
    nodes = inspected.out.split(" ranks, ")[1].split(" nodes")[0]
    replayed = bench.median("replay", bench.out, "--cluster", "h100-nvs8")
    rows = [("inspect", nodes, *figures(inspected)), ("replay", nodes, *figures(replayed))]
    return table(("read", "nodes of 8 ranks", "seconds", "CPU s", "peak, MB"), rows, 4)


def linear(bench: Bench) -> str:
    """Return the time of one rank by layers and microbatches, as a table."""
    rows = []
    start = bench.writes((*GPT, "1", "tp=8", "--set", LAYERS.format(1), "--ranks", "0")).cpu_s
    for layers, microbatches in PRODUCTS:
        used = bench.writes((*GPT, f"{microbatches}", "tp=8", "--set", LAYERS.format(layers), "--ranks", "0"))
        each = 1e6 * (used.cpu_s - start) / (layers * microbatches)
        size = (bench.out / "trace.0.et").stat().st_size / 1e6
        shape = f"{layers}", f"{microbatches}", f"{layers * microbatches:,}", f"{size:.0f}"
        rows.append((*shape, *figures(used), f"{each:.0f}"))
    head = ("layers", "microbatches", "product", "MB", "seconds", "CPU s", "peak, MB", "us of CPU each, without start")
    return table(head, rows, 8)


if __name__ == "__main__":
    main()
