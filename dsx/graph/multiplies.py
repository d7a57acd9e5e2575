"""The shape of every matrix multiply: what an einsum and its two gradients hand to the matrix units.

An einsum of A and B into C is `batch` multiplies of (rows x contracted) by (contracted x columns): batch
letters are in all three tensors, rows in A and C, columns in B and C; every other letter is summed away.
The gradient of A is the einsum of dC and B. In panels one multiply becomes as many, each with a share of
the letters that the forward sums away.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dsx.graph.expressions import Name, combine, product
from dsx.graph.layer import PANELS, Argument, Layer, Operator
from dsx.graph.match import Distribution, local_size


@dataclass(frozen=True, slots=True)
class Multiply:
    """One multiply of a kernel and direction; local sizes and FLOPs as expressions."""

    rows: Any
    columns: Any
    contracted: Any
    batch: Any  # how many of that shape
    flops: Any  # of all of them, as the operator table counts
    linear: bool  # whether it belongs to an operator with a weight: forward or either gradient
    of_weight: bool  # whether it makes the gradient of a weight
    operator: str = field(repr=False)  # what an operator table calls it


def forward_multiply(layer: Layer, op: Operator, flops: Any) -> Multiply:
    """Return the multiply that an einsum of two arguments is."""
    left, right = (argument.distribution for argument in op.arguments)
    made = layer.tensors[op.name].distribution
    return _multiply(left, right, made, flops, _is_linear(layer, op), of_weight=False, op=op, split="contracted")


def gradient_multiply(layer: Layer, op: Operator, index: int, flops: Any) -> Multiply:
    """Return the multiply that makes the gradient of one of an einsum's two arguments."""
    argument, other = op.arguments[index], op.arguments[1 - index]
    coming = layer.tensors[op.name].distribution
    of_weight = is_weight(layer, argument)
    linear = _is_linear(layer, op)
    return _multiply(
        coming, other.distribution, argument.distribution, flops, linear, of_weight, op=op, split="columns"
    )


def is_weight(layer: Layer, argument: Argument) -> bool:
    """Return whether an argument is a weight, perhaps under another name."""
    if layer.tensors[argument.tensor].weight:
        return True
    producer = layer.producer(argument.tensor)
    return producer is not None and producer.costs_nothing and is_weight(layer, producer.arguments[0])


def _is_linear(layer: Layer, op: Operator) -> bool:
    return any(is_weight(layer, argument) for argument in op.arguments)


def _multiply(
    left: Distribution,
    right: Distribution,
    made: Distribution,
    flops: Any,
    linear: bool,
    of_weight: bool,
    op: Operator,
    split: str,
) -> Multiply:
    dims = {dim.letter: dim for distribution in (left, right, made) for dim in distribution.dims}
    a, b, c = ({dim.letter for dim in distribution.dims} for distribution in (left, right, made))

    def size(letters: Iterable[str]) -> Any:
        return product(local_size(dims[letter]) for letter in dims if letter in set(letters))

    sizes = {"rows": size(c - b), "columns": size((c & b) - a), "contracted": size(dims.keys() - c)}
    batch = size(a & b & c)
    if op.panelled:
        # The letters that the forward sums away are those that come in panels, whichever gradient is made.
        sizes[split] = combine("/", sizes[split], Name(PANELS))
        batch = combine("*", batch, Name(PANELS))
    return Multiply(**sizes, batch=batch, flops=flops, linear=linear, of_weight=of_weight, operator=op.kind.name)
