"""What a device reaches, with JAX: rates of a large multiply, of arithmetic and memory, and times of collectives.

A device of a cluster file has the peaks of its data sheet, and the assumption set the share that a kernel reaches.
Where nobody has a data sheet, as of a CPU, the best measured rates take their place.

The sizes of collectives are sizes of the whole tensor, as in tests of NCCL: what an all-gather returns on each device,
and what any other collective takes on each. Not modelled: collectives over several hosts, for which several processes
would have to run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dsx.measuring.array_library import Library, Timing, timed_briefly
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

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


def _chain(x: jax.Array, factor: float, term: float) -> jax.Array:
    for _ in range(_CHAIN):
        x = x * factor + term
    return x


SIZES = tuple(4**power << 10 for power in range(3, 10))  # 64 KiB to 256 MiB
_AXIS = "devices"
_WIDTH = 4  # bytes of an element
# What each does with a [rows, elements] part of an array; a device has as many rows as there are devices.
_KINDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    ALL_GATHER: lambda x: jax.lax.all_gather(x, _AXIS, tiled=True),
    REDUCE_SCATTER: lambda x: jax.lax.psum_scatter(x, _AXIS, tiled=True),
    ALL_REDUCE: lambda x: jax.lax.psum(x, _AXIS),
    ALL_TO_ALL: lambda x: jax.lax.all_to_all(x, _AXIS, 0, 0, tiled=True),
}


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One measured collective."""

    kind: str
    num_devices: int
    num_bytes: int  # of the whole tensor
    timing: Timing


def groups() -> list[int]:
    """Return the sizes of groups to measure: powers of two, and all local devices; none for a single one."""
    count = jax.local_device_count()
    return sorted({2**power for power in range(1, count.bit_length()) if 2**power <= count} | {count} - {1})


def collective_times(num_devices: int, sizes: Sequence[int]) -> Iterator[CollectiveTime]:
    """Yield the time of each collective of each size in bytes over the first local devices."""
    mesh = Mesh(np.array(jax.local_devices()[:num_devices]), (_AXIS,))
    for num_bytes in sizes:
        for kind, function in _KINDS.items():
            # Each device has n rows, one of them its own; before an all-gather it has its own alone.
            rows = 1 if kind == ALL_GATHER else num_devices
            shape = (rows * num_devices, max(num_bytes // (_WIDTH * num_devices), 1))
            array = jax.device_put(jnp.ones(shape, jnp.float32), NamedSharding(mesh, PartitionSpec(_AXIS)))
            divided = PartitionSpec(_AXIS)
            run = jax.shard_map(function, mesh=mesh, in_specs=divided, out_specs=divided, check_vma=False)
            timing = timed_briefly(partial(jax.jit(run), array), jax.block_until_ready)
            yield CollectiveTime(kind, num_devices, num_bytes, timing)
