"""Devices: every local one prices; a CPU counts as one device per core.

XLA runs element-wise code of one CPU device on one core, so the cores are made devices of their own.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_IN_FLIGHT = 2  # batches per device: one runs while the next one is made


def use_all_cores() -> None:
    """Make every CPU core a device; must come before JAX is first used, and is skipped after it."""
    try:
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    except RuntimeError:
        return


def map_over_devices(run: Callable[[Any, Batch], Result], batches: Iterable[Batch]) -> Iterator[tuple[Batch, Result]]:
    """Yield (batch, run(device, batch)) in the order of the batches, computed on all devices at once.

    Batches are taken from the iterable only as they are needed, so memory stays flat.
    """
    devices = jax.local_devices()
    # One thread per device: a device never waits for the batches of another.
    pools = [ThreadPoolExecutor(max_workers=1) for _ in devices]
    waiting: deque[tuple[Batch, Future[Result]]] = deque()
    try:
        for index, batch in enumerate(batches):
            if len(waiting) >= _IN_FLIGHT * len(devices):
                first, future = waiting.popleft()
                yield first, future.result()
            at = index % len(devices)
            waiting.append((batch, pools[at].submit(run, devices[at], batch)))
        while waiting:
            batch, future = waiting.popleft()
            yield batch, future.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
