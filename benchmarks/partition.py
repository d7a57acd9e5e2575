"""The seconds of an exact partition: dsx compared with plain NumPy that solves the same recurrence, in one run.

    python benchmarks/partition.py [--devices 1024] [--repeat 5] [--json] [--write docs/performance.md]

The layers are those of a GPT with 175 billion parameters: an embedding and 96 equal layers, the head merged into the
last one, in the widths 1, 2, 4 and 8. dsx searches all widths, numbers of stages and replicas, and ZeRO stages, with
and without recomputation. It is timed as a whole, from the layers to the plan; compilation is the first call less the
median of the later ones. NumPy runs the same min-max recurrence for the scans of dsx, one after the other; its time
does not include the rest of the search. A second chain has 97 different layers. The benchmark fails unless all loads
are equal.
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sections import table, write_section

from dsx.layer_table import solver
from dsx.layer_table.instance import Hierarchy, LayerTable, TableChain, joining_level, path_bandwidth
from dsx.layer_table.pipelines import OPTIMIZER_FACTORS, PartitionProblem, pipelines
from dsx.layer_table.solver import ScannedTables, ScanQuestion

GIB = 2**30
HIDDEN, SEQUENCE, LAYERS, HEADS, VOCABULARY = 12288, 2048, 96, 96, 51200
FLOPS = 200e12  # of one device, achieved
BATCH = 4096
LEVELS, BANDWIDTH, LATENCY = (8, 4), (900, 100, 400), (1e-4, 2e-4, 3e-4)  # GiB/s, s


@dataclass(frozen=True, slots=True)
class Timed:
    """The time of one way to solve one chain."""

    way: str
    layers: str
    seconds: float
    note: str = ""


def main() -> None:
    """Run the benchmark and print its table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1024, help="a multiple of 32")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs of dsx; the median is reported")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into the section of this document")
    options = parser.parse_args()
    results = []
    for layers, spread in (("96 equal and an embedding", 0.0), ("97 different", 0.5)):
        results += compare(problem(options.devices, spread), layers, options.repeat)
    if options.json:
        print(json.dumps([{name: getattr(each, name) for name in Timed.__slots__} for each in results], indent=2))
        return
    device = jax.local_devices()[0].platform
    head = f"{platform.machine()}, {device}, jax {jax.__version__}, {options.devices} devices, {BATCH} microbatches"
    rows = [(each.way, each.layers, each.note, f"{each.seconds:.3g}") for each in results]
    text = f"{head}\n\n{table(('way', 'layers', '', 'seconds'), rows, 1)}"
    print(text, end="")
    if options.write:
        write_section(options.write, "partition", text)


