"""A summary of a folder says what its nodes say; memory and the critical path against those counted by hand."""

import io
import json
import random
import tracemalloc

import pytest
from trace_files import ALL_GATHER, coll, comp, content, node, receive, send, write_folder

from dsx.errors import InputError, StoreError, TraceError
from dsx.traces import codec as m
from dsx.traces.inspect import Alive, PathPart, critical_path, kind_of, memory_use, path_parts
from dsx.traces.read import read_stream
from dsx.verbs.trace_inspect import flops_text, inspect


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "traces"
    path.mkdir()
    flops = {"num_ops": 10**15 + 5, "matrix_flops": 10**15, "vector_flops": 5}
    ranks = {
        0: [
            comp(1, "l0.qkv", op_type="einsum", **flops, launches=3, reads={"weight.0": 90}, writes={"act.0": 10}),
            comp(2, "l1.qkv", op_type="einsum", **flops, ctrl=[1], data=[1], unfused_bytes=7, reads={"act.0": 10}),
            coll(3, "1", size=100, axis="tp"),
            coll(4, "1", ALL_GATHER, size=50, axis="tp", ctrl=[3]),
            send(5, 1, size=30),
        ],
        1: [
            comp(1, "head", op_type="add", num_ops=2, writes={"act.0": 300}),
            coll(2, "1", size=100, axis="tp"),
            coll(3, "1", ALL_GATHER, size=50, axis="tp"),
            receive(4, 0, size=30),
            node(5, "off", m.MEM_STORE, tensor_size=64),
        ],
    }
    return write_folder(path, ranks, {"1": [0, 1]})


def test_nodes_communication_memory_and_path(folder):
    data = inspect(folder).to_data()
    rows = {(row["type"], row["op_type"]): row for row in data["nodes"]}
    einsum = rows["COMP", "einsum"]
    assert (einsum["nodes"], einsum["launches"]) == (2, 4)
    assert (einsum["matrix_flops"], einsum["vector_flops"], einsum["total_flops"]) == (2 * 10**15, 10, 2 * 10**15 + 10)
    assert (einsum["traffic_bytes"], einsum["unfused_bytes"]) == (20, 7)
    assert rows["COMM_COLL", ""]["nodes"] == 4 and rows["COMM_COLL", ""]["launches"] == 0
    assert rows["MEM_STORE", ""]["traffic_bytes"] == 64
    assert rows["COMP", "add"]["matrix_flops"] == 0
    assert data["totals"]["nodes"] == 10 and data["totals"]["total_flops"] == 2 * 10**15 + 12
    assert (data["ranks"], data["num_ranks"], data["groups"], data["versions"]) == (2, 2, 1, ["1.0.0"])
    # Communication by collective axis and group size.
    assert data["collectives"] == [
        {"collective": kind, "axis": "tp", "group_size": 2, "nodes": 2, "size_bytes": size, "duration_s": 0.0}
        for kind, size in (("ALL_GATHER", 100), ("ALL_REDUCE", 200))
    ]
    assert [(row["type"], row["nodes"], row["size_bytes"]) for row in data["transfers"]] == [
        ("COMM_RECV", 1, 30),
        ("COMM_SEND", 1, 30),
    ]
    # Memory of ranks and of the worst.
    found = inspect(folder)
    memory = found.to_data()["memory"]
    assert memory["ranks"] == [{"rank": 0, "peak_bytes": 100}, {"rank": 1, "peak_bytes": 300}]
    assert memory["worst"] == {
        "rank": 1,
        "peak_bytes": 300,
        "node": 1,
        "name": "head",
        "alive": [{"kind": "act", "buffers": 1, "size_bytes": 300}],
    }
    assert found.peak_bytes == 300
    # The critical path is that of the longest rank.
    path = inspect(folder).to_data()["critical_path"]
    assert (path["rank"], path["nodes"], path["length_flops"]) == (0, 2, 2 * 10**15 + 10)
    assert path["parts"] == [{"name": "l*.qkv", "nodes": 2, "length_flops": 2 * 10**15 + 10}]
    # Plain data is json.
    assert json.loads(json.dumps(found.to_data())) == found.to_data()
    assert found == inspect(folder)


