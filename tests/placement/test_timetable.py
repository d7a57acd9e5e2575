"""Schedules of HEFT, of placements, and of the search are valid, and the simulator agrees with them."""

import itertools

import numpy as np
import pytest
from placement.graphs import drawn, graph, uniform
from placement.referees import violations

from dsx.placement.annealing import SimulatedDevices, makespans, rows_of
from dsx.placement.cp_program import SolverEffort
from dsx.placement.op_graph import units_of
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.solve import search
from dsx.placement.timetable import GraphTimes, OperatorSchedule, load_bound_s, path_bound_s

TIERS = Devices((1.0, 1.0, 0.5, 0.5), (2,), (DeviceLink(50e9, 1e-6), DeviceLink(10e9, 5e-6)), memory_bytes=4_000.0)
MACHINES = {"uniform": uniform(3, DeviceLink(25e9)), "two tiers, speeds, memory": TIERS}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(8))
def test_schedules_are_valid(seed, machine):
    devices = MACHINES[machine]
    given = drawn(seed, 40, labels=True, num_times=devices.count if seed % 2 else None)
    timing, unit = GraphTimes(given, devices), units_of(given).tolist()
    found = timing.heft(unit)
    assert found is not None
    assert violations(given, devices, found) == []
    best = timing.best(found.device.tolist(), found.start_s.tolist())
    assert violations(given, devices, best) == [] and best.makespan_s <= found.makespan_s
    assert best.makespan_s >= max(path_bound_s(given, devices), load_bound_s(given, devices)) * (1 - 1e-12)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_simulator_is_the_schedule_in_order(machine):
    devices = MACHINES[machine]
    given = drawn(5, 50, labels=True, num_times=devices.count)
    timing, unit = GraphTimes(given, devices), units_of(given)
    start = timing.heft(unit.tolist())
    order = timing.order_of(start.start_s.tolist())
    rows = rows_of(timing, unit.tolist(), order)
    placements = np.random.default_rng(0).integers(0, devices.count, (len(rows.op), 8)).astype(np.int32)
    found = makespans(rows, placements, SimulatedDevices(devices.count, devices.units))
    expected = [timing.in_order(placements[unit, chain].tolist(), order).makespan_s for chain in range(8)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_search_finds_the_best_placement_of_few_operators(seed):
    given, devices = drawn(seed, 7), uniform(2, DeviceLink(25e9, 1e-6))
    timing = GraphTimes(given, devices)
    orders = [
        order
        for order in itertools.permutations(range(7))
        if all(order.index(a) < order.index(b) for a, b in given.edges)
    ]
    least = min(
        timing.in_order(placement, order).makespan_s
        for placement in itertools.product(range(2), repeat=7)
        if placement[0] == 0
        for order in orders[:400]
    )
    found = search(given, devices, SolverEffort(0.05))
    assert found.best.makespan_s <= least * (1 + 1e-9)
    assert found.best.makespan_s <= min(found.makespans_s.values())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer():
    given, devices = drawn(9, 60), uniform(3, DeviceLink(25e9))
    one, other = (search(given, devices, SolverEffort(0.05, seed=4)) for _ in range(2))
    assert one.best.device.tolist() == other.best.device.tolist()
    assert one.makespans_s == other.makespans_s


@pytest.mark.parametrize(
    ("device", "start_us", "makespan_us", "said"),
    [
        ([0, 0, 1], [0, 5, 9], 15, "operator 2 starts before 0 has ended"),
        ([0, 0, 0], [0, 5, 6], 15, "operators 1 and 2 run at once on device 0"),
        ([0, 0, 1], [0, 5, 10], 16, "the last operator ends at"),
        ([0, 0, 1], [-1, 5, 10], 15, "operator 0 starts at"),
        ([0, 1, 1], [0, 10, 20], 25, "operator 1 is apart from those that it shares a device with"),
        ([0, 0, 0], [0, 5, 15], 20, "device 0 needs 30 bytes of 25"),
    ],
)
def test_what_a_schedule_breaks_is_named(device, start_us, makespan_us, said):
    given = graph([5, 10, 5], [(0, 1, 5_000), (0, 2, 5_000)], colocate=["a", "a", None], memory_bytes=[10, 10, 10])
    devices = uniform(2, DeviceLink(1e9), memory_bytes=25.0)
    schedule = OperatorSchedule(np.array(device), np.array(start_us) * 1e-6, makespan_us * 1e-6)
    assert any(text.startswith(said) for text in violations(given, devices, schedule))


@pytest.mark.slow
def test_a_schedule_keeps_to_the_memory_of_devices_or_is_none():
    given = graph([1, 1], [], memory_bytes=[10, 10])
    devices = uniform(2, DeviceLink(1e9), memory_bytes=5.0)
    assert GraphTimes(given, devices).heft([0, 1]) is None
    assert GraphTimes(drawn(3, 40), devices).heft([*range(40)], stop=lambda: True) is None
    # A search keeps to the memory of devices.
    given = drawn(2, 40)
    devices = uniform(4, DeviceLink(25e9), memory_bytes=float(given.memory_bytes.sum()) / 3.5)
    found = search(given, devices, SolverEffort(0.2))
    assert found.best is not None and "single_device" not in found.makespans_s
    assert violations(given, devices, found.best) == []
