"""Multiplies in panels: which collectives bring the panels of their operands, and which take those of their result.

A multiply in n panels has n collectives for each operand that comes in panels, one node each, and n for its result if
that is reduced. A node may name only the last one of them as its dependency, so all n count. On their stream the
collectives of the first panel come first, whatever their order in the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dsx.traces.columns import RankTrace
from dsx.traces.messages import COLLECTIVES, COMM_COLL, COMP

_REDUCES = [COLLECTIVES[name] for name in ("REDUCE", "REDUCE_SCATTER", "ALL_REDUCE")]


@dataclass(frozen=True, slots=True)
class Panels:
    """The multiplies in panels of a rank, by the rows of its file."""

    # Row of a multiply -> for each of its panels, the rows of the collectives that bring it.
    brought: dict[int, list[list[int]]] = field(default_factory=dict)
    reduced: dict[int, int] = field(default_factory=dict)  # row of a collective of a result -> its panel
    order: Sequence[int] = ()  # rows in the order of the streams; empty for that of the file


def in_panels(trace: RankTrace) -> np.ndarray:
    """Return the [N] collectives of one panel of a multiply."""
    return (trace.types == COMM_COLL) & (trace.panels > 0)


def panels_of(trace: RankTrace) -> Panels:
    """Return the multiplies in panels of a rank."""
    collective = in_panels(trace)
    stated = np.flatnonzero((trace.types == COMP) & (trace.panels > 0))
    if not collective.any() and not stated.size:
        return Panels()
    rows = np.flatnonzero(collective)
    of_result = np.isin(trace.comm_type, _REDUCES) & collective
    number, series = _numbered(trace, rows)
    found = Panels(order=_in_order(trace, rows, number, of_result))
    for row, panels in zip(stated.tolist(), trace.panels[stated].tolist(), strict=True):
        found.brought[row] = [[] for _ in range(panels)]
    readers, read = np.repeat(np.arange(trace.num_nodes), np.diff(trace.data_deps.starts)), trace.data_deps.values
    brings = (trace.types[readers] == COMP) & collective[read] & ~of_result[read]
    for row, dep in zip(readers[brings].tolist(), read[brings].tolist(), strict=True):
        panels = found.brought.setdefault(row, [])
        panels += [[] for _ in range(len(series[dep]) - len(panels))]
        for member in series[dep]:
            if member not in panels[number[member]]:
                panels[number[member]].append(member)
    takes = of_result[readers] & (trace.types[read] == COMP)
    for row, dep in zip(readers[takes].tolist(), read[takes].tolist(), strict=True):
        found.brought.setdefault(dep, [[] for _ in series[row]])
        found.reduced[row] = number[row]
    return found


def _numbered(trace: RankTrace, rows: np.ndarray) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the panel of each collective, and the rows of all panels that it is one of."""
    number: dict[int, int] = {}
    series: dict[int, list[int]] = {}
    current: dict[tuple[int, ...], list[int]] = {}
    columns = (trace.panels, trace.groups.codes, trace.axes.codes, trace.comm_type)
    for row, *key in zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True):
        members = current.get(tuple(key))
        if members is None or len(members) == key[0]:
            members = current[tuple(key)] = []
        number[row], series[row] = len(members), members
        members.append(row)
    return number, series


def _in_order(trace: RankTrace, rows: np.ndarray, number: dict[int, int], of_result: np.ndarray) -> Sequence[int]:
    """Return all rows, with the collectives of adjacent rows by their panels; those of results stay behind others."""
    begins = (np.diff(rows, prepend=-2) > 1) | np.diff(of_result[rows], prepend=False)
    begins[:1] = True
    block = np.cumsum(begins)
    panel = np.array([number[row] for row in rows.tolist()], np.int64)
    place = np.arange(trace.num_nodes)
    place[rows] = rows[np.lexsort((rows, panel, block))]
    return place.tolist()
