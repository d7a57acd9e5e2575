"""Saved tensors: what the forward keeps for the backward, and what the backward gathers a second time instead.

A tensor is kept as it was consumed, once for all operators that read it. An argument with `~`, and an operand of a
panelled multiply, is kept as it was produced, and the backward redistributes it once more. A view is its source under
another name. A fused kernel keeps no inner tensor: its backward recomputes them from those that cross its border.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dsx.graph.expressions import Name, combine, product
from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.match import Distribution, elements

ACTIVATION_BYTES = Name("activation_bytes")
WEIGHT_BYTES = Name("weight_bytes")
GRADIENT_BYTES = Name("gradient_bytes")


@dataclass(frozen=True, slots=True)
class Saved:
    """One kept tensor and its local size."""

    key: tuple[str, str]  # (tensor, distribution), "" for the one in which it was produced; or (operator, "state 0")
    bytes: Any
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
    wanted: Distribution


def element_bytes(layer: Layer, tensor: str) -> Name:
    """Return the name of the bytes per element of a tensor."""
    return WEIGHT_BYTES if layer.tensors[tensor].weight else ACTIVATION_BYTES


def tensor_bytes(layer: Layer, tensor: str, distribution: Distribution) -> Any:
    """Return the local bytes of `tensor` in `distribution`."""
    return product((element_bytes(layer, tensor), elements(distribution.dims)))


def stored(layer: Layer, argument: Argument, panelled: bool) -> tuple[Saved | None, list[Regather]]:
    """Return the kept form of a consumed tensor, and the redistributions that the backward repeats.

    A weight in its own distribution is stored anyway: nothing is kept of it (None).
    """
    tensor = layer.tensors[argument.tensor]
    redistributed = argument.distribution != tensor.distribution
    if redistributed and not (argument.regathered or panelled):
        key = (tensor.name, str(argument.distribution))
        source = None
        if not tensor.weight:
            produced, _ = stored(layer, Argument(tensor.name, tensor.distribution, False, argument.place), panelled)
            source = produced.key if produced else None
        axes = axes_between(tensor.distribution, argument.distribution)
        size = tensor_bytes(layer, tensor.name, argument.distribution)
        return Saved(key, size, source=source, axes=axes), []
    regathers = [Regather(tensor.name, argument.distribution)] if redistributed else []
    if tensor.weight:
        return None, regathers
    producer = layer.producer(tensor.name)
    if producer and producer.costs_nothing and len(producer.outputs) == 1:
        saved, inner = stored(layer, producer.arguments[0], panelled=False)
        return saved, inner + regathers
    return Saved((tensor.name, ""), tensor_bytes(layer, tensor.name, tensor.distribution)), regathers


def reads(layer: Layer, operators: Iterable[Operator]) -> tuple[Read, ...]:
    """Return what some operators read, those that only they make included."""
    found: list[Read] = []
    for op in operators:
        for argument in op.arguments:
            produced, _ = stored(layer, as_produced(layer, op, argument.tensor), panelled=False)
            found.append(Read(argument.tensor, (argument.tensor, str(argument.distribution)), produced))
    return tuple(found)


def listed_once(lists: Iterable[tuple[Saved, ...]]) -> list[tuple[Saved, ...]]:
    """Return the lists of the kernels, with each tensor in the first of them alone.

    A copy of a tensor that is kept or stored too takes no bytes where all axes between them have one rank.
    """
    every = [tuple(listed) for listed in lists]
    kept = {saved.key for listed in every for saved in listed}
    seen: set[tuple[str, str]] = set()
    result: list[tuple[Saved, ...]] = []
    for listed in every:
        own = {saved.key: _beside(saved, kept) for saved in listed if saved.key not in seen}
        result.append(tuple(own.values()))
        seen |= own.keys()
    return result


def _beside(saved: Saved, kept: Collection[tuple[str, str]]) -> Saved:
    """Return a saved tensor with the bytes that it takes beside those that are kept."""
    if not saved.axes or not (saved.source is None or saved.source in kept):
        return saved
    return replace(saved, bytes=product((saved.bytes, is_copy(saved.axes))))


def is_copy(axes: Iterable[str]) -> Any:
    """Return an expression that is 1 if some of the axes over which a copy differs have several ranks, else 0."""
    return combine("min", combine("-", product(Name(axis) for axis in axes), 1), 1)


def axes_between(produced: Distribution, consumed: Distribution) -> tuple[str, ...]:
    """Return the axes over which two distributions of a tensor differ."""
    differing = {*produced.partial} ^ {*consumed.partial}
    for here, there in zip(produced.dims, consumed.dims, strict=True):
        differing |= {*here.axes} ^ {*there.axes}
    return tuple(sorted(differing))


def as_produced(layer: Layer, operator: Operator, tensor: str) -> Argument:
    """Return `tensor` as an argument in the distribution in which it was produced."""
    return Argument(tensor, layer.tensors[tensor].distribution, False, operator.place)
