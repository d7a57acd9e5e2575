"""What is wrong with traces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.traces.columns import RankTrace

MOST_LISTED = 5  # faults of one kind in one rank; the last one says how many more there are


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a simulator would stop at, or that makes its result wrong."""

    what: str  # kind of fault, such as "unknown dependency"
    rank: int | None  # None for a fault of several ranks
    node: int | None  # id of a node; None for a fault of no single one
    name: str  # of the node; empty if there is none
    detail: str
    more: int = 0  # further faults of this kind in this rank, which are not listed
    is_note: bool = False  # the trace is legal, but was not checked in full

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}"
        where += "" if self.node is None else f" node {self.node} ({self.name})"
        more = f"; and {self.more:,} more" if self.more else ""
        return f"{self.what}: {where}{': ' if where else ''}{self.detail}{more}"


def at_rows(
    what: str, trace: RankTrace, rows: np.ndarray, details: Sequence[str] | str, is_note: bool = False
) -> list[Fault]:
    """Return a fault for each of some rows of a trace; `details` is one text for all, or one for each listed."""
    listed = rows[:MOST_LISTED].tolist()
    texts = [details] * len(listed) if isinstance(details, str) else details
    return [
        Fault(what, trace.rank, int(trace.ids[row]), trace.names.of(row), detail, unlisted(at, len(rows)), is_note)
        for at, (row, detail) in enumerate(zip(listed, texts, strict=False))
    ]


def first_rows(rows: np.ndarray) -> list[int]:
    """Return the rows of which a fault is listed."""
    return rows[:MOST_LISTED].tolist()


def unlisted(at: int, number: int) -> int:
    """Return how many of `number` faults are not listed, for the fault at position `at`: 0 but for the last listed."""
    return max(number - MOST_LISTED, 0) if at == MOST_LISTED - 1 else 0
