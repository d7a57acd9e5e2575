"""Annealing of many placements at once, on a simulator that is one scan over the operators.

Makespans of many placements at once: one scan over the operators, the batch on the last axis.

A row of the scan is an operator with up to `_INPUTS` of its inputs; an operator with more has several rows, of which
the last one lets it run. All placements run their operators in one order. Rows that do nothing fill up the length, and
all else is as long, so that graphs of about the same size share a compilation.

Where pairs of servers have bandwidths of their own, each placement has its own: seconds a byte, of which rows know the
bytes.

Annealing of many placements at once, on the simulator (`dsx.placement.annealing`).

Each chain moves a random unit to the device of a random neighbour, or to another one if it is there already, and takes
what is shorter, or longer with the probability of its temperature (Kirkpatrick et al., 1983). Memory that is exceeded
may not grow, and only placements that fit count. The order of the operators is fixed; between rounds they are put in
the order of the best starts.

Where bandwidth is to be allocated, each chain has its own: whole parts of what a server sends. Every fourth move shifts
some from one receiver to another.

Annealings of several reductions of one graph, in rounds: each gets the same time.

The best placement of each is scheduled on the graph as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.placement.bandwidth import ServerNetwork, filled, in_parts, with_bandwidth
from dsx.placement.op_graph import OpGraph
from dsx.placement.reduced_graph import Reduction
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, op_seconds

_INPUTS = 4
_ROW_MULTIPLE, _STEPS = 16, 4  # numbers of rows: multiples of the first, and so many up to the next power of two


class GraphRows(NamedTuple):
    """R rows, more than there are operators; the operator R - 1 and the unit R - 1 are none."""

    op: Any  # [R]
    unit: Any  # [R]
    inputs: Any  # [R, _INPUTS] operators
    input_units: Any  # [R, _INPUTS]
    cost_s: Any  # [R, L, _INPUTS] more seconds of a transfer that leaves a unit of each level; the first is a device
    num_bytes: Any  # [R, _INPUTS] what goes between servers whose pairs have bandwidths of their own; [R, 0] else
    seconds: Any  # [R, D], or [R, 1] for devices alike
    first: Any  # [R] bool
    last: Any  # [R] bool


@dataclass(frozen=True)
class SimulatedDevices:
    """What rows do not say of the devices."""

    count: int
    units: tuple[int, ...]  # devices in a unit of each level, as of `Devices`
    server_size: int = 1

    @property
    def servers(self) -> int:
        """The number of servers."""
        return self.count // self.server_size


def machine_of(devices: Devices) -> SimulatedDevices:
    """Return the machine of devices."""
    return SimulatedDevices(devices.count, devices.units, devices.server_size)


def rows_of(timing: GraphTimes, unit: Sequence[int], order: Sequence[int]) -> GraphRows:
    """Return the rows of a graph whose operators run in an order; `unit` has that of each operator."""
    graph, devices = timing.graph, timing.devices
    made: list[tuple[int, list[tuple[int, list[float]]], bool, bool]] = []
    for op in order:
        inputs = timing.inputs[op]
        parts = [inputs[at : at + _INPUTS] for at in range(0, max(len(inputs), 1), _INPUTS)]
        made += [(op, part, at == 0, at == len(parts) - 1) for at, part in enumerate(parts)]
    links = [*devices.links]
    if devices.between is not None:  # bytes between servers are priced by the placement
        inside = len(devices.units[:1])  # links of a server
        links[inside:] = [DeviceLink(np.inf, link.latency_s) for link in links[inside:]]
    # One row more than operators need: were every row an operator's last, XLA would copy the state for each.
    length = _length(len(made) + 1)
    none = length - 1
    alike = devices.alike and graph.seconds.shape[1] == 1
    seconds = op_seconds(graph, devices)
    found = GraphRows(
        op=np.full(length, none, np.int32),
        unit=np.full(length, none, np.int32),
        inputs=np.full((length, _INPUTS), none, np.int32),
        input_units=np.full((length, _INPUTS), none, np.int32),
        cost_s=np.zeros((length, len(devices.links), _INPUTS), np.float32),
        num_bytes=np.zeros((length, 0 if devices.between is None else _INPUTS), np.float32),
        seconds=np.zeros((length, 1 if alike else devices.count), np.float32),
        first=np.zeros(length, bool),
        last=np.zeros(length, bool),
    )
    for row, (op, part, first, last) in enumerate(made):
        found.op[row], found.unit[row], found.first[row], found.last[row] = op, unit[op], first, last
        found.seconds[row] = seconds[op, :1] if alike else seconds[op]
        for place, (other, _) in enumerate(part):
            num_bytes = graph.edge_bytes[other, op]
            found.inputs[row, place], found.input_units[row, place] = other, unit[other]
            found.cost_s[row, :, place] = np.diff([0.0, *(link.seconds(num_bytes) for link in links)])
            if devices.between is not None:
                found.num_bytes[row, place] = num_bytes
    return found


def _length(least: int) -> int:
    step = max(_ROW_MULTIPLE, 2 ** (least.bit_length() - 1) // _STEPS)
    return -(-least // step) * step


def makespans(rows: GraphRows, placement: Any, machine: SimulatedDevices, byte_s: Any = None) -> Any:
    """Return the seconds of placements, [B]: the device of each unit, [R, B], of which more than the units are unused.

    `byte_s` are the seconds of a byte from each server to each other one, [S * S, B], where these have bandwidths of
    their own.
    """
    batch = placement.shape[1]
    lanes, servers = jnp.arange(batch), machine.servers
    ones = jnp.ones((machine.count, batch), jnp.float32)
    devices = jnp.arange(machine.count, dtype=placement.dtype)[:, None]

    def run(state: Any, row: GraphRows) -> tuple[Any, None]:
        ends, free, ready, longest = state
        own = placement[row.unit]
        begin = jnp.where(row.first, jnp.zeros_like(ready), ready)
        for place in range(_INPUTS):
            other = placement[row.input_units[place]]
            there = ends[row.inputs[place]] + jnp.where(other != own, row.cost_s[0, place], 0.0)
            for level, size in enumerate(machine.units):
                there = there + jnp.where(other // size != own // size, row.cost_s[level + 1, place], 0.0)
            if byte_s is not None:
                pair = other // machine.server_size * servers + own // machine.server_size
                there = there + row.num_bytes[place] * byte_s[pair, lanes]
            begin = jnp.maximum(begin, there)
        here = devices == own[None]
        if row.seconds.shape[0] == 1:
            seconds = row.seconds[0]
        else:
            seconds = jnp.where(here, row.seconds[:, None] * ones, 0.0).sum(axis=0)
        since = jnp.where(here, free, 0.0).max(axis=0)
        busy = seconds > 0.0  # what takes no time does not wait for a device
        end = jnp.maximum(begin, jnp.where(busy, since, 0.0)) + seconds
        ends = ends.at[row.op].set(jnp.where(row.last, end, ends[row.op]))
        free = jnp.where(here & row.last, jnp.where(busy, end, since)[None], free)
        return (ends, free, begin, jnp.where(row.last, jnp.maximum(longest, end), longest)), None

    zeros = jnp.zeros(batch, jnp.float32)
    start = (
        jnp.zeros((len(rows.op), batch), jnp.float32),
        jnp.zeros((machine.count, batch), jnp.float32),
        zeros,
        zeros,
    )
    (_, _, _, longest), _ = jax.lax.scan(run, start, rows)
    return longest


simulate = jax.jit(makespans, static_argnames=("machine",))


CHAINS = 64
PARTS = 8  # of the bandwidth of a server, for each other server
_NEIGHBOURS = 16  # that a move of a unit chooses from; every second one is the unit itself
# Nominal seconds of a step of all chains, and more for each row: how many fit in must not depend on the clock.
_STEP_S, _STEP_PER_ROW_S = 1e-4, 6e-7
_UNHEARD_S = 0.2  # nominal seconds between two looks at the clock
_NO_BANDWIDTH = 1e-3  # bytes/s: no bandwidth, as a number that can be multiplied by no bytes
_SHARED = 2  # times as long take steps that allocate bandwidth


class AnnealingChains(NamedTuple):
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
    return None if share is None else part_s / jnp.maximum(share, _NO_BANDWIDTH)


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
    rows: GraphRows,
    memory: Any,
    part_s: Any,
    limit: float,
    machine: SimulatedDevices,
) -> AnnealingChains:
    seconds = makespans(rows, placement, machine, _byte_s(share, part_s))
    excess = jnp.zeros_like(seconds) if limit == np.inf else excess_bytes(placement, memory, limit, machine.count)
    best_s = jnp.where(excess > 0.0, jnp.inf, seconds)
    return AnnealingChains(key, placement, seconds, excess, placement, best_s, share, share)


@partial(jax.jit, static_argnames=("limit", "machine", "allocates"))
def _annealed(
    chains: AnnealingChains,
    rows: GraphRows,
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
    machine: SimulatedDevices,
    allocates: bool,
) -> AnnealingChains:
    batch = chains.placement.shape[1]
    lanes = jnp.arange(batch)

    def step(number: Any, chains: AnnealingChains) -> AnnealingChains:
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
        return AnnealingChains(
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
        timing: GraphTimes,
        unit: np.ndarray,
        start: OperatorSchedule,
        seed: int,
        network: ServerNetwork | None = None,
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

    def _put_in_order(self, schedule: OperatorSchedule) -> None:
        order = self.timing.order_of(schedule.device.tolist(), schedule.start_s.tolist())
        self.rows = GraphRows(*map(jnp.asarray, rows_of(self.timing, self.unit, order)))
        self.order = order

    def steps_in(self, seconds: float) -> int:
        """Return how many steps nominally take so long."""
        per_row_s = _STEP_PER_ROW_S * (1 if self.share is None else _SHARED)
        return max(int(seconds / (_STEP_S + len(self.rows.op) * per_row_s)), 1)

    def run(
        self, steps: int, hot: float, cold: float, stop: Callable[[], bool] = lambda: False
    ) -> OperatorSchedule | None:
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
            self.timing = GraphTimes(self.graph, with_bandwidth(self.timing.devices, filled(self.network, parts)))
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


@dataclass(frozen=True, eq=False)
class ReducedSchedule:
    """A schedule of a reduced graph."""

    graph: OpGraph
    unit: np.ndarray  # [n] operators of a unit share a device
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    schedule: OperatorSchedule


@dataclass
class AnnealingRun:
    """The annealing of one reduction."""

    name: str
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    annealing: Annealing
    reduction: Reduction | None = None  # None: the graph as it is
    best_s: float = np.inf  # on the given graph
    reduced: ReducedSchedule | None = None  # the best on its own


def annealed_once(
    graph: OpGraph, runs: Sequence[AnnealingRun], seconds: float, hot: float, cold: float, stop: Callable[[], bool]
) -> Iterator[tuple[AnnealingRun, OperatorSchedule]]:
    """Anneal each run for its share of nominal seconds; yield it with its schedule of the graph as it is.

    A run that has found nothing that fits yields nothing. Temperatures are shares of the makespan. The devices of a
    schedule are those of the annealing after it, which may have given them other bandwidths.
    """
    timing: GraphTimes | None = None
    for run in runs:
        if stop():
            return
        annealing = run.annealing
        made = annealing.run(annealing.steps_in(seconds / len(runs)), hot, cold, stop)
        if made is None:
            continue
        if run.reduced is None or made.makespan_s < run.reduced.schedule.makespan_s:
            run.reduced = ReducedSchedule(annealing.graph, np.array(annealing.unit), run.of_op, made)
        devices = annealing.timing.devices
        if timing is None or timing.devices is not devices:
            timing = GraphTimes(graph, devices)
        whole = timing.best(made.device[run.of_op].tolist(), made.start_s[run.of_op].tolist())
        run.best_s = min(run.best_s, whole.makespan_s)
        yield run, whole
