"""Seconds as whole ticks, rounded down, for a solver of whole numbers.

The longest path of a schedule in ticks is no longer than in seconds, so the least makespan in ticks is a bound below
that in seconds. Where all times are whole nanoseconds the tick is their greatest common divisor: then a solver knows
which makespans there are. Else it is a small part of the longest makespan that counts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_NANO = 1e-9
_LESS = 1e-9  # share that a tick is shorter than the divisor, so that floats just below a multiple count as it
_PARTS = 2**27  # ticks of the longest makespan, at least
_MOST = 2**40  # ticks of the longest makespan


@dataclass(frozen=True, slots=True)
class Ticks:
    """The length of a tick."""

    seconds: float
    exact: bool  # all times are whole ticks

    def of(self, seconds: float) -> int:
        """Return whole ticks, rounded down."""
        return math.floor(seconds / self.seconds)

    def rounding_s(self, num_times: int, longest_s: float) -> float:
        """Return the most that rounding takes off a sum of so many times."""
        return 2 * _LESS * longest_s if self.exact else num_times * self.seconds


def ticks_for(times_s: Iterable[float], longest_s: float) -> Ticks:
    """Return the ticks for times, and makespans up to `longest_s`."""
    times = np.array([time for time in {*times_s} if time > 0.0])
    whole = np.round(times / _NANO)
    if len(times) and (whole >= 1).all() and (np.abs(whole * _NANO - times) < 0.1 * _LESS * times).all():
        divisor = math.gcd(*map(int, whole.tolist()))
        if longest_s < _MOST * divisor * _NANO and times.max() * _LESS < 0.1 * divisor * _NANO:
            return Ticks(divisor * _NANO * (1.0 - _LESS), exact=True)
    return finely(longest_s)


def finely(longest_s: float, parts: int = _PARTS) -> Ticks:
    """Return ticks that are a power of two of seconds, of which the longest makespan has at least so many."""
    return Ticks(2.0 ** math.floor(math.log2(max(longest_s, 1e-30) / parts)), exact=False)
