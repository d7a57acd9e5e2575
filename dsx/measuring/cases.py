"""The kernels of a model's layers under some plans, each shape once, and the run that times them.

They are the kernels and multiplies that can have a measured time (`dsx.cost.measured_kernels`), so what is written is
what is read. They are timed one after the other, within a limit of time and of memory. A multiply of moderate size is
timed first. From its rate follows about how long a kernel will take, so that one that would take longer than the time
that remains is not begun.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.operator_files import DTYPES, Shape
from dsx.cost.layer_work import layer_values
from dsx.cost.measured_kernels import Measurable, measurable
from dsx.measuring.array_library import (
    CAUSAL,
    CONTRACT,
    SOFTMAX,
    VIEW,
    KernelProgram,
    Library,
    Timing,
    attention_of,
    program_of,
    timed_briefly,
)
from dsx.notation.expressions import Expression, evaluate
from dsx.notation.model import Model
from dsx.notation.sharded_layer import local_size
from dsx.notation.syntax import Dim
from dsx.notation.work import FORWARD, DerivedLayer

_PLAIN = ("fp32", "bf16")  # the type that a number of bytes alone means is one of these


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel in one direction, or one multiply in either, at one shape."""

    operator: str
    direction: int | None  # None: a multiply, which takes as long in either
    shape: Shape
    dtype: str
    flops: float  # on matrix units
    num_bytes: float  # of memory traffic
    program: KernelProgram | None = None  # None: a multiply
    fault: str = ""  # why it cannot be timed; empty if it can

    @property
    def key(self) -> tuple[str, int | None, Shape, int]:
        """What identifies it in a file of operator times."""
        return self.operator, self.direction, self.shape, DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class _MeasuredLayer:
    """A layer with the values of its names for V plans, and the type of its multiplies with weights."""

    layer: DerivedLayer
    values: Mapping[str, Any]
    num_plans: int
    linear_dtype: str

    def number(self, expression: Expression, plan: int) -> float:
        """Return the value of an expression under one of the plans."""
        values = np.asarray(evaluate(expression, self.values), dtype=float)
        return float(np.broadcast_to(values, (self.num_plans,))[plan])

    def case(self, kernel: Measurable, sizes: Sequence[int], plan: int) -> Case:
        """Return the case of a kernel in one shape, which it has under a plan."""
        m, n, k, batch = sizes
        dtype = next((name for name in _PLAIN if DTYPES[name] == kernel.element_bytes), self.linear_dtype)
        if kernel.multiply is not None:
            num_bytes = float(batch * (m * k + k * n + m * n) * kernel.element_bytes)
            return Case(kernel.name, None, (m, n, k, batch), dtype, 2.0 * batch * m * n * k, num_bytes)
        priced = self.layer.priced_kernels[kernel.kernel]
        work = priced.work[kernel.direction]

        def size(dim: Dim) -> int:
            return int(self.number(local_size(dim), plan))

        program = program_of(self.layer, priced.operators, size)
        matrix, traffic = self.number(work.matrix, plan), self.number(work.bytes, plan)
        shape = (m, n, k, batch)
        return Case(kernel.name, kernel.direction, shape, dtype, matrix, traffic, program, _fault(program))


def cases_of(
    model: Model, assumptions: AssumptionsSpec, sequence_length: int, keys: Mapping[str, np.ndarray]
) -> list[Case]:
    """Return the distinct kernels of a model's layers under the plans of a [V] key table."""
    cases: dict[object, Case] = {}
    for layer in model.kinds:
        inputs = layer, model.dimensions, assumptions, sequence_length, keys
        values = _MeasuredLayer(layer, layer_values(*inputs), len(keys["microbatch_size"]), assumptions.linear_dtype)
        for kernel in measurable(*inputs):
            shapes, first = np.unique(kernel.shapes, axis=1, return_index=True)
            for sizes, plan in zip(shapes.T, first.tolist(), strict=True):
                case = values.case(kernel, [int(size) for size in sizes], plan)
                cases.setdefault(case.key, case)
    return [*cases.values()]


