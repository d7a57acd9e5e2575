"""Candidates per second on the devices that JAX has, beside the processors of the same machine.

    python benchmarks/device.py [--spec FILE] [--repeat 5] [--json] [--write docs/performance.md]

The loop alone prices the tiles of a few chunks again and again. Their data are on the device, in bundles of several
sizes, and nothing leaves it but one minimum for each key and slice. The search is that of `throughput.py`: every row is
enumerated and priced, and the best ten of each GPU count are kept. A process of its own repeats it on the processors
alone; the script fails unless both find the same plans, in the same order, with the same step times.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import throughput
from sections import table, write_section

from dsx.config.sweep_file import KeepTop, SweepSpec
from dsx.plans.enumerate import Arrays
from dsx.pricing.cuts import joined
from dsx.pricing.problem import Problem
from dsx.search.spaces import PricedSpace, Space
from dsx.search.tiles import hot, top_plans
from dsx.search.tiles.hot import HotLoop, minima
from dsx.search.tiles.tiles import CHOICES, KEYS, Chunk, Groups, block_ranges

_CHUNKS = 8  # that the loop alone prices
_SHAPES = ((256, 32), (1024, 8), (4096, 2), (8192, 1))  # tiles of a bundle, bundles of a call
_EXACT = 1e-12  # two libraries of one formula may round unlike each other
_WINNERS = "winners.npz"


class LoopRate(NamedTuple):
    """How fast the compiled loop is with calls of one shape."""

    tiles: int
    bundles: int
    candidates: int
    seconds: float
    compile_s: float
    bytes_per_candidate: float  # that a bundle reads and writes in memory, by XLA's own analysis


def main() -> None:
    """Run the benchmark and print its tables, or JSON."""
    parser = throughput.parser_of(__doc__ or "")
    parser.add_argument("--winners", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    spec, problem = throughput.problem_of(options.spec)
    top_plans.MANY = sys.maxsize  # every row is priced
    if options.winners:
        seconds, rows = searched(problem, spec, options.repeat)
        np.savez(options.winners, seconds=seconds, **rows)
        return
    seconds, rows = searched(problem, spec, options.repeat)  # before `loop_rate` changes the shape of calls
    loops = [loop_rate(problem, spec, *shape, options.repeat) for shape in _SHAPES]
    of_processors, seconds_of_processors = on_processors(options)
    check_same(rows, of_processors)
    device = jax.local_devices()[0]
    machine = {
        "device": f"{len(jax.local_devices())} {device.device_kind}",
        "processors": len(os.sched_getaffinity(0)),
        "jax": jax.__version__,
    }
    size = Space(problem, spec.num_gpus, spec.global_batch_size, spec.fix, spec.limit).size
    whole = {"device": size / seconds, "processors": size / seconds_of_processors}
    if options.json:
        print(json.dumps({"machine": machine, "loop": [one._asdict() for one in loops], "search": whole}, indent=2))
        return
    text = f"{', '.join(f'{name} {value}' for name, value in machine.items())}\n\n{_tables(loops, whole)}"
    print(text)
    if options.write:
        write_section(options.write, "device", text)


def loop_rate(problem: Problem, spec: SweepSpec, tiles: int, bundles: int, repeat: int) -> LoopRate:
    """Time the loop alone on the first device, with calls of so many bundles of so many tiles."""
    device = jax.local_devices()[0]
    hot.TILES, hot.BUNDLES = tiles, bundles
    space = Space(problem, spec.num_gpus, spec.global_batch_size, spec.fix, spec.limit)
    source = PricedSpace(problem, space, space.table(problem), "float32")
    loop = HotLoop(source, Groups(space.keys, space.blocks, []), ["step_time_s"])
    ranges = list(block_ranges(space.blocks, 0, len(space.blocks)))
    chunks: list[Chunk] = list(loop.chunks(ranges[:: max(1, len(ranges) // _CHUNKS)][:_CHUNKS]))
    with jax.enable_x64(source.float64), jax.default_device(device):
        calls = [jax.device_put(call[1:], device) for chunk in chunks for call in loop.calls(device, chunk)]
        start = time.perf_counter()
        compiled = minima.lower(*calls[0], "step_time_s").compile()
        compile_s = time.perf_counter() - start
        seconds: list[float] = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            jax.block_until_ready([compiled(*call) for call in calls])
            seconds.append(time.perf_counter() - start)
    accessed = (compiled.cost_analysis() or {}).get("bytes accessed", float("nan"))
    return LoopRate(
        tiles,
        bundles,
        sum(chunk.size for chunk in chunks),
        sorted(seconds[1:])[repeat // 2],
        compile_s,
        accessed / (tiles * KEYS * CHOICES),
    )


def searched(problem: Problem, spec: SweepSpec, repeat: int) -> tuple[float, Arrays]:
    """Return the seconds of a whole search, and the best ten of each GPU count."""
    keep = KeepTop(top=10, per=["num_gpus"])

    def run() -> Arrays:
        sweep = throughput.sweep_of(problem, spec, keep, spec.global_batch_size)
        kept: list[Arrays] = []
        sweep.run(range(len(sweep.parts)), lambda number, rows, counts: kept.append(rows))
        return sweep.merged(joined(kept))

    return throughput.median_of(run, repeat)


def on_processors(options: argparse.Namespace) -> tuple[Arrays, float]:
    """Return what `searched` does, in a process that has no other device than processors."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / _WINNERS
        command: Sequence[str | Path] = (
            sys.executable, __file__, "--spec", options.spec, "--repeat", str(options.repeat), "--winners", file,
        )  # fmt: skip
        subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True)
        with np.load(file) as stored:
            rows = dict(stored)
    return rows, float(rows.pop("seconds"))


def check_same(rows: Arrays, others: Arrays) -> None:
    """Exit unless two searches found the same plans, with the same costs but for rounding."""
    if rows["candidate"].tolist() != others["candidate"].tolist():
        sys.exit("the device and the processors find unlike plans")
    for name, column in rows.items():
        if column.dtype.kind == "f" and not np.allclose(column, others[name], rtol=_EXACT, atol=0.0, equal_nan=True):
            sys.exit(f"{name}: unlike on the device and on the processors")


def _tables(loops: Sequence[LoopRate], whole: dict[str, float]) -> str:
    of_shapes = [
        (
            f"{one.tiles:,} tiles, {one.bundles} a call",
            f"{one.candidates:,}",
            f"{1e3 * one.seconds:.3g}",
            f"{one.candidates / one.seconds / 1e9:.3g}",
            f"{one.bytes_per_candidate:.3g}",
            f"{one.compile_s:.3g}",
        )
        for one in loops
    ]
    head = ("the loop alone, bundles of", "candidates", "ms", "G candidates/s", "bytes each", "compilation, s")
    searches = [(f"on the {name}", f"{rate / 1e6:.4g}") for name, rate in whole.items()]
    return f"{table(head, of_shapes, 5)}\n{table(('the whole search', 'M candidates/s'), searches, 1)}"


if __name__ == "__main__":
    main()
