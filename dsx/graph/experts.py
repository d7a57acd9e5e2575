"""Experts: which axes their ranks are made of.

The axis ep nests inside the others (ep * etp * edp = tp * cp * dp): the members of an ep group are ranks of tp, cp
and dp, each with tokens of its own, so ep makes no ranks and repeats no work. Axes that divide an expert beside ep
(etp) are not among those that it nests in. What ranks of the others hold of an expert is the same on edp of them.
"""

from dsx.graph.layer import Layer
from dsx.graph.match import Distribution, ordered

EP, DP = "ep", "dp"


def expert_axes(layer: Layer) -> tuple[str, ...]:
    """Return the axes that divide experts beside ep (etp): those that stand in one distribution with it."""
    found: set[str] = set()
    for distribution in _distributions(layer):
        if EP in distribution.axes:
            found |= {*distribution.axes} - {EP, DP}
    return ordered(found)


def reduced_over(layer: Layer, weight: Distribution, partial: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes, without dp, of the ranks that a weight's gradient is reduced over; `partial` as derived.

    The slots of an expert are those of tokens of all ranks that ep nests in, so a gradient that is made from them is
    partial over all of these. Where ep divides the weight, only one of its members has this part of the weight.
    """
    if EP not in (*partial, *weight.axes):
        return tuple(axis for axis in partial if axis != DP)
    spanned = {*layer.axes} - {*expert_axes(layer)}
    return ordered((spanned | {*partial}) - {EP, DP})


def _distributions(layer: Layer) -> list[Distribution]:
    made = [tensor.distribution for tensor in layer.tensors.values()]
    return made + [argument.distribution for op in layer.operators for argument in op.arguments]
