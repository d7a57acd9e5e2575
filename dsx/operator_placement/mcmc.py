"""The sources' MCMC as a baseline: from one device on, a random unit moves to a random device if the step gets shorter.

Nothing worse is ever accepted, so it is a hill climb. Proposals are drawn beforehand and simulated in batches, of which
the first better one counts and the rest are proposed again: the same chain as one by one, faster.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.operator_placement.annealing import excess_bytes
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.simulator import Machine, Rows, machine_of, makespans, rows_of

_BATCH = 64
_BETTER = 1e-6  # share of the makespan; less is rounding


@partial(jax.jit, static_argnames=("limit", "machine"))
def _chain(placement: Any, rows: Rows, memory: Any, units: Any, moves: Any, limit: float, machine: Machine) -> Any:
    """Return the placement [R] after all proposals: `units` and `moves` of [steps + batch]."""
    steps = units.shape[0] - _BATCH
    lanes = jnp.arange(_BATCH)

    def going(state: Any) -> Any:
        return state[0] < steps

    def batch(state: Any) -> Any:
        done, current, shortest = state
        unit = jax.lax.dynamic_slice(units, (done,), (_BATCH,))
        move = jax.lax.dynamic_slice(moves, (done,), (_BATCH,))
        proposals = jnp.repeat(current[:, None], _BATCH, axis=1).at[unit, lanes].set(move)
        seconds = makespans(rows, proposals, machine)
        better = (seconds < shortest * (1.0 - _BETTER)) & (done + lanes < steps)
        if limit != np.inf:
            better = better & (excess_bytes(proposals, memory, limit, machine.count) <= 0.0)
        first = jnp.argmax(better)
        found = better[first]
        return (
            done + jnp.where(found, first + 1, _BATCH),
            jnp.where(found, proposals[:, first], current),
            jnp.where(found, seconds[first], shortest),
        )

    start = makespans(rows, placement[:, None], machine)[0]
    return jax.lax.while_loop(going, batch, (jnp.zeros((), lanes.dtype), placement, start))[1]


def mcmc(timing: Timing, unit: Sequence[int], start: Schedule, steps: int, seed: int = 0) -> Schedule:
    """Return the schedule after some steps from the schedule `start`, whose order the simulator keeps."""
    graph, devices = timing.graph, timing.devices
    num_units = max(unit) + 1
    order = timing.order_of(start.device.tolist(), start.start_s.tolist())
    rows = Rows(*map(jnp.asarray, rows_of(timing, unit, order)))
    placement = np.zeros(len(rows.op), np.int32)
    placement[list(unit)] = start.device
    drawn = np.random.default_rng(seed)
    found = _chain(
        jnp.asarray(placement),
        rows,
        jnp.asarray(np.bincount(unit, graph.memory_bytes, len(rows.op)), jnp.float32),
        jnp.asarray(np.pad(drawn.integers(0, num_units, steps), (0, _BATCH)), jnp.int32),
        jnp.asarray(np.pad(drawn.integers(0, devices.count, steps), (0, _BATCH)), jnp.int32),
        np.inf if devices.memory_bytes is None else float(devices.memory_bytes),
        machine_of(devices),
    )
    listed = np.asarray(found)[list(unit)].tolist()
    return timing.best(listed, timing.in_order(listed, order).start_s.tolist())
