"""The array library that runs kernels: a kernel as a program on its arrays, and the time of a call.

A kernel of a layer is a program of operators in order, on arrays of the sizes that one GPU has. The layer definition
says everything: which tensors come from outside, the letters and local sizes of each, what each operator reads. `run`
goes through the steps with the functions of an array library.

The time of a call has a warm-up, repetitions, a median and a spread. A sample is the time of some calls one after the
other, divided by their number: the device works on one while the host issues the next, as in a training step. Not
modelled: caches that a step would have filled with something else, and a device that grows warm over minutes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil, prod
from os import cpu_count, sysconf
from typing import Any, ClassVar

import numpy as np

from dsx.errors import InputError, UnknownNameError
from dsx.notation.kernels import crossing
from dsx.notation.sharded_layer import Argument, Layer
from dsx.notation.syntax import Dim

VIEW, CONTRACT = "view", "contract"  # what operators of the table are, whatever their names
SOFTMAX = "softmax"
CAUSAL = "causal"  # the modifier of a mask that lets a position see itself and those before it


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of a program."""

    letters: tuple[str, ...]
    shape: tuple[int, ...]
    below: int = 0  # its elements are whole numbers from 0 to below this; 0: real numbers

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Step:
    """One operator, on values by their position: the inputs of the program, then the results of its steps."""

    kind: str
    shape: str  # as in the operator table: contract, view, lookup, ...
    modifier: str
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """The steps of a kernel; each has one result."""

    inputs: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[Operand, ...]  # of the steps
    outputs: tuple[int, ...]  # positions of the values that are used outside of the kernel

    @property
    def values(self) -> tuple[Operand, ...]:
        """The inputs and the results of all steps."""
        return self.inputs + self.results


@dataclass(frozen=True, slots=True)
class Attention:
    """A program that is one attention kernel: its inputs by position, with the shapes that it has them in."""

    inputs: tuple[int, int, int]
    queries: tuple[int, ...]  # b, s, g, j, k
    keys: tuple[int, ...]  # b, t, g, k
    values: tuple[int, ...]  # b, t, g, k
    causal: bool


Tensor = Any  # an array of the library that runs a program
# The result of a step from the arrays that it reads, their operands and the operand of the result.
Apply = Callable[[Step, Sequence[Tensor], Sequence[Operand], Operand], Tensor]


def program_of(layer: Layer, names: Sequence[str], size: Callable[[Dim], int]) -> KernelProgram | None:
    """Return the kernel of the operators `names` in local sizes; None where an operator has several results."""
    operators = [op for op in layer.operators if op.name in names]
    if any(len(op.outputs) > 1 for op in operators):
        return None
    position = {op.name: number for number, op in enumerate(operators)}
    entering: dict[tuple[str, str], Operand] = {}
    for op in operators:
        for index, argument in enumerate(op.arguments):
            if argument.tensor not in position:
                rows = op.arguments[1].distribution.dims[0] if op.kind.shape == "lookup" and index == 0 else None
                operand = _operand(argument.distribution.dims, size, size(rows) if rows else 0)
                entering.setdefault(_key(argument), operand)
    inputs = {key: number for number, key in enumerate(entering)}

    def read(argument: Argument) -> int:
        step = position.get(argument.tensor)
        return inputs[_key(argument)] if step is None else len(inputs) + step

    return KernelProgram(
        tuple(entering.values()),
        tuple(Step(op.kind.name, op.kind.shape, op.modifier, tuple(map(read, op.arguments))) for op in operators),
        tuple(_operand(layer.tensors[op.name].distribution.dims, size) for op in operators),
        tuple(len(inputs) + position[name] for name in crossing(layer, operators)),
    )


def _key(argument: Argument) -> tuple[str, str]:
    return argument.tensor, str(argument.distribution)


def _operand(dims: Sequence[Dim], size: Callable[[Dim], int], below: int = 0) -> Operand:
    return Operand(tuple(dim.letter for dim in dims), tuple(map(size, dims)), below)


def run(program: KernelProgram, arrays: Sequence[Tensor], apply: Apply) -> tuple[Tensor, ...]:
    """Return the outputs of a program for the arrays of its inputs."""
    values = list(arrays)
    for step, result in zip(program.steps, program.results, strict=True):
        taken = [values[position] for position in step.reads]
        values.append(apply(step, taken, [program.values[position] for position in step.reads], result))
    return tuple(values[position] for position in program.outputs)


def subscripts(operands: Sequence[Operand], result: Operand) -> str:
    """Return the letters of an einsum as array libraries write them: "abc,cd->abd"."""
    letters = dict.fromkeys(letter for operand in (*operands, result) for letter in operand.letters)
    signs = {letter: chr(ord("a") + number) for number, letter in enumerate(letters)}
    *read, written = ("".join(signs[letter] for letter in operand.letters) for operand in (*operands, result))
    return f"{','.join(read)}->{written}"


def aligned_shape(operand: Operand, to: Operand) -> tuple[int, ...]:
    """Return the shape with which an operand broadcasts against another that has all of its letters."""
    if not set(operand.letters) <= set(to.letters):
        return operand.shape
    sizes: Mapping[str, int] = dict(zip(operand.letters, operand.shape, strict=True))
    return tuple(sizes.get(letter, 1) for letter in to.letters)


def attention_of(program: KernelProgram) -> Attention | None:
    """Return how a program is one attention: scores, softmax and a weighted sum, with nothing else; None if it is not.

    Keys and values have one head for each group of j heads of the queries.
    """
    sources = [*range(len(program.inputs))]  # of each value: itself, or what it is a view of
    kernels: list[tuple[Step, int]] = []
    for position, step in enumerate(program.steps, len(program.inputs)):
        sources.append(sources[step.reads[0]] if step.shape == VIEW else position)
        if step.shape != VIEW:
            kernels.append((step, position))
    if [step.kind if step.shape == "same" else step.shape for step, _ in kernels] != [CONTRACT, SOFTMAX, CONTRACT]:
        return None
    (scores, contracted), (softmax, weights), (summed, _) = kernels
    chained = sources[softmax.reads[0]] == contracted and sources[summed.reads[0]] == weights
    taken = (*scores.reads, summed.reads[1])
    q, k, v = (program.values[position] for position in taken)
    if not chained or (len(q.shape), len(k.shape), len(v.shape)) != (5, 4, 4):
        return None
    if (q.letters[0], q.letters[2], q.letters[4]) != (k.letters[0], *k.letters[2:]):
        return None
    first, second, third = (sources[position] for position in taken)
    return Attention((first, second, third), q.shape, k.shape, v.shape, softmax.modifier == CAUSAL)


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
        shapes = [aligned_shape(operand, operands[0]) for operand in operands]
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
