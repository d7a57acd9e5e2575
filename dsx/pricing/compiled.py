"""What JAX compiles of the prices of plans: layer costs of keys, and rows and chains in tiles, on all local devices.

Few plans are priced on NumPy, sooner than JAX is loaded. Who has many imports this module where it needs it.

XLA runs element-wise code on one core of a CPU. Calls from several threads run side by side on one device, one core
each, and share the compiled code. If each core were a device of its own, each would compile the code again. Tiles have
few sizes, so that code is compiled once for each.
"""

import contextlib
import functools
import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import jax
import numpy as np

from dsx.arrays import Chosen, Cuts, PlanFloats
from dsx.cost.layer import layer_costs
from dsx.cost.step import Workload
from dsx.pricing.fill import ChainModel, Chains
from dsx.pricing.keys import KeyBatch, KeyCosts, PartCosts, ranges_of
from dsx.pricing.problem import Plans, Problem, costs, none_priced, pad
from dsx.pricing.row_costs import PlanCosts, Rows, plans_of
from dsx.records import make_pytrees, tree_map

make_pytrees()

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_IN_FLIGHT = 2  # batches per worker: one runs while the next one is queued


def workers() -> Sequence[object]:
    """Return the device of each worker. A GPU has one worker, a CPU one per core."""
    devices = jax.local_devices()
    cores = -(-len(os.sched_getaffinity(0)) // len(devices))
    return [device for device in devices for _ in range(cores if device.platform == "cpu" else 1)]


def map_over_devices(
    run: Callable[[object, Batch], Result], batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Result]]:
    """Yield (batch, run(device, batch)) in the order of the batches, computed by all workers in parallel.

    A worker takes the next batch as soon as it is free. Batches are drawn from the iterable only when they are needed,
    so memory stays flat.
    """
    devices = workers()
    free: queue.SimpleQueue[object] = queue.SimpleQueue()
    for device in devices:
        free.put(device)

    def on_free_device(batch: Batch) -> Result:
        device = free.get()
        try:
            return run(device, batch)
        finally:
            free.put(device)

    pool = ThreadPoolExecutor(max_workers=len(devices))
    queued: deque[tuple[Batch, Future[Result]]] = deque()
    try:
        for batch in batches:
            if len(queued) >= _IN_FLIGHT * len(devices):
                first, future = queued.popleft()
                yield first, future.result()
            queued.append((batch, pool.submit(on_free_device, batch)))
        while queued:
            batch, future = queued.popleft()
            yield batch, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


_LENGTHS = (1024, 8192)  # keys of a compiled batch

_price_layers = jax.jit(jax.vmap(layer_costs, in_axes=(None, 0, 0)))


def layer_costs_of(problem: Problem, batches: Iterable[KeyBatch]) -> list[PartCosts]:
    """Return the costs of a layer for the keys of some batches.

    One thread makes all works: several threads of NumPy code would only wait for the interpreter lock.
    """
    priced = map_over_devices(functools.partial(_of_batch, problem), batches)
    return [part for _, parts in priced for part in parts]


