"""Kernels in JAX, each compiled by itself.

An attention kernel is `jax.nn.dot_product_attention`: of cuDNN on an NVIDIA GPU, elsewhere as XLA compiles it. Norms,
softmax and the loss compute in float32, as frameworks do.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from dsx.measuring.array_library import JAX, Call, Library, host_device, host_memory_bytes
from dsx.measuring.program import SOFTMAX, KernelProgram, Operand, Tensor

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
