"""The shortest schedule of a few operators: all placements and orders, cut off where no better one follows.

Operators are appended in the order of their starts, each as early as it can. Every schedule without needless waiting
is found so, and one of these is the shortest.
"""

import math


def shortest_s(graph, devices):
    """The least makespan of a graph on devices; infinite if memory has no room."""
    count, ops = devices.count, range(graph.num_ops)
    seconds = [
        [float(graph.seconds[op][d if graph.seconds.shape[1] > 1 else 0]) / devices.speeds[d] for d in range(count)]
        for op in ops
    ]
    limit = math.inf if devices.memory_bytes is None else devices.memory_bytes
    before = {op: [edge for edge in graph.edges if edge[1] == op] for op in ops}
    after = {op: [edge for edge in graph.edges if edge[0] == op] for op in ops}
    place = {op: at for at, op in enumerate(graph.order)}
    tail = dict.fromkeys(ops, 0.0)
    for op in reversed(graph.order):
        tail[op] = min(seconds[op]) + max((tail[other] for _, other in after[op]), default=0.0)
    sent = {
        edge: [[_transfer_s(devices, one, other, size) for other in range(count)] for one in range(count)]
        for edge, size in graph.edge_bytes.items()
    }
    device, end = {}, {}
    free, room, labels = [0.0] * count, [limit] * count, {}
    best = math.inf

    def append(latest):
        nonlocal best
        left = [op for op in ops if op not in end]
        if not left:
            best = min(best, max(end.values(), default=0.0))
            return
        for op in left:
            early = max([latest[0], *(end[one] for one, _ in before[op] if one in end)])
            if early + tail[op] >= best:
                return
        for op in left:
            if any(one not in end for one, _ in before[op]):
                continue
            label = graph.together[op]
            for own in [labels[label]] if label in labels else range(count):
                if room[own] < graph.memory_bytes[op]:
                    continue
                begin = max((end[one] + sent[one, op][device[one]][own] for one, _ in before[op]), default=0.0)
                if seconds[op][own] > 0.0:
                    begin = max(begin, free[own])
                if (begin, place[op]) < latest:
                    continue
                saved, new = free[own], label not in labels
                device[op], end[op] = own, begin + seconds[op][own]
                labels[label] = own
                room[own] -= graph.memory_bytes[op]
                if seconds[op][own] > 0.0:
                    free[own] = end[op]
                append((begin, place[op]))
                free[own] = saved
                room[own] += graph.memory_bytes[op]
                if new:
                    del labels[label]
                del device[op], end[op]

    append((0.0, -1))
    return best


def _transfer_s(devices, source, target, num_bytes):
    if source == target or not num_bytes:
        return 0.0
    shared = [
        link for size, link in zip(devices.units, devices.links, strict=False) if source // size == target // size
    ]
    link = shared[0] if shared else devices.links[-1]
    return link.latency_s + num_bytes / link.bandwidth
