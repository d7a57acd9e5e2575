"""The order of the nodes in a trace, and how to put them in another one."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from dsx.traces.columns import Lists, RankTrace, Texts, lists_of
from dsx.traces.dag import joined, topological_order

_NOT_OF_NODES = ("tensor_bytes", "unknown_deps")  # columns


def stands_in_order(trace: RankTrace) -> bool:
    """Return whether no node depends on a later one."""
    lists = (trace.ctrl_deps, trace.data_deps)
    return all(
        bool(np.all(part.values < np.repeat(np.arange(trace.num_nodes), np.diff(part.starts)))) for part in lists
    )


def after_dependencies(trace: RankTrace) -> RankTrace:
    """Return a trace whose nodes stand behind those that they depend on, else as in its file; the same for a cycle."""
    order = topological_order(joined(trace.ctrl_deps, trace.data_deps))
    return in_order(trace, order) if len(order) == trace.num_nodes else trace


def in_order(trace: RankTrace, rows: np.ndarray) -> RankTrace:
    """Return a trace with all its nodes in the order of `rows`."""
    if np.array_equal(rows, np.arange(trace.num_nodes)):
        return trace
    places = np.empty(trace.num_nodes, np.int64)
    places[rows] = np.arange(trace.num_nodes)
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(trace)):
        column = getattr(trace, name)
        if isinstance(column, Lists):
            found[name] = _moved(column, rows)
        elif isinstance(column, Texts):
            found[name] = Texts(column.table, column.codes[rows])
        elif isinstance(column, np.ndarray) and name not in _NOT_OF_NODES:
            found[name] = column[rows]
    for name in ("ctrl_deps", "data_deps"):
        found[name] = Lists(found[name].starts, places[found[name].values])
    stated = found["partner"] >= 0
    found["partner"][stated] = places[found["partner"][stated]]
    unknown = trace.unknown_deps.copy()
    unknown[:, 0] = places[unknown[:, 0]]
    return replace(trace, **found, unknown_deps=unknown)


def _moved(lists: Lists, rows: np.ndarray) -> Lists:
    lengths = np.diff(lists.starts)[rows]
    moved = lists_of(lengths, lists.values)
    shift = np.repeat(lists.starts[rows] - moved.starts[:-1], lengths)
    return Lists(moved.starts, lists.values[np.arange(len(shift)) + shift])
