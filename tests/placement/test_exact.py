"""Exact search is enumeration, obeys laws, and gives bounds that hold."""

import itertools
import random

import numpy as np
import pytest
from placement.enumeration import shortest_s
from placement.graphs import drawn, graph, uniform
from placement.referees import violations
from scipy.optimize import Bounds, LinearConstraint, milp

from dsx.placement import exact as module
from dsx.placement.cp_program import SolverEffort, ticks_for
from dsx.placement.exact import (
    equal_units,
    first_of_equal,
    heavy_bound,
    paths_between,
    solve,
    units_to_place_first,
)
from dsx.placement.op_graph import units_of
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, load_bound_s, path_bound_s

pytest.importorskip("ortools", reason="exact search needs ortools (extra `place`)")


def a_case(seed):
    """A graph of up to 8 operators, and up to 3 devices: tiers, latency, memory, speeds, times, labels."""
    rng = random.Random(seed)
    count = rng.choice([2, 3, 3])
    given = drawn(seed, rng.randint(5, 8), labels=rng.random() < 0.4, num_times=rng.choice([None, None, count]))
    latency = rng.choice([0.0, 3e-6])
    links = [DeviceLink(rng.choice([50e9, 1e9]), latency), DeviceLink(rng.choice([25e9, 5e9]), 2 * latency)]
    tiers = rng.random() < 0.5
    speeds = (1.0,) * count if rng.random() < 0.5 else tuple(rng.choice([1.0, 0.5, 0.75]) for _ in range(count))
    share = rng.choice([None, None, 1.0, 0.6, 0.5, 0.4])
    memory = None if share is None else float(np.floor(given.memory_bytes.sum() * share))
    return given, Devices(speeds, (2,) if tiers else (), tuple(links if tiers else links[1:]), memory)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(200))
def test_equals_enumeration(seed):
    given, devices = a_case(seed)
    least = shortest_s(given, devices)
    unit = units_of(given)
    hint = GraphTimes(given, devices).heft(unit.tolist()) if seed % 2 else None
    found = solve(given, devices, unit, SolverEffort(60.0), hint=hint)
    assert found.proved
    if found.schedule is None:
        assert least == found.bound_s == np.inf
        return
    assert violations(given, devices, found.schedule) == []
    assert found.schedule.makespan_s == pytest.approx(least, rel=1e-6)
    assert found.bound_s <= least * (1 + 1e-12)
    assert found.bound_s == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_two_tiers_of_alike_servers(seed):
    """Devices may change their names: the largest unit is on the first one."""
    given = drawn(seed + 50, 7)
    devices = Devices((1.0,) * 4, (2,), (DeviceLink(50e9, 1e-6), DeviceLink(10e9, 3e-6)))
    unit = units_of(given)
    hint = GraphTimes(given, devices).heft(unit.tolist())
    moved = OperatorSchedule((hint.device + 3) % 4 if seed % 2 else hint.device ^ 3, hint.start_s, hint.makespan_s)
    timing = GraphTimes(given, devices)
    moved = timing.best(moved.device.tolist())
    found = solve(given, devices, unit, SolverEffort(60.0), hint=moved)
    assert found.proved
    assert found.schedule.makespan_s == pytest.approx(shortest_s(given, devices), rel=1e-6)


def test_units_networks_and_equal_operators():
    for seed in range(60, 64):
        given, devices = drawn(seed, 6), Devices((1.0,) * 4, (2,), (DeviceLink(2e9, 4e-6), DeviceLink(50e9)))
        found = solve(given, devices, units_of(given), SolverEffort(60.0))
        assert found.schedule.makespan_s == pytest.approx(shortest_s(given, devices), rel=1e-6)
    # Units stay together.
    given = graph([10, 10, 10, 10], [])
    found = solve(given, uniform(2, DeviceLink(1e9)), [0, 0, 0, 1], SolverEffort(60.0))
    assert found.proved and found.schedule.makespan_s == pytest.approx(30e-6)
    assert found.bound_s == pytest.approx(30e-6)
    # 20 of 10 us on 4 devices: 5 each, of which those on three devices wait for a transfer to them and from them.
    given, devices = fork_and_join(20), uniform(4, DeviceLink(1e9))
    hint = GraphTimes(given, devices).heft(units_of(given).tolist())
    turned = OperatorSchedule(3 - hint.device, hint.start_s, hint.makespan_s)
    found = solve(given, devices, units_of(given), SolverEffort(60.0), hint=turned)
    assert found.proved and found.schedule.makespan_s == pytest.approx(54e-6)


