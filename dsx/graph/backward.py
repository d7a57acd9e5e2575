"""The derived backward: where gradients lie, and the collectives that they need.

The gradient of an argument has its consumed dimensions and is partial over the axes that divide what is
summed away, and over those that the other factor of a multiply is a partial sum over. The gradient that
a producer wants lies as its value does, replicated where the value was partial; only a view (or another
rearrangement) lets a partial gradient pass. Equal contributions are added before they are moved, then
the matcher of the forward runs. A weight's gradient is also partial over dp, since `b` is the microbatch
of one replica; what the layer does not reduce at once is left to the reduction at the end of the step.
"""

from dataclasses import dataclass

from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.match import Distribution, Move, match, ordered


@dataclass(frozen=True, slots=True)
class GradientMove:
    """Collectives of one gradient, booked on the operator whose argument it belongs to."""

    operator: Operator | None  # None: the gradient of the layer's own result
    tensor: str
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradient moves in backward order, and per weight the axes left to the end of the step."""

    moves: tuple[GradientMove, ...]
    weight_axes: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Contribution:
    distribution: Distribution
    operator: Operator | None


def derive_backward(layer: Layer) -> Backward:
    """Walk the layer backwards and match every gradient to where it is wanted."""
    contributions: dict[str, list[_Contribution]] = {name: [] for name in layer.tensors}
    for output in layer.outputs:
        whole = layer.tensors[output].distribution.without_partial()
        contributions[output].append(_Contribution(whole, None))
    moves: list[GradientMove] = []
    for operator in reversed(layer.operators):
        incoming = _incoming_partial(layer, operator, contributions)
        for output in operator.outputs:
            moves += _settle(layer, output, contributions[output], incoming)
        for argument in operator.arguments:
            if layer.tensors[argument.tensor].data:
                continue  # no gradient is made for it
            gradient = _gradient(layer, operator, argument, incoming)
            contributions[argument.tensor].append(_Contribution(gradient, operator))
    weight_axes: dict[str, tuple[str, ...]] = {}
    for name, tensor in layer.tensors.items():
        if tensor.weight:
            found = contributions[name]
            partial = {axis for contribution in found for axis in contribution.distribution.partial}
            left = ordered(partial - set(tensor.distribution.axes))
            moves += _settle(layer, name, found, left)
            weight_axes[name] = left
        elif name in layer.inputs:
            moves += _settle(layer, name, contributions[name], ())
    return Backward(tuple(moves), weight_axes)


def _incoming_partial(
    layer: Layer, operator: Operator, contributions: dict[str, list[_Contribution]]
) -> tuple[str, ...]:
    """Return the axes over which a rearrangement lets the gradient of its results stay partial."""
    if not operator.kind.rearranges:
        return ()
    left: list[set[str]] = []
    for output in operator.outputs:
        divided = set(layer.tensors[output].distribution.axes)
        left += [set(c.distribution.partial) - divided for c in contributions[output]]
    return ordered(set.intersection(*left)) if left else ()


def _settle(
    layer: Layer, tensor: str, contributions: list[_Contribution], keep_partial: tuple[str, ...]
) -> list[GradientMove]:
    """Add equal contributions and move each sum to where the tensor's producer wants it."""
    groups: dict[Distribution, _Contribution] = {}
    for contribution in contributions:
        groups.setdefault(contribution.distribution, contribution)
    result: list[GradientMove] = []
    for distribution, first in groups.items():
        partial = tuple(axis for axis in keep_partial if axis in distribution.partial)
        wanted = Distribution(layer.tensors[tensor].distribution.dims, partial)
        moves = match(distribution, wanted)
        if moves:
            result.append(GradientMove(first.operator, tensor, tuple(moves)))
    return result


def _gradient(layer: Layer, operator: Operator, argument: Argument, incoming: tuple[str, ...]) -> Distribution:
    """Return where the gradient of a consumed argument lies."""
    partial = set(incoming)
    if not operator.kind.rearranges:
        own = {dim.letter for dim in argument.distribution.dims}
        others = [layer.tensors[name].distribution for name in operator.outputs]
        others += [other.distribution for other in operator.arguments if other is not argument]
        partial |= {axis for other in others for dim in other.dims if dim.letter not in own for axis in dim.axes}
        if operator.kind.shape == "contract":
            factors = [other.distribution for other in operator.arguments if other is not argument]
            partial |= {axis for factor in factors for axis in factor.partial}
    if layer.tensors[argument.tensor].weight:
        partial.add("dp")
    return Distribution(argument.distribution.dims, ordered(partial - set(argument.distribution.axes)))
