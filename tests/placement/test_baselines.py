"""The baselines that benchmarks compare with are what they claim to be."""

import numpy as np
import pytest
from placement.graphs import drawn, graph, uniform
from placement.referees import mcmc, metis, violations

from dsx.placement.op_graph import units_of
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes


@pytest.mark.parametrize("seed", range(4))
def test_metis_gives_a_valid_schedule(seed):
    devices = Devices((1.0, 1.0, 0.5, 0.5), (2,), (DeviceLink(50e9, 1e-6), DeviceLink(10e9, 5e-6)))
    given = drawn(seed, 60, labels=True)
    found = metis(GraphTimes(given, devices), units_of(given).tolist())
    assert violations(given, devices, found) == []
    assert len({*found.device.tolist()}) > 1


def test_metis_has_no_answer_where_a_part_does_not_fit_or_would_be_empty():
    given = graph([1, 1, 1], [], memory_bytes=[90, 90, 10])
    assert metis(GraphTimes(given, uniform(2, DeviceLink(1e9), memory_bytes=95.0)), [0, 1, 2]) is None
    assert metis(GraphTimes(given, uniform(8, DeviceLink(1e9))), [0, 1, 2]) is None


@pytest.mark.parametrize("limit", [None, 2_500.0])
def test_batches_make_the_chain_of_single_proposals(limit):
    given, devices = drawn(3, 40), uniform(3, DeviceLink(25e9), memory_bytes=limit)
    timing, unit = GraphTimes(given, devices), units_of(given)
    start, steps, seed = timing.single_device(), 400, 5
    drawn_by = np.random.default_rng(seed)
    units, moves = drawn_by.integers(0, unit.max() + 1, steps), drawn_by.integers(0, 3, steps)
    order = timing.order_of(start.start_s.tolist())
    placement, shortest = np.zeros(unit.max() + 1, dtype=int), start.makespan_s
    for one, device in zip(units, moves, strict=True):
        proposal = placement.copy()
        proposal[one] = device
        made = timing.in_order(proposal[unit].tolist(), order).makespan_s
        if made < shortest * (1 - 1e-6):
            placement, shortest = proposal, made
    found = mcmc(timing, unit.tolist(), start, steps, seed)
    assert found.device.tolist() == placement[unit].tolist()
    assert found.makespan_s <= shortest * (1 + 1e-9) < start.makespan_s
    assert violations(given, devices, found) == []
