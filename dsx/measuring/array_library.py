"""The array library that runs kernels, the choice of one, and the time of a call: warm-up, repetitions, median, spread.

A sample is the time of some calls one after the other, divided by their number: the device works on one while the host
issues the next, as in a training step. Not modelled: caches that a step would have filled with something else, and a
device that grows warm over minutes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from os import cpu_count, sysconf
from typing import ClassVar

import numpy as np

from dsx.errors import InputError, UnknownNameError
from dsx.measuring import program as programs
from dsx.measuring.program import CAUSAL, CONTRACT, SOFTMAX, VIEW, KernelProgram, Operand, Step, Tensor

JAX, TORCH = "jax", "torch"
LIBRARIES = (JAX, TORCH)


Call = Callable[[], Tensor]  # begins one run and returns its result, which may not be there yet
Wait = Callable[[Tensor], object]  # returns when a result is there

_SAMPLE_S = 1e-3  # of calls in one sample: far above the resolution of a clock and the wait for a device
_WARM_S, _SAMPLES_S = 0.05, 0.4  # of warming up, and of all samples
_FEWEST, _MOST = 3, 25  # samples
_MOST_CALLS, _MOST_WARM_UPS = 200, 1000  # calls in a sample, and before the samples


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call."""

    median_s: float
    spread: float  # distance between the quartiles of the samples, over the median
    samples: int


def timed(call: Call, wait: Wait, warm_ups: int, samples: int, calls: int = 1) -> Timing:
    """Return the time of a call: `samples` of `calls` calls, after `warm_ups` calls; `wait` returns with a result."""
    for _ in range(warm_ups):
        wait(call())
    seconds = np.array([_seconds(call, wait, calls) for _ in range(samples)]) / calls
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return Timing(float(median), float((high - low) / median) if median else 0.0, samples)


def timed_briefly(call: Call, wait: Wait) -> Timing:
    """Return the time of a call within half a second, or of four calls where these take longer.

    The first call, which may compile, does not count.
    """
    wait(call())
    once = max(_seconds(call, wait, 1), 1e-9)
    calls = min(ceil(_SAMPLE_S / once), _MOST_CALLS)
    samples = min(max(int(_SAMPLES_S / (once * calls)), _FEWEST), _MOST)
    return timed(call, wait, min(int(_WARM_S / once), _MOST_WARM_UPS), samples, calls)


def _seconds(call: Call, wait: Wait, calls: int) -> float:
    begin = time.perf_counter()
    result = None
    for _ in range(calls):
        result = call()
    wait(result)
    return time.perf_counter() - begin


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
        attention = programs.attention_of(program)
        if attention is None:
            return lambda *arrays: programs.run(program, arrays, self.apply)

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
            return self.einsum(programs.subscripts(operands, result), arrays)
        shapes = [programs.aligned_shape(operand, operands[0]) for operand in operands]
        aligned = [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
        return self.functions[step.kind](*aligned, *((step.modifier == CAUSAL,) if step.kind == SOFTMAX else ()))


def find_library(name: str | None) -> Library:
    """Return an array library, by default one with an accelerator, else JAX; InputError if it is not installed."""
    if name not in (None, *LIBRARIES):
        raise UnknownNameError("array library", str(name), LIBRARIES)
    has_torch = find_spec("torch") is not None
    if name != TORCH:
        from dsx.measuring.jax_library import JaxLibrary

        library = JaxLibrary()
        if name == JAX or library.accelerated or not has_torch:
            return library
        import torch  # pyright: ignore[reportMissingImports]

        if not torch.cuda.is_available():
            return library
    elif not has_torch:
        raise InputError("--with torch: torch is not installed here: install it, or give --with jax")
    from dsx.measuring.torch_library import TorchLibrary

    return TorchLibrary()


def host_device() -> str:
    """Return the name of the host as a device."""
    return f"a CPU of {cpu_count()} cores"


def host_memory_bytes() -> int:
    """Return the bytes of the host's memory."""
    return sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
