"""Replays of small steps, worked out by hand; times in seconds."""

import pytest
from trace_columns import broadcast, comp, load, receive, reduce_over_two, send, step, store, trace

from dsx.errors import InputError, TraceError
from dsx.traces.step_replay import slow_ranks


def parts(times):
    """The parts of a rank's step, which add up to it."""
    found = {"compute": times.compute_s, "sends": times.send_s, "bubble": times.bubble_s}
    found |= {"offload": times.offload_s, "host": times.host_s, **times.comm_s}
    assert sum(found.values()) == pytest.approx(times.step_s)
    return {name: seconds for name, seconds in found.items() if seconds > 1e-12}


def over(overlap, seconds=4, **more):
    """A collective of 4 s with a partner, a part of which may overlap with its kernel."""
    return reduce_over_two(seconds, partner=more.pop("partner", 2), overlap=overlap, **more)


def beside(*seconds, axes=("dp", "dp"), overlap=1.0):
    """Asynchronous collectives."""
    return [reduce_over_two(s, axis=axis, overlap=overlap) for s, axis in zip(seconds, axes, strict=False)]


KERNEL = [comp(1, kernel="k"), comp(2, kernel="k")]
LAST = [comp(5), comp(1, deps=[0])]
UPDATE = comp(0, tensor_size=8, launches=0, on_host=1, deps=[1])
# What two ranks run alike, how, and where the time of each goes.
ALIKE = {
    "launches follow each other": ([comp(2), comp(3)], {}, {"compute": 5}),
    # Of 4 s a collective can overlap with the 3 s that the kernel runs: 1 s and 2 s of two launches.
    "nothing overlaps with the kernel of the partner": ([over(0.0), *KERNEL], {}, {"compute": 3, "tp": 4}),
    "half overlaps with the kernel of the partner": ([over(0.5), *KERNEL], {}, {"compute": 3, "tp": 2.5}),
    "all that can overlaps with the kernel of the partner": ([over(1.0), *KERNEL], {}, {"compute": 3, "tp": 1}),
    "collectives of one kernel share its time": (
        [over(1.0, 2, partner=1), comp(3, kernel="k"), over(1.0, 4, partner=1)],
        {},
        {"compute": 3, "tp": 3},
    ),
    "each execution of a kernel has its own time": (
        [over(1.0, 2, partner=1), comp(3, kernel="k"), over(1.0, 4, partner=3), comp(3, kernel="k")],
        {},
        {"compute": 6, "tp": 1},
    ),
    # An asynchronous collective takes 6 s beside a launch of 5 s, and the last launch needs its result.
    "a collective runs beside the compute": ([*beside(6), *LAST], {}, {"compute": 6, "dp": 1}),
    "three quarters of it": ([*beside(6, overlap=0.75), *LAST], {}, {"compute": 6, "dp": 1.5}),
    "a quarter of it": ([*beside(6, overlap=0.25), *LAST], {}, {"compute": 6, "dp": 4.5}),
    "collectives of an axis share a stream": ([*beside(2, 3), comp(4)], {}, {"compute": 4, "dp": 1}),
    "collectives of two axes do not": ([*beside(2, 3, axes=("dp", "fsdp")), comp(4)], {}, {"compute": 4}),
    # The launches start at 2 and 8, the collective at 10.
    "the host issues one node at a time": (
        [comp(1), comp(1, launches=3), reduce_over_two(2), comp(7, launches=0)],
        {"dispatch_latency": 2.0},
        {"compute": 9, "tp": 2, "host": 8},
    ),
    "a host that is ahead costs its first issue": (
        [comp(5), comp(5), comp(5)],
        {"dispatch_latency": 1.0},
        {"compute": 15, "host": 1},
    ),
    "panels are reduced while the multiply runs": (
        [comp(6, panels=3), *(reduce_over_two(1, panels=3, deps=[0]) for _ in range(3)), comp(1, deps=[3])],
        {},
        {"compute": 7, "tp": 1},
    ),
    # A store of 4 s, an update of 8 bytes at half of 8 bytes a second, a load of 3 s; nothing overlaps.
    "offloaded optimizer state is updated on the host": (
        [comp(1), store(4, deps=[0]), UPDATE, load(3, deps=[2])],
        {"machine_of": {"host_memory_bandwidth": 16.0}},
        {"compute": 3, "offload": 7},
    ),
    "transfers to the host and back are full duplex": (
        [comp(1), store(4, deps=[0], overlap=1.0), load(3, overlap=1.0), comp(1, deps=[2])],
        {},
        {"compute": 2, "offload": 3},
    ),
    "transfers that do not overlap hold the compute": ([comp(1), store(4), comp(1)], {}, {"compute": 2, "offload": 4}),
    "control dependencies join computation and communication": (
        [reduce_over_two(4, overlap=1.0), comp(1, ctrl=[0])],
        {},
        {"compute": 1, "tp": 4},
    ),
}


