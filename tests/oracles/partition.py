"""Referee for the partition: the problem as it is stated, by brute force. Plain Python; nothing of dsx is imported.

chain:   forward, backward, parameters, saved: lists by layer; cut: list of one more, bytes in front of each layer.
network: devices (per level, a tuple), bandwidth, latency, innermost level first; bytes/s and seconds.
job:     batch (microbatches of all replicas), memory (bytes of a device), optimizer (0 or 6).
plan:    per_stage (devices of a stage), layers (of each stage, pipeline order), replicas, zero, recompute.
"""

from functools import cache
from itertools import combinations, pairwise
from math import ceil, prod


def level_of(one, other, network):
    """The innermost level that joins two devices."""
    size = 1
    for level, count in enumerate(network["devices"]):
        size *= count
        if one // size == other // size:
            return level
    raise ValueError("no such devices")


def p2p(num_bytes, level, network):
    if num_bytes == 0:
        return 0.0
    return network["latency"][level] + num_bytes / min(network["bandwidth"][: level + 1])


@cache
def group_sizes(replicas, stride, devices):
    """Per level the largest number of sub-groups that one of its domains joins, by placing every replica."""
    members = {r * stride for r in range(replicas)}  # devices, then domains of ever higher levels
    sizes = []
    for count in devices:
        joined = {}
        for member in members:
            joined.setdefault(member // count, set()).add(member)
        sizes.append(max(map(len, joined.values())))
        members = set(joined)
    return sizes


def sync(replicas, stride, num_bytes, network):
    total, left = 0.0, num_bytes
    for level, g in enumerate(group_sizes(replicas, stride, network["devices"])):
        if g > 1:
            width = min(network["bandwidth"][: level + 1])
            total += 2 * (g - 1) * (network["latency"][level] + left / (g * width))
        left /= g
    return total


def price(chain, network, job, plan):
    """(step time, bottleneck), or None if it does not fit."""
    loads, most_bytes, syncs = stages_of(chain, network, job, plan)
    if most_bytes > job["memory"]:
        return None
    m = ceil(job["batch"] / plan["replicas"])
    return max(loads) * (m + len(loads) - 1) + max(syncs), max(loads)


def stages_of(chain, network, job, plan):
    """(loads, bytes of the fullest device, synchronisation of each stage)."""
    a, d, z = plan["per_stage"], plan["replicas"], plan["zero"]
    num_stages, m = len(plan["layers"]), ceil(job["batch"] / d)
    loads, memory, syncs = [], [], []
    i = 0
    for position, count in enumerate(plan["layers"]):
        j, s = i + count - 1, num_stages - position
        layers = slice(i, j + 1)
        load = sum(chain["forward"][layers]) * (2 if plan["recompute"] else 1)
        load += sum(chain["backward"][layers])
        if s < num_stages:
            load += p2p(chain["cut"][i], level_of((s - 1) * a, s * a, network), network)
        if s > 1:
            load += p2p(chain["cut"][j + 1], level_of((s - 2) * a, (s - 1) * a, network), network)
        parameters = sum(chain["parameters"][layers])
        saved = sum(chain["saved"][layers])
        reduced = sync(d, num_stages * a, parameters, network)
        if z >= 2 and m > 1:
            load += reduced / 2
        if z == 3:
            load += 2 * reduced / 2
        weights = parameters / (d if z == 3 else 1)
        gradients = parameters / (d if z >= 2 else 1)
        state = job["optimizer"] * parameters / (d if z >= 1 else 1)
        stash = chain["cut"][i] if plan["recompute"] else saved
        loads.append(load)
        memory.append(weights + gradients + state + saved + (min(s, m) - 1) * stash)
        syncs.append(reduced / 2 if z == 3 else reduced)
        i = j + 1
    return loads, max(memory), syncs


def cuts(num_layers):
    """Every way to cut so many layers, as layers per stage."""
    for num_stages in range(1, num_layers + 1):
        for ends in combinations(range(1, num_layers), num_stages - 1):
            edges = (0, *ends, num_layers)
            yield tuple(last - first for first, last in pairwise(edges))


def plans(chain, network, job, per_stage, zero_stages=(0, 1, 2, 3), recompute=(False, True)):
    """Every plan, fitting or not."""
    devices = prod(network["devices"])
    for layers in cuts(len(chain["forward"])):
        for replicas in range(1, min(job["batch"], devices // (len(layers) * per_stage)) + 1):
            for zero in zero_stages:
                for again in recompute:
                    yield {
                        "per_stage": per_stage,
                        "layers": layers,
                        "replicas": replicas,
                        "zero": zero,
                        "recompute": again,
                    }


def best(chain, network, job, per_stage, zero_stages=(0, 1, 2, 3), recompute=(False, True)):
    """(step time, fewest stages, most replicas) of the best plan, or None; equal within 1e-12."""
    priced = []
    for plan in plans(chain, network, job, per_stage, zero_stages, recompute):
        if (cost := price(chain, network, job, plan)) is not None:
            priced.append((cost[0], len(plan["layers"]), -plan["replicas"]))
    if not priced:
        return None
    least = min(priced)[0]
    _, stages, replicas = min((0, *told[1:]) for told in priced if told[0] <= least * (1 + 1e-12))
    return least, stages, -replicas


def least_memory(chain, network, job, per_stage, zero_stages=(0, 1, 2, 3), recompute=(False, True)):
    """Bytes that the fullest device of any plan needs at least."""
    every = plans(chain, network, job, per_stage, zero_stages, recompute)
    return min((stages_of(chain, network, job, plan)[1] for plan in every), default=None)
