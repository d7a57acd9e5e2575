"""Every fault of traces is found, named with its place, and found alone; a valid folder has none."""

import time
from dataclasses import replace

import numpy as np
import pytest
from trace_files import ALL_GATHER, BARRIER, coll, comp, node, receive, send, write_folder

from dsx.traces import codec as m
from dsx.traces.checks import check
from dsx.traces.columns import Lists
from dsx.traces.orders import cycle, topological_order
from dsx.traces.read import open_folder, traces

GROUPS = {"1": [0, 1], "2": [1, 2]}


def faults_of(path, ranks, groups=None):
    path.mkdir(exist_ok=True)
    folder = open_folder(write_folder(path, ranks, groups))
    return check(folder, traces(folder))


def load(number, **more):
    return node(number, f"load{number}", m.MEM_LOAD, **more)


def lists(*rows):
    lengths = [len(row) for row in rows]
    return Lists(np.cumsum([0, *lengths]), np.array([value for row in rows for value in row], np.int64))


def test_a_valid_trace_has_no_faults(tmp_path):
    ranks = {
        0: [comp(1, writes={"x": 4}), send(2, 1, ctrl=[], data=[1], reads={"x": 4}), coll(3, ctrl=[2]), coll(4, "0")],
        1: [receive(1, 0), comp(2, data=[1]), coll(3), coll(4, "2"), coll(5, "", kind=BARRIER, size=0)],
        2: [load(1, tensor_size=4), coll(2, "2"), coll(3, "0", kind=BARRIER, size=0)],
    }
    ranks[0][3] = coll(4, "0", kind=BARRIER, size=0)
    assert faults_of(tmp_path, ranks, GROUPS) == []


# Of one file: nodes of rank 0 that have exactly this fault.
ONE_FILE = {
    "duplicate id": ([comp(1), comp(2), comp(2)], 2, "an earlier node of the file has the same id"),
    "unknown dependency": ([comp(1), comp(2, data=[1, 9])], 2, "depends on node 9, which the file does not have"),
    "cycle of dependencies": (
        [comp(1, data=[3]), comp(2, ctrl=[1]), comp(3, data=[2]), comp(4, data=[3])],
        1,
        "3 nodes wait for one another: 1 (comp1), 2 (comp2), 3 (comp3)",
    ),
    "unknown process group": ([coll(1, "7")], 1, "there is no group '7'"),
    "no member of the group": ([coll(1, "2")], 1, "group '2' does not have rank 0"),
    "no peer": ([node(1, "s", m.COMM_SEND, comm_size=8, comm_tag=1)], 1, "a send without comm_dst"),
    "computation without its work": ([node(1, "c", m.COMP, num_ops=5)], 1, "has no tensor_size"),
    "tensor written twice": (
        [comp(1, writes={"x": 4}), comp(2, writes={"y": 4, "x": 4})],
        2,
        "'x' was written before in the file",
    ),
}


@pytest.mark.parametrize("what", ONE_FILE)
def test_faults_of_one_file(tmp_path, what):
    nodes, where, detail = ONE_FILE[what]
    (fault,) = faults_of(tmp_path, {0: nodes, 1: [], 2: []}, GROUPS)
    assert (fault.what, fault.rank, fault.node, fault.detail) == (what, 0, where, detail)
    assert fault.name == next(made.name for made in nodes if made.id == where) and not fault.is_note
    assert str(fault) == f"{what}: rank 0 node {where} ({fault.name}): {detail}"


@pytest.mark.parametrize(
    ("made", "detail"),
    [
        (comp(1, num_ops=0), "num_ops is 0"),
        (comp(1, tensor_size=0), "tensor_size is 0"),
        (load(1), "has no tensor_size"),
        (load(1, tensor_size=0), "tensor_size is 0"),
        (coll(1, "9", size=0), "comm_size is 0"),
        (coll(1, "9", size=-4), "comm_size is -4"),
    ],
)
def test_sizes_that_are_not_positive(tmp_path, made, detail):
    (fault,) = faults_of(tmp_path, {0: [made]}, {"9": [0]})
    assert (fault.what, fault.node, fault.detail) == ("size that is not positive", 1, detail)