@pytest.mark.parametrize(("nodes", "options", "expected"), ALIKE.values(), ids=ALIKE)
def test_ranks_that_run_alike(nodes, options, expected):
    found = step(trace(0, *nodes), trace(1, *nodes), **options)
    assert found.num_nodes == 2 * len(nodes) and found.step_time_s == pytest.approx(sum(expected.values()))
    assert [parts(times) for times in found.ranks] == [pytest.approx(expected)] * 2


def one_f_one_b(sends):
    """Two stages, three microbatches; a forward takes 2 s, a backward 3 s. `sends` are the seconds of a send."""
    first = [comp(2), send(1, 1, sends, deps=[0]), comp(2), send(1, 2, sends, deps=[2])]
    second = []
    for microbatch in (1, 2, 3):
        at = len(first)
        first += [receive(1, 10 + microbatch), comp(3, deps=[at])]
        if microbatch == 1:
            first += [comp(2), send(1, 3, sends, deps=[at + 2])]
        at = len(second)
        second += [receive(0, microbatch), comp(2, deps=[at]), comp(3), send(0, 10 + microbatch, sends, deps=[at + 2])]
    return trace(0, *first), trace(1, *second)


def test_stages_panels_and_slow_ranks_in_turn():
    found = step(*one_f_one_b(sends=0))
    # The second stage is busy from 2 to 17; the first one does its last backward after that.
    assert found.step_time_s == 20.0
    assert parts(found.ranks[0]) == {"compute": 15.0, "bubble": 5.0}
    assert parts(found.ranks[1]) == {"compute": 15.0, "bubble": 2.0}
    # The broadcasts of the second multiply come after the reductions of the first one.
    reduced = [reduce_over_two(1, panels=2, deps=[2], name=f"r{panel}") for panel in range(2)]
    nodes = [*panels(2, 1, ["tp"]), comp(6, deps=[1]), *reduced, *panels(2, 1, ["tp"]), comp(6, deps=[6])]
    events = []
    found = step(trace(0, *nodes), trace(1, *nodes), emit=lambda *event: events.append(event))
    # The multiply has panels from 1 to 4 and 4 to 7; the reductions begin at 4 and 7, the broadcasts at 8.
    assert [event[3] for event in events if event[0] == 0 and event[2].startswith("r")] == [4.0, 7.0]
    assert parts(found.ranks[0]) == {"compute": 12.0, "tp": 3.0}
    # Slow and alike ranks.
    ranks = [trace(rank, comp(2), reduce_over_two(4)) for rank in (0, 1)]
    found = step(*ranks, slow={1: 1.5})
    assert found.step_time_s == 7.0
    assert parts(found.ranks[0]) == {"compute": 2.0, "tp": 5.0}
    # Ranks 1 and 3 have no files; rank 0 sends to rank 2 as 1 does to 3, and shifts a block to rank 1.
    first = trace(0, reduce_over_two(2), send(1, 1, 1), receive(1, 1), comp(1, deps=[2]), send(2, 1, 1))
    second = trace(2, receive(0, 1), reduce_over_two(2, group="2", deps=[0]))
    found = step(first, second, groups={"1": [0, 1], "2": [2, 3]}, stands_for={0: [0, 1], 2: [2, 3]})
    assert found.step_time_s == 7.0


