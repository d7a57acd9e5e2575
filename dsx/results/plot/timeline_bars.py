"""The bars of a timeline: neighbours merged until each is wide enough to be seen, and the waits for transfers.

A step has thousands of operators, most of them shorter than a pixel. Operators that follow each other without a visible
gap become bars of at least the least width, and a bar has the kind that takes most of it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]  # [n] seconds
Spans = NDArray[np.float64]  # [n, 2] starts and ends in seconds, in order and disjoint
_ROUNDING = 1e-9  # of the longest time


class Bar(NamedTuple):
    """Operators of a device that are drawn as one."""

    start_s: float
    end_s: float
    kind: str


class Wait(NamedTuple):
    """A device is idle from one time to another one, and then runs since a transfer has arrived."""

    from_s: float
    until_s: float
    sent_s: float  # the start of the transfer
    source: int  # the device that sends


def merged_bars(start_s: Times, end_s: Times, kinds: Sequence[str], least_s: float) -> list[Bar]:
    """Return the bars of the operators of a device, [n] each; none of operators without time.

    Of the same kind, or as long as they are shorter than `least_s`, operators are one bar; gaps are left open if they
    are at least as long.
    """
    found: list[Bar] = []
    start = end = 0.0
    shares: dict[str, float] = {}

    def close() -> None:
        if shares:
            found.append(Bar(start, end, max(shares.items(), key=lambda share: (share[1], share[0]))[0]))

    order: list[int] = np.argsort(start_s, kind="stable").tolist()
    for op in order:
        begin, last, kind = float(start_s[op]), float(end_s[op]), kinds[op]
        if not last > begin:
            continue
        near = begin - end < least_s
        if not (shares and near and (end - start < least_s or set(shares) == {kind})):
            close()
            # A gap that is too short to be seen would be a white line.
            start, shares = (end if shares and near else begin), {}
        shares[kind] = shares.get(kind, 0.0) + last - begin
        end = last
    close()
    return found


def union(start_s: Times, end_s: Times, least_s: float = 0.0) -> Spans:
    """Return the spans that any of some spans covers, [n, 2]; those that are nearer than `least_s` are joined."""
    found: list[list[float]] = []
    for at in np.argsort(start_s, kind="stable").tolist():
        begin, end = float(start_s[at]), float(end_s[at])
        if not end > begin:
            continue
        if found and begin - found[-1][1] <= least_s:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return np.array(found).reshape(-1, 2)


def waits(busy: Spans, sent_s: Times, arrived_s: Times, source: NDArray[Any], longest_s: float) -> list[Wait]:
    """Return the waits of a device for transfers to it, of which [n] times and sources are given.

    A device waits if it is idle until a transfer ends, and then runs. It waits from the start of the transfer, or from
    where it is idle; of several transfers that end together, for the one that starts first.
    """
    slack = _ROUNDING * longest_s
    order = np.lexsort((sent_s, arrived_s))
    ends = arrived_s[order]
    found: list[Wait] = []
    idle = 0.0
    for begin, end in busy.tolist():
        first, last = np.searchsorted(ends, [begin - slack, begin + slack])
        if begin - idle > slack and last > first:
            one = int(min(order[first:last], key=lambda at: (sent_s[at], at)))
            found.append(Wait(max(idle, float(sent_s[one])), begin, float(sent_s[one]), int(source[one])))
        idle = end
    return found
