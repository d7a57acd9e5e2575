"""Candidates per second: dsx compared with a flat function, a NumPy loop and a C kernel, in one run.

    python benchmarks/throughput.py [--spec FILE] [--repeat 5] [--json] [--write|--check docs/performance.md]

For the comparison dsx prices every row of the space, although it need not to find the best: a second table has searches
of more choices by bounds, with even and with optimal cuts. The time includes enumeration and layer pricing, but not
compilation: each way runs once before. The median of the runs is reported. The benchmark fails unless dsx, the NumPy
loop and the C kernel find the same best plan for each GPU count.
"""

import argparse
import dataclasses
import functools
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import baselines
import jax
from baselines import Result
from sections import check_speeds, ratios, table, write_section

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.config.sweep_fields import Columns
from dsx.config.sweep_file import Keep, KeepPareto, KeepTop, SweepSpec, load_sweep
from dsx.cost.context import StepCosts
from dsx.errors import InputError
from dsx.plans.blocks import stages_and_replicas
from dsx.plans.choices import NAMED, PLAN_COLUMNS
from dsx.plans.rules import OPTIMAL
from dsx.pricing.cuts import CandidateCounts, column_names, joined
from dsx.pricing.problem import Problem, ProblemOptions, make_problem
from dsx.results import manifest as manifests
from dsx.results import writer as writing
from dsx.search.spaces import make_studies
from dsx.search.sweep import Sweep
from dsx.search.tiles import top_plans

_RATIO = "of the C kernel"
FITTED = "default"  # unlike the set of the sweep, it counts embedding and head, and has more collective algorithms
_FEW_GPUS = 1024  # whose rows are all cut, and priced with every choice
_WRITTEN_BATCHES = 6  # batch sizes whose rows are all written
# The choices of the second table. With several chunks per stage cuts are even.
OPENED = {
    "zero_stage": [0, 1, 2, 3],
    "recompute": ["none", "full"],
    "offload": ["none", "optimizer", "activations", "both"],
    "vpp": [1, 2, 4, 8],
}


@dataclasses.dataclass(frozen=True, slots=True)
class Bounded:
    """What a search by bounds did, and its seconds."""

    way: str
    counts: CandidateCounts
    seconds: float


def main() -> None:
    """Run the benchmark and print its table, or JSON."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--check", type=existing, help="fail if a way of dsx is slower than this document says")
    options = parser.parse_args()
    spec, problem = problem_of(options.spec)
    _, fitted = problem_of(options.spec, FITTED)
    _, free = problem_of(options.spec, FITTED, fixed=False)
    per_gpus = KeepTop(top=10, per=["num_gpus"])
    bounded = _bounded(fitted, spec, options.repeat)
    top_plans.MANY = sys.maxsize  # every row is priced
    results = [
        _searched(problem, spec, per_gpus, options.repeat, "dsx, best ten of each GPU count"),
        _searched(problem, spec, KeepTop(top=10), options.repeat, "dsx, best ten of all"),
        _searched(fitted, spec, KeepTop(top=10), options.repeat, f"dsx, best ten of all, set {FITTED}"),
        _every_choice(free, spec, options.repeat),
        _searched(problem, spec, KeepPareto(pareto=["step_time_s", "peak_bytes"]), options.repeat, "dsx, Pareto front"),
        _written(problem, spec, options.repeat),
        _all_cut(fitted, spec),
    ]
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)
    results += [baselines.flat(problem, spec), baselines.numpy_loop(problem, spec)]
    threads = sorted({1, len(os.sched_getaffinity(0))})
    results += [result for number in threads if (result := baselines.in_c(problem, spec, number))]
    _check_winners(results)
    machine = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "devices": f"{len(jax.local_devices())} {jax.local_devices()[0].platform}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "peak memory of dsx": f"{peak} GB",
    }
    if options.json:
        found = {"results": list(map(dataclasses.asdict, results)), "bounded": list(map(dataclasses.asdict, bounded))}
        print(json.dumps({"machine": machine, **found}, indent=2))
        return
    text = f"{_table(machine, results)}\n\n{_table_of_bounds(bounded)}"
    print(text)
    if options.check:
        written = ratios(options.check, "throughput", _RATIO)
        check_speeds({way: ratio for way, ratio in written.items() if way.startswith("dsx")}, _of_the_kernel(results))
    if options.write:
        write_section(options.write, "throughput", text)


def parser_of(about: str) -> argparse.ArgumentParser:
    """Return the parser of the options that the benchmarks of searches share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    large = Path(__file__).parent.parent / "sweeps" / "large.yaml"
    parser.add_argument("--spec", type=existing, default=large, help="the sweep whose plans are priced")
    parser.add_argument("--repeat", type=_positive, default=5, help="timed runs of dsx; the median is reported")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--write", type=existing, help="put the tables into the section of this document")
    return parser


