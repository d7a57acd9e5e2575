"""The mesh axes of experts.

The axis ep nests inside the others (ep * etp * edp = tp * cp * dp). The members of an ep group are ranks of tp, cp and
dp, each with its own tokens, so ep adds no ranks and repeats no work. Axes that divide an expert besides ep are etp;
ep does not nest in those. Each part of an expert is replicated on edp ranks.
"""

from dsx.graph.layer import Layer
from dsx.graph.match import Distribution, ordered

EP, DP = "ep", "dp"


def expert_axes(layer: Layer) -> tuple[str, ...]:
    """Return the axes that divide experts besides ep (etp): those that occur in one distribution with it."""
    found: set[str] = set()
    for distribution in _distributions(layer):
        if EP in distribution.axes:
            found |= {*distribution.axes} - {EP, DP}
    return ordered(found)


def reduced_over(layer: Layer, weight: Distribution, partial: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes, without dp, that a weight's gradient is reduced over; `partial` are those derived for it.

    An expert's slots hold tokens of all ranks that ep nests in, so the gradient of its weight is partial over all
    their axes. Where ep divides the weight, only one member of an ep group has each part of it.
    """
    if EP not in (*partial, *weight.axes):
        return tuple(axis for axis in partial if axis != DP)
    spanned = {*layer.axes} - {*expert_axes(layer)}
    return ordered((spanned | {*partial}) - {EP, DP})


def _distributions(layer: Layer) -> list[Distribution]:
    made = [tensor.distribution for tensor in layer.tensors.values()]
    return made + [argument.distribution for op in layer.operators for argument in op.arguments]
