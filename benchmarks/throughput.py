"""Candidates per second: dsx beside a flat function and a NumPy loop, in one run.

    python benchmarks/throughput.py [--spec sweeps/large.yaml] [--repeat 3] [--json] [--write docs/performance.md]

Every row of the space is enumerated and priced; enumeration and layer pricing are inside the timing,
compilation is not (each way runs once before). The flat function is the same cost model compiled as one
function of a row's columns, without the two levels. The NumPy loop is written from the paper's formulas
(benchmarks/numpy_loop.py) and prices a part of the space; both find the same winners as dsx there.
"""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy_loop import flat_prices

from dsx.cost.columns import StepCosts
from dsx.cost.layer import layer_costs
from dsx.cost.step import step_costs
from dsx.cost.work import layer_work
from dsx.search.best import best
from dsx.search.devices import use_all_cores
from dsx.search.pricing import price_keys, price_rows, step_choices
from dsx.search.problem import Problem, make_problem
from dsx.search.rows import candidate_columns, row_chunks
from dsx.search.space import Space
from dsx.space.candidates import Candidates
from dsx.space.enumerate import Arrays
from dsx.spec.assumptions import load_assumptions
from dsx.spec.cluster import load_cluster
from dsx.spec.column_names import Columns
from dsx.spec.model import load_model
from dsx.spec.sweep import SweepSpec, load_sweep

_BEGIN, _END = "<!-- benchmarks/throughput.py -->", "<!-- end -->"
_CHUNK = 1 << 14  # rows of the slow ways at once: their arrays stay in the cache
_SLOW_ROWS = 4_000_000  # the slow ways price this many rows of the space
# Column of the NumPy loop -> column of dsx, where the strategy does not matter.
_FORMULA_NAMES = {
    "n1": "tp", "np": "pp", "nd": "dp", "bm": "microbatch_size", "nb": "panels",
    "t1": "tp_nvs", "tp": "pp_nvs", "td": "dp_nvs",
}  # fmt: skip


