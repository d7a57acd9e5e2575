"""Baselines of other placement systems: their reductions, METIS, and MCMC.

Reductions of other placement systems, to compare with: each merges operators until its rule has no more to merge.

ColocRL (Mirhoseini et al., 2017) joins an operator to its only successor. Placeto (Addanki et al., 2019) merges the
cheapest operator into a neighbour until so many are left. Spotlight (Gao et al., 2018) joins operators whose names
share their first levels. All three merge along edges, and none where that would make a cycle.

METIS as a baseline: a partition of equal work that cuts few bytes, scheduled by priority.

METIS writes remarks on stdout, where answers belong, so nothing that C code prints there meanwhile is shown. It sees no
direction of an edge, so parts may wait for each other in turn. Memory is not balanced: a partition that
does not fit counts as none.

Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM J. Sci. Comput. 20
(1998).

The sources' MCMC as a baseline: from one device on, a random unit moves to a random device if the step gets shorter.

Nothing worse is ever accepted, so it is a hill climb. Proposals are drawn beforehand and simulated in batches, of which
the first better one counts and the rest are proposed again: the same chain as one by one, faster.
"""

import ctypes
import heapq
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.errors import InputError
from dsx.placement.annealing import GraphRows, SimulatedDevices, excess_bytes, machine_of, makespans, rows_of, simulate
from dsx.placement.op_graph import Id, OpGraph
from dsx.placement.reduced_graph import Merging
from dsx.placement.timetable import GraphTimes, OperatorSchedule

Reduced = tuple[OpGraph, np.ndarray]  # a graph of n operators, and the one of each given operator [N]

_LEVELS = 2


def into_only_successor(graph: OpGraph) -> Reduced:
    """Return a graph whose operators are joined to their only successor in the given graph (ColocRL).

    Only successors are those of the given graph: were they looked for again, a step with one last operator would
    become one operator.
    """
    merging, survivor = Merging(graph), list(range(graph.num_ops))
    for op in reversed(graph.order):
        if len(graph.successors[op]) != 1:
            continue
        target = survivor[graph.successors[op][0]]
        if merging.may_share(op, target):  # its only edge has no path beside it
            for member in merging.members[target]:
                survivor[member] = op
            merging.merge(op, target)
    return merging.reduced()


def cheapest_into_neighbour(graph: OpGraph, num_ops: int) -> Reduced:
    """Return a graph of so many operators, if edges allow it (Placeto).

    The cheapest operator is merged along its heaviest edge that has no path beside it; of equal ones, to the neighbour
    of the lowest number. Operators without such an edge stay. Raises InputError for less than one operator.
    """
    if num_ops < 1:
        raise InputError(f"num_ops: {num_ops} operators are too few; at least 1 is left")
    merging = Merging(graph)
    cheapest = [(seconds, op) for op, seconds in merging.mean_s.items()]
    heapq.heapify(cheapest)
    while cheapest and len(merging.members) > num_ops:
        seconds, op = heapq.heappop(cheapest)
        if merging.mean_s.get(op) != seconds:
            continue  # it was merged since
        edge = _heaviest_edge(merging, op)
        if edge is not None:
            merging.merge(*edge)
            heapq.heappush(cheapest, (merging.mean_s[edge[0]], edge[0]))
    return merging.reduced()


def by_name(graph: OpGraph) -> Reduced:
    """Return a graph whose operators are joined if their names, "a/b/c", share their first two levels (Spotlight).

    A name is the id of an operator, or its kind if the id has no levels; one without levels joins nothing. Operators
    that are joined may make room for others, so edges are looked at until none is left to join.
    """
    merging = Merging(graph)
    scope = [_scope(name) or _scope(kind) for name, kind in zip(graph.ids, graph.kinds, strict=True)]
    pending = [edge for edge in graph.edges if scope[edge[0]] is not None and scope[edge[0]] == scope[edge[1]]]
    pending.sort(key=lambda edge: (merging.place[edge[0]], merging.place[edge[1]]))
    changed = True
    while changed:
        changed, left = False, []
        survivor = {member: op for op, members in merging.members.items() for member in members}
        for source, target in dict.fromkeys((survivor[source], survivor[target]) for source, target in pending):
            if source == target:
                continue
            if source not in merging.after or target not in merging.after[source]:
                left.append((source, target))  # one of them was merged in this round
            elif not merging.may_share(source, target) or merging.has_detour(source, target):
                left.append((source, target))
            else:
                merging.merge(source, target)
                changed = True
        pending = left
    return merging.reduced()


def _heaviest_edge(merging: Merging, op: int) -> tuple[int, int] | None:
    """Return the heaviest edge of an operator along which it can be merged."""
    edges = [(op, other) for other in merging.after[op]] + [(other, op) for other in merging.before[op]]
    edges.sort(key=lambda edge: (-merging.edge_bytes(*edge), sum(edge) - op))
    return next((edge for edge in edges if merging.may_share(*edge) and not merging.has_detour(*edge)), None)


def _scope(name: Id) -> tuple[str, ...] | None:
    """Return the first levels of a name; None for one without so many."""
    levels = name.split("/") if isinstance(name, str) else []
    return tuple(levels[:_LEVELS]) if len(levels) >= _LEVELS else None


_STDOUT = 1  # its file descriptor
_WEIGHT = 10**8  # of all vertices, and of all edges: sums stay far below 32 bits


