"""The shapes of the matrix multiplies of an einsum and of its two gradients.

An einsum of A and B into C is `batch` multiplies of (rows x contracted) by (contracted x columns). Batch letters are in
all three tensors, row letters in A and C, column letters in B and C; the multiply contracts every other letter. The
gradient of A is the einsum of dC and B. With panels, one multiply becomes `panels` multiplies, which share the letters
that the forward contracts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dsx.graph.expressions import Name, combine, product
from dsx.graph.layer import PANELS, Argument, Layer, Operator, Tensor
from dsx.graph.match import Distribution, local_size


@dataclass(frozen=True, slots=True)
class Multiply:
    """A multiply of a kernel in one direction; local sizes and FLOPs as expressions."""

    rows: Any
    columns: Any
    contracted: Any
    batch: Any  # number of multiplies of this shape
    flops: Any  # of the whole batch, as the operator table counts them
    linear: bool  # whether its operator has a weight; holds for the forward and both gradients
    of_weight: bool  # whether it computes the gradient of a weight
    wide: bool  # whether that weight keeps it in 16 bits where others run in fewer
    grouped: bool  # whether it is one multiply for each of several weights, those of experts
    operator: str = field(repr=False)  # name in the operator table


def forward_multiply(layer: Layer, op: Operator, flops: Any) -> Multiply:
    """Return the multiply of the forward of an einsum of two arguments."""
    left, right = (argument.distribution for argument in op.arguments)
    operands = (left, right, layer.tensors[op.name].distribution)
    return _multiply(layer, op, operands, flops, of_weight=False, split="contracted")


def gradient_multiply(layer: Layer, op: Operator, index: int, flops: Any) -> Multiply:
    """Return the multiply that computes the gradient of one of an einsum's two arguments."""
    argument, other = op.arguments[index], op.arguments[1 - index]
    operands = (layer.tensors[op.name].distribution, other.distribution, argument.distribution)
    return _multiply(layer, op, operands, flops, of_weight=is_weight(layer, argument), split="columns")


def is_weight(layer: Layer, argument: Argument) -> bool:
    """Return whether an argument is a weight or a view of one."""
    return _source(layer, argument).weight


def _source(layer: Layer, argument: Argument) -> Tensor:
    """Return the tensor that an argument is, or is a view of."""
    producer = layer.producer(argument.tensor)
    if producer is None or not producer.costs_nothing:
        return layer.tensors[argument.tensor]
    return _source(layer, producer.arguments[0])


def _multiply(
    layer: Layer,
    op: Operator,
    operands: tuple[Distribution, Distribution, Distribution],
    flops: Any,
    of_weight: bool,
    split: str,
) -> Multiply:
    """Return the multiply of `op` whose `operands` are the two factors and the result; panels divide `split`."""
    dims = {dim.letter: dim for distribution in operands for dim in distribution.dims}
    a, b, c = ({dim.letter for dim in distribution.dims} for distribution in operands)

    def size(letters: Iterable[str]) -> Any:
        return product(local_size(dims[letter]) for letter in dims if letter in set(letters))

    sizes = {"rows": size(c - b), "columns": size((c & b) - a), "contracted": size(dims.keys() - c)}
    batch = size(a & b & c)
    if op.panelled:
        # Panels divide the letters that the forward contracts, in the gradients too.
        sizes[split] = combine("/", sizes[split], Name(PANELS))
        batch = combine("*", batch, Name(PANELS))
    sources = [_source(layer, argument) for argument in op.arguments]
    linear = any(source.weight for source in sources)
    several = bool((a & b & c) - layer.single) or op.panelled
    return Multiply(
        **sizes,
        batch=batch,
        flops=flops,
        linear=linear,
        of_weight=of_weight,
        wide=any(source.wide for source in sources),
        grouped=linear and several,
        operator=op.kind.name,
    )
