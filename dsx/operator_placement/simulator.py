"""Makespans of many placements at once: one scan over the operators, the batch on the last axis.

A row of the scan is an operator with up to `_INPUTS` of its inputs; an operator with more has several rows, of which
the last one lets it run. All placements run their operators in one order. Rows that do nothing fill up the length, and
all else is as long, so that graphs of about the same size share a compilation.

Where pairs of servers have bandwidths of their own, each placement has its own: seconds a byte, of which rows know the
bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.operator_placement.devices import Devices, Link
from dsx.operator_placement.schedule import Timing, op_seconds

_INPUTS = 4
_LEAST, _STEPS = 16, 4  # numbers of rows: multiples of the first, and so many up to the next power of two


class Rows(NamedTuple):
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
class Machine:
    """What rows do not say of the devices."""

    count: int
    units: tuple[int, ...]  # devices in a unit of each level, as of `Devices`
    server_size: int = 1

    @property
    def servers(self) -> int:
        """The number of servers."""
        return self.count // self.server_size


def machine_of(devices: Devices) -> Machine:
    """Return the machine of devices."""
    return Machine(devices.count, devices.units, devices.server_size)


def rows_of(timing: Timing, unit: Sequence[int], order: Sequence[int]) -> Rows:
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
        links[inside:] = [Link(np.inf, link.latency_s) for link in links[inside:]]
    # One row more than operators need: were every row an operator's last, XLA would copy the state for each.
    length = _length(len(made) + 1)
    none = length - 1
    alike = devices.alike and graph.seconds.shape[1] == 1
    seconds = op_seconds(graph, devices)
    found = Rows(
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
    step = max(_LEAST, 2 ** (least.bit_length() - 1) // _STEPS)
    return -(-least // step) * step


def makespans(rows: Rows, placement: Any, machine: Machine, byte_s: Any = None) -> Any:
    """Return the seconds of placements, [B]: the device of each unit, [R, B], of which more than the units are unused.

    `byte_s` are the seconds of a byte from each server to each other one, [S * S, B], where these have bandwidths of
    their own.
    """
    batch = placement.shape[1]
    lanes, servers = jnp.arange(batch), machine.servers
    ones = jnp.ones((machine.count, batch), jnp.float32)
    devices = jnp.arange(machine.count, dtype=placement.dtype)[:, None]

    def run(state: Any, row: Rows) -> tuple[Any, None]:
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
