"""The derived backward: the distribution of each gradient, and the collectives that it needs.

The gradient of an argument has the dimensions that the operator consumed. It is partial over the axes that divide a
summed dimension, and over the axes that the other factor of a multiply is partial over. A producer needs its gradient
in the distribution of its value, replicated where the value was partial; only a view (or another rearrangement) passes
a partial gradient on. Contributions of equal distribution are added first; then the matcher of the forward finds the
collectives. A weight's gradient is also partial over dp, since `b` is the microbatch of one replica; the reduction at
the end of the step completes what the layer does not reduce at once.
"""

from dataclasses import dataclass

from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.match import Distribution, Transfer, match, ordered


@dataclass(frozen=True, slots=True)
class GradientTransfer:
    """The collectives of one gradient, attributed to the operator that consumed the tensor."""

    operator: Operator | None  # None: the gradient of the layer's own result
    tensor: str
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradient transfers in backward order, and per weight the axes that the end of the step reduces over."""

    transfers: tuple[GradientTransfer, ...]
    weight_axes: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Contribution:
    distribution: Distribution
    operator: Operator | None


def derive_backward(layer: Layer) -> Backward:
    """Walk the layer backwards and match each gradient with the distribution that its producer needs."""
    contributions: dict[str, list[_Contribution]] = {name: [] for name in layer.tensors}
    for output in layer.outputs:
        whole = layer.tensors[output].distribution.without_partial()
        contributions[output].append(_Contribution(whole, None))
    transfers: list[GradientTransfer] = []
    for operator in reversed(layer.operators):
        incoming = _incoming_partial(layer, operator, contributions)
        for output in operator.outputs:
            transfers += _settle(layer, output, contributions[output], incoming)
        for argument in operator.arguments:
            if layer.tensors[argument.tensor].data:
                continue  # data has no gradient
            gradient = _gradient(layer, operator, argument, incoming)
            contributions[argument.tensor].append(_Contribution(gradient, operator))
    weight_axes: dict[str, tuple[str, ...]] = {}
    for name, tensor in layer.tensors.items():
        if tensor.weight:
            found = contributions[name]
            partial = {axis for contribution in found for axis in contribution.distribution.partial}
            left = ordered(partial - set(tensor.distribution.axes))
            transfers += _settle(layer, name, found, left)
            weight_axes[name] = left
        elif name in layer.inputs:
            transfers += _settle(layer, name, contributions[name], ())
    return Backward(tuple(transfers), weight_axes)


def _incoming_partial(
    layer: Layer, operator: Operator, contributions: dict[str, list[_Contribution]]
) -> tuple[str, ...]:
    """Return the axes over which the gradient of a rearrangement may stay partial; none for other operators."""
    if not operator.kind.rearranges:
        return ()
    left: list[set[str]] = []
    for output in operator.outputs:
        divided = set(layer.tensors[output].distribution.axes)
        left += [set(c.distribution.partial) - divided for c in contributions[output]]
    return ordered(set.intersection(*left)) if left else ()


def _settle(
    layer: Layer, tensor: str, contributions: list[_Contribution], keep_partial: tuple[str, ...]
) -> list[GradientTransfer]:
    """Add contributions of equal distribution, and match each sum with the distribution that the producer needs."""
    groups: dict[Distribution, _Contribution] = {}
    for contribution in contributions:
        groups.setdefault(contribution.distribution, contribution)
    result: list[GradientTransfer] = []
    for distribution, first in groups.items():
        partial = tuple(axis for axis in keep_partial if axis in distribution.partial)
        wanted = Distribution(layer.tensors[tensor].distribution.dims, partial)
        transfers = match(distribution, wanted)
        if transfers:
            result.append(GradientTransfer(first.operator, tensor, tuple(transfers)))
    return result


def _gradient(layer: Layer, operator: Operator, argument: Argument, incoming: tuple[str, ...]) -> Distribution:
    """Return the distribution of the gradient of a consumed argument."""
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
