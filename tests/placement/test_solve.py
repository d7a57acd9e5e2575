"""The answer: never worse than what was tried, bounded, and kept when the search is stopped."""

import itertools

import numpy as np
import pytest
from placement.enumeration import shortest_s
from placement.graphs import drawn, graph, uniform
from placement.referees import excesses, violations

from dsx.errors import NothingFeasible
from dsx.placement import solve as module
from dsx.placement.cp_program import SolverEffort
from dsx.placement.servers import DeviceLink, ServerNetwork
from dsx.placement.solve import place


@pytest.mark.parametrize("seed", range(3))
def test_a_small_graph_is_placed_as_well_as_can_be(seed):
    given, devices = drawn(seed, 8), uniform(3, DeviceLink(10e9, 1e-6))
    found = place(given, devices, SolverEffort(4.0, gap=0.05))
    assert found.schedule.makespan_s == pytest.approx(shortest_s(given, devices), rel=1e-9)
    assert found.bound.seconds <= found.schedule.makespan_s
    assert violations(given, devices, found.schedule) == []


@pytest.mark.slow
def test_answers_of_known_steps_and_after_ctrl_c():
    """Seven chains of 3 x 10 us on 3 devices: whole chains take 90 us, chains that are cut 70 us."""
    edges = [(3 * chain + at, 3 * chain + at + 1, 1_000) for chain in range(7) for at in range(2)]
    given, devices = graph([10] * 21, edges), uniform(3, DeviceLink(1e9))
    found = place(given, devices, SolverEffort(8.0, gap=0.0))
    assert found.schedule.makespan_s < 80e-6
    # What is found until ctrl c is kept.
    given, devices = drawn(4, 50), uniform(3, DeviceLink(25e9))

    def report(placed):
        if len(placed.ways.makespans_s) > 3 and not placed.stopped:
            raise KeyboardInterrupt

    found = place(given, devices, SolverEffort(5.0, gap=0.05), report=report)
    assert found.stopped and violations(given, devices, found.schedule) == []


@pytest.mark.slow
def test_without_packages_there_is_an_answer_and_the_same_one_again(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    given, devices = drawn(4, 50), uniform(3, DeviceLink(25e9))
    one, other = (place(given, devices, SolverEffort(1.0, gap=0.05, seed=3)) for _ in range(2))
    assert one.schedule.device.tolist() == other.schedule.device.tolist()
    assert one.ways.makespans_s == other.ways.makespans_s
    assert one.bound.num_heavy == 0
    assert one.schedule.makespan_s == min(one.ways.makespans_s.values())


def test_ctrl_c_in_heft_leaves_one_device(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsx.placement.timetable.GraphTimes.heft", interrupted)
    given, devices = drawn(4, 100), uniform(3, DeviceLink(25e9))
    found = place(given, devices, SolverEffort(60.0, gap=0.05))
    assert found.stopped and [*found.ways.makespans_s] == ["single_device"]
    assert violations(given, devices, found.schedule) == []


@pytest.mark.slow
def test_answers_within_their_time_and_of_operators_without_time(monkeypatch):
    looks = itertools.count()  # at a clock that goes on by a second at each
    monkeypatch.setattr(module, "monotonic", lambda: next(looks))
    given, devices = drawn(4, 300), uniform(3, DeviceLink(25e9))
    found = place(given, devices, SolverEffort(60.0, gap=0.05))
    assert [*found.ways.makespans_s] == ["single_device"]
    assert next(looks) < 60 * 1.25 + 20
    assert violations(given, devices, found.schedule) == []
    monkeypatch.undo()
    # What takes no time somewhere has no heavy operators.
    given = graph([[0, 50] if op % 2 else [50, 0] for op in range(450)], [])
    assert place(given, uniform(2, DeviceLink(1e9)), SolverEffort(1.0, gap=0.05)).schedule.makespan_s == pytest.approx(
        0.0, abs=1e-3
    )


@pytest.mark.parametrize(
    ("memory", "columns", "said"),
    [
        (25.0, {}, "operator 1 needs 30 B, and a device has 25 B: 5 B short"),
        (35.0, {"colocate": ["a", None, "a"]}, "operators 0, 2 need 40 B on one device, and a device has 35 B: 5 B"),
        (32.0, {}, "the operators need 70 B, and 2 devices of 32 B have 64 B: 6 B short"),
        (36.0, {}, "no placement fits into 36 B a device: .* device 1 needs 40 B, 4 B more"),
    ],
)
def test_what_does_not_fit_is_said(memory, columns, said):
    given = graph([5, 10, 5], [(0, 1, 5_000), (0, 2, 5_000)], memory_bytes=[20, 30, 20], **columns)
    with pytest.raises(NothingFeasible, match=said):
        place(given, uniform(2, DeviceLink(1e9), memory_bytes=memory), SolverEffort(1.0, gap=0.05))


@pytest.mark.sampled(0)
@pytest.mark.parametrize("seed", range(3))
def test_memory_that_is_filled_to_the_last_byte(seed):
    """Operators that fill three devices exactly, which taking the largest first does not find."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for _ in range(3) for size in rng.multinomial(100_000, rng.dirichlet(np.ones(25)))]
    given = graph([1] * 75, [(one, one + 1, 10) for one in range(74)], memory_bytes=rng.permutation(sizes).tolist())
    devices = uniform(3, DeviceLink(1e9), memory_bytes=100_000.0)
    assert violations(given, devices, place(given, devices, SolverEffort(0.5, gap=0.05)).schedule) == []


@pytest.mark.slow
def test_joint_search_is_no_worse_than_uniform_shares():
    given = drawn(8, 80)
    found = place(given, uniform(4, DeviceLink(1e9, 5e-6)), SolverEffort(0.5, gap=0.05), network=ServerNetwork(3, 1e9))
    assert found.uniform_s == found.schedule.makespan_s
    # Two servers leave joint search no choice.
    given = drawn(8, 40)
    one, other = (
        place(
            given, uniform(2, DeviceLink(1e9)), SolverEffort(2.0, gap=0.05), network=ServerNetwork(3, 1e9), joint=joint
        )
        for joint in (0, 1)
    )
    assert one.bandwidth is other.bandwidth is None and one.schedule.makespan_s == other.schedule.makespan_s
    # One of two other servers is sent five times as much as the other one.
    sizes = [(0, 1, 10_000), (0, 2, 2_000), (0, 3, 1), (1, 4, 100), (2, 4, 100), (3, 4, 1)]
    given, network = graph([5, 20, 20, 20, 5], sizes), ServerNetwork(2, 1e9)
    found = place(given, uniform(3, DeviceLink(1e9)), SolverEffort(3.0, gap=0.05), network=network, joint=True)
    assert found.schedule.makespan_s < found.uniform_s
    assert excesses(network, found.bandwidth) == []
    assert violations(given, found.devices, found.schedule) == []
    assert found.bound.seconds <= found.schedule.makespan_s
