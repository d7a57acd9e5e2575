"""The kernels to time, each shape of a model's layers once, and the run that times them.

The kernels to time: those of a model's layers under some plans, each shape once.

They are the kernels and multiplies that can have a measured time (`dsx.cost.measured_kernels`), so what is written is
what is read.

Time kernels one after the other, within a limit of time and of memory.

A multiply of moderate size is timed first. From its rate follows about how long a kernel will take, so that one that
would take longer than the time that is left is not begun.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.operator_files import DTYPES, Shape
from dsx.cost.layer_work import layer_values
from dsx.cost.measured_kernels import Measurable, measurable
from dsx.measuring.program import (
    CAUSAL,
    CONTRACT,
    SOFTMAX,
    VIEW,
    Call,
    KernelProgram,
    Library,
    Timing,
    attention_of,
    program_of,
    timed_briefly,
)
from dsx.notation.expressions import evaluate
from dsx.notation.model import Model
from dsx.notation.sharded_layer import local_size
from dsx.notation.syntax import Dim
from dsx.notation.work import FORWARD, DerivedLayer

_PLAIN = ("fp32", "bf16")  # types of which one is meant by a number of bytes alone


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
        """What tells it from others in a file of operator times."""
        return self.operator, self.direction, self.shape, DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class _Keys:
    """A layer with the values of its names for V plans."""

    layer: DerivedLayer
    values: Mapping[str, Any]
    count: int  # plans

    def number(self, expression: Any, at: int) -> float:
        """Return the value of an expression under one of the plans."""
        found = np.broadcast_to(np.asarray(evaluate(expression, self.values), dtype=float), (self.count,))
        return float(found[at])


def cases_of(
    model: Model, assumptions: AssumptionsSpec, sequence_length: int, keys: Mapping[str, np.ndarray]
) -> list[Case]:
    """Return the distinct kernels of a model's layers under the plans of a [V] key table."""
    found: dict[Any, Case] = {}
    for layer in model.kinds:
        given = layer, model.dimensions, assumptions, sequence_length, keys
        of = _Keys(layer, layer_values(*given), len(keys["microbatch_size"]))
        for one in measurable(*given):
            shapes, first = np.unique(one.shapes, axis=1, return_index=True)
            for sizes, at in zip(shapes.T, first.tolist(), strict=True):
                case = _case(of, one, sizes, at, assumptions)
                found.setdefault(case.key, case)
    return [*found.values()]


def in_turn(cases: Iterable[Case]) -> list[Case]:
    """Return cases in an order that may be cut short: the heavier ones first, of all operators about as many."""
    queues: dict[tuple[str, int | None], list[Case]] = {}
    for case in sorted(cases, key=lambda case: (-case.flops, -case.num_bytes)):
        queues.setdefault((case.operator, case.direction), []).append(case)
    placed = [(rank / len(queue), case) for queue in queues.values() for rank, case in enumerate(queue)]
    return [case for _, case in sorted(placed, key=lambda one: one[0])]


def _case(of: _Keys, one: Measurable, sizes: np.ndarray, at: int, assumptions: AssumptionsSpec) -> Case:
    m, n, k, batch = (int(size) for size in sizes)
    dtype = next((name for name in _PLAIN if DTYPES[name] == one.element_bytes), assumptions.linear_dtype)
    kernel = of.layer.priced_kernels[one.kernel]
    if one.multiply is not None:
        elements = batch * (m * k + k * n + m * n)
        flops = 2.0 * batch * m * n * k
        return Case(one.name, None, (m, n, k, batch), dtype, flops, float(elements * one.element_bytes))
    work = kernel.work[one.direction]
    case = Case(
        one.name,
        one.direction,
        (m, n, k, batch),
        dtype,
        of.number(work.matrix, at),
        of.number(work.bytes, at),
    )

    def size(dim: Dim) -> int:
        return int(of.number(local_size(dim), at))

    program = program_of(of.layer.layer, kernel.operators, size)
    return replace(case, program=program, fault=_fault(program))


def _fault(program: KernelProgram | None) -> str:
    """Return why a program cannot be timed; empty if it can."""
    if program is None:
        return "an operator with several results"
    for step in program.steps:
        if step.kind != SOFTMAX:
            continue
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
        left = end - monotonic()
        if not why_not and (left <= 0 or case.flops * _FEWEST_CALLS > left * (rate or float("inf"))):
            why_not = OUT_OF_TIME
        yield Outcome(case, None, why_not) if why_not else _timed(case, library)


def _timed(case: Case, library: Library) -> Outcome:
    try:
        return Outcome(case, timed_briefly(_call(case, library), library.wait))
    except (RuntimeError, NotImplementedError, ValueError, TypeError, MemoryError) as error:
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        return Outcome(case, None, f"{library.device} cannot run it: {cause}")


def _call(case: Case, library: Library) -> Call:
    if case.program is None:
        return library.multiply(*case.shape, case.dtype)
    make: Callable[..., Call] = library.forward if case.direction == FORWARD else library.backward
    return make(case.program, case.dtype)


def _rate(library: Library, dtype: str) -> float | None:
    """Return the FLOP/s of a multiply of moderate size; None if the library cannot run it."""
    try:
        taken = timed_briefly(library.multiply(_PROBE, _PROBE, _PROBE, 1, dtype), library.wait).median_s
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None
    return 2.0 * _PROBE**3 / taken


def _why_not(case: Case, library: Library) -> str:
    """Return why a library cannot time a kernel; empty if it may."""
    if case.fault:
        return case.fault
    program = case.program
    attention = program is not None and attention_of(program) is not None
    if program is not None and not attention:
        kinds = dict.fromkeys(step.kind for step in program.steps if step.shape not in (VIEW, CONTRACT))
        if unknown := [kind for kind in kinds if not library.runs(kind)]:
            return f"no function for {', '.join(unknown)}"
    needed = _bytes(case, attention and library.accelerated)
    if needed > _USABLE * library.memory_bytes:
        return f"needs {needed / 1e9:.3g} GB of memory"
    return ""


def _bytes(case: Case, keeps_nothing_inside: bool) -> float:
    """Return about the bytes of arrays of a kernel; in the backward, each has a gradient too."""
    if case.program is None:
        return case.num_bytes
    program, width = case.program, DTYPES[case.dtype]
    crossing = [*program.inputs, *(program.values[position] for position in program.outputs)]
    inside = 0 if keeps_nothing_inside else sum(one.elements for one in program.results)
    return (width * sum(one.elements for one in crossing) + _SCORE_BYTES * inside) * (
        1 if case.direction == FORWARD else 2
    )
