"""Advice for cells of a run table that have a unit, such as "26.5 s".

The name of a column implies its unit, so its cells are plain numbers. A number in another unit of the same dimension is
converted, so that the advice means the value that was written.
"""

import re

from dsx.errors import UnitError
from dsx.units import REAL, Dimension, parse_quantity, written_out

_NUMBER_AND_UNIT = re.compile(rf"({REAL})\s*([^\W\d_].*|%)")

# The unit of a column, in words.
_IN = {
    "measured_iter_s": "seconds",
    "measured_tokens_per_s_per_gpu": "tokens per second",
    "measured_tflops_per_gpu": "TFLOP/s",
    "measured_mfu": "fractions of 1",
    "measured_mem_gb": "the unit that mem_unit names",
}
_WITH_UNIT = ("node_network",)  # columns whose cells have one
# The dimension of a column, and the SI value of its unit.
_DIMENSIONS: dict[str, tuple[Dimension, float]] = {
    "measured_iter_s": ("s", 1.0),
    "measured_tflops_per_gpu": ("flop/s", 1e12),
}


def without_unit(text: str, column: str) -> str:
    """Return the error for a cell that is a number with a unit, with what to write; empty for any other text."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or column in _WITH_UNIT:
        return ""
    number, unit = match[1], match[2]
    inside = f", in {_IN[column]}" if column in _IN else ""
    return f"{text!r} has a unit; this column holds plain numbers{inside}: write {_advised(number, unit, text, column)}"


def _advised(number: str, unit: str, text: str, column: str) -> str:
    if column == "measured_mem_gb":
        return f"{number}, and {unit} in the column mem_unit"
    if unit == "%":
        return f"{float(number) / 100:.15g}"
    if column not in _DIMENSIONS:
        return written_out(text) or number
    dimension, factor = _DIMENSIONS[column]
    try:
        return f"{parse_quantity(text, dimension) / factor:.15g}"
    except UnitError:
        return f"the number in {_IN[column]}"
