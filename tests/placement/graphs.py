"""Graphs of operators for tests."""

import random

import numpy as np

from dsx.config.documents import stated_in_code
from dsx.config.operator_files import parse_operator_graph
from dsx.placement.op_graph import graph_of
from dsx.placement.servers import Devices


def uniform(count, link, memory_bytes=None, speeds=None):
    """Devices with the same link between any two."""
    return Devices(tuple(speeds or [1.0] * count), (), (link,), memory_bytes)


def graph(times_us, edges, **columns):
    """A graph of operators 0, 1, ...; edges are (from, to, bytes); `columns` have more attributes, one per operator."""
    nodes = [
        {"id": op, "op": f"op{op}", "compute_us": time} | {name: values[op] for name, values in columns.items()}
        for op, time in enumerate(times_us)
    ]
    links = [{"src": source, "dst": target, "bytes": size} for source, target, size in edges]
    return graph_of(parse_operator_graph(stated_in_code({"nodes": nodes, "edges": links}, "here")))


def drawn(seed, num_ops, labels=False, num_times=None):
    """A random graph; edges lead from lower to higher numbers."""
    rng = random.Random(seed)
    edges = [
        (one, other, rng.choice([0, 1_000, 50_000, 400_000]))
        for other in range(num_ops)
        for one in range(other)
        if rng.random() < 2.5 / num_ops
    ]
    times = [rng.choice([0, 1, 5, 20, 100]) for _ in range(num_ops)]
    if num_times:
        times = [[time * rng.choice([1, 2]) for _ in range(num_times)] for time in times]
    more = {"memory_bytes": [rng.randrange(100) for _ in range(num_ops)]}
    if labels:
        more["colocate"] = [rng.choice([None, None, None, "a", "b"]) for _ in range(num_ops)]
    return graph(times, edges, **more)


def without_cycle(found):
    """Whether the operators of a graph have an order."""
    return sorted(found.order) == list(np.arange(found.num_ops))
