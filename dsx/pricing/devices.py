"""Devices: every local one prices; a CPU prices on all its cores.

XLA runs element-wise code on one core of a CPU. Calls from several threads run side by side on one device,
each on a core, and share what was compiled; cores as devices of their own would each compile it again.
"""

import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_IN_FLIGHT = 2  # batches per worker: one runs while the next one waits


def workers() -> list[Any]:
    """Return the device of each worker: a GPU has one, a CPU one per core."""
    devices = jax.local_devices()
    cores = -(-len(os.sched_getaffinity(0)) // len(devices))
    return [device for device in devices for _ in range(cores if device.platform == "cpu" else 1)]


def map_over_devices(run: Callable[[Any, Batch], Result], batches: Iterable[Batch]) -> Iterator[tuple[Batch, Result]]:
    """Yield (batch, run(device, batch)) in the order of the batches, computed by all workers at once.

    A worker takes the next batch when it is done with its last. Batches are taken from the iterable only
    as they are needed, so memory stays flat.
    """
    devices = workers()
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for device in devices:
        free.put(device)

    def on_free_device(batch: Batch) -> Result:
        device = free.get()
        try:
            return run(device, batch)
        finally:
            free.put(device)

    pool = ThreadPoolExecutor(max_workers=len(devices))
    waiting: deque[tuple[Batch, Future[Result]]] = deque()
    try:
        for batch in batches:
            if len(waiting) >= _IN_FLIGHT * len(devices):
                first, future = waiting.popleft()
                yield first, future.result()
            waiting.append((batch, pool.submit(on_free_device, batch)))
        while waiting:
            batch, future = waiting.popleft()
            yield batch, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
