"""JAX on a device: kernels, each compiled by itself, and rates of the device and of its collectives.

An attention kernel is `jax.nn.dot_product_attention`: of cuDNN on an NVIDIA GPU, elsewhere as XLA compiles it. Norms,
softmax and the loss compute in float32, as frameworks do.

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

from dsx.measuring.array_library import (
    JAX,
    SOFTMAX,
    Call,
    KernelProgram,
    Library,
    Operand,
    Tensor,
    Timing,
    host_device,
    host_memory_bytes,
    timed_briefly,
)
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn", "int8": "int8"}
_RESULT_OF = {"fp8": "bfloat16", "int8": "int32"}  # of multiplies whose result has another type
_EPSILON = 1e-5


def _in_float32(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a function that computes in float32 and returns the type of its first argument."""
    return lambda x, *arguments: function(x.astype(jnp.float32), *arguments).astype(x.dtype)


def _norm(x: jax.Array, gamma: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + _EPSILON) * gamma.astype(x.dtype)


def _layernorm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + _EPSILON)
    return scaled * gamma.astype(x.dtype) + beta.astype(x.dtype)


def _softmax(x: jax.Array, causal: bool) -> jax.Array:
    seen = jnp.tril(jnp.ones(x.shape[-2:], dtype=bool)) if causal else True
    return jax.nn.softmax(jnp.where(seen, x, -jnp.inf), axis=-1)


def _rotary(x: jax.Array) -> jax.Array:
    """Rotate halves of the last dimension by angles of the second, the positions."""
    half = x.shape[-1] // 2
    places = jnp.arange(x.shape[1], dtype=jnp.float32)
    angles = places[:, None] * jnp.power(1e4, -jnp.arange(half, dtype=jnp.float32) / half)[None]
    shape = (1, x.shape[1], *(1,) * (x.ndim - 3), half)
    cosines, sines = (function(angles).astype(x.dtype).reshape(shape) for function in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half : 2 * half]
    return jnp.concatenate([a * cosines - b * sines, b * cosines + a * sines], axis=-1)


def _cross_entropy(logits: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(logits, axis=-1) - logits[..., 0]


_FUNCTIONS: dict[str, Callable[..., jax.Array]] = {
    "norm": _in_float32(_norm),
    "layernorm": _in_float32(_layernorm),
    SOFTMAX: _in_float32(_softmax),
    "cross_entropy": _in_float32(_cross_entropy),
    "rotary": _rotary,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "swiglu": lambda x, z: jax.nn.silu(x) * z,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
    "mul": jnp.multiply,
    "add": jnp.add,
    "bias": jnp.add,
    "lookup": lambda ids, table: table[ids],
}


class JaxLibrary(Library):
    """JAX on its first local device."""

    name = JAX
    functions = _FUNCTIONS

    def __init__(self) -> None:
        self._on = jax.local_devices()[0]
        self.accelerated = self._on.platform != "cpu"
        self.device = str(self._on.device_kind) if self.accelerated else host_device()
        self.software = f"jax {jax.__version__}"
        limit = (self._on.memory_stats() or {}).get("bytes_limit") if self.accelerated else None
        self.memory_bytes = float(limit or host_memory_bytes())

    def wait(self, result: Tensor) -> object:
        """Return when a result is there."""
        return jax.block_until_ready(result)

    def arrays(self, operands: Sequence[Operand], dtype: str) -> list[Tensor]:
        """Return arrays of random numbers."""
        keys = jax.random.split(jax.random.key(0), len(operands))
        return [_random(key, operand, dtype) for key, operand in zip(keys, operands, strict=True)]

    def multiply(self, rows: int, columns: int, contracted: int, batch: int, dtype: str) -> Call:
        """Return the call of `batch` multiplies of (rows x contracted) by (contracted x columns)."""
        of = (batch,) if batch > 1 else ()
        arrays = self.arrays([Operand((), (*of, rows, contracted)), Operand((), (*of, contracted, columns))], dtype)
        axes = (0,) if of else ()
        numbers = (((len(of) + 1,), (len(of),)), (axes, axes))
        multiply = partial(jax.lax.dot_general, dimension_numbers=numbers, preferred_element_type=_RESULT_OF.get(dtype))
        return partial(jax.jit(multiply), *arrays)

    def forward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of a kernel."""
        return partial(jax.jit(self.function(program)), *self.arrays(program.inputs, dtype))

    def backward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of the backward of a kernel."""
        arrays = self.arrays(program.inputs, dtype)
        real = [position for position, operand in enumerate(program.inputs) if not operand.below]
        function = self.function(program)

        def of_real(*numbers: Tensor) -> tuple[Tensor, ...]:
            filled = dict(enumerate(arrays)) | dict(zip(real, numbers, strict=True))
            return function(*filled.values())

        # Attention of JAX itself mixes types here.
        with jax.numpy_dtype_promotion("standard"):
            results, pullback = jax.vjp(jax.jit(of_real), *(arrays[position] for position in real))
        gradients = jax.tree.map(jnp.ones_like, results)
        # A pullback is a pytree of what it has kept.
        return partial(jax.jit(lambda kept, gradients: kept(gradients)), pullback, gradients)

    def einsum(self, letters: str, arrays: Sequence[Tensor]) -> Tensor:
        """Return the product of arrays that an einsum writes as "abc,cd->abd"."""
        return jnp.einsum(letters, *arrays)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        """Return attention of queries to keys and values."""
        implementation = "cudnn" if self._on.platform == "gpu" and "NVIDIA" in self.device else "xla"
        return jax.nn.dot_product_attention(queries, keys, values, is_causal=causal, implementation=implementation)


def _random(key: jax.Array, operand: Operand, dtype: str) -> jax.Array:
    if operand.below:
        return jax.random.randint(key, operand.shape, 0, operand.below)
    if dtype == "int8":
        return jax.random.randint(key, operand.shape, -127, 128, jnp.int8)
    return jax.random.normal(key, operand.shape).astype(_TYPES[dtype])


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
