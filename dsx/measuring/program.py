"""A kernel of a layer as a program: its operators in order, on arrays of the sizes that one GPU has.

The layer definition says everything: which tensors come from outside, the letters and local sizes of each, what each
operator reads. `run` goes through the steps with the functions of an array library.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

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
