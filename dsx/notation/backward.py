"""The derived backward: the distribution of each gradient, and what the forward keeps for it.

A tensor has a gradient if a trained weight lies above it, or is it (`dsx.notation.phases`); what is constant has none.
The gradient of an argument has the dimensions that the operator consumed. It is partial over the axes that divide a
summed dimension, and over the axes that the other factor of a multiply is partial over. A producer needs its gradient
in the distribution of its value, replicated where the value was partial; only a view (or another rearrangement) passes
a partial gradient on. Contributions of equal distribution are added first; then the matcher of the forward finds the
collectives. A weight's gradient is also partial over dp, since `b` is the microbatch of one replica; the reduction at
the end of the step completes what the layer does not reduce at once.

A tensor is kept as it was consumed, once for all operators that read it. An argument with `~`, and an operand of a
panelled multiply, is kept as it was produced, and the backward redistributes it once more. A view is its source under
another name. A fused kernel keeps no inner tensor: its backward recomputes them from those that cross its border.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dsx.notation.expressions import Expression, Name, combine, product
from dsx.notation.sharded_layer import Argument, Distribution, Layer, Operator, Transfer, elements, match, ordered


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


# By tensor, the contributions to its gradient: their distributions, and the operators that they come from.
Contributions = dict[str, dict[Distribution, list[Operator | None]]]


def derive_backward(layer: Layer) -> Backward:
    """Walk the layer backwards and match each gradient with the distribution that its producer needs."""
    contributions: Contributions = {name: {} for name in layer.tensors}
    for output in layer.outputs:
        if not layer.tensors[output].constant:
            contributions[output].setdefault(layer.tensors[output].distribution.without_partial(), []).append(None)
    sums: list[GradientSum] = []
    for operator in reversed(layer.operators):
        incoming = _incoming_partial(layer, operator, contributions)
        for output in operator.outputs:
            sums += _settle(layer, output, contributions[output], incoming)
        for argument in operator.arguments:
            tensor, axes = layer.tensors[argument.tensor], {*incoming}
            if tensor.constant:
                continue
            if not operator.kind.rearranges:
                letters = {dim.letter for dim in argument.distribution.dims}
                factors = [other.distribution for other in operator.arguments if other is not argument]
                distributions = [*(layer.tensors[name].distribution for name in operator.outputs), *factors]
                dims = [dim for distribution in distributions for dim in distribution.dims if dim.letter not in letters]
                axes |= {axis for dim in dims for axis in dim.axes}
                if operator.kind.shape == "contract":
                    axes |= {axis for factor in factors for axis in factor.partial}
            if tensor.weight:
                axes.add("dp")
            partial = ordered(axes - {*argument.distribution.axes})
            gradient = Distribution(argument.distribution.dims, partial)
            contributions[tensor.name].setdefault(gradient, []).append(operator)
    weight_axes: dict[str, tuple[str, ...]] = {}
    for name, tensor in layer.tensors.items():
        if tensor.weight:
            partial = {axis for distribution in contributions[name] for axis in distribution.partial}
            weight_axes[name] = ordered(partial - set(tensor.distribution.axes))
        if tensor.weight or name in layer.inputs:
            sums += _settle(layer, name, contributions[name], weight_axes.get(name, ()))
    return Backward(tuple(sums), weight_axes)


def _incoming_partial(layer: Layer, operator: Operator, contributions: Contributions) -> tuple[str, ...]:
    """Return the axes over which the gradient of a rearrangement may stay partial; none for other operators."""
    if not operator.kind.rearranges:
        return ()
    partial = [
        set(distribution.partial) - set(layer.tensors[output].distribution.axes)
        for output in operator.outputs
        for distribution in contributions[output]
    ]
    return ordered(set.intersection(*partial)) if partial else ()


def _settle(
    layer: Layer, tensor: str, contributions: dict[Distribution, list[Operator | None]], keep_partial: tuple[str, ...]
) -> list[GradientSum]:
    """Match each sum of contributions of equal distribution with the distribution that the producer needs."""
    sums: list[GradientSum] = []
    for distribution, operators in contributions.items():
        partial = tuple(axis for axis in keep_partial if axis in distribution.partial)
        needed = Distribution(layer.tensors[tensor].distribution.dims, partial)
        sums.append(GradientSum(tensor, distribution, tuple(operators), tuple(match(distribution, needed))))
    return sums


ACTIVATION_BYTES = Name("activation_bytes")
WEIGHT_BYTES = Name("weight_bytes")
GRADIENT_BYTES = Name("gradient_bytes")


@dataclass(frozen=True, slots=True)
class Saved:
    """One kept tensor and its local size."""

    key: tuple[str, str]  # (tensor, distribution), "" for the one in which it was produced; or (operator, "state 0")
    bytes: Expression
    operand: bool = False  # of multiplies with a weight alone, which may keep it in their own precision
    source: tuple[str, str] | None = None  # of a redistributed copy, the key of the produced form; None: a weight
    axes: tuple[str, ...] = ()  # over which a copy differs from its source; it is the source where each has one rank


@dataclass(frozen=True, slots=True)
class Read:
    """A tensor that a kernel reads in its forward."""

    tensor: str
    copy: tuple[str, str]  # the key of the copy that the kernel reads
    produced: Saved | None  # the tensor as it was produced; None for a weight, which is stored anyway


@dataclass(frozen=True, slots=True)
class Regather:
    """A redistribution that the backward repeats."""

    tensor: str
    consumed: Distribution


def element_bytes(layer: Layer, tensor: str) -> Name:
    """Return the name of the bytes per element of a tensor."""
    return WEIGHT_BYTES if layer.tensors[tensor].weight else ACTIVATION_BYTES


def tensor_bytes(layer: Layer, tensor: str, distribution: Distribution | None = None) -> Expression:
    """Return the local bytes of a tensor in a distribution, by default the one in which it is produced."""
    distribution = distribution or layer.tensors[tensor].distribution
    return product((element_bytes(layer, tensor), elements(distribution.dims)))


def stored(layer: Layer, argument: Argument, panelled: bool) -> tuple[Saved | None, list[Regather]]:
    """Return the kept form of a consumed tensor, and the redistributions that the backward repeats.

    A weight in its own distribution is stored anyway: nothing is kept of it (None).
    """
    tensor = layer.tensors[argument.tensor]
    redistributed = argument.distribution != tensor.distribution
    if redistributed and not (argument.regathered or panelled):
        source = None
        if not tensor.weight:
            produced, _ = stored(layer, Argument(tensor.name, tensor.distribution, False, argument.place), panelled)
            source = produced.key if produced else None
        axes = axes_between(tensor.distribution, argument.distribution)
        size = tensor_bytes(layer, tensor.name, argument.distribution)
        return Saved(argument.key, size, source=source, axes=axes), []
    regathers = [Regather(tensor.name, argument.distribution)] if redistributed else []
    if tensor.weight:
        return None, regathers
    producer = layer.producer(tensor.name)
    if producer and producer.costs_nothing and len(producer.outputs) == 1:
        saved, inner = stored(layer, producer.arguments[0], panelled=False)
        return saved, inner + regathers
    return Saved((tensor.name, ""), tensor_bytes(layer, tensor.name)), regathers


def reads(layer: Layer, operators: Iterable[Operator]) -> tuple[Read, ...]:
    """Return what some operators read, those that only they make included."""
    return tuple(
        Read(argument.tensor, argument.key, stored(layer, as_produced(layer, op, argument.tensor), panelled=False)[0])
        for op in operators
        for argument in op.arguments
    )


def listed_once(lists: Iterable[tuple[Saved, ...]]) -> list[tuple[Saved, ...]]:
    """Return the lists of the kernels, with each tensor in the first of them alone.

    A copy of a tensor that is kept or stored too takes no bytes where all axes between them have one rank.
    """
    every = [*lists]
    kept = {saved.key for listed in every for saved in listed}
    seen: set[tuple[str, str]] = set()
    result: list[tuple[Saved, ...]] = []
    for listed in every:
        first = {saved.key: saved for saved in listed if saved.key not in seen}
        seen |= first.keys()
        result.append(
            tuple(
                replace(saved, bytes=product((saved.bytes, is_copy(saved.axes))))
                if saved.axes and (saved.source is None or saved.source in kept)
                else saved
                for saved in first.values()
            )
        )
    return result


def is_copy(axes: Iterable[str]) -> Expression:
    """Return an expression that is 1 if some of the axes over which a copy differs have several ranks, else 0."""
    return combine("min", combine("-", product(Name(axis) for axis in axes), 1), 1)


def axes_between(produced: Distribution, consumed: Distribution) -> tuple[str, ...]:
    """Return the axes over which two distributions of a tensor differ."""
    differing = {*produced.partial} ^ {*consumed.partial}
    for dim, consumed_dim in zip(produced.dims, consumed.dims, strict=True):
        differing |= {*dim.axes} ^ {*consumed_dim.axes}
    return tuple(sorted(differing))


def as_produced(layer: Layer, operator: Operator, tensor: str) -> Argument:
    """Return `tensor` as an argument in the distribution in which it was produced."""
    return Argument(tensor, layer.tensors[tensor].distribution, False, operator.place)
