"""A multiply in a trace: rows, columns, contracted, batch, FLOPs, and a number with a bit for each property."""

from dsx.cost.work import MultiplyShape
from dsx.graph.derived import BACKWARD, FORWARD

NUMBERS_OF_MULTIPLY = 6

_PROPERTIES = ("linear", "of_weight", "fused", "grouped")  # of a `MultiplyShape`, from the lowest bit on
_BACKWARD = 1 << len(_PROPERTIES)


def bits_of(shape: MultiplyShape) -> int:
    """Return the last number of a multiply."""
    bits = sum(1 << place for place, name in enumerate(_PROPERTIES) if getattr(shape, name))
    return bits | (_BACKWARD if shape.direction == BACKWARD else 0)


def shape_of(bits: int) -> MultiplyShape:
    """Return the multiply without its size, of kernel 0, from its last number."""
    properties = {name: bool(bits >> place & 1) for place, name in enumerate(_PROPERTIES)}
    return MultiplyShape(kernel=0, direction=BACKWARD if bits & _BACKWARD else FORWARD, **properties)
