"""Devices: every local one prices; a CPU counts as one device per core.

XLA runs element-wise code of one CPU device on one core, so the cores are made devices of their own.
"""

import os
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
    waiting: list[tuple[Batch, Future[Result]]] = []
    with ThreadPoolExecutor(max_workers=len(devices)) as pool:
        for index, batch in enumerate(batches):
            if len(waiting) >= _IN_FLIGHT * len(devices):
                first, future = waiting.pop(0)
                yield first, future.result()
            waiting.append((batch, pool.submit(run, devices[index % len(devices)], batch)))
        for batch, future in waiting:
            yield batch, future.result()
