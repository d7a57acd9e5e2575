"""Annealing of many placements at once, on a simulator that is one scan over the operators.

A row of the scan is an operator with up to `_INPUTS` of its inputs; an operator with more has several rows, of which
the last one lets it run. All placements run their operators in one order, that of the best starts of the round before.
The batch is on the last axis. Rows that do nothing fill up the length, so that graphs of about the same size share a
compilation. Where pairs of servers have bandwidths of their own, each placement has its own: seconds a byte, of which
rows know the bytes.

Each chain moves a random unit to the device of a random neighbour, or to another one if it is there already, and takes
what is shorter, or longer with the probability of its temperature (Kirkpatrick et al., 1983). Memory that is exceeded
may not grow, and only placements that fit count. Where bandwidth is to be allocated, each chain has its own: whole
parts of what a server sends. Every fourth move shifts some from one receiver to another.

Several reductions of one graph are annealed in rounds: each gets the same time, and the best placement of each is
scheduled on the graph as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dsx.placement.op_graph import OpGraph, Reduction
from dsx.placement.servers import DeviceLink, Devices, ServerNetwork, filled, in_parts, with_bandwidth
from dsx.placement.timetable import GraphTimes, OperatorSchedule, op_seconds

_INPUTS = 4
_ROW_MULTIPLE, _STEPS = 16, 4  # numbers of rows: multiples of the first, and so many up to the next power of two
CHAINS = 64
PARTS = 8  # of the bandwidth of a server, for each other server
_NEIGHBOURS = 16  # that a move of a unit chooses from; every second one is the unit itself
# Nominal seconds of a step of all chains, and more for each row: how many fit in must not depend on the clock.
_STEP_S, _STEP_PER_ROW_S = 1e-4, 6e-7
_UNHEARD_S = 0.2  # nominal seconds between two looks at the clock
_NO_BANDWIDTH = 1e-3  # bytes/s: no bandwidth, as a number that can be multiplied by no bytes
_SHARED = 2  # times as long take steps that allocate bandwidth


class GraphRows(NamedTuple):
    """R rows, more than there are operators; the operator R - 1 and the unit R - 1 are none."""

    op: Array  # [R]
    unit: Array  # [R]
    inputs: Array  # [R, _INPUTS] operators
    input_units: Array  # [R, _INPUTS]
    cost_s: Array  # [R, L, _INPUTS] more seconds of a transfer that leaves a unit of each level; the first is a device
    num_bytes: Array  # [R, _INPUTS] what goes between servers whose pairs have bandwidths of their own; [R, 0] else
    seconds: Array  # [R, D], or [R, 1] for devices alike
    first: Array  # [R] bool
    last: Array  # [R] bool


@dataclass(frozen=True)
class SimulatedDevices:
    """What rows do not say of the devices."""

    count: int
    units: tuple[int, ...]  # devices in a unit of each level, as of `Devices`
    server_size: int = 1
    memory_bytes: float = np.inf  # of each device

    @classmethod
    def of(cls, devices: Devices) -> "SimulatedDevices":
        """Return those of some devices."""
        limit = np.inf if devices.memory_bytes is None else float(devices.memory_bytes)
        return cls(devices.count, devices.units, devices.server_size, limit)

    @property
    def servers(self) -> int:
        """The number of servers."""
        return self.count // self.server_size


def rows_of(timing: GraphTimes, unit: Sequence[int], order: Sequence[int]) -> GraphRows:
    """Return the rows of a graph whose operators run in an order; `unit` has the unit of each operator."""
    graph, devices = timing.graph, timing.devices
    edge_bytes = [*graph.edge_bytes.values()]
    parts: list[tuple[int, list[tuple[int, int]], bool, bool]] = []
    for op in order:
        inputs = timing.inputs[op]
        begins = range(0, max(len(inputs), 1), _INPUTS)
        parts += [(op, inputs[at : at + _INPUTS], at == 0, at == begins[-1]) for at in begins]
    links = [*devices.links]
    if devices.between is not None:  # bytes between servers are priced by the placement
        inside = len(devices.units[:1])  # links of a server
        links[inside:] = [DeviceLink(np.inf, link.latency_s) for link in links[inside:]]
    # One row more than operators need: were every row an operator's last, XLA would copy the state for each.
    step = max(_ROW_MULTIPLE, 2 ** ((len(parts) + 1).bit_length() - 1) // _STEPS)
    length = -(-(len(parts) + 1) // step) * step
    nothing = length - 1
    seconds = op_seconds(graph, devices)
    if devices.alike and graph.seconds.shape[1] == 1:
        seconds = seconds[:, :1]
    ops, units = np.full(length, nothing, np.int32), np.full(length, nothing, np.int32)
    sources, source_units = (np.full((length, _INPUTS), nothing, np.int32) for _ in range(2))
    cost_s = np.zeros((length, len(links), _INPUTS), np.float32)
    num_bytes = np.zeros((length, 0 if devices.between is None else _INPUTS), np.float32)
    seconds_of_row = np.zeros((length, seconds.shape[1]), np.float32)
    first_row, last_row = np.zeros(length, bool), np.zeros(length, bool)
    for row, (op, inputs, first, last) in enumerate(parts):
        ops[row], units[row], first_row[row], last_row[row] = op, unit[op], first, last
        seconds_of_row[row] = seconds[op]
        for place, (source, edge) in enumerate(inputs):
            sources[row, place], source_units[row, place] = source, unit[source]
            cost_s[row, :, place] = np.diff([0.0, *(link.seconds(edge_bytes[edge]) for link in links)])
            num_bytes[row, place : place + 1] = edge_bytes[edge]
    columns = (ops, units, sources, source_units, cost_s, num_bytes, seconds_of_row, first_row, last_row)
    return GraphRows(*map(jnp.asarray, columns))


@partial(jax.jit, static_argnames=("machine",))
def makespans(rows: GraphRows, placement: Array, machine: SimulatedDevices, byte_s: Array | None = None) -> Array:
    """Return the seconds of placements, [B]: the device of each unit, [R, B], of which more than the units are unused.

    `byte_s` are the seconds of a byte from each server to each other one, [S * S, B], where these have bandwidths of
    their own.
    """
    batch = placement.shape[1]
    lanes, servers = jnp.arange(batch), machine.servers
    ones = jnp.ones((machine.count, batch), jnp.float32)
    devices = jnp.arange(machine.count, dtype=placement.dtype)[:, None]

    def run(state: tuple[Array, ...], row: GraphRows) -> tuple[tuple[Array, ...], None]:
        ends, free, ready, longest = state
        device = placement[row.unit]
        begin = jnp.where(row.first, jnp.zeros_like(ready), ready)
        for place in range(_INPUTS):
            source = placement[row.input_units[place]]
            arrival = ends[row.inputs[place]] + jnp.where(source != device, row.cost_s[0, place], 0.0)
            for level, size in enumerate(machine.units):
                leaves = source // size != device // size
                arrival = arrival + jnp.where(leaves, row.cost_s[level + 1, place], 0.0)
            if byte_s is not None:
                pair = source // machine.server_size * servers + device // machine.server_size
                arrival = arrival + row.num_bytes[place] * byte_s[pair, lanes]
            begin = jnp.maximum(begin, arrival)
        on_device = devices == device[None]
        if row.seconds.shape[0] == 1:
            seconds = row.seconds[0]
        else:
            seconds = jnp.where(on_device, row.seconds[:, None] * ones, 0.0).sum(axis=0)
        since = jnp.where(on_device, free, 0.0).max(axis=0)
        busy = seconds > 0.0  # what takes no time does not wait for a device
        end = jnp.maximum(begin, jnp.where(busy, since, 0.0)) + seconds
        ends = ends.at[row.op].set(jnp.where(row.last, end, ends[row.op]))
        free = jnp.where(on_device & row.last, jnp.where(busy, end, since)[None], free)
        return (ends, free, begin, jnp.where(row.last, jnp.maximum(longest, end), longest)), None

    zeros = jnp.zeros(batch, jnp.float32)
    ends, free = jnp.zeros((len(rows.op), batch), jnp.float32), jnp.zeros((machine.count, batch), jnp.float32)
    (_, _, _, longest), _ = jax.lax.scan(run, (ends, free, zeros, zeros), rows)
    return longest


def excess_bytes(placement: Array, memory: Array, machine: SimulatedDevices) -> Array:
    """Return the bytes of [R, B] placements over the memory of all devices, [B]."""
    if machine.memory_bytes == np.inf:
        return jnp.zeros(placement.shape[1], jnp.float32)
    held = [jnp.where(placement == device, memory[:, None], 0.0).sum(axis=0) for device in range(machine.count)]
    return jnp.maximum(jnp.stack(held) - machine.memory_bytes, 0.0).sum(axis=0)


class AnnealedUnits(NamedTuple):
    """What chains move, and what it costs."""

    rows: GraphRows
    memory: Array  # [R] bytes of each unit
    near: Array  # [R, _NEIGHBOURS] units
    num_units: Array
    part_s: Array  # seconds of a byte with one part of bandwidth


class Cooling(NamedTuple):
    """Temperatures, from hot to cold in some steps."""

    hot: Array
    cold: Array
    steps: Array


class AnnealingChains(NamedTuple):
    """B chains; placements are [R, B], as of the simulator."""

    key: Array
    placement: Array
    makespan_s: Array  # [B]
    excess_bytes: Array  # [B] memory over the limit, of all devices
    best: Array
    best_s: Array  # [B] infinite without a placement that fits
    share: Array | None  # [S * S, B] bandwidth of pairs of servers, in parts of that of a server if it is allocated
    best_share: Array | None  # [S * S, B] that of `best`


def _priced(placement: Array, share: Array | None, of: AnnealedUnits, machine: SimulatedDevices) -> tuple[Array, Array]:
    """Return the seconds of placements, and their bytes over the limit."""
    # Endless bandwidth takes no time, and none very much.
    byte_s = None if share is None else of.part_s / jnp.maximum(share, _NO_BANDWIDTH)
    return makespans(of.rows, placement, machine, byte_s), excess_bytes(placement, of.memory, machine)


def _shifted(key: Array, share: Array, servers: int) -> Array:
    """Return shares of which each chain has given some of one pair of servers to another pair with the same sender."""
    of_server, of_pair, of_taker, of_amount = jax.random.split(key, 4)
    batch = share.shape[1]
    lanes = jnp.arange(batch)
    server = jax.random.randint(of_server, (batch,), 0, servers)
    giver = (server + jax.random.randint(of_pair, (batch,), 1, servers)) % servers + server * servers
    taker = (server + jax.random.randint(of_taker, (batch,), 1, servers)) % servers + server * servers
    amount = jax.random.randint(of_amount, (batch,), 1, PARTS // 2 + 1).astype(jnp.float32)
    amount = jnp.minimum(amount, share[giver, lanes] - 1.0)
    return share.at[giver, lanes].add(-amount).at[taker, lanes].add(amount)


@partial(jax.jit, static_argnames=("machine",))
def _started(
    key: Array, placement: Array, share: Array | None, of: AnnealedUnits, machine: SimulatedDevices
) -> AnnealingChains:
    seconds, excess = _priced(placement, share, of, machine)
    best_s = jnp.where(excess > 0.0, jnp.inf, seconds)
    return AnnealingChains(key, placement, seconds, excess, placement, best_s, share, share)


@partial(jax.jit, static_argnames=("machine", "allocates"))
def _annealed(
    chains: AnnealingChains,
    of: AnnealedUnits,
    cooling: Cooling,
    span: tuple[Array, Array],
    machine: SimulatedDevices,
    allocates: bool,
) -> AnnealingChains:
    """Return chains after the steps of a span, of all that cool them."""
    batch = chains.placement.shape[1]
    lanes = jnp.arange(batch)
    hot, cold, steps = cooling

    def step(number: Array, chains: AnnealingChains) -> AnnealingChains:
        key, of_unit, of_device, of_luck, of_near, *of_shares = jax.random.split(chains.key, 7 if allocates else 5)
        unit = jax.random.randint(of_unit, (batch,), 0, of.num_units)
        device = chains.placement[unit, lanes]
        shift = jax.random.randint(of_device, (batch,), 1, machine.count, chains.placement.dtype)
        near = chains.placement[of.near[unit, jax.random.randint(of_near, (batch,), 0, of.near.shape[1])], lanes]
        moved = jnp.where(near != device, near, (device + shift) % machine.count)
        share = chains.share
        if allocates and share is not None:
            moves = jax.random.bernoulli(of_shares[0], 0.75, (batch,))
            moved = jnp.where(moves, moved, device)
            share = jnp.where(moves, share, _shifted(of_shares[1], share, machine.servers))
        proposal = chains.placement.at[unit, lanes].set(moved)
        seconds, excess = _priced(proposal, share, of, machine)
        warmth = hot * (cold / hot) ** (number / steps)
        luck = -jnp.log(jax.random.uniform(of_luck, (batch,), minval=1e-12))
        taken = (seconds - chains.makespan_s <= warmth * luck) & (excess <= chains.excess_bytes)
        taken = taken | (excess < chains.excess_bytes)
        better = taken & (excess <= 0.0) & (seconds < chains.best_s)
        state = chains.placement, chains.makespan_s, chains.excess_bytes, chains.share
        *kept, share_kept = jax.tree.map(partial(jnp.where, taken), (proposal, seconds, excess, share), state)
        best = chains.best, chains.best_s, chains.best_share
        *best, best_share = jax.tree.map(partial(jnp.where, better), (proposal, seconds, share), best)
        return AnnealingChains(key, *kept, *best, share=share_kept, best_share=best_share)

    return jax.lax.fori_loop(*span, step, chains)


class Annealing:
    """Annealing of the placements of a graph whose units stay together."""

    def __init__(
        self,
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
        self.timing, self.unit, self.network = timing, unit.tolist(), network
        self.num_units = int(unit.max()) + 1
        self.machine = SimulatedDevices.of(devices)
        self.latest, self.order = start, timing.order_of(start.start_s.tolist())
        rows = rows_of(timing, self.unit, self.order)
        length = len(rows.op)
        near = np.pad(
            _neighbours(timing.graph, self.unit, self.num_units, seed), ((0, length - self.num_units), (0, 0))
        )
        placement = np.zeros((length, CHAINS), dtype=np.int32)
        placement[unit, :] = start.device[:, None]
        if self.machine.memory_bytes == np.inf:
            placement[:, ::8] = 0
        self.key, self.placement = jax.random.PRNGKey(seed), jnp.asarray(placement)
        # Of two servers each has one to send to, which gets all.
        self.allocates = network is not None and devices.between is not None and self.machine.servers > 2
        self.share, part_s = None, 1.0
        if devices.between is not None:
            share = np.array(devices.between)
            if network is not None and self.allocates:
                share = in_parts(share, PARTS).astype(float)
                part_s = share[0].sum() / network.total
            np.fill_diagonal(share, np.inf)  # inside a server
            self.share = jnp.asarray(np.repeat(share.reshape(-1, 1), CHAINS, axis=1), jnp.float32)
        memory = jnp.asarray(np.bincount(unit, timing.graph.memory_bytes, length), jnp.float32)
        near = jnp.asarray(near, jnp.int32)
        self.units = AnnealedUnits(rows, memory, near, jnp.int32(self.num_units), jnp.float32(part_s))

    def steps_in(self, seconds: float) -> int:
        """Return how many steps nominally take so long."""
        per_row_s = _STEP_PER_ROW_S * (1 if self.share is None else _SHARED)
        return max(int(seconds / (_STEP_S + len(self.units.rows.op) * per_row_s)), 1)

    def run(
        self, steps: int, hot: float, cold: float, stop: Callable[[], bool] = lambda: False
    ) -> OperatorSchedule | None:
        """Anneal for some steps, or until `stop`; return the schedule of the best placement, None if none fits.

        Temperatures are shares of the makespan. With a network, `timing` has the bandwidths of the schedule after that.
        """
        scale = self.latest.makespan_s
        chains = _started(self.key, self.placement, self.share, self.units, machine=self.machine)
        cooling = Cooling(jnp.float32(hot * scale), jnp.float32(cold * scale), jnp.int32(steps))
        # Compiled code does not hear Ctrl-C, so it runs for a while only.
        unheard = self.steps_in(_UNHEARD_S)
        for begin in range(0, steps, unheard):
            span = jnp.int32(begin), jnp.int32(min(begin + unheard, steps))
            chains = _annealed(chains, self.units, cooling, span, machine=self.machine, allocates=self.allocates)
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
            devices = with_bandwidth(self.timing.devices, filled(self.network, parts))
            self.timing = GraphTimes(self.timing.graph, devices)
        placement = np.asarray(chains.best)[self.unit, chain].tolist()
        schedule = self.timing.best(placement, self.timing.in_order(placement, self.order).start_s.tolist())
        self.latest, self.order = schedule, self.timing.order_of(schedule.start_s.tolist())
        self.units = self.units._replace(rows=rows_of(self.timing, self.unit, self.order))
        # Chains that are behind go on from the best one.
        behind = np.asarray(chains.makespan_s) > np.median(np.asarray(chains.makespan_s))
        state, best = (chains.placement, chains.share), (chains.best, chains.best_share)

        def ahead(of_chains: Array, best: Array) -> Array:
            return jnp.asarray(np.where(behind, np.asarray(best)[:, [chain]], of_chains))

        self.placement, self.share = jax.tree.map(ahead, state, best)
        return schedule


def _neighbours(graph: OpGraph, unit: Sequence[int], num_units: int, seed: int) -> np.ndarray:
    """Return units with an edge to each unit, [units, _NEIGHBOURS], and the unit itself in every second place."""
    near: list[list[int]] = [[] for _ in range(num_units)]
    for source, target in graph.edges:
        ends = unit[source], unit[target]
        if ends[0] != ends[1]:
            near[ends[0]].append(ends[1])
            near[ends[1]].append(ends[0])
    drawn = np.random.default_rng(seed)
    neighbours = np.repeat(np.arange(num_units)[:, None], _NEIGHBOURS, axis=1)
    for row, units in zip(neighbours, near, strict=True):
        if units:
            row[::2] = drawn.choice(units, _NEIGHBOURS // 2)
    return neighbours


@dataclass
class AnnealingRun:
    """The annealing of one reduction."""

    name: str
    of_op: np.ndarray  # [N] the reduced operator of each operator of the given graph
    annealing: Annealing
    reduction: Reduction | None = None  # None: the graph as it is
    best: OperatorSchedule | None = None  # of the reduced graph
    best_s: float = np.inf  # on the given graph

    def unreduced(self, timing: GraphTimes, schedule: OperatorSchedule) -> OperatorSchedule:
        """Return the schedule of the given graph that has the placement and the order of a reduced one."""
        return timing.best(schedule.device[self.of_op].tolist(), schedule.start_s[self.of_op].tolist())


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
        schedule = run.annealing.run(run.annealing.steps_in(seconds / len(runs)), hot, cold, stop)
        if schedule is None:
            continue
        if run.best is None or schedule.makespan_s < run.best.makespan_s:
            run.best = schedule
        devices = run.annealing.timing.devices
        if timing is None or timing.devices is not devices:
            timing = GraphTimes(graph, devices)
        unreduced = run.unreduced(timing, schedule)
        run.best_s = min(run.best_s, unreduced.makespan_s)
        yield run, unreduced
