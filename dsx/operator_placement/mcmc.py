"""The sources' MCMC as a baseline: from one device on, a random unit moves to a random device if the step gets shorter.

Nothing worse is ever accepted, so it is a hill climb. Proposals are drawn beforehand and simulated in batches, of which
the first better one counts and the rest are proposed again: the same chain as one by one, faster.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.operator_placement.annealing import excess_bytes
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.simulator import Machine, Rows, machine_of, makespans, rows_of, simulate

_BATCH = 64
_UNHEARD_OPS = 60_000  # operators that are simulated between two looks at the clock, in each of a batch
_BETTER = 1e-6  # share of the makespan; less is rounding


@partial(jax.jit, static_argnames=("limit", "machine"))
def _chain(
    state: Any, batches: Any, rows: Rows, memory: Any, units: Any, moves: Any, limit: float, machine: Machine
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
    timing: Timing,
    unit: Sequence[int],
    start: Schedule,
    steps: int,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Schedule:
    """Return the schedule after some steps from the schedule `start`, whose order the simulator keeps.

    At `stop` it is that of the steps so far.
    """
    graph, devices = timing.graph, timing.devices
    num_units = max(unit) + 1
    order = timing.order_of(start.device.tolist(), start.start_s.tolist())
    rows = Rows(*map(jnp.asarray, rows_of(timing, unit, order)))
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
