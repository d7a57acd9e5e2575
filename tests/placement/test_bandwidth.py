"""Bandwidth between servers: shares, the cone program, and the joint search against enumeration."""

import math
import random

import numpy as np
import pytest
from placement.graphs import drawn, graph, uniform
from placement.referees import excesses, violations

from dsx.errors import InputError
from dsx.placement.annealing import Annealing, SimulatedDevices, makespans, rows_of
from dsx.placement.cp_program import SolverEffort
from dsx.placement.joint import Allocated, allocate, best_bandwidth, polished, solve_joint
from dsx.placement.op_graph import units_of
from dsx.placement.servers import (
    DeviceLink,
    Devices,
    ServerNetwork,
    in_parts,
    uniform_shares,
    with_bandwidth,
    with_uniform_shares,
    within,
)
from dsx.placement.timetable import GraphTimes

pytest.importorskip("ortools", reason="joint search needs ortools (extra `place`)")
pytest.importorskip("clarabel", reason="joint search needs clarabel (extra `place`)")


def a_toy(seed):
    """A graph of up to 8 operators whose transfers take about as long as they do; three servers of one device."""
    rng = random.Random(seed)
    num_ops = rng.randint(6, 8)
    edges = [
        (one, other, rng.choice([0, 3_000, 10_000, 20_000, 30_000]))
        for other in range(num_ops)
        for one in range(other)
        if rng.random() < 2.2 / num_ops
    ]
    given = graph([rng.randint(5, 25) for _ in range(num_ops)], edges)
    return (
        given,
        uniform(3, DeviceLink(1.0, rng.choice([0.0, 1e-6]))),
        ServerNetwork(rng.choice([1, 3]), rng.choice([1.5e9, 2.5e9])),
    )


def shorter_than(given, devices, network, target_s):
    """The least makespan below a target, of all placements, orders and bandwidths; infinite if there is none.

    What is not shorter with all bandwidth of a server for each pair is cut off.
    """
    most = GraphTimes(given, with_bandwidth(devices, np.full((devices.count,) * 2, network.total)))
    seconds, ops = [row[0] for row in most.seconds], range(given.num_ops)
    tail = [0.0] * given.num_ops
    for op in reversed(given.order):
        tail[op] = seconds[op] + max((tail[other] for other in given.successors[op]), default=0.0)
    sources = {op: [(one, size) for (one, other), size in given.edge_bytes.items() if other == op] for op in ops}
    seen, best = set(), target_s

    def append(device, order, queues, end, free):
        nonlocal best
        if queues in seen:
            return
        seen.add(queues)
        for op in ops:
            ready = max((end[one] for one in given.predecessors[op] if one in end), default=0.0)
            if op not in end and ready + tail[op] >= best:
                return
        if max([*end.values(), 0.0]) >= best:
            return
        if len(order) == given.num_ops:
            placement = [device[op] for op in ops]
            schedule = most.in_order(placement, order)
            bandwidth = best_bandwidth(most, network, schedule)
            found = schedule.makespan_s
            if bandwidth is not None:
                found = GraphTimes(given, with_bandwidth(devices, bandwidth)).in_order(placement, order).makespan_s
            best = min(best, found)
            return
        for op in ops:
            if op in end or any(one not in end for one in given.predecessors[op]):
                continue
            for own in range(min(len({*device.values()}) + 1, devices.count)):
                begin = free[own]
                for one, num_bytes in sources[op]:
                    sent = 0.0 if device[one] == own else devices.links[0].latency_s + num_bytes / network.total
                    begin = max(begin, end[one] + (sent if num_bytes else 0.0))
                there = begin + seconds[op]
                after = tuple((*queue, op) if at == own else queue for at, queue in enumerate(queues))
                frees = [there if at == own else until for at, until in enumerate(free)]
                append(device | {op: own}, [*order, op], after, end | {op: there}, frees)

    append({}, [], ((),) * devices.count, {}, [0.0] * devices.count)
    return best if best < target_s else math.inf


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(30))
def test_the_joint_search_is_enumeration(seed):
    """Nothing is shorter by 0.5 %."""
    given, devices, network = a_toy(seed)
    shared = with_uniform_shares(devices, network)
    start = Allocated(GraphTimes(given, shared).heft(units_of(given).tolist()), uniform_shares(network, 3))
    found, _ = solve_joint(given, devices, network, start, 6, SolverEffort(60.0))
    assert violations(given, with_bandwidth(devices, found.bandwidth), found.schedule) == []
    assert excesses(network, found.bandwidth) == []
    assert shorter_than(given, devices, network, found.schedule.makespan_s * 0.995) == math.inf