def in_turn(cases: Iterable[Case]) -> list[Case]:
    """Return cases in an order that may be cut short: the heavier ones first, of all operators about as many."""
    queues: dict[tuple[str, int | None], list[Case]] = {}
    for case in sorted(cases, key=lambda case: (-case.flops, -case.num_bytes)):
        queues.setdefault((case.operator, case.direction), []).append(case)
    placed = [(rank / len(queue), case) for queue in queues.values() for rank, case in enumerate(queue)]
    return [case for _, case in sorted(placed, key=lambda entry: entry[0])]


def _fault(program: KernelProgram | None) -> str:
    """Return why a program cannot be timed; empty if it can."""
    if program is None:
        return "an operator with several results"
    for step in (step for step in program.steps if step.kind == SOFTMAX):
        if step.modifier not in ("", CAUSAL):
            return f"a mask of the kind {step.modifier!r}"
        *_, queries, keys = program.values[step.reads[0]].shape
        if step.modifier == CAUSAL and queries != keys:
            return "a causal mask of a part of the positions"
    return ""


OUT_OF_TIME = "the time limit; the same command goes on"
_PROBE = 1024  # rows, columns and contracted size of the first multiply
_FEWEST_CALLS = 5  # of a kernel that is timed
_USABLE = 0.5  # share of the memory that a kernel may take
_SCORE_BYTES = 4  # of an element inside a kernel
_FAULTS = (RuntimeError, NotImplementedError, ValueError, TypeError)  # of what a library cannot run


@dataclass(frozen=True, slots=True)
class Outcome:
    """A kernel with its time, or why it has none."""

    case: Case
    timing: Timing | None
    why_not: str = ""


def outcomes(cases: Sequence[Case], library: Library, time_limit_s: float) -> Iterator[Outcome]:
    """Yield each kernel as soon as it is timed, or as it is clear that it will not be."""
    end = monotonic() + time_limit_s
    rate: float | None = None  # FLOP/s
    for case in cases:
        why_not = _why_not(case, library)
        if not why_not and rate is None:
            rate = _rate(library, case.dtype)
        remaining = end - monotonic()
        if not why_not and (remaining <= 0 or case.flops * _FEWEST_CALLS > remaining * (rate or float("inf"))):
            why_not = OUT_OF_TIME
        yield Outcome(case, None, why_not) if why_not else _timed(case, library)


def _timed(case: Case, library: Library) -> Outcome:
    try:
        if case.program is None:
            call = library.multiply(*case.shape, case.dtype)
        else:
            call = (library.forward if case.direction == FORWARD else library.backward)(case.program, case.dtype)
        return Outcome(case, timed_briefly(call, library.wait))
    except (*_FAULTS, MemoryError) as error:
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        return Outcome(case, None, f"{library.device} cannot run it: {cause}")


def _rate(library: Library, dtype: str) -> float | None:
    """Return the FLOP/s of a multiply of moderate size; None if the library cannot run it."""
    with suppress(*_FAULTS):
        probe = library.multiply(_PROBE, _PROBE, _PROBE, 1, dtype)
        return 2.0 * _PROBE**3 / timed_briefly(probe, library.wait).median_s


def _why_not(case: Case, library: Library) -> str:
    """Return why a library cannot time a kernel; empty if it may."""
    if case.fault:
        return case.fault
    program, num_bytes = case.program, case.num_bytes
    if program is not None:
        attention = attention_of(program) is not None
        kinds = dict.fromkeys(step.kind for step in program.steps if step.shape not in (VIEW, CONTRACT))
        if unknown := [kind for kind in kinds if not attention and not library.runs(kind)]:
            return f"no function for {', '.join(unknown)}"
        # About the bytes of its arrays; in the backward, each has a gradient too.
        crossing = [*program.inputs, *(program.values[position] for position in program.outputs)]
        inside = 0 if attention and library.accelerated else sum(operand.elements for operand in program.results)
        num_bytes = DTYPES[case.dtype] * sum(operand.elements for operand in crossing) + _SCORE_BYTES * inside
        num_bytes *= 1 if case.direction == FORWARD else 2
    return f"needs {num_bytes / 1e9:.3g} GB of memory" if num_bytes > _USABLE * library.memory_bytes else ""