def _of_batch(problem: Problem, device: object, batch: KeyBatch) -> list[PartCosts]:
    """Price the keys of a batch at all hardware points, a fixed length at a time."""
    which = batch.which
    short, long = _LENGTHS
    length, num_works = (short, short) if len(which) <= short else (long, long // 4)
    parts: list[PartCosts] = []
    with jax.default_device(device), jax.enable_x64(True):
        for start, stop in ranges_of(which, num_works, length):
            works = np.minimum(which[start] + np.arange(num_works), which[stop - 1])
            costs = _price_layers(batch.of_keys(works, start, stop, length), problem.hardware, problem.assumptions)
            parts.append(tree_map(lambda leaf, n=stop - start: np.asarray(leaf)[..., :n], costs))
    return parts


TILE = 1 << 11  # plans side by side: their numbers fit into the cache of a core
# Registers of 512 bits where the processor has them; XLA's default is 256.
COMPILER = {"xla_cpu_prefer_vector_width": 512}


@contextlib.contextmanager
def compiled_in(float64: bool) -> Iterator[None]:
    """Compile and run in float64 or float32. Stages are a leading axis, which what all of them share does not have."""
    with jax.enable_x64(float64), jax.numpy_rank_promotion("allow"):
        yield


def joined(tiles: Sequence[Result], count: int) -> Result:
    """Return what was found for plans, from tiles of which the last one may be padded; as NumPy arrays."""
    return tree_map(lambda *parts: np.concatenate(parts, axis=-1)[..., :count], tiles[0], *tiles[1:])


def row_tiles(
    problem: Problem, table: KeyCosts, rows: Rows, dtype: type = np.float64
) -> Iterator[tuple[Chosen, Plans, Workload]]:
    """Yield the rows of each tile, of which the last one may be repeated, as plans with the workload."""
    count = len(rows.positions)
    for start in range(0, count, TILE):
        tile = pad(np.arange(start, min(start + TILE, count)), TILE)
        plans, workload = plans_of(problem, table, rows.take(tile), dtype)
        yield tile, plans, tree_map(lambda leaf: np.asarray(leaf, dtype), workload)


_FEW_STAGES = 16  # of a tile, or as many as the chain has layers: cuts into fewer are padded with empty ones


def price_tiles(problem: Problem, table: KeyCosts, rows: Rows, cuts: Cuts, dtype: type) -> PlanCosts:
    """Price rows with one chunk per stage, with the given cuts."""
    order, most, float64 = np.argsort(rows.choices["pp"], kind="stable"), cuts.shape[1] - 1, dtype is np.float64
    tiles = [none_priced(float64)]
    for tile, plans, workload in row_tiles(problem, table, rows.take(order), dtype):
        deepest = _FEW_STAGES if plans.choices.pp[-1] <= _FEW_STAGES < most else most
        boundaries = cuts[order[tile], : deepest + 1].T[None].astype(dtype)
        with compiled_in(float64):
            tiles.append(_jitted(costs)(plans, workload, boundaries))
    back = np.argsort(order, kind="stable")
    return tree_map(lambda column: column[back], joined(tiles, len(order)))


def of_row_tiles(
    function: Callable[..., Result], problem: Problem, table: KeyCosts, rows: Rows, *static: bool
) -> Result:
    """Return what a function of plans, workload and static arguments says of rows."""
    tiles: list[Result] = []
    for _, plans, workload in row_tiles(problem, table, rows):
        with compiled_in(True):
            tiles.append(_jitted(function, *range(2, 2 + len(static)))(plans, workload, *static))
    return joined(tiles, len(rows.positions))


_SMALL = 1 << 8  # plans of a tile if only a few are left


def of_chain_tiles(
    function: Callable[..., Result], model: ChainModel, chains: Chains, arrays: Sequence[PlanFloats]
) -> Result:
    """Return what a function of `dsx.pricing.fill` says: of a model, chains, their most stages, and arrays.

    Plans of a tile should be alike: each stage is filled until the last of them has its layers.
    """
    count, start, tiles = len(arrays[0]), 0, []
    with compiled_in(True):
        while start < count:
            size = TILE if count - start > _SMALL * 4 else _SMALL
            of_tile, arrays_of_tile = tree_map(
                lambda leaf, start=start, size=size: pad(leaf[..., start : start + size], size), (chains, arrays)
            )
            tiles.append(_jitted(function, 0)(model, of_tile, of_tile.choices.pp.max(), *arrays_of_tile))
            start += size
    return joined(tiles, count)


@functools.cache
def _jitted(function: Callable[..., Result], *static_argnums: int) -> Callable[..., Result]:
    return jax.jit(function, static_argnums=static_argnums, compiler_options=COMPILER)
