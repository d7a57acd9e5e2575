"""Pricing on all local devices, and on all cores of a CPU.

XLA runs element-wise code on one core of a CPU. Calls from several threads run side by side on one device, one core
each, and share the compiled code. If each core were a device of its own, each would compile the code again.
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

_IN_FLIGHT = 2  # batches per worker: one runs while the next one is queued


def workers() -> list[Any]:
    """Return the device of each worker. A GPU has one worker, a CPU one per core."""
    devices = jax.local_devices()
    cores = -(-len(os.sched_getaffinity(0)) // len(devices))
    return [device for device in devices for _ in range(cores if device.platform == "cpu" else 1)]


def map_over_devices(run: Callable[[Any, Batch], Result], batches: Iterable[Batch]) -> Iterator[tuple[Batch, Result]]:
    """Yield (batch, run(device, batch)) in the order of the batches, computed by all workers in parallel.

    A worker takes the next batch as soon as it is free. Batches are drawn from the iterable only when they are needed,
    so memory stays flat.
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
