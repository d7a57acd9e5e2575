"""Kernels in PyTorch, operator by operator as eager mode runs them.

An attention kernel is `scaled_dot_product_attention`, which picks the fastest of its implementations. Norms, softmax
and the loss are those of torch.nn.functional, which compute in float32 inside.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as functional  # pyright: ignore[reportMissingImports]

from dsx.measuring.program import (
    CAUSAL,
    CONTRACT,
    SOFTMAX,
    TORCH,
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

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchLibrary:
    """PyTorch on its first CUDA or ROCm device, else on the CPU."""

    name = TORCH

    def __init__(self) -> None:
        self.accelerated = bool(torch.cuda.is_available())
        self._on = torch.device("cuda" if self.accelerated else "cpu")
        self.device = torch.cuda.get_device_name() if self.accelerated else host_device()
        self.software = f"torch {torch.__version__}"
        in_all = torch.cuda.get_device_properties(0).total_memory if self.accelerated else None
        self.memory_bytes = float(in_all or host_memory_bytes())

    def wait(self, result: Any) -> object:
        """Return when a result is there."""
        if self.accelerated:
            torch.cuda.synchronize()
        return result

    def runs(self, kind: str) -> bool:
        """Return whether there is a function for an operator."""
        return kind in _FUNCTIONS

    def multiply(self, rows: int, columns: int, contracted: int, batch: int, dtype: str) -> Call:
        """Return the call of `batch` multiplies of (rows x contracted) by (contracted x columns)."""
        of = (batch,) if batch > 1 else ()
        left, right = self._arrays(
            [Operand((), (*of, rows, contracted)), Operand((), (*of, contracted, columns))], dtype
        )
        return lambda: torch.matmul(left, right)

    def forward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of a kernel."""
        arrays, function = self._arrays(program.inputs, dtype), _function(program)

        def call() -> Any:
            with torch.no_grad():
                return function(*arrays)

        return call

    def backward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of the backward of a kernel: the gradients of its inputs, from what its forward has kept."""
        arrays = self._arrays(program.inputs, dtype)
        real = [array.requires_grad_() for array, one in zip(arrays, program.inputs, strict=True) if not one.below]
        results = _function(program)(*arrays)
        gradients = [torch.ones_like(result) for result in results]
        return lambda: torch.autograd.grad(results, real, gradients, retain_graph=True)

    def _arrays(self, operands: Sequence[Operand], dtype: str) -> list[Any]:
        """Return arrays of random numbers: a GPU draws less power, and is faster, on ones."""
        if dtype not in _TYPES:
            raise NotImplementedError(f"torch has no plain multiply of {dtype}")
        generator = torch.Generator(self._on).manual_seed(0)
        given = {"device": self._on, "generator": generator}
        return [
            torch.randint(operand.below, operand.shape, **given)
            if operand.below
            else torch.randn(operand.shape, **given).to(_TYPES[dtype])
            for operand in operands
        ]


def _function(program: KernelProgram) -> Callable[..., tuple[Any, ...]]:
    attention = attention_of(program)
    if attention is None:
        return lambda *arrays: run(program, arrays, _apply)
    return lambda *arrays: (_attended(attention, arrays),)


def _attended(attention: Attention, arrays: Sequence[Any]) -> Any:
    queries, keys, values = (arrays[position] for position in attention.inputs)
    b, s, g, j, k = attention.queries
    heads_first = (
        queries.reshape(b, s, g * j, k).transpose(1, 2),
        keys.reshape(attention.keys).transpose(1, 2),
        values.reshape(attention.values).transpose(1, 2),
    )
    made = functional.scaled_dot_product_attention(*heads_first, is_causal=attention.causal, enable_gqa=j > 1)
    return made.transpose(1, 2).reshape(b, s, g, j, attention.values[-1])


def _apply(step: Step, taken: Sequence[Any], operands: Sequence[Operand], result: Operand) -> Any:
    if step.shape == VIEW:
        return taken[0].reshape(result.shape)
    if step.shape == CONTRACT:
        return torch.einsum(subscripts(operands, result), *taken)
    first = operands[0]
    others = [array.reshape(aligned_shape(operand, first)) for array, operand in zip(taken, operands, strict=True)]
    return _FUNCTIONS[step.kind](*others, *((step.modifier == CAUSAL,) if step.kind == SOFTMAX else ()))


def _softmax(x: Any, causal: bool) -> Any:
    if causal:
        hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        x = x.masked_fill(hidden, float("-inf"))
    return functional.softmax(x, dim=-1)


def _rotary(x: Any) -> Any:
    """Rotate halves of the last dimension by angles of the second, the positions."""
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[1], device=x.device)[:, None]
    angles = places * 1e4 ** (-torch.arange(half, device=x.device) / half)
    shape = (x.shape[1], *(1,) * (x.ndim - 3), half)
    cosines, sines = (function(angles).to(x.dtype).reshape(shape) for function in (torch.cos, torch.sin))
    left, right = x[..., :half], x[..., half : 2 * half]
    return torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)


def _cross_entropy(logits: Any) -> Any:
    flat = logits.reshape(-1, logits.shape[-1])
    classes = torch.zeros(len(flat), dtype=torch.long, device=logits.device)
    return functional.cross_entropy(flat, classes, reduction="none").reshape(logits.shape[:-1])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "norm": lambda x, gamma: functional.rms_norm(x, x.shape[-1:], gamma.reshape(-1)),
    "layernorm": lambda x, gamma, beta: functional.layer_norm(x, x.shape[-1:], gamma.reshape(-1), beta.reshape(-1)),
    SOFTMAX: _softmax,
    "cross_entropy": _cross_entropy,
    "rotary": _rotary,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "swiglu": lambda x, z: functional.silu(x) * z,
    "squared_relu": lambda x: functional.relu(x).square(),
    "mul": torch.mul,
    "add": torch.add,
    "bias": torch.add,
    "lookup": lambda ids, table: functional.embedding(ids, table),
}