def main() -> None:
    """Run the benchmark and print its table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path(__file__).parent.parent / "sweeps" / "large.yaml")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of dsx; the median is reported")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="put the table between the markers of this document")
    options = parser.parse_args()
    use_all_cores()
    spec, problem = _problem(options.spec)
    results = [
        _two_level(problem, spec, list(spec.keep.per), options.repeat, "dsx, best per group of the spec"),
        _two_level(problem, spec, [], options.repeat, "dsx, best of all"),
        _flat(problem, spec),
        _numpy(problem, spec),
    ]
    machine = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "devices": len(jax.local_devices()),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "peak_memory_GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
    }
    if options.json:
        print(json.dumps({"machine": machine, "results": results}, indent=2))
        return
    table = _table(machine, results)
    print(table)
    if options.write:
        before, _, rest = options.write.read_text(encoding="utf-8").partition(_BEGIN)
        after = rest.partition(_END)[2]
        options.write.write_text(f"{before}{_BEGIN}\n{table}\n\n{_END}{after}", encoding="utf-8")


def _table(machine: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table, with the machine above it."""
    lines = [", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items()), ""]
    lines += ["| way | candidates | seconds | M candidates/s |", "|---|--:|--:|--:|"]
    for row in results:
        rate = row["candidates"] / row["seconds"] / 1e6
        lines.append(f"| {row['way']} | {row['candidates']:,} | {row['seconds']:.2f} | {rate:.1f} |")
    return "\n".join(lines)


def _processor() -> str:
    """Return the processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _problem(path: Path) -> tuple[SweepSpec, Problem]:
    columns = Columns(tuple(Candidates.__dataclass_fields__), tuple(StepCosts.__dataclass_fields__))
    spec = load_sweep(path, columns)
    files = (load_model(spec.model), load_cluster(spec.cluster), load_assumptions(spec.assumptions))
    return spec, make_problem(*files, spec.strategy, spec.sequence_length)


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def _two_level(problem: Problem, spec: SweepSpec, per: list[str], repeat: int, way: str) -> dict[str, Any]:
    """Time a whole search, from the settings to the winners' rows."""

    def run() -> Any:
        space = Space(problem, spec.num_gpus, spec.global_batch_size, spec.fix, spec.limit)
        table = price_keys(problem, space.keys)
        return best(problem, space.keys, table, space.blocks(), 10, per, "float32")

    run()
    times = [_timed(run) for _ in range(repeat)]
    seconds = sorted(time for time, _ in times)[repeat // 2]
    counts = times[0][1][1]
    return {"way": way, "candidates": counts.candidates, "feasible": counts.feasible, "seconds": seconds}


@dataclasses.dataclass(frozen=True)
class _Sample:
    """Rows of one strategy, spread as the space is, for the ways that are too slow for all of it."""

    problem: Problem  # with this strategy alone
    space: Space
    positions: np.ndarray
    columns: Arrays
    count: int


def _sample(problem: Problem, spec: SweepSpec, code: int) -> _Sample:
    alone = dataclasses.replace(problem, strategies=(problem.strategies[code],), models=(problem.models[code],))
    space = Space(alone, spec.num_gpus, spec.global_batch_size)
    wanted = _SLOW_ROWS // len(problem.strategies)
    chunks = list(itertools.islice(row_chunks(space.blocks(), _CHUNK), -(-wanted // _CHUNK)))
    positions = np.concatenate([positions for positions, _ in chunks])
    choices = {name: np.concatenate([part[name] for _, part in chunks]) for name in chunks[0][1]}
    return _Sample(alone, space, positions, candidate_columns(alone, space.keys, positions, choices), len(positions))


def _flat(problem: Problem, spec: SweepSpec) -> dict[str, Any]:
    """Time one compiled function of a row's columns, on one device, float32."""
    seconds, candidates = 0.0, 0
    for code in range(len(problem.strategies)):
        sample = _sample(problem, spec, code)
        price = jax.jit(_flat_function(sample.problem))
        whole = sample.count - sample.count % _CHUNK
        chunks = [
            {name: jnp.asarray(c[start : start + _CHUNK], dtype=jnp.float32) for name, c in sample.columns.items()}
            for start in range(0, whole, _CHUNK)
        ]
        jax.block_until_ready(price(chunks[0]))
        took, _ = _timed(lambda price=price, chunks=chunks: [jax.block_until_ready(price(c)) for c in chunks])
        seconds, candidates = seconds + took, candidates + whole
    return {"way": "one flat function, argmin", "candidates": candidates, "seconds": seconds}


def _flat_function(problem: Problem) -> Callable[[Any], Any]:
    def price(columns: Any) -> tuple[Any, Any]:
        work = layer_work(
            problem.layers[0],
            problem.model.dimensions,
            problem.assumptions_spec,
            problem.sequence_length,
            columns,
            jnp,
        )
        layer = layer_costs(work, problem.hardware, problem.assumptions)
        choices = step_choices(columns, lambda column: column)
        costs = step_costs(layer, choices, problem.workload, problem.hardware, problem.assumptions)
        fits = costs.peak_bytes <= problem.hardware.device.hbm_capacity
        step = jnp.where(fits, costs.step_time_s, jnp.inf)
        return jnp.argmin(step), step.min()

    return price


def _numpy(problem: Problem, spec: SweepSpec) -> dict[str, Any]:
    """Time the NumPy loop on the same rows as the flat function, and compare its winners with dsx's."""
    dimensions, device, network = problem.model.dimensions, problem.cluster.device, problem.cluster.network
    model = {
        "l": problem.sequence_length,
        "e": dimensions["e"],
        "h": dimensions["h"],
        "f": dimensions["f"],
        "depth": problem.num_layers,
    }
    system = {
        "matrix_flops": device.matrix_flops,
        "vector_flops": device.vector_flops,
        "hbm_bandwidth": device.hbm_bandwidth,
        "hbm_capacity": device.hbm_capacity,
        "fast_bandwidth": network.nvs.bandwidth,
        "slow_bandwidth": network.net.bandwidth,
        "fast_latency": network.nvs.latency,
        "slow_latency": network.net.latency,
        "fast_size": network.nvs.size,
    }
    seconds, candidates = 0.0, 0
    for code, strategy in enumerate(problem.strategies):
        sample = _sample(problem, spec, code)
        columns = sample.columns
        second = "cp" if "cp" in problem.layers[code].axes else "tp2"
        rows = {ours: columns[theirs] for ours, theirs in _FORMULA_NAMES.items()}
        rows |= {"n2": columns[second], "t2": columns[f"{second}_nvs"]}

        def run(rows: Arrays = rows, strategy: str = strategy, sample: _Sample = sample) -> tuple[float, int]:
            best_time, best_row = np.inf, -1
            for start in range(0, sample.count, _CHUNK):
                part = {name: column[start : start + _CHUNK] for name, column in rows.items()}
                batch = sample.columns["global_batch_size"][start : start + _CHUNK]
                step, peak = flat_prices(model, system, strategy, part, batch)
                step = np.where(peak <= system["hbm_capacity"], step, np.inf)
                if step.min() < best_time:
                    best_time, best_row = float(step.min()), start + int(np.argmin(step))
            return best_time, best_row

        took, winner = _timed(run)
        _check_winner(sample, strategy, *winner)
        seconds, candidates = seconds + took, candidates + sample.count
    return {"way": "NumPy loop over flat rows", "candidates": candidates, "seconds": seconds}


def _check_winner(sample: _Sample, strategy: str, best_time: float, best_row: int) -> None:
    """Exit unless dsx finds the same best row with the same step time."""
    table = price_keys(sample.problem, sample.space.keys)
    costs = price_rows(sample.problem, table, sample.positions, sample.columns)
    fits = costs.peak_bytes <= sample.problem.cluster.device.hbm_capacity
    step = np.where(fits, costs.step_time_s, np.inf)
    same = abs(step[best_row] - best_time) <= 1e-9 * best_time and step.min() >= best_time * (1 - 1e-9)
    if not same:
        sys.exit(f"{strategy}: the NumPy loop's best is row {best_row}, {best_time} s; dsx's is {step.min()} s")


if __name__ == "__main__":
    main()
