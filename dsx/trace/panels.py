"""Multiplies in panels: which collectives bring the panels of their operands, and which take those of their result.

A multiply in n panels has n collectives for each operand that comes in panels, one node each, and n for its result if
that is reduced. A node may name only the last one of them as its dependency, so all n count. On their stream the
collectives of the first panel come first, whatever their order in the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dsx.trace.columns import RankTrace
from dsx.trace.messages import COLLECTIVES, COMM_COLL, COMP

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
    if not collective.any() and not ((trace.types == COMP) & (trace.panels > 0)).any():
        return Panels()
    number, series = _numbered(trace, np.flatnonzero(collective).tolist())
    found = Panels(order=_in_order(trace, number))
    for row, panels in zip(*(values.tolist() for values in _multiplies(trace)), strict=True):
        found.brought[row] = [[] for _ in range(panels)]
    owners = np.repeat(np.arange(trace.num_nodes), np.diff(trace.data_deps.starts))
    touching = collective[owners] | collective[trace.data_deps.values]
    for row, dep in zip(owners[touching].tolist(), trace.data_deps.values[touching].tolist(), strict=True):
        if trace.types[row] == COMP and not _is_reduced(trace, dep):
            panels = found.brought.setdefault(row, [[] for _ in range(int(trace.panels[dep]))])
            for member in series[dep]:
                bringing = panels[min(number[member], len(panels) - 1)]
                if member not in bringing:
                    bringing.append(member)
        elif trace.types[dep] == COMP and collective[row] and _is_reduced(trace, row):
            found.brought.setdefault(dep, [[] for _ in range(int(trace.panels[row]))])
            found.reduced[row] = number[row]
    return found


def _multiplies(trace: RankTrace) -> tuple[np.ndarray, np.ndarray]:
    rows = np.flatnonzero((trace.types == COMP) & (trace.panels > 0))
    return rows, trace.panels[rows]


def _is_reduced(trace: RankTrace, row: int) -> bool:
    return int(trace.comm_type[row]) in _REDUCES


def _numbered(trace: RankTrace, rows: Sequence[int]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the panel of each collective, and the rows of all panels that it is one of."""
    number: dict[int, int] = {}
    series: dict[int, list[int]] = {}
    current: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        columns = (trace.groups.codes, trace.axes.codes, trace.comm_type, trace.panels)
        key = tuple(int(column[row]) for column in columns)
        members = current.get(key)
        if members is None or len(members) == int(trace.panels[row]):
            members = current[key] = []
        number[row], series[row] = len(members), members
        members.append(row)
    return number, series


def _in_order(trace: RankTrace, number: dict[int, int]) -> Sequence[int]:
    """Return all rows, with the collectives of adjacent rows by their panels; those of results stay behind others."""
    place = np.arange(trace.num_nodes)
    keys: list[tuple[int, int, int]] = []
    first, before = 0, -2
    for row in number:
        if row != before + 1 or _is_reduced(trace, row) != _is_reduced(trace, before):
            first = row
        before = row
        keys.append((first, number[row], row))
    place[sorted(number)] = [row for _, _, row in sorted(keys)]
    return place.tolist()