def p1_by_milp(given, devices):
    """P1 with a free order by HiGHS: x, cuts, orders, starts and the makespan, with one kind of link."""
    ops, count, (link,) = given.num_ops, devices.count, devices.links
    pairs = list(itertools.combinations(range(ops), 2))
    long = float(given.seconds.sum()) + sum(map(link.seconds, given.edge_bytes.values()))
    cut, first = {pair: ops * count + at for at, pair in enumerate(pairs)}, {}
    first = {pair: ops * count + len(pairs) + at for at, pair in enumerate(pairs)}
    start = ops * count + 2 * len(pairs)
    size = start + ops + 1
    rows, low = [], []

    def at_least(bound, **terms):
        row = np.zeros(size)
        for column, factor in terms["of"]:
            row[column] += factor
        rows.append(row)
        low.append(bound)

    for op in range(ops):
        own = [(op * count + device, 1.0) for device in range(count)]
        at_least(1.0, of=own)
        at_least(-1.0, of=[(column, -1.0) for column, _ in own])
        at_least(given.seconds[op, 0] * 1e6, of=[(start + ops, 1.0), (start + op, -1.0)])
    for (a, b), column in cut.items():
        for device in range(count):
            one, other = a * count + device, b * count + device
            at_least(0.0, of=[(column, 1.0), (one, -1.0), (other, 1.0)])
            at_least(0.0, of=[(column, 1.0), (one, 1.0), (other, -1.0)])
        for i, j in ((a, b), (b, a)):
            apart = [(column, long * 1e6), (first[a, b], (1.0 if (i, j) == (b, a) else -1.0) * long * 1e6)]
            free = 0.0 if (i, j) == (b, a) else long * 1e6
            at_least(given.seconds[i, 0] * 1e6 - free, of=[(start + j, 1.0), (start + i, -1.0), *apart])
    for (i, j), num_bytes in given.edge_bytes.items():
        sent = [(start + j, 1.0), (start + i, -1.0), (cut[min(i, j), max(i, j)], -link.seconds(num_bytes) * 1e6)]
        at_least(given.seconds[i, 0] * 1e6, of=sent)
    goal = np.zeros(size)
    goal[-1] = 1.0
    found = milp(
        goal,
        integrality=np.arange(size) < start,
        bounds=Bounds(np.zeros(size), np.where(np.arange(size) < start, 1.0, np.inf)),
        constraints=LinearConstraint(np.array(rows), np.array(low), np.inf),
        options={"mip_rel_gap": 0.0},
    )
    return found.fun * 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_equals_p1_by_another_solver(seed):
    given, devices = drawn(seed + 20, 5), uniform(2, DeviceLink(25e9, 2e-6))
    found = solve(given, devices, units_of(given), SolverEffort(60.0))
    assert found.schedule.makespan_s == pytest.approx(p1_by_milp(given, devices), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "link", "least_us"),
    [
        # The example of the thesis.
        (graph([5, 10, 5], [(0, 1, 5_000), (0, 2, 5_000)]), DeviceLink(1e9), 15),
        # No parallel pair: one device is enough.
        (graph([5, 10, 5, 3], [(0, 1, 5_000), (1, 2, 5_000), (2, 3, 1_000)]), DeviceLink(1e12), 23),
        # A dependency without data has no latency.
        (graph([5, 5, 5], [(0, 1, 0), (0, 2, 0)]), DeviceLink(1e9, 100.0), 10),
        # What takes no time waits for no device: operator 2, on that of 0, hands on to 3 while 0 still runs.
        (graph([10, 1, 0, 8], [(1, 2, 1_000), (2, 3, 1_000)], colocate=[*"abab"]), DeviceLink(1e9), 11),
    ],
)
def test_steps_that_are_known(given, link, least_us):
    devices = uniform(2, link)
    found = solve(given, devices, units_of(given), SolverEffort(60.0))
    assert found.proved and found.schedule.makespan_s == pytest.approx(least_us * 1e-6)
    assert violations(given, devices, found.schedule) == []


