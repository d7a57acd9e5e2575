"""A claim of the paper beside the released code's number and dsx's, with a verdict that follows from dsx's.

A claim is cut into parts that hold or do not. The reason of a verdict is text, so it is written for one verdict: when
the numbers change the verdict, the reason has to be written again, and until then the document cannot be made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

YES, PARTLY, NO = "yes", "partly", "no"


@dataclass(frozen=True, slots=True)
class Difference:
    """A number of the released code that dsx's corrections move."""

    quantity: str
    unit: str
    released: float
    dsx: float
    moved_by: str  # the corrections, "C2 and C3"
    digits: int = 3  # behind the point

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table; the difference is that of the printed digits."""
        released, ours = (round(value, self.digits) for value in (self.released, self.dsx))
        moved = f"{ours - released:+.{self.digits}f}"
        # Of a percentage, points say more than percent.
        moved += " points" if self.unit == "%" else f" ({change(ours, released)})"
        numbers = (f"{value:.{self.digits}f}" for value in (released, ours))
        return (self.quantity, self.unit, *numbers, moved, self.moved_by)


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the document."""

    statement: str  # of the paper
    released: str  # what its released code gives
    dsx: str  # what dsx gives
    holds: tuple[bool, ...]  # of each part of the statement, by dsx's numbers
    because: Mapping[str, str] = field(default_factory=dict)  # {verdict: its reason}
    pictures: tuple[str, ...] = ()  # names of the sweeps whose pictures show it
    differences: tuple[Difference, ...] = ()

    @property
    def verdict(self) -> str:
        """Whether all parts of the statement hold, some, or none."""
        return YES if all(self.holds) else PARTLY if any(self.holds) else NO

    @property
    def reason(self) -> str:
        """Why; raises ValueError if no reason was written for this verdict."""
        if self.verdict not in self.because and self.verdict != YES:
            written = " and ".join(map(repr, self.because)) or "'yes'"
            raise ValueError(
                f"{self.statement!r}: the verdict is now {self.verdict!r}, and its reason was written for {written}; "
                f"write it again. dsx: {self.dsx}"
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
    """Return by how much a value differs from another, "+1.4 %"."""
    return f"{round(100 * (value / reference - 1), 1) + 0.0:+.1f} %"


def span(values: list[float]) -> str:
    """Return the smallest and the largest of some shares, "4.5-13.7 %"."""
    low, high = percent(min(values)), percent(max(values))
    return f"{low} %" if low == high else f"{low}-{high} %"