def test_faults_of_single_nodes(tmp_path):
    (fault,) = faults_of(tmp_path, {0: [node(1, "r", m.COMM_RECV, comm_size=8)]})
    assert (fault.what, fault.detail) == ("no peer", "a receive without comm_src")
    # An unknown collective.
    (fault,) = faults_of(tmp_path, {0: [coll(1, "9", kind=33)]}, {"9": [0]})
    assert fault.what == "unknown collective"
    # A computation with a duration needs no work.
    assert faults_of(tmp_path, {0: [node(1, "c", m.COMP, micros=3)]}) == []
    # A host operation of a profiler needs no work.
    (note,) = faults_of(tmp_path, {0: [comp(1), node(2, "aten::empty", m.COMP, is_cpu_op=True)]})
    assert (note.what, note.node, note.is_note) == ("operation of the host without its work", 2, True)
    # A node that depends on itself is a cycle.
    (fault,) = faults_of(tmp_path, {0: [comp(1), comp(2, data=[2])]})
    assert (fault.what, fault.node) == ("cycle of dependencies", 2)
    # Many faults of a kind are counted.
    faults = faults_of(tmp_path, {0: [load(number) for number in range(1, 21)]})
    assert [(fault.node, fault.more) for fault in faults] == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 15)]
    assert str(faults[-1]).endswith("; and 15 more")


