"""Groups of operators that a placement should keep on one device (QuickP, algorithm 2): co-location by rank.

The rank of an operator is the longest time from its start to the end of the step, with all transfers on the slowest
link. An operator with several successors is grouped with the one on its longest path. Groups are the connected parts
of these pairs.
"""

from collections.abc import Mapping

from dsx.operator_placement.devices import Devices
from dsx.operator_placement.merging import Merging

Groups = dict[int, int]  # operator -> number of its group; operators without one are left out


def _ranked(graph: Merging, devices: Devices) -> dict[int, tuple[float, int | None]]:
    """Return the rank of each operator, and its successor on the longest path, the first one of equal ones."""
    found: dict[int, tuple[float, int | None]] = {}
    for op in reversed([op for op in graph.order if op >= 0]):
        longest, following = 0.0, None
        for other in sorted(graph.after[op]):
            length = found[other][0] + devices.worst_s(graph.edge_bytes(op, other))
            if following is None or length > longest:
                longest, following = length, other
        found[op] = graph.mean_s[op] + longest, following
    return found


def colocated(graph: Merging, devices: Devices) -> Groups:
    """Return the groups of co-location."""
    root = {op: op for op in graph.after}

    def find(op: int) -> int:
        while root[op] != op:
            root[op] = root[root[op]]
            op = root[op]
        return op

    paired: set[int] = set()
    for op, (_, following) in _ranked(graph, devices).items():
        if following is not None and len(graph.after[op]) > 1:
            paired |= {op, following}
            one, other = find(op), find(following)
            root[max(one, other)] = min(one, other)
    return _numbered({op: find(op) for op in sorted(paired)})


def fuse_inside(graph: Merging, groups: Groups, alpha_s: float) -> int:
    """Fuse edges inside groups where that makes no cycle; return how many were fused.

    An edge is fused if all successors of its first operator are in the group, or its second one is shorter than alpha.
    """
    merged = 0
    pending = [(op, other) for op in graph.order if op >= 0 for other in sorted(graph.after[op])]
    pending = [edge for edge in reversed(pending) if _inside(groups, *edge)]
    while pending:
        source, target = pending.pop()
        if source not in graph.after or target not in graph.after[source]:
            continue
        whole = all(_inside(groups, source, other) for other in graph.after[source])
        if not (whole or graph.mean_s[target] < alpha_s) or not graph.may_share(source, target):
            continue
        if graph.has_detour(source, target):
            continue
        graph.merge(source, target)
        groups.pop(target)
        merged += 1
        near = [(source, other) for other in sorted(graph.after[source])]
        near += [(other, source) for other in sorted(graph.before[source])]
        pending += [edge for edge in reversed(near) if _inside(groups, *edge)]
    return merged


def _inside(groups: Mapping[int, int], source: int, target: int) -> bool:
    return source in groups and groups[source] == groups.get(target)


def expanded(graph: Merging, groups: Groups, beta_s: float) -> Groups:
    """Return groups that short operators beside them have joined: each that of its heaviest edge, the lowest of equal.

    No two groups become one.
    """
    found = dict(groups)
    changed = True
    while changed:
        changed = False
        for op in sorted(graph.after):
            if op in found or graph.mean_s[op] >= beta_s:
                continue
            near = [(graph.edge_bytes(op, other), other) for other in graph.after[op] if other in found]
            near += [(graph.edge_bytes(other, op), other) for other in graph.before[op] if other in found]
            if near:
                found[op] = found[min(near, key=lambda edge: (-edge[0], edge[1]))[1]]
                changed = True
    return found


def _numbered(found: Mapping[int, int]) -> Groups:
    numbers: dict[int, int] = {}
    return {op: numbers.setdefault(group, len(numbers)) for op, group in found.items()}