def existing(text: str) -> Path:
    """Return the file of an option."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is no file")
    return Path(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _table(machine: dict[str, Any], results: list[Result]) -> str:
    """Return the results as a Markdown table, with the machine above it."""
    lines = [", ".join(f"{key} {value}" for key, value in machine.items()), ""]
    rows = [
        (result.way, f"{result.candidates:,}", f"{result.seconds:.3g}", f"{rate / 1e6:.3g}", f"{ratio:.3g}")
        for result, rate, ratio in zip(results, map(_rate, results), _of_the_kernel(results).values(), strict=True)
    ]
    head = ("way", "candidates", "seconds", "M candidates/s", _RATIO)
    return "\n".join([*lines, table(head, rows, 4)])


def _rate(result: Result) -> float:
    return result.candidates / result.seconds


def _of_the_kernel(results: list[Result]) -> dict[str, float]:
    """Return the rate of each way over that of the C kernel on one thread."""
    kernel = next((result for result in results if result.way.startswith("C kernel")), results[0])
    return {result.way: _rate(result) / _rate(kernel) for result in results}


def _table_of_bounds(results: list[Bounded]) -> str:
    """Return what bounds leave out as a Markdown table."""
    rows = [
        (
            result.way,
            *(f"{count:,}" for count in dataclasses.astuple(result.counts)),
            f"{result.seconds:.3g}",
            f"{result.counts.candidates / result.seconds / 1e6:.3g}",
        )
        for result in results
    ]
    counts = ("candidates", "feasible", "skipped in blocks", "left out one by one", "cut")
    return table(("best ten of all, set default", *counts, "seconds", "M decided/s"), rows, 7)


def _processor() -> str:
    """Return the processor's name if the system states it, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def problem_of(path: Path, assumptions: str | None = None, fixed: bool = True) -> tuple[SweepSpec, Problem]:
    """Return a sweep and its problem, under another assumption set if one is named.

    That searches the same choices, or all of its own if they are not `fixed`. Exits if the file is no such sweep.
    """
    columns = Columns(tuple(PLAN_COLUMNS), tuple(StepCosts.__dataclass_fields__), NAMED)
    try:
        spec = load_sweep(path, columns)
    except InputError as error:
        sys.exit(str(error))
    if not spec.strategy:
        sys.exit(f"{path}: states no strategy; name at least one")
    own = load_assumptions(spec.assumptions)
    files = (
        load_model(spec.model),
        load_cluster(spec.cluster[0]),
        load_assumptions(assumptions) if assumptions else own,
    )
    options = ProblemOptions(sequence_length=spec.sequence_length)
    problem = make_problem(*files, spec.strategy, options)
    return spec, problem.searching({name: [value] for name, value in own.fixed.items()}) if fixed else problem


