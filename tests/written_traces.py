"""Traces that dsx writes, read again."""

from collections import Counter

import dsx
from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP
from dsx.traces.read import open_folder, traces

KINDS = {code: name.lower().replace("_", "-") for name, code in COLLECTIVES.items()}
_NODES = {COMM_SEND: "send", COMM_RECV: "receive"}


def job_of(model, num_gpus, global_batch_size, cluster=dsx.trace.ONE_DOMAIN, **more):
    return dsx.Job(model=model, cluster=cluster, num_gpus=num_gpus, global_batch_size=global_batch_size, **more)


def written(folder, job, ranks="all", durations=False, **plan):
    """The traces of some ranks of a plan, by rank."""
    dsx.trace.write(job, out=folder, ranks=ranks, durations=durations, **plan)
    return {trace.rank: trace for trace in traces(open_folder(folder))}


def communications(trace):
    """How often a rank has each (kind, axis, bytes); sends and receives have no axis."""
    found = Counter()
    for row, node in enumerate(trace.types.tolist()):
        if node == COMM_COLL:
            found[KINDS[int(trace.comm_type[row])], trace.axes.of(row), int(trace.comm_size[row])] += 1
        elif node in _NODES:
            found[_NODES[node], "", int(trace.comm_size[row])] += 1
    return found


def multiplies(trace):
    """How many launches of a rank multiply matrices: alone or with what follows, and as attention."""
    found = Counter()
    for row, node in enumerate(trace.types.tolist()):
        if node == COMP and len(trace.multiplies.of(row)):
            found["attention" if "softmax" in trace.op_types.of(row) else "multiply"] += 1
    return found
