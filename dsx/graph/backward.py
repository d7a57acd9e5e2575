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
class GradientSum:
    """The sum of the contributions to a gradient that have one distribution, and what moves it to its producer."""

    tensor: str
    distribution: Distribution  # of the contributions
    operators: tuple[Operator | None, ...]  # that contribute, in backward order; None: what follows the layer
    transfers: tuple[Transfer, ...]  # none where the producer needs it as it is


@dataclass(frozen=True, slots=True)
class Backward:
    """Sums of gradients in backward order, and per weight the axes that the end of the step reduces over."""

    sums: tuple[GradientSum, ...]
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
    sums: list[GradientSum] = []
    for operator in reversed(layer.operators):
        incoming = _incoming_partial(layer, operator, contributions)
        for output in operator.outputs:
            sums += _settle(layer, output, contributions[output], incoming)
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
            sums += _settle(layer, name, found, left)
            weight_axes[name] = left
        elif name in layer.inputs:
            sums += _settle(layer, name, contributions[name], ())
    return Backward(tuple(sums), weight_axes)


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
) -> list[GradientSum]:
    """Add contributions of equal distribution, and match each sum with the distribution that the producer needs."""
    groups: dict[Distribution, list[Operator | None]] = {}
    for contribution in contributions:
        groups.setdefault(contribution.distribution, []).append(contribution.operator)
    result: list[GradientSum] = []
    for distribution, operators in groups.items():
        partial = tuple(axis for axis in keep_partial if axis in distribution.partial)
        wanted = Distribution(layer.tensors[tensor].distribution.dims, partial)
        result.append(GradientSum(tensor, distribution, tuple(operators), tuple(match(distribution, wanted))))
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