def test_faults_and_notes(folder):
    assert inspect(folder).faults == () and inspect(folder).to_data()["faults"] == []
    (folder / "trace.1.et").unlink()
    found = inspect(folder)
    (note,) = found.to_data()["faults"]
    assert note["is_note"] and found.faults == ()
    assert "faults: none" in str(found) and "note: missing ranks: rank 1 has no file" in str(found)
    write_folder(folder, {1: [coll(1, "7")]})
    assert [fault["what"] for fault in inspect(folder).faults] == [
        "unknown process group",
        "send without its receive",
        "different sequences of collectives",
    ]


def test_text(folder):
    lines = str(inspect(folder)).splitlines()
    assert lines[0] == f"{folder}: 2 ranks, 10 nodes, 1 process group (Chakra 1.0.0)"
    words = [line.split() for line in lines]
    assert ["COMP", "einsum", "2", "4", "2.00", "PFLOP", "10.0", "FLOP", "2.00", "PFLOP", "27", "B", "-"] in words
    assert ["ALL_REDUCE", "tp", "2", "2", "200", "B", "-"] in words
    assert ["COMM_SEND", "-", "2", "1", "30", "B", "-"] in words
    assert "memory: the peak is 300 B on rank 1 (the least is 100 B), at node 1 (head)" in lines
    assert "critical path: 2.00 PFLOP over 2 nodes of rank 0, without waiting for other ranks" in lines
    assert lines[-1] == "faults: none"
    # Text of faults.
    write_folder(folder, {1: [node(number, f"load{number}", m.MEM_LOAD) for number in range(1, 9)]})
    text = str(inspect(folder))
    assert "faults: 10\n" in text
    assert "  size that is not positive: rank 1 node 5 (load5): has no tensor_size (and 3 more)" in text
    # Control characters of names are escaped.
    write_folder(folder, {1: [comp(1, "\x1b[31mred", num_ops=0, writes={"\x1b": 900})]})
    assert "\x1b" not in str(inspect(folder))
    # Flops.
    assert [flops_text(value) for value in (9.31e15, 2.5e18, 12)] == ["9.31 PFLOP", "2.50 EFLOP", "12.0 FLOP"]


def test_folders_without_tensors_or_nodes(tmp_path):
    write_folder(tmp_path, {0: [comp(1)]})
    found = inspect(tmp_path)
    assert found.peak_bytes is None and "memory: unknown" in str(found)
    # Files without nodes.
    write_folder(tmp_path, {0: []})
    assert "1 rank, 0 nodes" in str(inspect(tmp_path))


def test_a_timeline_of_all_ranks(tmp_path):
    path = tmp_path / "traces"
    path.mkdir()
    write_folder(path, {rank: [comp(1, micros=2), comp(2, micros=3)] for rank in (0, 1)})
    found = inspect(path, chrome=tmp_path / "t.json")
    assert found.to_data()["critical_path"]["length_s"] == pytest.approx(3e-6)
    assert found.to_data()["totals"]["duration_s"] == pytest.approx(10e-6)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [(event["pid"], event["name"], event["ts"]) for event in events if event["ph"] == "X"]
    assert spans == [(rank, name, pytest.approx(at)) for rank in (0, 1) for name, at in (("comp1", 0), ("comp2", 2))]


