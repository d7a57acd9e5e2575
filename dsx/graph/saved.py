"""Saved tensors: what the forward keeps for the backward, and what is gathered again instead.

A tensor is kept as it was consumed, once for all operators that read it. Behind a `~`, and in a
panelled multiply, the redistributed copy is not kept: the tensor stays as it was produced and is
gathered again. A view is its source under another name. Inside a fused kernel nothing is kept: what the
backward reads there is made again from what crosses the border.
"""

from dataclasses import dataclass
from typing import Any

from dsx.graph.expressions import Name, product
from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.match import Distribution, elements

ACTIVATION_BYTES = Name("activation_bytes")
WEIGHT_BYTES = Name("weight_bytes")
GRADIENT_BYTES = Name("gradient_bytes")


@dataclass(frozen=True, slots=True)
class Saved:
    """One kept tensor: `key` tells copies apart, `bytes` is its local size."""

    key: tuple[str, str]
    bytes: Any


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
    """Return what is kept of a consumed tensor (None for a weight as it lies) and what is repeated."""
    tensor = layer.tensors[argument.tensor]
    moved = argument.distribution != tensor.distribution
    if moved and not (argument.made_again or panelled):
        key = (tensor.name, str(argument.distribution))
        return Saved(key, tensor_bytes(layer, tensor.name, argument.distribution)), []
    again = [Regather(tensor.name, argument.distribution)] if moved else []
    if tensor.weight:
        return None, again
    producer = layer.producer(tensor.name)
    if producer and producer.costs_nothing and len(producer.outputs) == 1:
        saved, inner = stored(layer, producer.arguments[0], panelled=False)
        return saved, inner + again
    return Saved((tensor.name, ""), tensor_bytes(layer, tensor.name, tensor.distribution)), again


def as_produced(layer: Layer, operator: Operator, tensor: str) -> Argument:
    """Return `tensor` as an argument that takes it as it lies."""
    return Argument(tensor, layer.tensors[tensor].distribution, False, operator.place)