@pytest.mark.parametrize("seed", range(4))
def test_faster_links_and_more_memory_never_worsen_the_optimum(seed):
    given = drawn(seed + 80, 12)
    total = float(given.memory_bytes.sum())

    def least(bandwidth, latency, share):
        found = solve(
            given, uniform(3, DeviceLink(bandwidth, latency), total * share), units_of(given), SolverEffort(60.0)
        )
        assert found.proved
        return found.schedule.makespan_s

    slow = least(5e9, 4e-6, 0.5)
    for faster in (least(20e9, 4e-6, 0.5), least(5e9, 1e-6, 0.5), least(5e9, 4e-6, 1.0)):
        assert faster <= slow * (1 + 1e-6)


@pytest.mark.parametrize("count", [3, 5])
def test_equal_chains_are_shared_out(count):
    edges = [(4 * chain + at, 4 * chain + at + 1, 100_000) for chain in range(12) for at in range(3)]
    given = graph([10] * 48, edges)
    found = solve(given, uniform(count, DeviceLink(25e9)), units_of(given), SolverEffort(60.0))
    assert found.proved and found.schedule.makespan_s == pytest.approx(-(-48 // count) * 10e-6)


def fork_and_join(width, times=1):
    """Equal operators between two others, each of another one of `times` kinds."""
    edges = [(0, op, 1_000) for op in range(1, width + 1)] + [(op, width + 1, 1_000) for op in range(1, width + 1)]
    return graph([1, *(10 + op % times for op in range(width)), 1], edges)


@pytest.mark.parametrize(
    "devices", [uniform(3, DeviceLink(1e9)), Devices((1.0,) * 4, (2,), (DeviceLink(9e9), DeviceLink(1e9, 2e-6)))]
)
@pytest.mark.parametrize("times", [1, 2])
def test_equal_operators_by_enumeration(devices, times):
    given = fork_and_join(5, times)
    found = solve(given, devices, units_of(given), SolverEffort(60.0))
    assert found.proved and found.schedule.makespan_s == pytest.approx(shortest_s(given, devices), rel=1e-6)


@pytest.mark.parametrize(
    "devices", [uniform(4, DeviceLink(1e9)), Devices((1.0,) * 4, (2,), (DeviceLink(9e9), DeviceLink(1e9, 2e-6)))]
)
def test_one_placement_stands_for_all_that_differ_in_names(devices):
    given = fork_and_join(9, 2)
    unit = units_of(given).tolist()
    first, equal = units_to_place_first(given, devices, unit), equal_units(given, unit)
    assert equal == [[1, 3, 5, 7, 9], [2, 4, 6, 8]]
    for seed in range(20):
        device_of = np.random.default_rng(seed).integers(0, 4, given.num_ops).tolist()
        placed, place_of = first_of_equal(devices, first, equal, device_of)
        assert sorted(place_of) == list(range(given.num_ops))
        assert all(placed[one] <= number for number, one in enumerate(first))
        assert all(placed[a] <= placed[b] for units in equal for a, b in itertools.pairwise(units))
        origin = [device_of[place] for place in place_of]
        for a, b in itertools.combinations(range(given.num_ops), 2):
            assert devices.level[placed[a], placed[b]] == devices.level[origin[a], origin[b]]


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [lambda: True, interrupt])
def test_a_search_that_stops_keeps_its_hint_and_a_bound(stop):
    given, devices = drawn(3, 200), uniform(4, DeviceLink(5e9))
    hint = GraphTimes(given, devices).in_order([0] * given.num_ops, given.order)
    found = solve(given, devices, units_of(given), SolverEffort(60.0, stop=stop), hint=hint)
    assert found.stopped
    assert 0.0 < found.bound_s <= found.schedule.makespan_s <= hint.makespan_s


@pytest.mark.parametrize("times_s", [[3e-6, 4.5e-6, 0.0], [1e-3, 1.2345678e-6], [1 / 3, 2 / 7e5], [1e-9], [1e-9, 10.0]])
def test_ticks_are_rounded_down_and_close(times_s):
    ticks = ticks_for(times_s, 2 * max(times_s))
    for time in times_s:
        whole = ticks.of(time) * ticks.seconds
        assert whole <= time <= whole + ticks.rounding_s(1, max(times_s))


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
