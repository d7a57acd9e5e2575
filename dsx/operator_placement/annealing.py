"""Annealing of many placements at once, on the simulator (`dsx.operator_placement.simulator`).

Each chain moves a random unit to the device of a random neighbour, or to another one if it is there already, and takes
what is shorter, or longer with the probability of its temperature (Kirkpatrick et al., 1983). Memory that is exceeded
may not grow, and only placements that fit count. The order of the operators is fixed; between rounds they are put in
the order of the best starts.

Where bandwidth is to be allocated, each chain has its own: whole parts of what a server sends. Every fourth move shifts
some from one receiver to another.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.operator_placement.bandwidth.network import Network, filled, in_parts, with_bandwidth
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.schedule import Schedule, Timing
from dsx.operator_placement.simulator import Machine, Rows, machine_of, makespans, rows_of

CHAINS = 64
PARTS = 8  # of the bandwidth of a server, for each other server
_NEIGHBOURS = 16  # that a move of a unit chooses from; every second one is the unit itself
# Nominal seconds of a step of all chains, and more for each row: how many fit in must not depend on the clock.
_STEP_S, _STEP_PER_ROW_S = 1e-4, 6e-7
_UNHEARD_S = 0.2  # nominal seconds between two looks at the clock
_LEAST = 1e-3  # bytes/s: no bandwidth, as a number that can be multiplied by no bytes
_SHARED = 2  # times as long take steps that allocate bandwidth


class Chains(NamedTuple):
    """B chains; placements are [R, B], as of the simulator."""

    key: Any
    placement: Any
    makespan_s: Any  # [B]
    excess_bytes: Any  # [B] memory over the limit, of all devices
    best: Any
    best_s: Any  # [B] infinite without a placement that fits
    share: Any  # [S * S, B] bandwidth of pairs of servers, in whole parts of that of a server if it is allocated
    best_share: Any  # [S * S, B] that of `best`


def excess_bytes(placement: Any, memory: Any, limit: float, count: int) -> Any:
    """Return the bytes of [R, B] placements over the limit, of all devices, [B]."""
    used = jnp.stack([jnp.where(placement == device, memory[:, None], 0.0).sum(axis=0) for device in range(count)])
    return jnp.maximum(used - limit, 0.0).sum(axis=0)


def _byte_s(share: Any, part_s: Any) -> Any:
    """Return the seconds of a byte, given those of a part: none for endless bandwidth, very many for none."""
    return None if share is None else part_s / jnp.maximum(share, _LEAST)


def _shifted(key: Any, share: Any, servers: int) -> Any:
    """Return shares of which each chain has given some of one pair of servers to another pair with the same sender."""
    of_server, of_pair, of_other, of_amount = jax.random.split(key, 4)
    batch = share.shape[1]
    lanes = jnp.arange(batch)
    server = jax.random.randint(of_server, (batch,), 0, servers)
    giver = (server + jax.random.randint(of_pair, (batch,), 1, servers)) % servers + server * servers
    taker = (server + jax.random.randint(of_other, (batch,), 1, servers)) % servers + server * servers
    amount = jax.random.randint(of_amount, (batch,), 1, PARTS // 2 + 1).astype(jnp.float32)
    amount = jnp.minimum(amount, share[giver, lanes] - 1.0)
    return share.at[giver, lanes].add(-amount).at[taker, lanes].add(amount)


@partial(jax.jit, static_argnames=("limit", "machine"))
def _started(
    key: Any,
    placement: Any,
    share: Any,
    rows: Rows,
    memory: Any,
    part_s: Any,
    limit: float,
    machine: Machine,
) -> Chains:
    seconds = makespans(rows, placement, machine, _byte_s(share, part_s))
    excess = jnp.zeros_like(seconds) if limit == np.inf else excess_bytes(placement, memory, limit, machine.count)
    best_s = jnp.where(excess > 0.0, jnp.inf, seconds)
    return Chains(key, placement, seconds, excess, placement, best_s, share, share)


@partial(jax.jit, static_argnames=("limit", "machine", "allocates"))
def _annealed(
    chains: Chains,
    rows: Rows,
    memory: Any,
    part_s: Any,
    near: Any,
    units: Any,
    hot: Any,
    cold: Any,
    steps: Any,
    begin: Any,
    end: Any,
    limit: float,
    machine: Machine,
    allocates: bool,
) -> Chains:
    batch = chains.placement.shape[1]
    lanes = jnp.arange(batch)

    def step(number: Any, chains: Chains) -> Chains:
        key, of_unit, of_device, of_luck, of_near, *of_shares = jax.random.split(chains.key, 7 if allocates else 5)
        unit = jax.random.randint(of_unit, (batch,), 0, units)
        own = chains.placement[unit, lanes]
        shift = jax.random.randint(of_device, (batch,), 1, machine.count, chains.placement.dtype)
        other = chains.placement[near[unit, jax.random.randint(of_near, (batch,), 0, near.shape[1])], lanes]
        moved = jnp.where(other != own, other, (own + shift) % machine.count)
        share = chains.share
        if allocates:
            moves = jax.random.bernoulli(of_shares[0], 0.75, (batch,))
            moved = jnp.where(moves, moved, own)
            share = jnp.where(moves, share, _shifted(of_shares[1], share, machine.servers))
        proposal = chains.placement.at[unit, lanes].set(moved)
        seconds = makespans(rows, proposal, machine, _byte_s(share, part_s))
        excess = jnp.zeros_like(seconds) if limit == np.inf else excess_bytes(proposal, memory, limit, machine.count)
        warmth = hot * (cold / hot) ** (number / steps)
        luck = -jnp.log(jax.random.uniform(of_luck, (batch,), minval=1e-12))
        taken = (seconds - chains.makespan_s <= warmth * luck) & (excess <= chains.excess_bytes)
        taken = taken | (excess < chains.excess_bytes)
        better = taken & (excess <= 0.0) & (seconds < chains.best_s)
        return Chains(
            key,
            jnp.where(taken, proposal, chains.placement),
            jnp.where(taken, seconds, chains.makespan_s),
            jnp.where(taken, excess, chains.excess_bytes),
            jnp.where(better, proposal, chains.best),
            jnp.where(better, seconds, chains.best_s),
            None if share is None else jnp.where(taken, share, chains.share),
            None if share is None else jnp.where(better, share, chains.best_share),
        )

    return jax.lax.fori_loop(begin, end, step, chains)


class Annealing:
    """Annealing of the placements of a graph whose units stay together."""

    def __init__(
        self,
        graph: OpGraph,
        timing: Timing,
        unit: np.ndarray,
        start: Schedule,
        seed: int,
        network: Network | None = None,
    ) -> None:
        """Begin with the placement of `start`, and with that of all units on one device.

        With a network its bandwidth is allocated too; then pairs of servers of `timing` have bandwidths of their own,
        with which chains begin.
        """
        devices = timing.devices
        self.graph, self.timing, self.unit, self.network = graph, timing, unit.tolist(), network
        self.num_units = int(unit.max()) + 1
        self.limit = np.inf if devices.memory_bytes is None else float(devices.memory_bytes)
        self.machine = machine_of(devices)
        self._put_in_order(start)
        length = len(self.rows.op)
        self.memory = jnp.asarray(np.bincount(unit, graph.memory_bytes, length), jnp.float32)
        near = _neighbours(graph, unit, self.num_units, seed)
        self.near = jnp.asarray(np.pad(near, ((0, length - len(near)), (0, 0))), jnp.int32)
        placement = np.zeros((length, CHAINS), dtype=np.int32)
        placement[unit, :] = start.device[:, None]
        if self.limit == np.inf:
            placement[:, ::8] = 0
        self.key, self.placement = jax.random.PRNGKey(seed), jnp.asarray(placement)
        # Of two servers each has one to send to, which gets all.
        self.allocates = network is not None and devices.between is not None and self.machine.servers > 2
        self.share, self.part_s = None, jnp.float32(1.0)
        if devices.between is not None:
            share = np.array(devices.between)
            if network is not None and self.allocates:
                share = in_parts(share, PARTS).astype(float)
                self.part_s = jnp.float32(share[0].sum() / network.total)
            np.fill_diagonal(share, np.inf)  # inside a server
            self.share = jnp.asarray(np.repeat(share.reshape(-1, 1), CHAINS, axis=1), jnp.float32)
        self.found = start

    def _put_in_order(self, schedule: Schedule) -> None:
        order = self.timing.order_of(schedule.device.tolist(), schedule.start_s.tolist())
        self.rows = Rows(*map(jnp.asarray, rows_of(self.timing, self.unit, order)))
        self.order = order

    def steps_in(self, seconds: float) -> int:
        """Return how many steps nominally take so long."""
        per_row_s = _STEP_PER_ROW_S * (1 if self.share is None else _SHARED)
        return max(int(seconds / (_STEP_S + len(self.rows.op) * per_row_s)), 1)

    def run(self, steps: int, hot: float, cold: float, stop: Callable[[], bool] = lambda: False) -> Schedule | None:
        """Anneal for some steps, or until `stop`; return the schedule of the best placement, None if none fits.

        Temperatures are shares of the makespan. With a network, `timing` has the bandwidths of the schedule after that.
        """
        scale = self.found.makespan_s
        fixed = {"limit": self.limit, "machine": self.machine}
        chains = _started(self.key, self.placement, self.share, self.rows, self.memory, self.part_s, **fixed)
        warm = (jnp.int32(self.num_units), jnp.float32(hot * scale), jnp.float32(cold * scale), jnp.int32(steps))
        # Compiled code does not hear Ctrl-C, so it runs for a while only.
        each = self.steps_in(_UNHEARD_S)
        for begin in range(0, steps, each):
            part = (jnp.int32(begin), jnp.int32(min(begin + each, steps)))
            chains = _annealed(
                chains, self.rows, self.memory, self.part_s, self.near, *warm, *part, **fixed, allocates=self.allocates
            )
            chains.best_s.block_until_ready()
            if stop():
                break
        self.key, self.placement, self.share = chains.key, chains.placement, chains.share
        seconds = np.asarray(chains.best_s)
        chain = int(seconds.argmin())
        if not np.isfinite(seconds[chain]):
            return None
        if self.network is not None and self.allocates:
            parts = np.array(chains.best_share, float)[:, chain].reshape(self.machine.servers, -1)
            np.fill_diagonal(parts, 0.0)
            self.timing = Timing(self.graph, with_bandwidth(self.timing.devices, filled(self.network, parts)))
        placement = np.asarray(chains.best)[self.unit, chain]
        listed = placement.tolist()
        found = self.timing.best(listed, self.timing.in_order(listed, self.order).start_s.tolist())
        self._put_in_order(found)
        # Chains that are behind go on from the best one.
        behind = np.asarray(chains.makespan_s) > np.median(np.asarray(chains.makespan_s))
        kept = np.array(self.placement)
        kept[:, behind] = np.asarray(chains.best)[:, [chain]]
        self.placement = jnp.asarray(kept)
        if self.share is not None:
            shares = np.array(self.share)
            shares[:, behind] = np.asarray(chains.best_share)[:, [chain]]
            self.share = jnp.asarray(shares)
        self.found = found
        return found


def _neighbours(graph: OpGraph, unit: Sequence[int] | np.ndarray, num_units: int, seed: int) -> np.ndarray:
    """Return units with an edge to each unit, [units, _NEIGHBOURS], and the unit itself in every second place."""
    near: list[list[int]] = [[] for _ in range(num_units)]
    for source, target in graph.edges:
        one, other = int(unit[source]), int(unit[target])
        if one != other:
            near[one].append(other)
            near[other].append(one)
    drawn = np.random.default_rng(seed)
    found = np.repeat(np.arange(num_units)[:, None], _NEIGHBOURS, axis=1)
    for own, others in enumerate(near):
        if others:
            found[own, ::2] = drawn.choice(others, _NEIGHBOURS // 2)
    return found
