"""Kernels in PyTorch, operator by operator as eager mode runs them.

An attention kernel is `scaled_dot_product_attention`, which picks the fastest of its implementations. Norms, softmax
and the loss come from torch.nn.functional, which computes in float32 inside.
"""

from collections.abc import Callable, Sequence

import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as functional  # pyright: ignore[reportMissingImports]

from dsx.measuring.array_library import (
    SOFTMAX,
    TORCH,
    Call,
    KernelProgram,
    Library,
    Operand,
    Tensor,
    host_device,
    host_memory_bytes,
)

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _softmax(x: Tensor, causal: bool) -> Tensor:
    if causal:
        hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        x = x.masked_fill(hidden, float("-inf"))
    return functional.softmax(x, dim=-1)


def _rotary(x: Tensor) -> Tensor:
    """Rotate halves of the last dimension by angles of the second, the positions."""
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[1], device=x.device)[:, None]
    angles = places * 1e4 ** (-torch.arange(half, device=x.device) / half)
    shape = (x.shape[1], *(1,) * (x.ndim - 3), half)
    cosines, sines = (function(angles).to(x.dtype).reshape(shape) for function in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1)


def _cross_entropy(logits: Tensor) -> Tensor:
    flat = logits.reshape(-1, logits.shape[-1])
    classes = torch.zeros(len(flat), dtype=torch.long, device=logits.device)
    return functional.cross_entropy(flat, classes, reduction="none").reshape(logits.shape[:-1])


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
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


class TorchLibrary(Library):
    """PyTorch on its first CUDA or ROCm device, else on the CPU."""

    name = TORCH
    functions = _FUNCTIONS

    def __init__(self) -> None:
        self.accelerated = bool(torch.cuda.is_available())
        self._on = torch.device("cuda" if self.accelerated else "cpu")
        self.device = torch.cuda.get_device_name() if self.accelerated else host_device()
        self.software = f"torch {torch.__version__}"
        total = torch.cuda.get_device_properties(0).total_memory if self.accelerated else None
        self.memory_bytes = float(total or host_memory_bytes())

    def wait(self, result: Tensor) -> object:
        """Return when a result is there."""
        if self.accelerated:
            torch.cuda.synchronize()
        return result

    def arrays(self, operands: Sequence[Operand], dtype: str) -> list[Tensor]:
        """Return arrays of random numbers."""
        if dtype not in _TYPES:
            raise NotImplementedError(f"torch has no plain multiply of {dtype}")
        options = {"device": self._on, "generator": torch.Generator(self._on).manual_seed(0)}
        return [
            torch.randint(operand.below, operand.shape, **options)
            if operand.below
            else torch.randn(operand.shape, **options).to(_TYPES[dtype])
            for operand in operands
        ]

    def multiply(self, rows: int, columns: int, contracted: int, batch: int, dtype: str) -> Call:
        """Return the call of `batch` multiplies of (rows x contracted) by (contracted x columns)."""
        of = (batch,) if batch > 1 else ()
        factors = self.arrays([Operand((), (*of, rows, contracted)), Operand((), (*of, contracted, columns))], dtype)
        return lambda: torch.matmul(*factors)

    def forward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of a kernel."""
        arrays, function = self.arrays(program.inputs, dtype), self.function(program)

        def call() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return function(*arrays)

        return call

    def backward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of the backward of a kernel."""
        arrays = self.arrays(program.inputs, dtype)
        inputs = zip(arrays, program.inputs, strict=True)
        real = [array.requires_grad_() for array, operand in inputs if not operand.below]
        results = self.function(program)(*arrays)
        gradients = [torch.ones_like(result) for result in results]
        return lambda: torch.autograd.grad(results, real, gradients, retain_graph=True)

    def einsum(self, letters: str, arrays: Sequence[Tensor]) -> Tensor:
        """Return the product of arrays that an einsum writes as "abc,cd->abd"."""
        return torch.einsum(letters, *arrays)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        """Return attention of queries to keys and values."""
        heads_first = (array.transpose(1, 2) for array in (queries, keys, values))
        grouped = queries.shape[2] > keys.shape[2]
        attended = functional.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=grouped)
        return attended.transpose(1, 2)
