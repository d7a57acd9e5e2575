"""Kernels in JAX, each compiled by itself.

An attention kernel is `jax.nn.dot_product_attention`: of cuDNN on an NVIDIA GPU, elsewhere as XLA compiles it. Norms,
softmax and the loss compute in float32, as frameworks do.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dsx.measuring.program import (
    CAUSAL,
    CONTRACT,
    JAX,
    SOFTMAX,
    VIEW,
    Attention,
    Call,
    KernelProgram,
    Operand,
    Step,
    aligned_shape,
    attention_of,
    host_device,
    host_memory_bytes,
    run,
    subscripts,
)

_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn", "int8": "int8"}
_RESULT_OF = {"fp8": "bfloat16", "int8": "int32"}  # of multiplies whose result has another type
_EPSILON = 1e-5


class JaxLibrary:
    """JAX on its first local device."""

    name = JAX

    def __init__(self) -> None:
        self._on = jax.local_devices()[0]
        self.accelerated = self._on.platform != "cpu"
        self.device = str(self._on.device_kind) if self.accelerated else host_device()
        self.software = f"jax {jax.__version__}"
        stated = (self._on.memory_stats() or {}).get("bytes_limit") if self.accelerated else None
        self.memory_bytes = float(stated or host_memory_bytes())

    def wait(self, result: Any) -> object:
        """Return when a result is there."""
        return jax.block_until_ready(result)

    def runs(self, kind: str) -> bool:
        """Return whether there is a function for an operator."""
        return kind in _FUNCTIONS

    def multiply(self, rows: int, columns: int, contracted: int, batch: int, dtype: str) -> Call:
        """Return the call of `batch` multiplies of (rows x contracted) by (contracted x columns)."""
        of = (batch,) if batch > 1 else ()
        arrays = _arrays([Operand((), (*of, rows, contracted)), Operand((), (*of, contracted, columns))], dtype)
        axes = (0,) if of else ()
        numbers = (((len(of) + 1,), (len(of),)), (axes, axes))
        multiply = partial(jax.lax.dot_general, dimension_numbers=numbers, preferred_element_type=_RESULT_OF.get(dtype))
        return partial(jax.jit(multiply), *arrays)

    def forward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of a kernel."""
        return partial(jax.jit(self._function(program)), *_arrays(program.inputs, dtype))

    def backward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of the backward of a kernel: the gradients of its inputs, from what its forward has kept."""
        arrays = _arrays(program.inputs, dtype)
        real = [position for position, operand in enumerate(program.inputs) if not operand.below]
        function = self._function(program)

        def of_real(*given: Any) -> Any:
            filled = [*arrays]
            for position, array in zip(real, given, strict=True):
                filled[position] = array
            return function(*filled)

        # Attention of JAX itself mixes types here.
        with jax.numpy_dtype_promotion("standard"):
            results, pullback = jax.vjp(jax.jit(of_real), *(arrays[position] for position in real))
        gradients = jax.tree.map(jnp.ones_like, results)
        # A pullback is a pytree of what it has kept.
        return partial(jax.jit(lambda kept, given: kept(given)), pullback, gradients)

    def _function(self, program: KernelProgram) -> Callable[..., tuple[Any, ...]]:
        attention = attention_of(program)
        if attention is None:
            return lambda *arrays: run(program, arrays, _apply)
        implementation = "cudnn" if self._on.platform == "gpu" and "NVIDIA" in self.device else "xla"
        return lambda *arrays: (_attended(attention, arrays, implementation),)


def _arrays(operands: Sequence[Operand], dtype: str) -> list[Any]:
    """Return arrays of random numbers: a GPU draws less power, and is faster, on ones."""
    made: list[Any] = []
    for key, operand in zip(jax.random.split(jax.random.key(0), len(operands)), operands, strict=True):
        if operand.below:
            made.append(jax.random.randint(key, operand.shape, 0, operand.below))
        elif dtype == "int8":
            made.append(jax.random.randint(key, operand.shape, -127, 128, jnp.int8))
        else:
            made.append(jax.random.normal(key, operand.shape).astype(_TYPES[dtype]))
    return made


def _attended(attention: Attention, arrays: Sequence[Any], implementation: Any) -> Any:
    queries, keys, values = (arrays[position] for position in attention.inputs)
    b, s, g, j, k = attention.queries
    made = jax.nn.dot_product_attention(
        queries.reshape(b, s, g * j, k),
        keys.reshape(attention.keys),
        values.reshape(attention.values),
        is_causal=attention.causal,
        implementation=implementation,
    )
    return made.reshape(b, s, g, j, attention.values[-1])


def _apply(step: Step, taken: Sequence[Any], operands: Sequence[Operand], result: Operand) -> Any:
    if step.shape == VIEW:
        return taken[0].reshape(result.shape)
    if step.shape == CONTRACT:
        return jnp.einsum(subscripts(operands, result), *taken)
    first = operands[0]
    others = [array.reshape(aligned_shape(operand, first)) for array, operand in zip(taken, operands, strict=True)]
    return _FUNCTIONS[step.kind](*others, *((step.modifier == CAUSAL,) if step.kind == SOFTMAX else ()))


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in float32 and returns the type of its first argument."""
    return lambda x, *others: function(x.astype(jnp.float32), *others).astype(x.dtype)


def _norm(x: Any, gamma: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + _EPSILON) * gamma.astype(x.dtype)


def _layernorm(x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + _EPSILON)
    return scaled * gamma.astype(x.dtype) + beta.astype(x.dtype)


def _softmax(x: Any, causal: bool) -> Any:
    seen = jnp.tril(jnp.ones(x.shape[-2:], dtype=bool)) if causal else True
    return jax.nn.softmax(jnp.where(seen, x, -jnp.inf), axis=-1)


def _rotary(x: Any) -> Any:
    """Rotate halves of the last dimension by angles of the second, the positions."""
    half = x.shape[-1] // 2
    places = jnp.arange(x.shape[1], dtype=jnp.float32)
    angles = places[:, None] * jnp.power(1e4, -jnp.arange(half, dtype=jnp.float32) / half)[None]
    shape = (1, x.shape[1], *(1,) * (x.ndim - 3), half)
    cosines, sines = (function(angles).astype(x.dtype).reshape(shape) for function in (jnp.cos, jnp.sin))
    left, right = x[..., :half], x[..., half : 2 * half]
    return jnp.concatenate([left * cosines - right * sines, right * cosines + left * sines], axis=-1)


def _cross_entropy(logits: Any) -> Any:
    return jax.nn.logsumexp(logits, axis=-1) - logits[..., 0]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
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
