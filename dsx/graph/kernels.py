"""Kernels: groups of operators that run as one, and what each keeps for its backward.

A fused kernel keeps the tensors that cross its border and that its backward reads, and what it keeps besides them
(softmax statistics, random state). Its backward recomputes the inner values that it reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.operator_work import functions
from dsx.graph.operators import Formula
from dsx.graph.regions import RegionPath
from dsx.graph.saved import Regather, Saved, as_produced, stored


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operators that run as one kernel, and what they keep for the backward."""

    name: str
    fused: bool
    operators: tuple[Operator, ...]
    recomputed: tuple[Operator, ...]  # inner operators whose forward the backward repeats
    saved: tuple[Saved, ...]
    border: tuple[Argument, ...]  # tensors from outside a fused kernel that its backward reads
    regathers: tuple[tuple[Operator, Regather], ...]

    @property
    def regions(self) -> RegionPath:
        """The ``recompute`` regions that it is in, outermost first."""
        return self.operators[0].regions


def split_into_kernels(layer: Layer) -> list[Kernel]:
    """Group the layer's operators into kernels, in order."""
    groups: dict[Any, list[Operator]] = {}
    for op in layer.operators:
        groups.setdefault(op.fuse or op.name, []).append(op)
    return _with_operands([_kernel(layer, key, operators) for key, operators in groups.items()])


def _with_operands(kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with the tensors marked as operands that only multiplies with a weight keep."""
    others = {saved.key for kernel in kernels for saved in kernel.saved if not saved.operand}

    def marked(kernel: Kernel) -> Kernel:
        return replace(kernel, saved=tuple(replace(one, operand=one.key not in others) for one in kernel.saved))

    return [marked(kernel) for kernel in kernels]


def _kernel(layer: Layer, key: Any, operators: list[Operator]) -> Kernel:
    fused = isinstance(key, tuple)
    collector = _Collector(layer, operators, fused)
    for op in operators:
        collector.visit(op)
    return Kernel(
        key[0] if fused else key,
        fused,
        tuple(operators),
        tuple(op for op in operators if op.name in collector.recomputed),
        tuple(collector.saved.values()),
        tuple(collector.border.values()),
        tuple(collector.regathers),
    )


class _Collector:
    """Collects what the backward of one kernel reads."""

    def __init__(self, layer: Layer, operators: list[Operator], fused: bool) -> None:
        self.layer, self.fused = layer, fused
        self.inner = {name: op for op in operators for name in op.outputs} if fused else {}
        self.crossing = crossing(layer, operators)
        self.saved: dict[tuple[str, str], Saved] = {}
        self.border: dict[tuple[str, str], Argument] = {}
        self.regathers: list[tuple[Operator, Regather]] = []
        self.recomputed: set[str] = set()

    def visit(self, op: Operator) -> None:
        """Collect what the backward of `op` reads."""
        inner = op.kind.in_kernel if self.fused else None
        for index, entry in enumerate(inner.saved if inner else op.kind.saved):
            if isinstance(entry, Formula):
                size = entry.resolve(functions(self.layer, op))
                self.saved[(op.name, f"state {index}")] = Saved((op.name, f"state {index}"), size)
            elif entry == "y":
                self.read(op, as_produced(self.layer, op, op.name), op.panelled)
            else:
                self.read(op, op.arguments[op.kind.arguments.index(entry)], op.panelled)
        if inner and inner.keeps_output:
            for name in self.crossing:
                self.keep(op, as_produced(self.layer, op, name), False)

    def read(self, op: Operator, argument: Argument, panelled: bool) -> None:
        """Note that the backward reads `argument`: keep it, or recompute it inside the kernel."""
        producer = self.inner.get(argument.tensor)
        if producer is None or (argument.tensor in self.crossing and not producer.costs_nothing):
            self.keep(op, argument, panelled)
        elif producer.name not in self.recomputed:
            self.recomputed.add(producer.name)
            for inner in producer.arguments:
                self.read(producer, inner, producer.panelled)

    def keep(self, op: Operator, argument: Argument, panelled: bool) -> None:
        saved, regathers = stored(self.layer, argument, panelled)
        if saved:
            taken = [self.layer.tensors[argument.tensor] for argument in op.arguments]
            operand = op.kind.shape == "contract" and any(tensor.weight and not tensor.wide for tensor in taken)
            kept = self.saved.setdefault(saved.key, replace(saved, operand=operand))
            if kept.operand and not operand:
                self.saved[saved.key] = saved
        self.border.setdefault((argument.tensor, str(argument.distribution)), argument)
        for regather in regathers:
            if (op, regather) not in self.regathers:
                self.regathers.append((op, regather))


def crossing(layer: Layer, operators: Sequence[Operator]) -> list[str]:
    """Return the results of a group of operators that are consumed outside of it."""
    inside = {op.name for op in operators}
    outside = {arg.tensor for op in layer.operators if op.name not in inside for arg in op.arguments}
    return [name for op in operators for name in op.outputs if name in outside or name in layer.outputs]
