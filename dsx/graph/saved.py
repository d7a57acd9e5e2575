"""Saved tensors: what the forward keeps for the backward, and what the backward gathers a second time instead.

A tensor is kept as it was consumed, once for all operators that read it. An argument with `~`, and an operand of a
panelled multiply, is kept as it was produced, and the backward redistributes it once more. A view is its source under
another name. A fused kernel keeps no inner tensor: its backward recomputes them from those that cross its border.
"""

from collections.abc import Iterable
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
    """One kept tensor and its local size."""

    key: tuple[str, str]  # (tensor, distribution), "" for the one in which it was produced; or (operator, "state 0")
    bytes: Any
    operand: bool = False  # of multiplies with a weight alone, which may keep it in their own precision


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
        return Saved(key, tensor_bytes(layer, tensor.name, argument.distribution)), []
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
    """Return the lists of the kernels, with each tensor in the first of them alone."""
    seen: set[tuple[str, str]] = set()
    result: list[tuple[Saved, ...]] = []
    for listed in lists:
        own = {saved.key: saved for saved in listed if saved.key not in seen}
        result.append(tuple(own.values()))
        seen |= own.keys()
    return result


def as_produced(layer: Layer, operator: Operator, tensor: str) -> Argument:
    """Return `tensor` as an argument in the distribution in which it was produced."""
    return Argument(tensor, layer.tensors[tensor].distribution, False, operator.place)