def shares_of(given, placement, network, servers=3):
    """The best bandwidths of a placement, as shares of the total, and the makespan."""
    devices = uniform(servers, DeviceLink(1.0))
    shared = GraphTimes(given, with_uniform_shares(devices, network))
    start = Allocated(shared.in_order(placement, given.order), uniform_shares(network, servers))
    found = polished(given, devices, network, start)
    assert violations(given, with_bandwidth(devices, found.bandwidth), found.schedule) == []
    return found.bandwidth / network.total, found.schedule.makespan_s


def test_shares_of_transfers_by_hand():
    """Both arrive together: after all bytes at the full rate."""
    given = graph([5, 7, 7], [(0, 1, 1_000), (0, 2, 3_000)])
    shares, makespan_s = shares_of(given, [0, 1, 2], ServerNetwork(2, 1e9))
    assert makespan_s == pytest.approx((5 + 2 + 7) * 1e-6, rel=1e-6)
    np.testing.assert_allclose(shares[0], [0.0, 0.25, 0.75], rtol=1e-4)
    # t1 / b + t2 / (1 - b) is least where b : 1 - b = sqrt(t1) : sqrt(t2), and is (sqrt(t1) + sqrt(t2))^2 then.
    given = graph([5, 1, 2, 7], [(0, 1, 1_000), (1, 2, 0), (2, 3, 4_000)])
    shares, makespan_s = shares_of(given, [0, 1, 0, 2], ServerNetwork(3, 1e9))
    assert makespan_s == pytest.approx((15 + 9 / 3) * 1e-6, rel=1e-6)
    np.testing.assert_allclose(shares[0], [0.0, 1 / 3, 2 / 3], rtol=1e-3)
    assert shares.sum(axis=1).max() <= 1.0
    # A placement on one server has no use for bandwidth.
    given = graph([5, 5], [(0, 1, 1_000)])
    devices, network = uniform(3, DeviceLink(1e9)), ServerNetwork(1, 1e9)
    timing = GraphTimes(given, with_uniform_shares(devices, network))
    assert best_bandwidth(timing, network, timing.in_order([1, 1], [0, 1])) is None
    # Each direction has its own bandwidth.
    given = graph([1, 1, 1], [(0, 1, 1_000), (1, 2, 1_000)])
    devices = with_bandwidth(uniform(2, DeviceLink(1e9, 3e-6)), np.array([[0.0, 1e9], [0.5e9, 0.0]]))
    timing = GraphTimes(given, devices)
    for made in (timing.in_order([0, 1, 0], [0, 1, 2]), timing.by_priority([0, 1, 0], [3, 2, 1])):
        np.testing.assert_allclose(made.start_s, [0.0, 5e-6, 11e-6])
        assert violations(given, devices, made) == []
    turned = with_bandwidth(devices, np.array([[0.0, 0.5e9], [0.4e9, 0.0]]))
    assert violations(given, turned, made) != []


TIERS = Devices((1.0, 0.5) * 3, (2,), (DeviceLink(50e9, 1e-6), DeviceLink(1.0, 5e-6)), memory_bytes=6_000.0)


