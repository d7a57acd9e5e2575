"""Orders of a directed graph: a topological order, or a cycle."""

import heapq

import numpy as np

from dsx.traces.columns import Lists


def joined(*lists: Lists) -> Lists:
    """Return the lists of each node one after the other."""
    num_nodes = len(lists[0].starts) - 1
    lengths = np.sum([np.diff(part.starts) for part in lists], axis=0)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values, offset = np.empty(int(starts[-1]), np.int64), starts[:-1].copy()
    for part in lists:
        sizes = np.diff(part.starts)
        owners = np.repeat(np.arange(num_nodes), sizes)
        places = np.arange(len(owners)) - part.starts[owners] + offset[owners]
        values[places] = part.values
        offset += sizes
    return Lists(starts, values)


def topological_order(before: Lists) -> np.ndarray:
    """Return the nodes, each after those in its list `before`; fewer than all if some are on or behind a cycle.

    Of nodes that may come next the first one does, so it is the order of the nodes themselves if that is one.
    """
    num_nodes = len(before.starts) - 1
    owners = np.repeat(np.arange(num_nodes), np.diff(before.starts))
    if np.all(before.values < owners):
        return np.arange(num_nodes)
    by_cause = np.argsort(before.values, kind="stable")
    after = owners[by_cause].tolist()
    starts = np.searchsorted(before.values[by_cause], np.arange(num_nodes + 1)).tolist()
    missing = np.diff(before.starts).tolist()
    ready = [node for node, number in enumerate(missing) if number == 0]  # in ascending order, which is a heap
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for other in after[starts[node] : starts[node + 1]]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
    return np.array(order, np.int64)


def cycle(before: Lists) -> list[int]:
    """Return the nodes of a cycle, each before the next one, and the last before the first; empty if there is none.

    The first of them is the one with the smallest number.
    """
    num_nodes = len(before.starts) - 1
    order = topological_order(before)
    if len(order) == num_nodes:
        return []
    left = np.ones(num_nodes, bool)
    left[order] = False
    # Each node that is left waits for another one that is left: going back ends in a cycle.
    node, places, path = int(np.flatnonzero(left)[0]), {}, []
    while node not in places:
        places[node] = len(path)
        path.append(node)
        causes = before.of(node)
        node = int(causes[left[causes]][0])
    around = path[places[node] :][::-1]
    first = around.index(min(around))
    return around[first:] + around[:first]