def metis(timing: GraphTimes, unit: Sequence[int], seed: int = 0) -> OperatorSchedule | None:
    """Return the schedule of a partition of the units of a graph; None if there is none, or a part does not fit."""
    import pymetis

    graph, devices = timing.graph, timing.devices
    count = max(unit, default=-1) + 1
    if devices.count == 1 or not count:
        return None
    between: list[dict[int, float]] = [{} for _ in range(count)]
    for (source, target), num_bytes in graph.edge_bytes.items():
        one, other = unit[source], unit[target]
        if one != other:
            between[one][other] = between[other][one] = between[one].get(other, 0.0) + num_bytes
    work = np.bincount(unit, graph.mean_s)
    if np.count_nonzero(work) < devices.count:  # a part would be empty, which METIS cannot do
        return None
    share = np.array(devices.speeds) / sum(devices.speeds)
    total = sum(sum(near.values()) for near in between) or 1.0
    with _silent():
        _, parts = pymetis.part_graph(
            devices.count,
            pymetis.CSRAdjacency(
                adj_starts=np.cumsum([0, *map(len, between)]).tolist(),
                adjacent=[other for near in between for other in near],
            ),
            vweights=[round(own / work.sum() * _WEIGHT) for own in work.tolist()],
            # Weights of edges are positive.
            eweights=[max(round(sent / total * _WEIGHT), 1) for near in between for sent in near.values()],
            tpwgts=share.tolist(),
            options=pymetis.Options(seed=seed),
        )
    placement = np.array(parts)[list(unit)]
    held = np.bincount(placement, graph.memory_bytes, devices.count)
    if devices.memory_bytes is not None and held.max() > devices.memory_bytes:
        return None
    return timing.best(placement.tolist())


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what is written to the file descriptor of stdout."""
    flush = ctypes.CDLL(None).fflush  # what C code has printed waits in a buffer of its own
    sys.stdout.flush()
    flush(None)
    kept = os.dup(_STDOUT)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDOUT)
        yield
    finally:
        flush(None)
        os.dup2(kept, _STDOUT)
        os.close(kept)


_BATCH = 64
_UNHEARD_OPS = 60_000  # operators that are simulated between two looks at the clock, in each of a batch
_BETTER = 1e-6  # share of the makespan; less is rounding


@partial(jax.jit, static_argnames=("limit", "machine"))
def _chain(
    state: Any,
    batches: Any,
    rows: GraphRows,
    memory: Any,
    units: Any,
    moves: Any,
    limit: float,
    machine: SimulatedDevices,
) -> Any:
    """Return the state after some batches of proposals: `units` and `moves` of [steps + batch].

    A state has the proposals that are done, the placement [R] after them, and its seconds.
    """
    steps = units.shape[0] - _BATCH
    lanes = jnp.arange(_BATCH)

    def going(counted: Any) -> Any:
        return (counted[0] < batches) & (counted[1][0] < steps)

    def batch(counted: Any) -> Any:
        number, (done, current, shortest) = counted
        unit = jax.lax.dynamic_slice(units, (done,), (_BATCH,))
        move = jax.lax.dynamic_slice(moves, (done,), (_BATCH,))
        proposals = jnp.repeat(current[:, None], _BATCH, axis=1).at[unit, lanes].set(move)
        seconds = makespans(rows, proposals, machine)
        better = (seconds < shortest * (1.0 - _BETTER)) & (done + lanes < steps)
        if limit != np.inf:
            better = better & (excess_bytes(proposals, memory, limit, machine.count) <= 0.0)
        first = jnp.argmax(better)
        found = better[first]
        return number + 1, (
            done + jnp.where(found, first + 1, _BATCH),
            jnp.where(found, proposals[:, first], current),
            jnp.where(found, seconds[first], shortest),
        )

    return jax.lax.while_loop(going, batch, (jnp.zeros_like(batches), state))[1]


def mcmc(
    timing: GraphTimes,
    unit: Sequence[int],
    start: OperatorSchedule,
    steps: int,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> OperatorSchedule:
    """Return the schedule after some steps from the schedule `start`, whose order the simulator keeps.

    At `stop` it is that of the steps so far.
    """
    graph, devices = timing.graph, timing.devices
    num_units = max(unit) + 1
    order = timing.order_of(start.device.tolist(), start.start_s.tolist())
    rows = GraphRows(*map(jnp.asarray, rows_of(timing, unit, order)))
    placement = np.zeros(len(rows.op), np.int32)
    placement[list(unit)] = start.device
    drawn = np.random.default_rng(seed)
    machine = machine_of(devices)
    first = jnp.asarray(placement)
    state = jnp.zeros((), jnp.int32), first, simulate(rows, first[:, None], machine)[0]
    given = (
        # Compiled code does not hear Ctrl-C, so it runs for some batches only.
        jnp.int32(max(_UNHEARD_OPS // len(rows.op), 1)),
        rows,
        jnp.asarray(np.bincount(unit, graph.memory_bytes, len(rows.op)), jnp.float32),
        jnp.asarray(np.pad(drawn.integers(0, num_units, steps), (0, _BATCH)), jnp.int32),
        jnp.asarray(np.pad(drawn.integers(0, devices.count, steps), (0, _BATCH)), jnp.int32),
        np.inf if devices.memory_bytes is None else float(devices.memory_bytes),
        machine,
    )
    while int(state[0]) < steps and not stop():
        state = _chain(state, *given)
    listed = np.asarray(state[1])[list(unit)].tolist()
    return timing.best(listed, timing.in_order(listed, order).start_s.tolist())
