"""What a device reaches, with JAX: the rates of a large multiply, of arithmetic and of memory.

A device of a cluster file has the peaks of its data sheet, and the assumption set the share that a kernel reaches.
Where nobody has a data sheet, as of a CPU, the best measured rates take their place.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dsx.measuring.library import Library
from dsx.measuring.timing import timed_briefly

_SIZES = (1024, 2048, 4096)  # rows, columns and contracted size of multiplies
_LONGEST_S = 1.0  # a larger multiply is not tried after one that takes longer
_ELEMENTS = 1 << 26  # float32, 268 MB: more than caches hold
_CHAIN = 64  # multiplies and additions of an element


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The best measured rates of a device, and its memory."""

    matrix_flops: float  # FLOP/s
    vector_flops: float  # FLOP/s
    bandwidth: float  # bytes/s
    memory_bytes: float


def device_rates(library: Library, dtype: str) -> DeviceRates:
    """Return what the device of a library reaches, its multiplies in a type such as "bf16"."""
    matrix = 0.0
    for size in _SIZES:
        taken = timed_briefly(library.multiply(size, size, size, 1, dtype), library.wait).median_s
        matrix = max(matrix, 2.0 * size**3 / taken)
        if taken > _LONGEST_S:
            break
    array = jnp.ones(_ELEMENTS, jnp.float32)
    added = timed_briefly(partial(jax.jit(jnp.add), array, array + 1), jax.block_until_ready).median_s
    chained = timed_briefly(partial(jax.jit(_chain), array, 0.5, 1.0), jax.block_until_ready).median_s
    return DeviceRates(matrix, 2.0 * _CHAIN * _ELEMENTS / chained, 3.0 * array.nbytes / added, library.memory_bytes)


def _chain(x: Any, factor: float, term: float) -> Any:
    for _ in range(_CHAIN):
        x = x * factor + term
    return x
