"""A multiply in a trace: rows, columns, contracted, batch, FLOPs, and a number with a bit for each property."""

from dsx.cost.work import MultiplyShape
from dsx.graph.derived import BACKWARD, FORWARD

NUMBERS_OF_MULTIPLY = 6

_PROPERTIES = {"linear": 1, "of_weight": 2, "fused": 4, "grouped": 8, "wide": 32}  # bits of a `MultiplyShape`
_BACKWARD = 16


def bits_of(shape: MultiplyShape) -> int:
    """Return the last number of a multiply."""
    bits = sum(bit for name, bit in _PROPERTIES.items() if getattr(shape, name))
    return bits | (_BACKWARD if shape.direction == BACKWARD else 0)


def shape_of(bits: int) -> MultiplyShape:
    """Return the multiply without its size, of kernel 0, from its last number."""
    properties = {name: bool(bits & bit) for name, bit in _PROPERTIES.items()}
    return MultiplyShape(kernel=0, direction=BACKWARD if bits & _BACKWARD else FORWARD, **properties)