@pytest.mark.parametrize("devices", [TIERS, uniform(4, DeviceLink(1.0))])
def test_the_simulator_has_bandwidths_of_each_placement(devices):
    given = drawn(5, 50, labels=True)
    servers, unit = devices.num_servers, units_of(given)
    rng = np.random.default_rng(0)
    bandwidth = rng.uniform(1e9, 20e9, (8, servers, servers)) * (1 - np.eye(servers))
    timings = [GraphTimes(given, with_bandwidth(devices, own)) for own in bandwidth]
    byte_s = np.divide(1.0, bandwidth, out=np.zeros_like(bandwidth), where=bandwidth > 0)
    byte_s = byte_s.reshape(8, -1).T.astype(np.float32)
    rows = rows_of(timings[0], unit.tolist(), given.order)
    placements = rng.integers(0, devices.count, (len(rows.op), 8)).astype(np.int32)
    found = makespans(rows, placements, SimulatedDevices.of(devices), byte_s)
    expected = [
        timing.in_order(placements[unit, chain].tolist(), given.order).makespan_s
        for chain, timing in enumerate(timings)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_heft_keeps_to_bandwidths_and_two_servers_have_none_to_allocate():
    given = drawn(7, 40)
    bandwidth = np.random.default_rng(1).uniform(1e9, 9e9, (3, 3))
    bandwidth[0, 2] = 0.0  # so nothing may go that way
    devices = with_bandwidth(TIERS, bandwidth)
    timing, unit = GraphTimes(given, devices), units_of(given)
    start = timing.heft(unit.tolist())
    annealing = Annealing(timing, unit, start, 0)
    for found in (start, annealing.run(50, 1e-3, 1e-4)):
        assert violations(given, devices, found) == []
    # Two servers have nothing to allocate.
    given, network, devices = drawn(3, 30), ServerNetwork(2, 1e9), uniform(2, DeviceLink(1.0))
    hint = GraphTimes(given, with_uniform_shares(devices, network)).heft(units_of(given).tolist())
    found, _ = allocate(given, devices, network, hint, SolverEffort(60.0))
    assert found.schedule is hint
    np.testing.assert_array_equal(found.bandwidth, [[0.0, 2e9], [2e9, 0.0]])
    # Devices fill servers.
    with pytest.raises(InputError, match="3 devices do not fill servers of 2"):
        _ = Devices((1.0,) * 3, (2,), (DeviceLink(1e9), DeviceLink(1e9))).num_servers


@pytest.mark.parametrize(
    ("num_ops", "devices"), [(12, uniform(3, DeviceLink(1.0, 2e-6))), pytest.param(400, TIERS, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_an_allocation_is_never_worse_than_uniform_shares(num_ops, devices):
    given, network = drawn(num_ops, num_ops, labels=num_ops < 100), ServerNetwork(3, 1e9)
    shared = with_uniform_shares(devices, network)
    hint = GraphTimes(given, shared).heft(units_of(given).tolist())
    found, stopped = allocate(given, devices, network, hint, SolverEffort(0.5))
    assert found.schedule.makespan_s <= hint.makespan_s and not stopped
    assert violations(given, with_bandwidth(devices, found.bandwidth), found.schedule) == []
    assert excesses(network, found.bandwidth) == []


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(("stop", "interrupted"), [(lambda: True, False), (interrupt, True)])
def test_a_stopped_search_keeps_the_best(stop, interrupted):
    given, network, devices = drawn(3, 100), ServerNetwork(2, 1e9), uniform(4, DeviceLink(1.0))
    hint = GraphTimes(given, with_uniform_shares(devices, network)).heft(units_of(given).tolist())
    found, stopped = allocate(given, devices, network, hint, SolverEffort(60.0, stop=stop))
    assert stopped == interrupted and found.schedule.makespan_s <= hint.makespan_s


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 6, 8])
def test_shares_add_up_to_no_more_than_a_server_has(servers):
    network = ServerNetwork(3, 10e9 / 8 / 7)
    for bandwidth in (
        uniform_shares(network, servers),
        within(network, np.full((servers, servers), network.total / servers * (1 + 1e-15))),
    ):
        assert excesses(network, bandwidth) == []
        assert bandwidth.sum() == pytest.approx(network.total * servers * (servers > 1 or bandwidth.sum() > 0))


def test_allocations_are_whole_and_say_what_they_break():
    parts = in_parts(np.array([[0.0, 3.0, 1.0], [5.0, 0.0, 5.0], [0.0, 0.0, 0.0]]), 8)
    np.testing.assert_array_equal(parts, [[0, 12, 4], [8, 0, 8], [8, 8, 0]])
    assert (in_parts(np.array([[0.0, 1.0, 0.0, 0.0]] * 4), 6)[0] == [0, 16, 1, 1]).all()
    # What an allocation breaks is named.
    network = ServerNetwork(1, 2e9)
    assert excesses(network, np.array([[0.0, 3e9], [-1.0, 0.0]])) == [
        "server 0 sends 3000000000.0 bytes/s of 2000000000.0",
        "bandwidth from 1 to 0 is -1.0",
    ]


@pytest.mark.parametrize("given", [(0, 1e9), (1, 0.0), (1, math.nan), (1, math.inf)])
def test_a_network_that_carries_nothing_is_refused(given):
    with pytest.raises(InputError, match="network card"):
        ServerNetwork(*given)
