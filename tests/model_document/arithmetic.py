"""The arithmetic of the pages: lines such as ``sends   32 * 440.5 us = 14.1 ms``.

A label, two blanks or more, an expression of numbers with their units, and its result. A line without an expression
states a number that dsx gives.
"""

import math
import re
from dataclasses import dataclass

UNITS = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "GB/s": 1e9, "TB/s": 1e12,
    "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "TFLOP/s": 1e12,
    "%": 1e-2, "": 1.0,
}  # fmt: skip

_LINE = re.compile(r"(?P<label>\S+(?: \S+)*) {2,}(?:(?P<expression>[^=]*\S) )?= (?P<number>[\d.,]+)(?: (?P<unit>\S+))?")
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True) if unit)
_QUANTITY = re.compile(rf"(?<!\w)({_NUMBER})(?: ({_UNIT})(?![\w/]))?")


def _gcd(one, other):
    return math.gcd(round(one), round(other))


_FUNCTIONS = {
    "min": min, "max": max, "ceil": math.ceil, "floor": math.floor, "gcd": _gcd, "log2": math.log2, "exp": math.exp,
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A line of arithmetic."""

    label: str
    expression: str | None
    number: str
    unit: str

    def shows(self, value):
        """Return whether the result is `value`, in SI units, to the digits that it shows."""
        decimals = len(self.number.partition(".")[2])
        return f"{value / UNITS[self.unit]:,.{decimals}f}" == f"{float(self.number.replace(',', '')):,.{decimals}f}"

    def value(self):
        """Return what the expression is, in SI units."""
        return eval(_QUANTITY.sub(_in_si, self.expression), {"__builtins__": {}} | _FUNCTIONS)


def read(block):
    """Return the lines of a block."""
    found = []
    for text in block.splitlines():
        match = _LINE.fullmatch(text)
        assert match, f"no arithmetic: {text}"
        found.append(Line(match["label"], match["expression"], match["number"], match["unit"] or ""))
    return found


def _in_si(match):
    number = match[1].replace(",", "")
    return f"({number} * {UNITS[match[2]]!r})" if match[2] else number