def test_a_timeline_needs_durations_and_a_place(folder, tmp_path):
    with pytest.raises(TraceError, match="write the trace with --cluster"):
        inspect(folder, chrome=tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
    with pytest.raises(StoreError, match="is read by this command"):
        inspect(folder, chrome=folder / "trace.0.et")
    with pytest.raises(StoreError, match="is no folder"):
        inspect(folder, chrome=tmp_path / "nowhere" / "t.json")
    # What is no timeline stays.
    (tmp_path / "sweep.yaml").write_text("model: mine")
    (tmp_path / "manifest.json").write_text("{}")
    for name, why in (("sweep.yaml", "is no .json file"), ("manifest.json", "is the manifest of a folder")):
        with pytest.raises(StoreError, match=why):
            inspect(folder, chrome=tmp_path / name)
    assert (tmp_path / "sweep.yaml").read_text() == "model: mine"


def test_progress_is_told_and_arguments_are_checked(folder):
    told = []
    inspect(folder, watch=lambda done, total, what: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    # Wrong arguments.
    with pytest.raises(InputError, match="folder: 3 is given"):
        inspect(3)
    with pytest.raises(InputError, match="chrome: 3 is given"):
        inspect(folder, chrome=3)


@pytest.mark.parametrize("world", ["manifest", "file"])
def test_a_job_of_a_billion_ranks_takes_the_memory_of_its_files(tmp_path, world):
    ranks = {0: [coll(1, "")]} | ({} if world == "manifest" else {999_999_998: [comp(1)]})
    write_folder(tmp_path, ranks)
    if world == "manifest":
        (tmp_path / "manifest.json").write_text('{"num_ranks": 999999999}')
    tracemalloc.start()
    found = inspect(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    assert found.data["num_ranks"] == 999_999_999
    first, number = ("1, 2, 3, 4, 5, 6", 999_999_999 - len(ranks) - 6)
    details = [fault["detail"] for fault in found.data["faults"]]
    assert any(f"ranks {first} and {number:,} more have no file" in detail for detail in details)


def trace_of(*nodes):
    return read_stream(io.BytesIO(content(nodes)), "t.0.et", 0)


def path_of(*nodes):
    return critical_path(trace_of(*nodes))


def test_the_critical_path_is_by_duration_or_flops():
    path = path_of(
        comp(1, micros=2, num_ops=10**9),
        comp(2, data=[1], micros=3),
        comp(3, ctrl=[1], micros=1, duration_ns=3500.0),
        comp(4, data=[2, 3], micros=1),
        comp(5, micros=6),
    )
    assert path.unit == "s" and path.rows.tolist() == [0, 2, 3]
    assert path.length == pytest.approx(6.5e-6)
    # The critical path is by flops where no node has a duration.
    path = path_of(comp(1, num_ops=5), comp(2, num_ops=7), comp(3, data=[1, 2], num_ops=1))
    assert (path.unit, path.length, path.rows.tolist()) == ("flops", 8, [1, 2])
    # Communication is on the path.
    path = path_of(comp(1, micros=1), node(2, "ar", m.COMM_COLL, data=[1], micros=9), comp(3, data=[2], micros=1))
    assert path.rows.tolist() == [0, 1, 2] and path.length == pytest.approx(11e-6)
    # Nodes of a cycle are left out.
    assert path_of(comp(1, num_ops=3), comp(2, data=[3]), comp(3, data=[2])).rows.tolist() == [0]
    # The critical path of no nodes.
    path = path_of()
    assert (path.length, path.rows.tolist(), path_parts(trace_of(), path)) == (0, [], ())


def test_names_that_differ_in_numbers_are_one_part():
    nodes = [comp(1, "embed", num_ops=1)]
    for layer in range(3):
        nodes += [comp(2 * layer + at, f"layer{layer}.{name}", ctrl=[2 * layer + at - 1], num_ops=at * 10)
                  for at, name in ((2, "attn"), (3, "ffn"))]  # fmt: skip
    trace = trace_of(*nodes)
    assert path_parts(trace, critical_path(trace)) == (
        PathPart("embed", 1, 1),
        PathPart("layer*.attn", 3, 60),
        PathPart("layer*.ffn", 3, 90),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_critical_path_against_all_paths(seed):
    rng = random.Random(seed)
    size = 9
    ids = rng.sample(range(1, 50), size)  # the file is not in the order of ids
    deps = {ids[at]: rng.sample(ids[:at], rng.randint(0, min(at, 3))) for at in range(size)}
    work = {number: rng.randint(1, 9) for number in ids}

    def longest(number):
        return work[number] + max(map(longest, deps[number]), default=0)

    nodes = [comp(number, data=deps[number], num_ops=work[number]) for number in ids]
    rng.shuffle(nodes)
    assert path_of(*nodes).length == max(map(longest, ids))


def use(*nodes):
    return memory_use(trace_of(*(comp(at, reads=reads, writes=writes) for at, (reads, writes) in enumerate(nodes, 1))))


# What nodes read and write one after the other, and the bytes of all buffers at each.
CURVES = {
    "a buffer lives from its first write to its last read": (
        [({}, {"a": 5}), ({"a": 5}, {"b": 7}), ({"a": 5}, {}), ({"b": 7}, {"c": 1}), ({}, {})],
        [5, 12, 12, 8, 0],
    ),
    "what nobody reads lives while it is written": ([({}, {"a": 5}), ({}, {"b": 7})], [5, 7]),
    "what is read before it is written is there all the time": (
        [({}, {}), ({"w": 10}, {"a": 1}), ({"a": 1, "w": 10}, {"w#1": 10}), ({}, {})],
        [10, 11, 11, 10],
    ),
    "what a node reads and writes first was there before": ([({}, {}), ({"s": 3}, {"s#1": 3}), ({}, {})], [3, 3, 3]),
    "versions are one buffer": (
        [({}, {"g#000": 4}), ({"g#000": 4}, {"g#001": 4}), ({}, {}), ({"g#001": 4}, {}), ({}, {})],
        [4, 4, 4, 4, 0],
    ),
    "no tensors": ([(None, None)], [0]),
}
CURVES |= {
    f"the memory of the host does not count: {name}": (
        [({}, {"a": 5}), ({"a": 5}, {name: 5}), ({}, {}), ({name: 5}, {"b": 5})],
        [5, 5, 0, 5],
    )
    for name in ("a@host", "a@host#1", "a#1@host")
}


@pytest.mark.parametrize(("nodes", "curve"), CURVES.values(), ids=CURVES)
def test_memory_by_lifetimes_of_buffers(nodes, curve):
    found = use(*nodes)
    assert found.curve_bytes.tolist() == curve
    assert (found.peak_bytes, found.peak_row) == (max(curve), curve.index(max(curve)))


def test_what_is_alive_at_the_peak_by_kind():
    found = use(
        ({"weight.3": 100, "weight.4": 50}, {"grad.3#000": 30}),
        ({"grad.3#000": 30}, {"act.mb0": 20, "opt_state": 40}),
        ({"act.mb0": 20}, {}),
    )
    assert found.peak_row == 1
    assert found.alive == (
        Alive("weight", 2, 150),
        Alive("opt_state", 1, 40),
        Alive("grad", 1, 30),
        Alive("act", 1, 20),
    )
    assert sum(part.size_bytes for part in found.alive) == found.peak_bytes == 240
    # The memory of no nodes.
    assert (use().peak_bytes, use().peak_row, use().alive) == (0, -1, ())


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "weights": ["L007.feed-forward.w1", "L1007.gamma1", "L007.shard 0", "L000.table"],
        "gradients": ["L007.d self-attention.wo", "L007.d feed-forward.w1:tp2", "L007.gradients 0"],
        "optimizer state": ["L007.optimizer state"],
        "activations": ["m003.L007.n1", "m0.L007.x.2", "m0.L007.n1'", "m0.L007.z^", "m003.chunk 1 input"],
        "unreduced gradients": ["m003.L007.unreduced d w1", "m0.L007.unreduced d feed-forward.w1:tp2"],
        "gradients of activations": ["m003.L007.d n1", "m0.L007.d n1:tp", "m003.chunk 1 gradient"],
        "gathered weights": ["m003.L007.weights 0", "m003.L007.weights' 0"],
        "m": ["m3.x", "m3.L7.x"],
        "L": ["L7.w"],
        "grad": ["grad.layer3#002"],
        "opt_state": ["opt_state:w"],
        "mb": ["mb3.x"],
        "3x": ["3x"],
    }.items(),
)
def test_kinds_by_the_names_that_dsx_and_others_give(kind, names):
    assert {kind_of(name) for name in names} == {kind}
