"""Traces as columns, made by hand for a machine on which FLOPs, bytes and seconds are the same numbers."""

from dataclasses import replace

import numpy as np
from cost.records import machine, make_assumptions

from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE, ROUTING
from dsx.traces.columns import blank_trace, lists_of, texts_of
from dsx.traces.step_replay import StepTraces, replay_step

_INTEGERS = ("num_ops", "tensor_size", "matrix_flops", "vector_flops", "unfused_bytes", "launches")
_INTEGERS += ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "partner", "panels", "on_host", *ROUTING)
_REALS = ("overlap", "duration_ns")
_LISTS = {"ctrl_deps": "ctrl", "data_deps": "deps", "multiplies": "multiplies"}
_TEXTS = {"names": "name", "op_types": "op_type", "kernels": "kernel", "groups": "group", "axes": "axis"}


def comp(seconds, **fields):
    return {"type": COMP, "matrix_flops": seconds, "vector_flops": 0, "num_ops": seconds, "tensor_size": 0} | fields


def reduce_over_two(seconds, **fields):
    """An all-reduce; over two ranks of a domain it takes twice half of its bytes."""
    kind = {"type": COMM_COLL, "comm_type": COLLECTIVES["ALL_REDUCE"], "comm_size": seconds}
    return kind | {"group": "1", "axis": "tp"} | fields


def broadcast(seconds, **fields):
    """A broadcast; a ring sends all of its bytes on each link."""
    return reduce_over_two(seconds) | {"comm_type": COLLECTIVES["BROADCAST"]} | fields


def send(to, tag, seconds, **fields):
    return {"type": COMM_SEND, "comm_dst": to, "comm_tag": tag, "comm_size": seconds} | fields


def receive(source, tag, seconds=0, **fields):
    return {"type": COMM_RECV, "comm_src": source, "comm_tag": tag, "comm_size": seconds} | fields


def store(seconds, **fields):
    return {"type": MEM_STORE, "tensor_size": seconds} | fields


def load(seconds, **fields):
    return {"type": MEM_LOAD, "tensor_size": seconds} | fields


def trace(rank, *nodes):
    """Return the trace of nodes as dicts; `deps`, `ctrl` and `partner` have positions in the list."""
    columns = {name: np.array([node.get(name, -1) for node in nodes], np.int64) for name in _INTEGERS}
    columns |= {name: texts_of([node.get(key, "") for node in nodes]) for name, key in _TEXTS.items()}
    columns |= {name: np.array([node.get(name, np.nan) for node in nodes], float) for name in _REALS}
    columns |= {name: lists([node.get(key, ()) for node in nodes]) for name, key in _LISTS.items()}
    types = np.array([node["type"] for node in nodes], np.int8)
    return replace(blank_trace(len(nodes)), rank=rank, version="1.0.0", types=types, **columns)


def lists(values):
    numbers = np.array([number for numbers in values for number in numbers], np.int64)
    return lists_of(np.array([len(numbers) for numbers in values]), numbers)


def unit_machine(domain=8, **changes):
    """A second per FLOP, and per byte to memory, to the host and on every link; no latencies."""
    ones = ("matrix_flops", "vector_flops", "hbm_bandwidth", "host_bandwidth", "nvs_bandwidth", "net_bandwidth")
    cluster = machine(**dict.fromkeys(ones, 1.0), nvs_latency=0.0, net_latency=0.0, **changes)
    fast, slow = cluster.network.tiers
    return replace_tiers(cluster, (resized(fast, domain), slow))


def replace_tiers(cluster, tiers):
    network = type(cluster.network)(tiers=tiers)
    return replace(cluster, network=network, name="")


def resized(tier, size):
    return type(tier)(bandwidth=tier.bandwidth, latency=tier.latency, name="nvs", size=size)


def unit_assumptions(**changes):
    ones = ("matrix_efficiency", "vector_efficiency", "hbm_efficiency", "nvs_efficiency", "net_efficiency")
    given = dict.fromkeys((*ones, "host_efficiency"), 1.0) | {"launch_latency": 0.0, "dispatch_latency": 0.0}
    return make_assumptions(**given | changes)


def step(*traces, groups=None, slow=None, emit=None, domain=8, stands_for=None, machine_of=None, **assumed):
    """Replay traces on the machine of ones; the group "1" has all of them."""
    ranks = {one.rank: one for one in traces}
    given = StepTraces(ranks, groups or {"1": sorted(ranks)}, None, stands_for or {})
    return replay_step(given, unit_machine(domain, **machine_of or {}), unit_assumptions(**assumed), slow, emit)