# Of several ranks: (fault, rank, node, words of the detail).
BETWEEN = {
    "kinds differ": (
        {0: [coll(1), coll(2)], 1: [coll(1), coll(5, kind=ALL_GATHER)]},
        "different sequences of collectives",
        "group '1': number 2 differs: ALL_REDUCE of 8 bytes on rank 0 (node 2, coll2) and ALL_GATHER of 8 bytes on "
        "rank 1 (node 5, coll5)",
    ),
    "sizes differ": (
        {0: [coll(1), coll(2)], 1: [coll(1, size=4), coll(2)]},
        "different sequences of collectives",
        "number 1 differs: ALL_REDUCE of 8 bytes on rank 0 (node 1, coll1) and ALL_REDUCE of 4 bytes on rank 1",
    ),
    "counts differ": (
        {0: [coll(1)], 1: [coll(1), coll(2)]},
        "different sequences of collectives",
        "group '1': rank 0 has only 1 collectives, and ALL_REDUCE of 8 bytes on rank 1 (node 2, coll2) is number 2",
    ),
    "one has none": ({0: [coll(1)], 1: []}, "different sequences of collectives", "rank 1 has only 0 collectives"),
    "send alone": (
        {0: [send(1, 1)], 1: []},
        "send without its receive",
        "rank 1 has no receive from rank 0 with tag 1",
    ),
    "receive alone": (
        {0: [], 1: [receive(1, 0)]},
        "receive without its send",
        "rank 0 has no send to rank 1 with tag 1",
    ),
    "second send alone": (
        {0: [send(1, 1), send(2, 1)], 1: [receive(1, 0)]},
        "send without its receive",
        "rank 1 has no receive from rank 0 with tag 1, which is number 2 of these",
    ),
    "sizes of a pair": (
        {0: [send(1, 1)], 1: [receive(1, 0, size=9)]},
        "send and receive of different sizes",
        "8 bytes are sent to rank 1, which receives 9 (tag 1)",
    ),
    "order of collectives": (
        {0: [coll(1), coll(2, "3")], 1: [coll(1, "3"), coll(2)]},
        "contradictory order",
        "rank 0 has ALL_REDUCE 1 of group '1' before ALL_REDUCE 1 of group '3'",
    ),
    "sends meet sends": (
        {0: [send(1, 1, tag=1), receive(2, 1, tag=2)], 1: [send(1, 0, tag=2), receive(2, 0, tag=1)]},
        "contradictory order",
        "rank 1 has transfer 1 -> 0 with tag 2 before transfer 0 -> 1 with tag 1",
    ),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_faults_between_ranks(tmp_path, case):
    ranks, what, detail = BETWEEN[case]
    (fault,) = faults_of(tmp_path, ranks, {"1": [0, 1], "3": [1, 0]})
    assert fault.what == what and detail in fault.detail and not fault.is_note


def test_cycles_between_ranks(tmp_path):
    faults = faults_of(tmp_path / "pair", {0: [send(1, 1, tag=1)], 1: [receive(4, 0, tag=2)]})
    assert [(fault.what, fault.rank, fault.node) for fault in faults] == [
        ("send without its receive", 0, 1),
        ("receive without its send", 1, 4),
    ]
    # A cycle over three ranks names its events.
    ranks = {
        rank: [send(1, (rank + 1) % 3, tag=rank), receive(2, (rank - 1) % 3, tag=(rank - 1) % 3)] for rank in range(3)
    }
    (fault,) = faults_of(tmp_path / "cycle", ranks)
    assert fault.what == "contradictory order"
    for rank in range(3):
        own = f"transfer {rank} -> {(rank + 1) % 3} with tag {rank}"
        assert f"rank {rank} has {own} before transfer {(rank - 1) % 3} -> {rank}" in fault.detail
    # A ring that one rank begins with a receive has no cycle.
    ranks = {
        rank: [send(1, (rank + 1) % 3, tag=rank), receive(2, (rank - 1) % 3, tag=(rank - 1) % 3)] for rank in range(3)
    }
    ranks[2] = ranks[2][::-1]
    assert faults_of(tmp_path / "ring", ranks) == []
    # Computations have no part in the order.
    ranks = {0: [send(1, 1, tag=1), comp(2), receive(3, 1, tag=2)], 1: [receive(2, 0, tag=1), send(3, 0, tag=2)]}
    assert faults_of(tmp_path / "computations", ranks) == []
    # A rank that sends itself what it waits for.
    (fault,) = faults_of(tmp_path / "self", {0: [comp(1, data=[2]), receive(2, 0), send(3, 0, data=[1])]})
    assert fault.detail == "rank 0 has transfer 0 -> 0 with tag 1 before transfer 0 -> 0 with tag 1"


def test_missing_ranks_are_noted_and_hide_no_difference(tmp_path):
    ranks = {0: [send(1, 5), coll(2), coll(3, "2"), coll(4, "0")]}
    (note,) = faults_of(tmp_path, ranks, {"1": [0, 3], "2": [0, 4]})
    assert note.is_note and note.what == "missing ranks"
    assert note.detail.startswith("ranks 1, 2, 3, 4, 5 have no file, and others wait for them")
    # Members that have no file do not hide a difference.
    faults = faults_of(tmp_path, {0: [coll(1)], 1: [coll(1, size=4)]}, {"1": [0, 1, 2]})
    assert {fault.what for fault in faults} == {"missing ranks", "different sequences of collectives"}
    # Only the first difference of a group is named.
    ranks = {0: [coll(1), coll(2), coll(3)], 1: [coll(1), coll(2, size=4), coll(3, size=4)]}
    (fault,) = faults_of(tmp_path, ranks, {"1": [0, 1]})
    assert "number 2 differs" in fault.detail


def test_dependencies_decide_where_files_contradict_each_other(tmp_path):
    """Rank 0 states its collectives in another order than rank 1; by its dependencies the orders are the same."""
    groups = {"1": [0, 1], "2": [0, 1]}
    ranks = {0: [coll(1, data=[2]), comp(2, data=[3]), coll(3, "2")], 1: [coll(1, "2"), comp(2, data=[1]), coll(3)]}
    assert faults_of(tmp_path, ranks, groups) == []
    ranks[1] = [coll(1), comp(2, data=[1]), coll(3, "2", data=[2])]
    (fault,) = faults_of(tmp_path, ranks, groups)
    assert fault.detail == (
        "rank 1 has ALL_REDUCE 1 of group '1' before ALL_REDUCE 1 of group '2'; "
        "rank 0 has ALL_REDUCE 1 of group '2' before ALL_REDUCE 1 of group '1'"
    )
    # Communication that is not chained: what is independent may start in either order.
    ranks = {0: [comp(1), coll(2, data=[1]), coll(3, "2")], 1: [comp(1), coll(2, "2", data=[1]), coll(3)]}
    assert faults_of(tmp_path, ranks, groups) == []
    ranks = {rank: [comp(1), first, second] for rank, (_, first, second) in ranks.items()}
    ranks[0][2] = coll(3, "2", ctrl=[2])
    ranks[1][2] = coll(3, ctrl=[2])
    (fault,) = faults_of(tmp_path, ranks, groups)
    assert fault.what == "contradictory order"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"overlap": 5.0}, "overlap that is no share: rank 0 node 1 (a): overlap is 5"),
        ({"duration_ns": -1.0}, "duration that is none: rank 0 node 1 (a): -1 ns"),
        ({"panels": 0}, "size that is not positive: rank 0 node 1 (a): panels is 0"),
    ],
)
def test_numbers_that_cannot_be(tmp_path, columns, said):
    write_folder(tmp_path, {0: [node(1, "a", m.COMP, **{"num_ops": 8, "tensor_size": 8, **columns})]})
    folder = open_folder(tmp_path)
    assert [str(fault) for fault in check(folder, traces(folder))] == [said]


