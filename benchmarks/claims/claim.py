"""A claim of the paper, with the numbers of the released code and of dsx, and a verdict that follows from those of dsx.

A claim has parts that hold or do not. The reason of a verdict is text for this verdict alone: if the numbers change the
verdict, the reason must be rewritten before the document can be written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

YES, PARTLY, NO = "yes", "partly", "no"


@dataclass(frozen=True, slots=True)
class Difference:
    """A number of the released code that the corrections of dsx change."""

    quantity: str
    unit: str
    released: float
    dsx: float
    moved_by: str  # the corrections, "C2 and C3"
    digits: int = 3  # after the decimal point

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table; the difference is that of the printed numbers."""
        released, ours = (round(value, self.digits) for value in (self.released, self.dsx))
        moved = f"{ours - released:+.{self.digits}f}"
        # For percentages the difference is in points.
        moved += " points" if self.unit == "%" else f" ({change(ours, released)})"
        numbers = (f"{value:.{self.digits}f}" for value in (released, ours))
        return (self.quantity, self.unit, *numbers, moved, self.moved_by)


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the document."""

    statement: str  # of the paper
    released: str  # the result of its released code
    dsx: str  # the result of dsx
    holds: tuple[bool, ...]  # for each part of the statement, by the numbers of dsx
    because: Mapping[str, str] = field(default_factory=dict)  # {verdict: its reason}
    pictures: tuple[str, ...] = ()  # names of the sweeps whose pictures show it
    differences: tuple[Difference, ...] = ()

    @property
    def verdict(self) -> str:
        """Whether all, some or no parts of the statement hold."""
        return YES if all(self.holds) else PARTLY if any(self.holds) else NO

    @property
    def reason(self) -> str:
        """The reason of the verdict; raises ValueError if none is written for it."""
        if self.verdict not in self.because and self.verdict != YES:
            written = " and ".join(map(repr, self.because)) or "'yes'"
            raise ValueError(
                f"{self.statement!r}: the verdict is now {self.verdict!r}, but its reason was written for {written}; "
                f"rewrite it. dsx: {self.dsx}"
            )
        return self.because.get(self.verdict, "")


def seconds(value: float) -> str:
    """Return 3.23311 as "3.233"."""
    return f"{value:.3f}"


def gigabytes(value: float) -> str:
    """Return bytes as GB, "64.0"."""
    return f"{value / 1e9:.1f}"


def percent(value: float) -> str:
    """Return 0.0365 as "3.6"."""
    # Adding zero makes a negative zero positive.
    return f"{round(100 * value, 1) + 0.0:.1f}"


def change(value: float, reference: float) -> str:
    """Return the relative difference of a value from a reference, "+1.4 %"."""
    return f"{round(100 * (value / reference - 1), 1) + 0.0:+.1f} %"


def span(values: list[float]) -> str:
    """Return the range of some shares, "4.5-13.7 %"."""
    low, high = percent(min(values)), percent(max(values))
    return f"{low} %" if low == high else f"{low}-{high} %"