def problem(devices: int, spread: float) -> PartitionProblem:
    """Return the problem; a `spread` of 0.5 scales each layer by a random factor from 0.5 to 1.5, so all differ."""
    random = np.random.default_rng(0)
    times, sizes = (1 + spread * random.uniform(-1, 1, LAYERS + 1) for _ in range(2))
    return PartitionProblem(
        widths=tuple(_width(width, times, sizes) for width in (1, 2, 4, 8)),
        hierarchy=Hierarchy(
            devices_per_level=np.array((*LEVELS, devices // int(np.prod(LEVELS)))),
            bandwidth=np.array(BANDWIDTH) * float(GIB),
            latency=np.array(LATENCY),
        ),
        num_microbatches=BATCH,
        device_bytes=64.0 * GIB,
        optimizer_factor=OPTIMIZER_FACTORS["adam"],
    )


def _width(width: int, times: np.ndarray, sizes: np.ndarray) -> LayerTable:
    tokens = SEQUENCE * HIDDEN
    forward = 24 * SEQUENCE * HIDDEN**2 / FLOPS / width
    head = 2 * SEQUENCE * HIDDEN * VOCABULARY / FLOPS / width
    parameters = 24 * HIDDEN**2 / width
    table = 2 * HIDDEN * VOCABULARY / width
    saved = tokens * 34 / width + 5 * HEADS * SEQUENCE**2 / width
    forwards = np.array([0, *[forward] * (LAYERS - 1), forward + head]) * times
    return LayerTable(
        width=width,
        devices_per_stage=width,
        chain=TableChain(
            forward_s=forwards,
            backward_s=2 * forwards,
            parameter_bytes=np.round(np.array([table, *[parameters] * (LAYERS - 1), parameters + table]) * sizes),
            activation_bytes=np.round(np.array([2 * tokens, *[saved] * LAYERS]) * times),
            cut_bytes=np.array([0, *[2.0 * tokens] * LAYERS, 0]),
        ),
    )


def compare(given: PartitionProblem, layers: str, repeat: int) -> list[Timed]:
    """Return the times of dsx, of its first call, and of NumPy."""
    recorded_scans: list[tuple[ScannedTables, ScanQuestion, np.ndarray, np.ndarray]] = []
    least = solver.least

    def recorded(machine: ScannedTables, asked: ScanQuestion, deepest: np.ndarray) -> np.ndarray:
        answer = least(machine, asked, deepest)
        recorded_scans.append((machine, asked, deepest, answer))
        return answer

    jax.clear_caches()
    solver.least = solver.least = recorded
    start = time.perf_counter()
    plan = solver.solve(given)
    first = time.perf_counter() - start
    solver.least = solver.least = least
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        solver.solve(given)
        seconds.append(time.perf_counter() - start)
    if plan is None:
        sys.exit("no plan fits")
    median = sorted(seconds)[repeat // 2]
    start = time.perf_counter()
    count = sum(check(*scan) for scan in recorded_scans)
    numpy = time.perf_counter() - start
    candidates = len(pipelines(given).width)
    return [
        Timed("dsx, whole search", layers, median, f"{candidates:,} pipelines, {count} scans: {text(plan)}"),
        Timed("dsx, first call", layers, first, f"{first - median:.3g} s of it compilation"),
        Timed("NumPy, the same scans", layers, numpy, f"{numpy / median:.3g} times dsx's whole search"),
    ]


def text(plan: solver.TablePlan) -> str:
    """Return a plan in a few words."""
    return (
        f"{plan.step_time_s:.6g} s, {len(plan.stages)} stages x {plan.num_replicas} replicas x {plan.width}, "
        f"ZeRO {plan.zero_stage}, recompute {plan.recompute}"
    )


def check(machine: ScannedTables, asked: ScanQuestion, deepest: np.ndarray, answer: np.ndarray) -> int:
    """Solve scans with NumPy, and exit unless the answers agree; return the number of scans."""
    for row, stages in enumerate(deepest):
        question = jax.tree.map(lambda column, row=row: column[row], asked)
        found = numpy_scan(machine, question, int(stages))
        if not np.allclose(found, answer[row, :stages], rtol=1e-9, atol=0):
            sys.exit(f"NumPy finds {found}, dsx {answer[row, :stages]}")
    return len(deepest)


def numpy_scan(machine: ScannedTables, asked: Any, num_stages: int) -> np.ndarray:
    """Return [S] least maxima of one question, by the recurrence in NumPy."""
    layers, pipeline = machine.num_layers, asked.pipeline
    chain = jax.tree.map(lambda leaf: leaf[pipeline.width], machine.chains)
    cut, devices = chain.cut_bytes[: layers + 1], int(machine.devices_per_stage[pipeline.width])

    def sums(column: np.ndarray) -> np.ndarray:
        running = np.concatenate([[0.0], np.cumsum(column[:layers])])
        return running[None, 1:] - running[:-1, None]  # [first, last]

    parameters, saved = sums(chain.parameter_bytes), sums(chain.activation_bytes)
    work = (
        sums(chain.forward_s) * (1 + pipeline.recomputed) + sums(chain.backward_s) + pipeline.per_microbatch(parameters)
    )
    resident = pipeline.states * parameters + saved
    stash = np.broadcast_to(cut[:-1, None], saved.shape) if pipeline.recomputed else saved
    allowed = np.triu(np.ones_like(saved, bool)) & (parameters < asked.below_parameters)
    first = devices * np.arange(num_stages)
    level = np.asarray(joining_level(first, first + devices, machine.hierarchy))
    paths = np.asarray(path_bandwidth(machine.hierarchy))[level]
    hops = np.where(cut > 0, machine.hierarchy.latency[level][:, None] + cut / paths[:, None], 0.0)  # [S, N + 1]
    later = np.append(np.full(layers, np.inf), 0.0)  # least maxima of the later stages
    least = np.empty(num_stages)
    for stage in range(num_stages):
        load = work + hops[stage][:-1, None] + hops[max(stage - 1, 0)][None, 1:]
        memory = resident + (min(stage + 1.0, pipeline.num_microbatches) - 1) * stash
        fits = allowed & (load <= asked.most_load_s) & (memory <= asked.most_bytes)
        wanted = asked.goal[0] * load + asked.goal[1] * parameters + asked.goal[2] * memory
        maxima = np.maximum(later[None, 1:], np.where(fits, wanted, np.inf))
        later = np.append(maxima.min(axis=1), np.inf)
        least[stage] = later[0]
    return least


if __name__ == "__main__":
    main()
