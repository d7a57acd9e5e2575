"""The replay of a schedule: transfers share links, tensors go once to a device, and the rest is as scheduled."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from placement.graphs import drawn, graph, uniform
from placement.referees import violations

from dsx.errors import InputError
from dsx.placement.op_graph import units_of
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.timetable import GraphTimes, OperatorSchedule, Route, contended, fair_rates

MB = 1_000_000
SERVERS = Devices((1.0,) * 4, (2,), (DeviceLink(2e9, 1e-6), DeviceLink(1e9, 5e-6)))  # two of two GPUs


def placed(given, devices, device, order=None):
    return GraphTimes(given, devices).in_order(device, order or given.order)


def replayed(given, devices, schedule, **limits):
    return contended(GraphTimes(given, devices), schedule, **limits)


def arrivals(found):
    return {(one.op, one.destination): round(one.end_s * 1e6, 6) for one in found.transfers}


def test_transfers_of_a_server_share_its_link():
    given = graph([10, 10, 10], [(0, 1, MB), (0, 2, 2 * MB)])
    devices = uniform(3, DeviceLink(1e9))
    schedule = placed(given, devices, [0, 1, 2])
    assert schedule.makespan_s == pytest.approx(2_020e-6)
    found = replayed(given, devices, schedule)
    # Both share until 1 MB of each is there; then the second MB of the other has all.
    assert arrivals(found) == {(0, 1): 2_010, (0, 2): 3_010}
    assert found.schedule.start_s.tolist() == pytest.approx([0, 2_010e-6, 3_010e-6])
    assert found.schedule.makespan_s == pytest.approx(found.end_s.max()) == pytest.approx(3_020e-6)
    # Two transfers into a server share it too.
    given = graph([0, 0, 10], [(0, 2, MB), (1, 2, 2 * MB)])
    found = replayed(given, uniform(3, DeviceLink(1e9, 5e-6)), placed(given, uniform(3, DeviceLink(1e9)), [0, 1, 2]))
    assert arrivals(found) == {(0, 2): 2_005, (1, 2): 3_005}
    assert {one.start_s for one in found.transfers} == {0.0}
    # Operators 1 and 2 take the same tensor of operator 0; operator 3 takes another one.
    given = graph([0, 10, 10, 10], [(0, 1, MB), (0, 2, MB), (0, 3, 3 * MB)])
    devices = uniform(2, DeviceLink(1e9))
    found = replayed(given, devices, placed(given, devices, [0, 1, 1, 0]))
    assert [(one.op, one.source, one.destination, one.num_bytes) for one in found.transfers] == [(0, 0, 1, MB)]
    assert found.schedule.start_s.tolist() == pytest.approx([0, 1_000e-6, 1_010e-6, 0])
    # Opposite directions do not share.
    given = graph([0, 0, 10, 10], [(0, 2, MB), (1, 3, MB)])
    devices = uniform(2, DeviceLink(1e9))
    found = replayed(given, devices, placed(given, devices, [0, 1, 1, 0]))
    assert arrivals(found) == {(0, 1): 1_000, (1, 0): 1_000}
    # Gpus of a server share its link to others but not those inside.
    given = graph([0, 0, 0, 10, 10, 10], [(0, 3, MB), (1, 4, MB), (2, 5, MB)])
    found = replayed(given, SERVERS, placed(given, SERVERS, [0, 1, 0, 2, 3, 1]))
    # Operator 2 sends from GPU 0 to 1, at 2 GB/s; the others from server 0 to 1, at half of 1 GB/s.
    assert arrivals(found) == {(0, 2): 2_005, (1, 3): 2_005, (2, 1): 501}
    wide = replayed(given, SERVERS, placed(given, SERVERS, [0, 1, 0, 2, 3, 1]), server_bandwidth=8e9)
    assert arrivals(wide) == {(0, 2): 1_005, (1, 3): 1_005, (2, 1): 501}, "a transfer has one link at most"


def test_transfers_of_a_pair_share_its_bandwidth():
    given = graph([0, 0, 0, 1, 1, 1], [(0, 3, MB), (1, 4, MB), (2, 5, MB)])
    devices = uniform(3, DeviceLink(1e9))
    schedule = placed(given, devices, [0, 0, 0, 1, 1, 2])
    allocated = replace(devices, between=((0, 4e9, 0.5e9), (0, 0, 0), (0, 0, 0)))
    assert arrivals(replayed(given, allocated, schedule)) == {(0, 1): 500, (1, 1): 500, (2, 2): 2_000}
    tiers = replace(SERVERS, between=((0, 0.5e9), (0, 0)))
    found = replayed(given, tiers, placed(given, tiers, [0, 1, 0, 2, 3, 1]))
    assert arrivals(found) == {(0, 2): 4_005, (1, 3): 4_005, (2, 1): 501}
    nothing = replace(devices, between=((0, 4e9, 0.0), (0, 0, 0), (0, 0, 0)))
    with pytest.raises(InputError, match=r"server 0 sends to server 2, but has 0\.0 bytes/s to it"):
        replayed(given, nothing, schedule)
    with pytest.raises(InputError, match="server_bandwidth: 0 bytes/s are too little"):
        replayed(given, devices, schedule, server_bandwidth=0)


def test_rates_are_max_min_fair_beside_operators_without_time():
    given = graph([1, 100, 50, 0], [(2, 3, 0)])
    devices = uniform(2, DeviceLink(1e9))
    schedule = OperatorSchedule(np.array([0, 0, 1, 0]), np.array([0, 1, 0, 50]) * 1e-6, 101e-6)
    assert violations(given, devices, schedule) == []
    assert replayed(given, devices, schedule).schedule.start_s.tolist() == pytest.approx([0, 1e-6, 0, 50e-6])
    # The first link is full at 1 each; then the second one has 4 for one transfer, and the third has its most.
    one, two, three = Route(("a",), 9.0), Route(("a", "b"), 9.0), Route(("b",), 3.0)
    rates = fair_rates({one: 2, two: 1, three: 1}, {"a": 3.0, "b": 5.0})
    assert rates == {one: 1.0, two: 1.0, three: 3.0}
    assert fair_rates({two: 1, three: 4}, {"a": 3.0, "b": 5.0}) == {two: 1.0, three: 1.0}


@pytest.mark.parametrize("devices", [uniform(3, DeviceLink(25e9, 1e-6)), SERVERS], ids=["uniform", "two tiers"])
@pytest.mark.parametrize("seed", range(12))
def test_a_replay_is_the_schedule_but_for_shared_links(seed, devices):
    given = drawn(seed, 60, labels=True)
    given = replace(given, seconds=np.maximum(given.seconds, 1e-6))
    start = GraphTimes(given, devices).heft(units_of(given).tolist())
    rng = np.random.default_rng(seed)
    anywhere = rng.integers(0, devices.count, given.num_ops).tolist()
    for schedule in (start, placed(given, devices, anywhere)):
        if not devices.units:
            apart = replayed(given, devices, schedule, server_bandwidth=1e15).schedule
            assert apart.start_s == pytest.approx(schedule.start_s, rel=1e-9)
            assert apart.makespan_s == pytest.approx(schedule.makespan_s, rel=1e-9)
        found = replayed(given, devices, schedule)
        assert found.schedule.makespan_s >= schedule.makespan_s * (1 - 1e-9)
        assert (found.schedule.start_s >= schedule.start_s - 1e-12).all()
        assert np.array_equal(found.schedule.device, schedule.device)
        assert_bytes_fit(found, devices)
        again = replayed(given, devices, schedule)
        assert again.transfers == found.transfers and again.end_s.tolist() == found.end_s.tolist()
        # What comes later in the schedule starts later in the replay.
        for device in range(devices.count):
            own = [op for op in range(given.num_ops) if schedule.device[op] == device]
            own.sort(key=lambda op: schedule.start_s[op])
            assert all(found.end_s[one] <= found.schedule.start_s[other] + 1e-15 for one, other in pairwise(own))


def assert_bytes_fit(found, devices):
    """No link carries more bytes than it can between the first start and the last end of its transfers."""
    size = devices.units[0] if devices.units else 1
    links = {}
    for one in found.transfers:
        inside = one.source // size == one.destination // size and size > 1
        level = devices.level[one.source, one.destination]
        ends = (one.source, one.destination) if inside else (one.source // size, one.destination // size)
        for key in ((inside, "from", ends[0]), (inside, "to", ends[1])):
            links.setdefault(key, []).append((one, devices.links[level].bandwidth))
    for carried in links.values():
        starts, ends = min(one.start_s for one, _ in carried), max(one.end_s for one, _ in carried)
        assert sum(one.num_bytes for one, _ in carried) <= carried[0][1] * (ends - starts) * (1 + 1e-9)