def test_sends_hold_what_they_do_not_overlap():
    found = step(*one_f_one_b(sends=1))
    # Stage 1: receives at 3, and is done with its passes at 8, 14, 20, each with a send after it.
    assert found.ranks[1].step_s == 21.0
    assert parts(found.ranks[1]) == {"compute": 15.0, "sends": 3.0, "bubble": 3.0}
    assert found.step_time_s == 24.0
    assert parts(found.ranks[0]) == {"compute": 15.0, "sends": 3.0, "bubble": 6.0}
    # Sends that overlap hold nothing.
    first = trace(0, comp(2), send(1, 1, 4, deps=[0], overlap=1.0), comp(3))
    second = trace(1, receive(0, 1), comp(1, deps=[0]))
    found = step(first, second)
    assert parts(found.ranks[0]) == {"compute": 5.0, "sends": 1.0}  # the send ends a second after the compute
    assert parts(found.ranks[1]) == {"compute": 1.0, "bubble": 6.0}
    # Half of a send holds the compute stream.
    first = trace(0, comp(2), send(1, 1, 4, overlap=0.5), comp(3))
    second = trace(1, receive(0, 1), comp(1, deps=[0]))
    found = step(first, second)
    assert parts(found.ranks[0]) == {"compute": 5.0, "sends": 2.0}
    assert found.ranks[1].step_s == 7.0
    # Sends share a stream.
    first = trace(0, comp(1), send(1, 1, 4, overlap=1.0), send(1, 2, 4, overlap=1.0))
    second = trace(1, receive(0, 2), receive(0, 1), comp(1, deps=[1]), comp(1, deps=[0]))
    found = step(first, second)
    assert found.step_time_s == 10.0
    assert parts(found.ranks[1]) == {"compute": 2.0, "bubble": 8.0}
    # Both ranks state their receive first, which takes no slot.
    ranks = [trace(rank, receive(1 - rank, 7), send(1 - rank, 7, 2), comp(1, deps=[0])) for rank in (0, 1)]
    assert step(*ranks).step_time_s == 3.0


def test_collectives_wait_for_the_slowest():
    found = step(trace(0, comp(2), reduce_over_two(4), comp(1)), trace(1, comp(5), reduce_over_two(4), comp(1)))
    assert found.step_time_s == 10.0
    assert parts(found.ranks[0]) == {"compute": 3.0, "tp": 7.0}
    assert parts(found.ranks[1]) == {"compute": 6.0, "tp": 4.0}
    # Rank 1 reaches both collectives after it received what rank 0 sends after them.
    dp = [reduce_over_two(2, axis="dp", overlap=1.0), reduce_over_two(3, axis="dp", overlap=1.0)]
    first = trace(0, comp(1), *dp, send(1, 1, 1, overlap=1.0), comp(1, deps=[2]))
    second = trace(1, receive(0, 1), comp(1, deps=[0]), *dp)
    found = step(first, second)
    assert parts(found.ranks[0]) == {"compute": 2.0, "dp": 7.0}
    assert parts(found.ranks[1]) == {"compute": 1.0, "dp": 5.0, "bubble": 2.0}


def panels(number, seconds, axes=("tp", "tp2")):
    """Broadcasts of the panels of each axis, one axis after the other as dsx writes them; ranks have their own."""
    return [broadcast(seconds, panels=number, axis=axis) for axis in axes for _ in range(number)]


@pytest.mark.parametrize("stated", [{"panels": 3}, {}])
@pytest.mark.parametrize("last_alone", [True, False])
@pytest.mark.parametrize(("compute", "end"), [(12, 16.0), (6, 14.0)])
def test_panels_arrive_while_the_multiply_runs(compute, end, last_alone, stated):
    """Three panels of 2 s on each of two axes: 12 s in all. The multiply starts its first panel after 4 s."""
    nodes = [*panels(3, 2), comp(compute, deps=[2, 5] if last_alone else range(6), **stated)]
    found = step(trace(0, *nodes), trace(1, *nodes))
    assert found.step_time_s == end
    exposed = (end - compute) / 2
    assert parts(found.ranks[0]) == {"compute": compute, "tp": exposed, "tp2": exposed}


@pytest.mark.parametrize(("domain", "seconds"), [(4, 6.0), (2, 6.0), (1, 12.0)])
def test_groups_span_domains(domain, seconds):
    """A ring of four takes 3/2 of the bytes; two ranks of a domain share its links out of it, which have half."""
    found = step(*(trace(rank, reduce_over_two(4)) for rank in range(4)), domain=domain, net_efficiency=0.5)
    assert found.step_time_s == seconds


def test_events_have_all_nodes():
    events = []
    nodes = [comp(2, name="up"), reduce_over_two(4, name="sum"), send(1, 1, 1, name="out")]
    other = [comp(2, name="up"), reduce_over_two(4, name="sum"), receive(0, 1)]
    step(trace(0, *nodes), trace(1, *other), emit=lambda *event: events.append(event))
    assert sorted(events) == [
        (0, "compute", "up", 0.0, 2.0),
        (0, "sends", "out", 6.0, 1.0),
        (0, "tp", "sum", 2.0, 4.0),
        (1, "compute", "up", 0.0, 2.0),
        (1, "tp", "sum", 2.0, 4.0),
    ]