def test_topological_orders():
    assert topological_order(lists([], [0], [0, 1])).tolist() == [0, 1, 2]
    order = topological_order(lists([1], [2], [], [0])).tolist()
    assert order == [2, 1, 0, 3]
    assert topological_order(lists([], [2], [1])).tolist() == [0]
    assert topological_order(lists()).tolist() == []
    assert cycle(lists([1], [2], [])) == []
    assert sorted(cycle(lists([], [3, 0], [1], [2], [3]))) == [1, 2, 3]
    # A cycle goes from cause to effect.
    before = lists([2], [0], [1])
    around = cycle(before)
    for cause, effect in zip(around, around[1:] + around[:1], strict=True):
        assert cause in before.of(effect)


@pytest.mark.slow
def test_many_events_take_little_time(tmp_path):
    folder = open_folder(write_folder(tmp_path, {0: [coll(1)], 1: [coll(1)]}, {"1": [0, 1]}))
    size = 100_000
    many = []
    for trace in traces(folder):
        tags = np.arange(size) // 2
        many.append(
            replace(
                trace,
                ids=np.arange(1, size + 1),
                names=replace(trace.names, codes=np.zeros(size, np.int32)),
                types=np.where(np.arange(size) % 2, m.COMM_COLL, [m.COMM_SEND, m.COMM_RECV][trace.rank]).astype(
                    np.int8
                ),
                groups=replace(trace.groups, codes=np.zeros(size, np.int32)),
                ctrl_deps=Lists(np.concatenate([[0], np.arange(size)]), np.arange(size - 1)),
                comm_tag=tags,
                comm_src=np.zeros(size, np.int64),
                comm_dst=np.ones(size, np.int64),
                **{
                    name: Lists(np.zeros(size + 1, np.int64), np.empty(0, np.int64))
                    for name in ("data_deps", "reads", "writes", "multiplies")
                },
                **{name: np.full(size, 8) for name in ("comm_size", "tensor_size", "num_ops")},
                comm_type=np.zeros(size, np.int64),
                duration_ns=np.full(size, np.nan),
            )
        )
    begun = time.perf_counter()
    assert check(folder, many) == []
    assert time.perf_counter() - begun < 4
