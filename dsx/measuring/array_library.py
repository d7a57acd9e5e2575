"""The array library that runs kernels, and the choice of one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from os import cpu_count, sysconf
from typing import ClassVar

from dsx.errors import InputError, UnknownNameError
from dsx.measuring.program import (
    CAUSAL,
    CONTRACT,
    SOFTMAX,
    VIEW,
    KernelProgram,
    Operand,
    Step,
    Tensor,
    aligned_shape,
    attention_of,
    run,
    subscripts,
)
from dsx.measuring.timing import Call

JAX, TORCH = "jax", "torch"
LIBRARIES = (JAX, TORCH)


class Library(ABC):
    """What runs kernels on the first device."""

    name: ClassVar[str]
    functions: ClassVar[Mapping[str, Callable[..., Tensor]]]  # by operator
    device: str  # its name for people
    software: str  # the library and its release
    accelerated: bool  # whether the device is an accelerator
    memory_bytes: float  # of the device

    @abstractmethod
    def wait(self, result: Tensor) -> object:
        """Return when a result is there."""

    @abstractmethod
    def arrays(self, operands: Sequence[Operand], dtype: str) -> list[Tensor]:
        """Return arrays of random numbers: a GPU draws less power, and is faster, on ones."""

    @abstractmethod
    def multiply(self, rows: int, columns: int, contracted: int, batch: int, dtype: str) -> Call:
        """Return the call of `batch` multiplies of (rows x contracted) by (contracted x columns)."""

    @abstractmethod
    def forward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of a kernel."""

    @abstractmethod
    def backward(self, program: KernelProgram, dtype: str) -> Call:
        """Return the call of the backward of a kernel: the gradients of its inputs, from what its forward has kept."""

    @abstractmethod
    def einsum(self, letters: str, arrays: Sequence[Tensor]) -> Tensor:
        """Return the product of arrays that an einsum writes as "abc,cd->abd"."""

    @abstractmethod
    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        """Return attention of [b, s, heads, k] queries to [b, t, groups, k] keys and values, [b, s, heads, k]."""

    def runs(self, kind: str) -> bool:
        """Return whether there is a function for an operator."""
        return kind in self.functions

    def function(self, program: KernelProgram) -> Callable[..., tuple[Tensor, ...]]:
        """Return the function of a kernel; attention is one call of the library."""
        attention = attention_of(program)
        if attention is None:
            return lambda *arrays: run(program, arrays, self.apply)

        def attended(*arrays: Tensor) -> tuple[Tensor, ...]:
            queries, keys, values = (arrays[position] for position in attention.inputs)
            b, s, g, j, k = attention.queries
            queries = queries.reshape(b, s, g * j, k)
            keys, values = keys.reshape(attention.keys), values.reshape(attention.values)
            result = self.attend(queries, keys, values, attention.causal)
            return (result.reshape(b, s, g, j, attention.values[-1]),)

        return attended

    def apply(self, step: Step, arrays: Sequence[Tensor], operands: Sequence[Operand], result: Operand) -> Tensor:
        """Return the result of a step."""
        if step.shape == VIEW:
            return arrays[0].reshape(result.shape)
        if step.shape == CONTRACT:
            return self.einsum(subscripts(operands, result), arrays)
        first = operands[0]
        aligned = [
            array.reshape(aligned_shape(operand, first)) for array, operand in zip(arrays, operands, strict=True)
        ]
        return self.functions[step.kind](*aligned, *((step.modifier == CAUSAL,) if step.kind == SOFTMAX else ()))


def find_library(name: str | None) -> Library:
    """Return an array library; by default the one that has an accelerator, else JAX.

    Raises UnknownNameError for another name, InputError if it is not installed.
    """
    if name not in (None, *LIBRARIES):
        raise UnknownNameError("array library", str(name), LIBRARIES)
    if name == TORCH:
        return _torch()
    from dsx.measuring.jax_library import JaxLibrary

    jax = JaxLibrary()
    return _torch() if name is None and not jax.accelerated and _torch_has_accelerator() else jax


def _torch() -> Library:
    if find_spec("torch") is None:
        raise InputError("--with torch: torch is not installed here: install it, or give --with jax")
    from dsx.measuring.torch_library import TorchLibrary

    return TorchLibrary()


def _torch_has_accelerator() -> bool:
    if find_spec("torch") is None:
        return False
    import torch  # pyright: ignore[reportMissingImports]

    return bool(torch.cuda.is_available())


def host_device() -> str:
    """Return the name of the host as a device."""
    return f"a CPU of {cpu_count()} cores"


def host_memory_bytes() -> int:
    """Return the bytes of the host's memory."""
    return sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
