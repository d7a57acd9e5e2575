"""Times of collectives over the local devices, with JAX.

The sizes are those of the whole tensor, as in tests of NCCL: what an all-gather returns on each device, and what any
other collective takes on each.

Not modelled: collectives over several hosts, for which several processes would have to run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dsx.graph.match import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from dsx.measuring.timing import Timing, timed_briefly

SIZES = tuple(4**power << 10 for power in range(3, 10))  # 64 KiB to 256 MiB
_AXIS = "devices"
_WIDTH = 4  # bytes of an element
# What each does with a [rows, elements] part of an array; rows are those of one device, and as many as devices.
_KINDS: dict[str, Callable[[Any], Any]] = {
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
            # Each device has n rows, of which one is its own; before an all-gather it has this one alone.
            rows = 1 if kind == ALL_GATHER else num_devices
            shape = (rows * num_devices, max(num_bytes // (_WIDTH * num_devices), 1))
            array = jax.device_put(jnp.ones(shape, jnp.float32), NamedSharding(mesh, PartitionSpec(_AXIS)))
            divided = PartitionSpec(_AXIS)
            run = jax.shard_map(function, mesh=mesh, in_specs=divided, out_specs=divided, check_vma=False)
            timing = timed_briefly(partial(jax.jit(run), array), jax.block_until_ready)
            yield CollectiveTime(kind, num_devices, num_bytes, timing)
