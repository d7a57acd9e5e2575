"""Slow ranks, as people write them: RANKS=FACTOR, such as "0-7=1.3" or "3,5=2"."""

import math
from collections.abc import Collection, Mapping, Sequence

from dsx.argument_types import wrong
from dsx.errors import InputError

# RANKS=FACTOR as a text, several of them, or the factor of each rank.
Slow = str | Sequence[str] | Mapping[int, float]

_SHOWN = 8  # ranks in an error
_MOST_DIGITS = 9  # of a rank
_EXAMPLE = "RANKS=FACTOR is wanted, as in 0-7=1.3 or 3,5=2"


def slow_ranks(slow: Slow | None, known: Collection[int]) -> dict[int, float]:
    """Return the factor of each slow rank; `known` are the ranks with a trace.

    Raises InputError for a text that is not RANKS=FACTOR, a factor that is not positive, and a rank that is unknown or
    named twice.
    """
    found: dict[int, float] = {}
    for text in _texts(slow):
        ranks, equals, factor = text.partition("=")
        if not equals:
            raise InputError(f"--slow {text}: {_EXAMPLE}")
        value = _factor(text, factor)
        for part in ranks.split(","):
            for rank in _ranks(text, part, known):
                if rank in found:
                    raise InputError(f"--slow {text}: rank {rank} is named twice")
                found[rank] = value
    return found


def _texts(slow: Slow | None) -> list[str]:
    if slow is None:
        return []
    if isinstance(slow, str):
        return [slow]
    if isinstance(slow, Mapping):
        return [f"{_number(rank)}={_number(factor)}" for rank, factor in slow.items()]
    if isinstance(slow, Sequence) and all(isinstance(text, str) for text in slow):
        return [*slow]
    raise wrong("slow", slow, "RANKS=FACTOR is wanted, such as '0-7=1.3', a list of them, or a mapping of ranks")


def _number(given: object) -> str:
    """Return a number of a mapping as text."""
    try:
        return f"{given}"
    except ValueError:  # a whole number of thousands of digits
        raise InputError(f"slow: a number has thousands of digits; {_EXAMPLE}") from None


def _factor(text: str, given: str) -> float:
    try:
        factor = float(given)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise InputError(f"--slow {text}: the factor {given!r} is no positive number")
    return factor


def _ranks(text: str, given: str, known: Collection[int]) -> list[int]:
    first, dash, last = (end.strip() for end in given.partition("-"))
    last = last if dash else first
    if not all(end.isascii() and end.isdigit() and len(end) <= _MOST_DIGITS for end in (first, last)):
        raise InputError(f"--slow {text}: {given.strip()!r} is no rank and no range of ranks; {_EXAMPLE}")
    low, high = int(first), int(last)
    if low > high:
        raise InputError(f"--slow {text}: {given.strip()} ends before it begins")
    ranks = [rank for rank in sorted(known) if low <= rank <= high]
    if len(ranks) != high - low + 1:
        absent = next(rank for rank in range(low, high + 1) if rank not in known)
        raise InputError(f"--slow {text}: rank {absent} has no trace; there are ranks {_range(known)}")
    return ranks


def _range(known: Collection[int]) -> str:
    if known and max(known) - min(known) + 1 == len(known):
        return f"{min(known)} to {max(known)}"
    return ", ".join(map(str, sorted(known)[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "") if known else "none"
