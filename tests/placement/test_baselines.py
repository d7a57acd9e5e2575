"""Baselines of placements, and bounds by heavy operators."""

import numpy as np
import pytest
from placement.enumeration import shortest_s
from placement.graphs import drawn, graph, uniform
from placement.referees import violations

from dsx.placement import exact as module
from dsx.placement.baselines import mcmc, metis
from dsx.placement.cp_program import SolverEffort
from dsx.placement.exact import heavy_bound, paths_between
from dsx.placement.op_graph import units_of
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes, load_bound_s, path_bound_s


@pytest.mark.parametrize("seed", range(4))
def test_metis_gives_a_valid_schedule(seed):
    devices = Devices((1.0, 1.0, 0.5, 0.5), (2,), (DeviceLink(50e9, 1e-6), DeviceLink(10e9, 5e-6)))
    given = drawn(seed, 60, labels=True)
    found = metis(GraphTimes(given, devices), units_of(given).tolist())
    assert violations(given, devices, found) == []
    assert len({*found.device.tolist()}) > 1


def test_limits_of_the_baselines():
    given = graph([1, 1, 1], [], memory_bytes=[90, 90, 10])
    assert metis(GraphTimes(given, uniform(2, DeviceLink(1e9), memory_bytes=95.0)), [0, 1, 2]) is None
    # Batches look at the clock and keep what is found.
    given, devices = drawn(3, 40), uniform(3, DeviceLink(25e9))
    timing, unit = GraphTimes(given, devices), units_of(given).tolist()
    start = timing.single_device()
    assert mcmc(timing, unit, start, 400, stop=lambda: True).makespan_s == pytest.approx(start.makespan_s)
    assert timing.heft(unit, stop=lambda: True) is None


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


TIERS = Devices((1.0, 0.5, 1.0, 1.0), (2,), (DeviceLink(50e9, 1e-6), DeviceLink(5e9, 5e-6)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("heavy", [2, 4, 7])
@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_is_below_the_bound(seed, heavy, monkeypatch):
    monkeypatch.setattr(module, "_HEAVY", (heavy,))
    devices = [uniform(2, DeviceLink(10e9)), uniform(3, DeviceLink(25e9, 2e-6)), TIERS][seed % 3]
    given = drawn(seed, 7, labels=seed % 2 == 1, num_times=devices.count if seed % 4 == 0 else None)
    shortest = shortest_s(given, devices)
    found = heavy_bound(given, devices, units_of(given).tolist(), shortest * 1.2, SolverEffort(5.0))
    assert found.seconds <= shortest * (1 + 1e-9)
    assert found.seconds >= min(max(path_bound_s(given, devices), load_bound_s(given, devices)), shortest)


def test_heavy_operators_wait_for_each_other():
    """The shortest step has the first two operators on one device and the others on the second: 5 + 6 + 10 + 5 us."""
    given = graph([5, 10, 10, 5], [(0, 1, 6_000), (0, 2, 6_000), (1, 3, 6_000), (2, 3, 6_000)])
    devices = uniform(2, DeviceLink(1e9))
    assert path_bound_s(given, devices) == pytest.approx(20e-6)
    found = heavy_bound(given, devices, [0, 1, 2, 3], 30e-6, SolverEffort(5.0))
    assert found.num_heavy == 4 and found.seconds == pytest.approx(26e-6, rel=5e-3)
    # From 0 to 4: 1 us over edges of 7 and 2 us, or 3 us over edges of 1 us, or a third heavy operator.
    sizes = [(0, 1, 7_000), (1, 4, 2_000), (0, 2, 1_000), (2, 4, 1_000), (0, 3, 9_000), (3, 4, 9_000)]
    given, devices = graph([50, 1, 3, 50, 50], sizes), uniform(2, DeviceLink(1e9))
    found = paths_between(given, devices, [0, 3, 4], given.seconds[:, 0])
    assert found.together_s[0, 2] == pytest.approx(3e-6)
    assert found.apart_s[0, 2] == pytest.approx(4e-6)  # 3 us and an edge of 1 us; the other path has 1 us and 2 us
    assert found.together_s[0, 1] == 0.0 and found.apart_s[0, 1] == pytest.approx(9e-6)
    assert np.isinf(found.together_s[2, 0])
    # A bound need not be nearer than asked.
    given = graph([5, 10, 10, 5], [(0, 1, 6_000), (0, 2, 6_000), (1, 3, 6_000), (2, 3, 6_000)])
    found = heavy_bound(given, uniform(2, DeviceLink(1e9)), [0, 1, 2, 3], 30e-6, SolverEffort(5.0, gap=0.5))
    assert found.num_heavy == 0 and found.seconds == pytest.approx(20e-6)
