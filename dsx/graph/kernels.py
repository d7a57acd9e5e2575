"""Kernels: groups of operators that run as one, and the work of each.

A kernel is one launch in either direction. An operator alone moves the bytes of its operator table. A fused kernel
moves the tensors that cross its border, and in its backward also what it keeps besides them (softmax statistics, random
state). Its backward recomputes the inner values that it reads, which adds their forward FLOPs.
"""

from dataclasses import dataclass, replace
from typing import Any

from dsx.graph.expressions import Name, Operation, combine, product, total
from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.match import Distribution, elements
from dsx.graph.multiplies import Multiply, forward_multiply, gradient_multiply
from dsx.graph.operators import Effort, Formula
from dsx.graph.regions import RegionPath
from dsx.graph.saved import (
    Regather,
    Saved,
    as_produced,
    element_bytes,
    stored,
    tensor_bytes,
)


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs on matrix and vector units and bytes of memory traffic, as expressions, and the shapes of the multiplies.

    `unfused` is the traffic on top of `bytes` where a framework runs an operator as several kernels.
    """

    matrix: Any = 0
    vector: Any = 0
    bytes: Any = 0
    unfused: Any = 0
    multiplies: tuple[Multiply, ...] = ()  # `matrix` includes their FLOPs

    def __add__(self, other: "Work") -> "Work":
        return Work(
            combine("+", self.matrix, other.matrix),
            combine("+", self.vector, other.vector),
            combine("+", self.bytes, other.bytes),
            combine("+", self.unfused, other.unfused),
            self.multiplies + other.multiplies,
        )


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
    return [_kernel(layer, key, operators) for key, operators in groups.items()]


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
            self.saved.setdefault(saved.key, saved)
        self.border.setdefault((argument.tensor, str(argument.distribution)), argument)
        for regather in regathers:
            if (op, regather) not in self.regathers:
                self.regathers.append((op, regather))


def crossing(layer: Layer, operators: list[Operator]) -> list[str]:
    """Return the results of a group of operators that are consumed outside of it."""
    inside = {op.name for op in operators}
    outside = {arg.tensor for op in layer.operators if op.name not in inside for arg in op.arguments}
    return [name for op in operators for name in op.outputs if name in outside or name in layer.outputs]


def work_of(layer: Layer, kernel: Kernel, fused_backward_reads: str, uncounted: frozenset[str]) -> tuple[Work, Work]:
    """Return the forward and backward work of a kernel; operators of the kinds in `uncounted` do none."""
    forward = Work()
    backward = Work()
    for op in kernel.operators:
        if op.kind.name in uncounted:
            continue
        own_forward, own_backward = _operator_work(layer, op)
        forward, backward = forward + own_forward, backward + own_backward
        if op in kernel.recomputed:
            backward = backward + own_forward
    if not kernel.fused:
        return forward, backward
    forward_bytes, backward_bytes = _border_bytes(layer, kernel, fused_backward_reads)
    return replace(forward, bytes=forward_bytes, unfused=0), replace(backward, bytes=backward_bytes, unfused=0)


def _border_bytes(layer: Layer, kernel: Kernel, fused_backward_reads: str) -> tuple[Any, Any]:
    """Return the bytes that a fused kernel reads and writes in its forward and in its backward."""
    operators = list(kernel.operators)
    inside = {name for op in operators for name in op.outputs}
    entering = {
        (arg.tensor, str(arg.distribution)): tensor_bytes(layer, arg.tensor, arg.distribution)
        for op in operators
        for arg in op.arguments
        if arg.tensor not in inside
    }
    leaving = [tensor_bytes(layer, name, layer.tensors[name].distribution) for name in crossing(layer, operators)]
    writes = [
        op.kind.in_kernel.writes.resolve(functions(layer, op))
        for op in operators
        if op.kind.in_kernel and op.kind.in_kernel.writes
    ]
    forward = total([*entering.values(), *leaving, *writes])
    if fused_backward_reads == "stored":
        reads = [saved.bytes for saved in kernel.saved]
        weights = [arg for arg in kernel.border if layer.tensors[arg.tensor].weight]
        reads += [tensor_bytes(layer, arg.tensor, arg.distribution) for arg in weights]
    else:
        reads = [tensor_bytes(layer, arg.tensor, arg.distribution) for arg in kernel.border]
        reads += [saved.bytes for saved in kernel.saved if saved.key[1].startswith("state ")]
    # The backward also reads the gradients of its results and writes those of its arguments.
    return forward, total([*reads, *leaving, *entering.values()])


def _operator_work(layer: Layer, op: Operator) -> tuple[Work, Work]:
    kind = op.kind
    sizes = functions(layer, op)
    if kind.shape != "contract":
        return _work(op, kind.forward, sizes), _work(op, kind.backward, sizes)
    forward_effort = kind.panels["forward"] if op.panelled else kind.forward
    gradient_effort = kind.panels["gradient"] if op.panelled else kind.gradient
    letters = {dim.letter for name in op.outputs for dim in layer.tensors[name].distribution.dims}
    summed = _contracted([argument.distribution for argument in op.arguments], letters)
    forward = _work(op, forward_effort, sizes, summed)
    # A contraction of one, three or more arguments has FLOPs, but no shape of rows and columns.
    shaped = len(op.arguments) == 2
    if shaped:
        forward = replace(forward, multiplies=(forward_multiply(layer, op, forward.matrix),))
    backward = Work()
    for index, argument in enumerate(op.arguments):
        if layer.tensors[argument.tensor].data:
            continue
        others = [other for other in op.arguments if other is not argument]
        exchanged = functions(layer, op, [argument, *others], dx=op.arguments[index])
        own = {dim.letter for dim in argument.distribution.dims}
        sources = [other.distribution for other in others] + [layer.tensors[op.name].distribution]
        gradient = _work(op, gradient_effort, exchanged, _contracted(sources, own))
        if shaped:
            gradient = replace(gradient, multiplies=(gradient_multiply(layer, op, index, gradient.matrix),))
        backward = backward + gradient
    return forward, backward


def _contracted(distributions: list[Distribution], kept: set[str]) -> Any:
    """Return the product of the local dimensions that are not among the letters `kept`."""
    dims = {dim.letter: dim for distribution in distributions for dim in distribution.dims}
    return elements(tuple(dim for letter, dim in dims.items() if letter not in kept))


def _work(op: Operator, effort: Effort, sizes: dict[str, Any], contracted: Any = 1) -> Work:
    """Return what an operator table says of an operator, with its sizes; a modifier reduces FLOPs, not bytes."""
    numerator, denominator = op.kind.work.get(op.modifier, (1, 1))

    def value(formula: Formula | None, share: bool) -> Any:
        if formula is None:
            return 0
        expr = _substituted(formula.resolve(sizes), {"contracted": contracted})
        return combine("/", combine("*", expr, numerator), denominator) if share else expr

    return Work(
        value(effort.matrix, True), value(effort.vector, True), value(effort.bytes, False), value(effort.unfused, False)
    )


def _substituted(expr: Any, values: dict[str, Any]) -> Any:
    """Return an expression with names replaced by other expressions."""
    chain: list[Operation] = []
    while isinstance(expr, Operation):
        chain.append(expr)
        expr = expr.left
    result = values.get(expr.name, expr) if isinstance(expr, Name) else expr
    for operation in reversed(chain):
        result = combine(operation.sign, result, _substituted(operation.right, values))
    return result


def functions(
    layer: Layer, op: Operator, arguments: list[Argument] | None = None, dx: Argument | None = None
) -> dict[str, Any]:
    """Return the size functions that a table's expressions may call, for one operator.

    `arguments` take the table's argument names in this order; `dx` is the argument whose gradient is computed.
    """
    taken = list(op.arguments) if arguments is None else arguments
    tensors: dict[str, tuple[str, Distribution]] = {
        name.rstrip("?"): (argument.tensor, argument.distribution)
        for name, argument in zip(op.kind.arguments, taken, strict=False)
    }
    tensors["y"] = tensors["dy"] = (op.name, layer.tensors[op.name].distribution)
    if dx is not None:
        tensors["dx"] = (dx.tensor, dx.distribution)

    def size(name: str) -> Any:
        return elements(tensors[name][1].dims)

    def rows(name: str) -> Any:
        return elements(tensors[name][1].dims[:-1])

    def last(name: str) -> Any:
        return elements(tensors[name][1].dims[-1:])

    def bytes_of(name: str) -> Any:
        return product((element_bytes(layer, tensors[name][0]), size(name)))

    return {"size": size, "rows": rows, "last": last, "bytes": bytes_of}
