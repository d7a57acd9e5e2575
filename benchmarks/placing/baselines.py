"""The baselines of the sources: METIS, and their MCMC.

METIS gives a partition of equal work that cuts few bytes, which is scheduled by priority. It sees no direction of an
edge, so parts may wait for each other in turn. Memory is not balanced: a partition that does not fit counts as none.
Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM J. Sci. Comput. 20
(1998).

MCMC moves a random unit to a random device if the step gets shorter, from one device on. Nothing worse is ever
accepted, so it is a hill climb. Proposals are drawn beforehand and simulated in batches, of which the first better one
counts and the others are proposed again: the same chain as one by one, faster.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pymetis
from jax import Array

from dsx.placement.annealing import GraphRows, SimulatedDevices, excess_bytes, makespans, rows_of
from dsx.placement.timetable import GraphTimes, OperatorSchedule

_WEIGHT = 10**8  # of all vertices, and of all edges: sums stay far below 32 bits
_BATCH = 64
_BETTER = 1e-6  # share of the makespan; less is rounding


def metis(timing: GraphTimes, unit: Sequence[int], seed: int = 0) -> OperatorSchedule | None:
    """Return the schedule of a partition of the units of a graph; None if there is none, or a part does not fit."""
    graph, devices = timing.graph, timing.devices
    count = max(unit, default=-1) + 1
    if devices.count == 1 or not count:
        return None
    between: list[dict[int, float]] = [{} for _ in range(count)]  # bytes from each unit to its neighbours
    for (source, target), num_bytes in graph.edge_bytes.items():
        a, b = unit[source], unit[target]
        if a != b:
            between[a][b] = between[b][a] = between[a].get(b, 0.0) + num_bytes
    work = np.bincount(unit, graph.mean_s)
    if np.count_nonzero(work) < devices.count:  # a part would be empty, which METIS cannot do
        return None
    total = sum(sum(near.values()) for near in between) or 1.0
    _, parts = pymetis.part_graph(
        devices.count,
        pymetis.CSRAdjacency(
            adj_starts=np.cumsum([0, *map(len, between)]).tolist(),
            adjacent=[neighbour for near in between for neighbour in near],
        ),
        vweights=[round(seconds / work.sum() * _WEIGHT) for seconds in work.tolist()],
        # Weights of edges are positive.
        eweights=[max(round(sent / total * _WEIGHT), 1) for near in between for sent in near.values()],
        tpwgts=(np.array(devices.speeds) / sum(devices.speeds)).tolist(),
        options=pymetis.Options(seed=seed),
    )
    placement = [parts[number] for number in unit]
    return timing.best(placement) if timing.fits(placement) else None


class _Proposals(NamedTuple):
    """What a chain proposes, and what prices it."""

    rows: GraphRows
    memory: Array  # [R] bytes of each unit
    units: Array  # [steps + batch]
    moves: Array  # [steps + batch] their new devices


_State = tuple[Array, Array, Array]  # the proposals that are done, the placement [R] after them, and its seconds


@partial(jax.jit, static_argnames=("machine",))
def _chain(state: _State, proposals: _Proposals, machine: SimulatedDevices) -> _State:
    """Return the state after all proposals."""
    rows, memory, units, moves = proposals
    steps = units.shape[0] - _BATCH
    lanes = jnp.arange(_BATCH)

    def batch(state: _State) -> _State:
        done, current, shortest = state
        unit = jax.lax.dynamic_slice(units, (done,), (_BATCH,))
        move = jax.lax.dynamic_slice(moves, (done,), (_BATCH,))
        proposed = jnp.repeat(current[:, None], _BATCH, axis=1).at[unit, lanes].set(move)
        seconds = makespans(rows, proposed, machine)
        better = (seconds < shortest * (1.0 - _BETTER)) & (done + lanes < steps)
        better = better & (excess_bytes(proposed, memory, machine) <= 0.0)
        first = jnp.argmax(better)
        return (
            done + jnp.where(better[first], first + 1, _BATCH),
            jnp.where(better[first], proposed[:, first], current),
            jnp.where(better[first], seconds[first], shortest),
        )

    return jax.lax.while_loop(lambda state: state[0] < steps, batch, state)


def mcmc(
    timing: GraphTimes, unit: Sequence[int], start: OperatorSchedule, steps: int, seed: int = 0
) -> OperatorSchedule:
    """Return the schedule after some steps from the schedule `start`, whose order the simulator keeps."""
    graph, devices = timing.graph, timing.devices
    order = timing.order_of(start.start_s.tolist())
    rows, machine = rows_of(timing, unit, order), SimulatedDevices.of(devices)
    length = len(rows.op)
    placement = np.zeros(length, np.int32)
    placement[list(unit)] = start.device
    drawn = np.random.default_rng(seed)
    proposals = _Proposals(
        rows,
        jnp.asarray(np.bincount(unit, graph.memory_bytes, length), jnp.float32),
        jnp.asarray(np.pad(drawn.integers(0, max(unit) + 1, steps), (0, _BATCH)), jnp.int32),
        jnp.asarray(np.pad(drawn.integers(0, devices.count, steps), (0, _BATCH)), jnp.int32),
    )
    first = jnp.asarray(placement)
    state = jnp.zeros((), jnp.int32), first, makespans(rows, first[:, None], machine)[0]
    devices_of_units = np.asarray(_chain(state, proposals, machine)[1])[list(unit)].tolist()
    return timing.best(devices_of_units, timing.in_order(devices_of_units, order).start_s.tolist())
