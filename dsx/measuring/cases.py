"""The kernels to time: those of a model's layers under some plans, each shape once.

They are the kernels and multiplies that can have a measured time (`dsx.cost.operator_times`), so what is written is
what is read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsx.cost.operator_times import Measurable, measurable
from dsx.cost.work import layer_values
from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import evaluate
from dsx.graph.match import local_size
from dsx.graph.model import Model
from dsx.graph.notation import Dim
from dsx.measuring.kernel_program import CAUSAL, SOFTMAX, Program, program_of
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.operator_times import DTYPES, Shape

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
    program: Program | None = None  # None: a multiply
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


def _fault(program: Program | None) -> str:
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
