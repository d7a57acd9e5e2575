"""The baselines of the throughput benchmark: a flat function, a NumPy loop, and a C kernel, over the same rows.

The NumPy loop and the C kernel also return their best plans, which the benchmark compares with those of dsx.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import c_kernel
import jax
import jax.numpy as jnp
import numpy as np
from numpy_loop import flat_prices

from dsx.config.sweep_file import SweepSpec
from dsx.cost.layer import layer_costs
from dsx.cost.layer_work import layer_work
from dsx.cost.step import step_costs
from dsx.plans.choices import CHOICE_COLUMNS
from dsx.plans.enumerate import Arrays
from dsx.pricing.cuts import candidate_columns
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import step_choices
from dsx.search.spaces import Space

_CHUNK = 1 << 14  # rows per call, so that their arrays stay in the cache
_ROWS = 1 << 20  # rows enumerated at once, outside the timing
_FLAT_CHUNKS = 256  # chunks that the flat function prices, a part of the space
# Column of the NumPy loop -> column of dsx, for columns that do not depend on the strategy.
_FORMULA_NAMES = {
    "n1": "tp", "np": "pp", "nd": "dp", "bm": "microbatch_size", "nb": "panels",
    "t1": "tp_nvs", "tp": "pp_nvs", "td": "dp_nvs",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The candidates that one way priced, its seconds, and its best step time by GPU count, if it finds that."""

    way: str
    candidates: int
    seconds: float
    best: dict[int, float] | None = None


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def _alone(problem: Problem, spec: SweepSpec, code: int) -> tuple[Problem, Space]:
    """Return the problem with a single one of its strategies, and its space."""
    alone = dataclasses.replace(problem, strategies=(problem.strategies[code],), models=(problem.models[code],))
    return alone, Space(alone, spec.num_gpus, spec.global_batch_size, spec.fix, spec.limit)


def _rows(problem: Problem, space: Space) -> Iterator[Arrays]:
    """Yield all candidates of a space, by column."""
    for start in range(0, space.size, _ROWS):
        positions, choices = space.blocks.rows(start, min(start + _ROWS, space.size))
        yield candidate_columns(problem, space.keys, positions, choices)


def flat(problem: Problem, spec: SweepSpec) -> Result:
    """Price a part of the space with one compiled function of a row's columns, on one device, in float32."""
    seconds, candidates = 0.0, 0
    for code in range(len(problem.strategies)):
        alone, space = _alone(problem, spec, code)
        price = jax.jit(_flat_function(alone))
        rows = next(_rows(alone, space))
        chunks = [
            {name: jnp.asarray(c[start : start + _CHUNK], dtype=jnp.float32) for name, c in rows.items()}
            for start in range(0, len(rows["tp"]) - _CHUNK + 1, _CHUNK)
        ][: _FLAT_CHUNKS // len(problem.strategies)]
        jax.block_until_ready(price(chunks[0]))
        took, _ = _timed(lambda price=price, chunks=chunks: [jax.block_until_ready(price(c)) for c in chunks])
        seconds, candidates = seconds + took, candidates + len(chunks) * _CHUNK
    return Result("one flat function, argmin, one thread", candidates, seconds)


def _flat_function(problem: Problem) -> Callable[[Any], Any]:
    hardware, assumptions = problem.at_point(0)

    def price(columns: Any) -> tuple[Any, Any]:
        layer, dimensions = problem.layers[0], problem.model.dimensions
        work = layer_work(layer, dimensions, problem.assumptions_spec, problem.sequence_length, columns)
        kinds = (layer_costs(work, hardware, assumptions),)
        choices = step_choices(columns, lambda column: column)
        costs = step_costs(kinds, choices, problem.workload, hardware, assumptions)
        step = jnp.where(costs.peak_bytes <= hardware.device.hbm_capacity, costs.step_time_s, jnp.inf)
        return jnp.argmin(step), step.min()

    return price


def numpy_loop(problem: Problem, spec: SweepSpec) -> Result:
    """Price the whole space with the paper's formulas in NumPy, one thread, in float64."""
    model, system = _plain(problem)
    seconds, candidates = 0.0, 0
    best = dict.fromkeys(spec.num_gpus, np.inf)
    for code, strategy in enumerate(problem.strategies):
        alone, space = _alone(problem, spec, code)
        second = "cp" if "cp" in problem.layers[code].axes else "tp2"
        for columns in _rows(alone, space):
            rows = {ours: columns[theirs] for ours, theirs in _FORMULA_NAMES.items()}
            rows |= {"n2": columns[second], "t2": columns[f"{second}_nvs"]}
            took, times = _timed(
                lambda rows=rows, columns=columns, strategy=strategy: _loop(model, system, strategy, rows, columns)
            )
            seconds, candidates = seconds + took, candidates + len(times)
            for number in best:
                here = times[columns["num_gpus"] == number]
                best[number] = min(best[number], float(here.min(initial=np.inf)))
    return Result("NumPy loop over flat rows, one thread", candidates, seconds, best)


def _loop(model: Any, system: Any, strategy: str, rows: Arrays, columns: Arrays) -> np.ndarray:
    """Return the step time of each row, infinite if it does not fit."""
    times = []
    for start in range(0, len(columns["tp"]), _CHUNK):
        part = {name: column[start : start + _CHUNK] for name, column in rows.items()}
        step, peak = flat_prices(model, system, strategy, part, columns["global_batch_size"][start : start + _CHUNK])
        times.append(np.where(peak <= system["hbm_capacity"], step, np.inf))
    return np.concatenate(times)


def _plain(problem: Problem) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return model and machine under the names in the formulas."""
    dimensions, device, network = problem.model.dimensions, problem.cluster.device, problem.cluster.network
    model = {name: dimensions[name] for name in "ehf"}
    model |= {"l": problem.sequence_length, "depth": problem.num_layers}
    system = {name: getattr(device, name) for name in ("matrix_flops", "vector_flops", "hbm_bandwidth", "hbm_capacity")}
    for ours, tier in (("fast", network.nvs), ("slow", network.net)):
        system |= {f"{ours}_bandwidth": tier.bandwidth, f"{ours}_latency": tier.latency}
    return model, system | {"fast_size": network.nvs.size}


def in_c(problem: Problem, spec: SweepSpec, threads: int) -> Result | None:
    """Price the whole space with the C kernel; None without a compiler.

    Enumeration and layer pricing are not timed: the kernel is a baseline for the hot loop alone.
    """
    kernel = c_kernel.build()
    if kernel is None:
        return None
    space = Space(problem, spec.num_gpus, spec.global_batch_size, spec.fix, spec.limit)
    groups = np.array(spec.num_gpus)
    parts = c_kernel.shares(problem, space.table(problem), _plain_blocks(space, groups), len(groups), threads)
    kernel.price(parts)
    seconds, winners = _timed(lambda: kernel.price(parts))
    best = dict(zip(groups.tolist(), winners.time.tolist(), strict=True))
    noun = "thread" if threads == 1 else "threads"
    return Result(f"C kernel of the hot loop alone, {threads} {noun}", space.size, seconds, best)


def _plain_blocks(space: Space, groups: np.ndarray) -> Iterator[c_kernel.PlainBlock]:
    blocks = space.blocks
    for block in range(len(blocks)):
        choices = blocks.choices(blocks.segments(block, block + 1))
        keys = blocks.keys[blocks.first_key[block] : blocks.first_key[block + 1]]
        matrix = np.stack([choices[name] for name in CHOICE_COLUMNS])
        yield keys, matrix, np.searchsorted(groups, choices["num_gpus"])