def test_what_nobody_does_is_named():
    with pytest.raises(TraceError, match=r"rank 0 waits for rank 5, whose file is not there: node 2 \('sum'\)"):
        step(trace(0, comp(1), reduce_over_two(1, name="sum")), groups={"1": [0, 5]})
    with pytest.raises(TraceError, match=r"rank 0 waits for rank 3, whose file is not there: node 1 \('in'\)"):
        step(trace(0, receive(3, 1, name="in"), comp(1, deps=[0])))
    # What no rank does is named.
    with pytest.raises(TraceError, match=r"rank 1 waits at node 1 \('in'\) for a send from rank 0 with tag 2, which"):
        step(trace(0, send(1, 1, 1)), trace(1, receive(0, 2, name="in")))
    with pytest.raises(TraceError, match=r"rank 0 waits at node 2 .* for rank 1, which ends without that"):
        step(trace(0, reduce_over_two(1), reduce_over_two(1)), trace(1, reduce_over_two(1)))


def test_cycles_are_named():
    one, other = reduce_over_two(1, name="one"), reduce_over_two(1, name="other", group="2")
    groups = {"1": [0, 1], "2": [0, 1]}
    with pytest.raises(TraceError) as raised:
        step(trace(0, one, other), trace(1, other, one), groups=groups)
    expected = "rank 0 waits at node 1 ('one') for rank 1; rank 1 waits at node 1 ('other') for rank 0"
    assert str(raised.value) == f"the replay cannot go on, since ranks wait for each other: {expected}"
    # A cycle of asynchronous collectives is named.
    one, other = (reduce_over_two(1, name=name, group=name, overlap=1.0) for name in ("1", "2"))
    with pytest.raises(TraceError, match="wait for each other: rank 0 waits at node 1"):
        step(trace(0, one, other), trace(1, other, one), groups={"1": [0, 1], "2": [0, 1]})
    # A cycle of receives is named.
    ranks = [trace(rank, receive(1 - rank, 1), comp(1, deps=[0]), send(1 - rank, 1, 1)) for rank in (0, 1)]
    with pytest.raises(TraceError, match=r"rank 0 waits at node 1 .* for a send from rank 1 with tag 1; rank 1 waits"):
        step(*ranks)
    # Ranks whose dependencies make them wait for each other are named.
    late = [comp(1, deps=[1]), comp(1)]
    ranks = [
        trace(rank, *late, receive(1 - rank, 1 - rank), comp(1, deps=[2]), send(1 - rank, rank, 1, deps=[3]))
        for rank in (0, 1)
    ]
    with pytest.raises(TraceError, match=r"rank 1 has transfer 0 -> 1 with tag 0 before transfer 1 -> 0"):
        step(*ranks)


@pytest.mark.parametrize(
    "slow", [f"0={'1' * 5000}", f"{'1' * 5000}=2", f"0-{'9' * 5000}=2", {0: 10**5000}, {10**5000: 2}], ids=range(5)
)
def test_numbers_of_thousands_of_digits_are_no_slow_ranks(slow):
    with pytest.raises(InputError, match="slow"):
        slow_ranks(slow, range(4))


def test_a_file_that_is_not_in_order_runs_by_its_dependencies():
    """Two microbatches over two stages, each with forward and backward behind each other in the file."""
    first = [receive(1, 11), comp(3, deps=[0, 2], name="back"), comp(2, name="there"), send(1, 1, 0, deps=[2])]
    second = [send(0, 11, 0, deps=[2]), receive(0, 1), comp(3, deps=[3]), comp(2, deps=[1])]
    first += [receive(1, 12), comp(3, deps=[4, 6]), comp(2), send(1, 2, 0, deps=[6])]
    second += [send(0, 12, 0, deps=[6]), receive(0, 2), comp(3, deps=[7]), comp(2, deps=[5])]
    events = []
    found = step(trace(0, *first), trace(1, *second), emit=lambda *event: events.append(event))
    # Stage 0 runs its second forward while stage 1 has the first microbatch, from 2 to 7; that has the second one until
    # 12, and stage 0 the last backward after it.
    assert [times.step_s for times in found.ranks] == [15.0, 12.0]
    assert (0, "compute", "there", 0.0, 2.0) in events and (0, "compute", "back", 7.0, 3.0) in events
