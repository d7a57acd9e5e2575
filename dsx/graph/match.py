"""Matching: the collectives that turn the distribution of a value into the one that its consumer needs.

For each mesh axis, the pair (producer, consumer) decides:

| producer | consumer replicated | consumer divided on d2 | consumer partial |
|---|---|---|---|
| replicated | nothing | local slice | error |
| divided on d1 | all-gather | nothing if d1 = d2, else all-to-all | error |
| partial | all-reduce | reduce-scatter | nothing |

Slices, scatters and all-to-alls come first, since they shrink or keep the tensor; gathers come last. Gathers take the
innermost axis first, scatters the outermost. The volume of a gather is the gathered tensor, that of any other
collective the tensor before it.

Not modelled: permutations of ranks (``s/cp/tp`` to ``s/tp/cp``).
"""

from dataclasses import dataclass
from typing import Any

from dsx.graph.expressions import Name, divided, product
from dsx.graph.notation import AXES, Dim

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
)
BROADCAST, REDUCE = "broadcast", "reduce"


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a tensor is divided over the mesh: its dimensions, and the axes over which it is a partial sum."""

    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()  # in the order of AXES

    def __str__(self) -> str:
        marks = "".join(f" @{axis}" for axis in self.partial)
        return f"[{', '.join(map(str, self.dims))}{marks}]"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that divide a dimension."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    def without_partial(self) -> "Distribution":
        """The same distribution with every partial sum completed."""
        return Distribution(self.dims)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective over one axis; `elements` is its volume in elements."""

    kind: str
    axis: str
    elements: Any


class Unmatchable(Exception):
    """No collective of the table leads from one distribution to the other; the message says why."""


def ordered(axes: "set[str] | frozenset[str]") -> tuple[str, ...]:
    """Return the axes in the order of AXES."""
    return tuple(axis for axis in AXES if axis in axes)


def local_size(dim: Dim) -> Any:
    """Return the local size of a dimension as an expression."""
    return divided(Name(dim.letter), dim.axes)


def elements(dims: tuple[Dim, ...]) -> Any:
    """Return the local number of elements of a tensor as an expression."""
    return product(local_size(dim) for dim in dims)


def match(producer: Distribution, consumer: Distribution) -> list[Transfer]:
    """Return the collectives from `producer` to `consumer`, in order.

    Both must have the same letters in the same order. Raises Unmatchable.
    """
    if [dim.letter for dim in producer.dims] != [dim.letter for dim in consumer.dims]:
        raise Unmatchable(f"{producer} and {consumer} have different dimensions")
    invented = set(consumer.partial) - set(producer.partial)
    if invented:
        raise Unmatchable(f"{consumer} is a partial sum over {', '.join(sorted(invented))}, but {producer} is not")
    for have, want in zip(producer.dims, consumer.dims, strict=True):
        kept = [axis for axis in have.axes if axis in want.axes]
        prefix = _common_prefix(have.axes, want.axes)
        if len(kept) > prefix:
            raise Unmatchable(
                f"{have} and {want} order their ranks differently; an axis is kept only in front of axes that change"
            )
    layout = [list(dim.axes) for dim in producer.dims]
    target = [list(dim.axes) for dim in consumer.dims]
    letters = [dim.letter for dim in producer.dims]
    partial = set(producer.partial)
    transfers: list[Transfer] = []

    def size() -> Any:
        return elements(tuple(Dim(a, tuple(x)) for a, x in zip(letters, layout, strict=True)))

    while layout != target or partial - set(consumer.partial):
        if _extend(layout, target, partial, transfers, size):
            continue
        if finished := ordered(partial - set(consumer.partial) - {axis for axes in target for axis in axes}):
            transfers.append(Transfer(ALL_REDUCE, finished[0], size()))
            partial.discard(finished[0])
            continue
        for axes, wanted in zip(layout, target, strict=True):
            if axes != wanted[: len(axes)]:
                axis = axes.pop()
                transfers.append(Transfer(ALL_GATHER, axis, size()))
                break
        else:
            raise Unmatchable(f"no collective leads from {producer} to {consumer}")
    return transfers


def _common_prefix(have: tuple[str, ...], want: tuple[str, ...]) -> int:
    count = 0
    for a, b in zip(have, want, strict=False):
        if a != b:
            break
        count += 1
    return count


def _extend(
    layout: list[list[str]], target: list[list[str]], partial: set[str], transfers: list[Transfer], size: Any
) -> bool:
    """Divide one dimension by its next axis if possible: by a slice, else a scatter, else an all-to-all."""
    holders = {axis: axes for axes in layout for axis in axes}
    ready = [
        (axes, wanted[len(axes)])
        for axes, wanted in zip(layout, target, strict=True)
        if len(axes) < len(wanted) and axes == wanted[: len(axes)]
    ]
    for axes, axis in ready:
        if axis not in partial and axis not in holders:
            axes.append(axis)
            return True
    for axes, axis in ready:
        if axis in partial:
            transfers.append(Transfer(REDUCE_SCATTER, axis, size()))
            partial.discard(axis)
            axes.append(axis)
            return True
    for axes, axis in ready:
        if axis in holders and holders[axis][-1] == axis:
            transfers.append(Transfer(ALL_TO_ALL, axis, size()))
            holders[axis].pop()
            axes.append(axis)
            return True
    return False