def median_of(run: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Return the median seconds of `repeat` runs after a first one, and the result of the last run."""
    result = run()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[repeat // 2], result


def sweep_of(problem: Problem, spec: SweepSpec, keep: Keep, batches: list[int]) -> Sweep:
    stages_and_replicas.cache_clear()  # else a run would find those of the run before
    studies = make_studies([problem], spec.what_if, spec.num_gpus, batches, spec.fix, spec.limit)
    return Sweep(studies, keep, "float32")


def _searched(
    problem: Problem, spec: SweepSpec, keep: Keep, repeat: int, way: str, batches: list[int] | None = None
) -> Result:
    """Time a whole search, from the settings to the kept rows; of all batch sizes, or of some."""

    def run() -> tuple[int, Any]:
        sweep = sweep_of(problem, spec, keep, batches or spec.global_batch_size)
        kept: list[Any] = []
        sweep.run(range(len(sweep.parts)), lambda number, rows, counts: kept.append(rows))
        return sweep.size, sweep.merged(joined(kept))

    seconds, (size, rows) = median_of(run, repeat)
    if not isinstance(keep, KeepTop) or not keep.per:
        return Result(way, size, seconds)
    best: dict[int, float] = {}
    for number, step in zip(rows["num_gpus"].tolist(), rows["step_time_s"].tolist(), strict=True):
        best[number] = min(step, best.get(number, step))
    return Result(way, size, seconds, best)


def _bounded(problem: Problem, spec: SweepSpec, repeat: int) -> list[Bounded]:
    """Time searches of a space with more choices, by bounds: with all chunks, with one chunk, with optimal cuts."""
    one_chunk = problem.searching(OPENED | {"vpp": [1]})
    ways = {
        "even cuts": problem.searching(OPENED),
        "even cuts, one chunk per stage": one_chunk,
        "optimal cuts, one chunk per stage": one_chunk.with_partition(OPTIMAL),
    }
    found: list[Bounded] = []
    for way, searched in ways.items():

        def run(searched: Problem = searched) -> CandidateCounts:
            sweep = sweep_of(searched, spec, KeepTop(top=10), spec.global_batch_size)
            counts: list[CandidateCounts] = []
            sweep.run(range(len(sweep.parts)), lambda number, rows, of_part: counts.append(of_part))
            return functools.reduce(CandidateCounts.plus, counts)

        seconds, counts = median_of(run, repeat)
        found.append(Bounded(way, counts, seconds))
    return found


def _written(problem: Problem, spec: SweepSpec, repeat: int) -> Result:
    """Time writing all columns of all rows of some batch sizes into Parquet files."""
    batches = spec.global_batch_size[:: -(-len(spec.global_batch_size) // _WRITTEN_BATCHES)]
    names = column_names(problem) | {"cluster": [problem.cluster.name]}
    reasons = [(reason.name, reason.description) for reason in problem.reasons]
    manifest = manifests.begin({"batches": batches}, names, reasons, "float32")

    def run() -> int:
        sweep = sweep_of(problem, spec, "all", batches)
        with tempfile.TemporaryDirectory() as folder:
            with writing.create(Path(folder) / "set", manifest, len(sweep.parts)) as writer:
                sweep.run(
                    writer.missing(),
                    lambda number, rows, counts: writer.write(
                        number, rows, manifests.Counts(counts.candidates, counts.feasible, {})
                    ),
                )
                writer.finish()
        return sweep.size

    seconds, size = median_of(run, max(1, repeat // 2))
    return Result("dsx, all columns into Parquet", size, seconds)


def _every_choice(problem: Problem, spec: SweepSpec, repeat: int) -> Result:
    """Time a search whose choices nothing fixes but those that multiply its size, of one GPU count and batch size."""
    few, batch = spec.model_copy(update={"num_gpus": [_FEW_GPUS]}), spec.global_batch_size[:1]
    searched = problem.searching({"offload": ["none"], "stored_layers": [0]})
    return _searched(searched, few, KeepTop(top=10), repeat, f"dsx, all choices but two, set {FITTED}", batch)


def _all_cut(problem: Problem, spec: SweepSpec) -> Result:
    """Time optimal cuts of all rows of one GPU count and batch size."""
    few, batch = spec.model_copy(update={"num_gpus": [_FEW_GPUS]}), spec.global_batch_size[:1]
    return _searched(
        problem.with_partition(OPTIMAL), few, "all", 1, f"dsx, all rows, optimal cuts, set {FITTED}", batch
    )


def _check_winners(results: list[Result]) -> None:
    """Exit unless all ways that find the best of each GPU count agree."""
    first, *others = [result for result in results if result.best is not None]
    for other in others:
        for number, step in (first.best or {}).items():
            found = (other.best or {})[number]
            if abs(found - step) > 1e-6 * step:
                sys.exit(f"{number} GPUs: {first.way} finds {step} s, {other.way} {found} s")


if __name__ == "__main__":
    main()
