"""The work of an operator by its table: FLOPs, bytes and the shapes of its multiplies, as expressions.

The backward of an einsum is an einsum for each of its arguments, so its gradients are apart here; every other operator
has one backward.
"""

from dataclasses import dataclass, replace
from typing import Any

from dsx.graph.expressions import Name, Operation, combine, product
from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.match import Distribution, elements
from dsx.graph.multiplies import Multiply, forward_multiply, gradient_multiply, is_weight
from dsx.graph.operators import Effort, Formula
from dsx.graph.saved import element_bytes


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
class Gradient:
    """The work of one kernel of an operator's backward."""

    work: Work
    argument: Argument | None = None  # whose gradient it is; None: all of them
    of_weight: bool = False


def forward_work(layer: Layer, op: Operator) -> Work:
    """Return the work of an operator's forward."""
    if op.kind.shape != "contract":
        return _work(op, op.kind.forward, functions(layer, op))
    effort = op.kind.panels["forward"] if op.panelled else op.kind.forward
    letters = {dim.letter for name in op.outputs for dim in layer.tensors[name].distribution.dims}
    summed = _contracted([argument.distribution for argument in op.arguments], letters)
    found = _work(op, effort, functions(layer, op), summed)
    # A contraction of one, three or more arguments has FLOPs, but no shape of rows and columns.
    return replace(found, multiplies=(forward_multiply(layer, op, found.matrix),)) if len(op.arguments) == 2 else found


def backward_work(layer: Layer, op: Operator) -> tuple[Gradient, ...]:
    """Return the work of an operator's backward, by gradient for an einsum."""
    if op.kind.shape != "contract":
        return (Gradient(_work(op, op.kind.backward, functions(layer, op))),)
    effort = op.kind.panels["gradient"] if op.panelled else op.kind.gradient
    found: list[Gradient] = []
    for index, argument in enumerate(op.arguments):
        if layer.tensors[argument.tensor].data:
            continue
        others = [other for other in op.arguments if other is not argument]
        exchanged = functions(layer, op, [argument, *others], dx=argument)
        own = {dim.letter for dim in argument.distribution.dims}
        sources = [other.distribution for other in others] + [layer.tensors[op.name].distribution]
        work = _work(op, effort, exchanged, _contracted(sources, own))
        if len(op.arguments) == 2:
            work = replace(work, multiplies=(gradient_multiply(layer, op, index, work.matrix),))
        found.append(Gradient(work, argument, is_weight(layer, argument)))
    return tuple(found)


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
