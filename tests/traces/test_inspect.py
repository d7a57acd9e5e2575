"""A summary of a folder says what its nodes say, as plain data and as text."""

import json
import tracemalloc

import pytest
from trace_files import ALL_GATHER, coll, comp, node, receive, send, write_folder

from dsx.errors import InputError, StoreError, TraceError
from dsx.tables.traces import flops_text, trace_text
from dsx.traces import codec as m
from dsx.verbs.trace_inspect import inspect


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


def test_nodes_by_kind(folder):
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


def test_communication_by_collective_axis_and_group_size(folder):
    data = inspect(folder).to_data()
    assert data["collectives"] == [
        {"collective": kind, "axis": "tp", "group_size": 2, "nodes": 2, "size_bytes": size, "duration_s": 0.0}
        for kind, size in (("ALL_GATHER", 100), ("ALL_REDUCE", 200))
    ]
    assert [(row["type"], row["nodes"], row["size_bytes"]) for row in data["transfers"]] == [
        ("COMM_RECV", 1, 30),
        ("COMM_SEND", 1, 30),
    ]


def test_memory_of_ranks_and_of_the_worst(folder):
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


def test_the_critical_path_is_that_of_the_longest_rank(folder):
    path = inspect(folder).to_data()["critical_path"]
    assert (path["rank"], path["nodes"], path["length_flops"]) == (0, 2, 2 * 10**15 + 10)
    assert path["parts"] == [{"name": "l*.qkv", "nodes": 2, "length_flops": 2 * 10**15 + 10}]


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


def test_plain_data_is_json(folder):
    found = inspect(folder)
    assert json.loads(json.dumps(found.to_data())) == found.to_data()
    assert found == inspect(folder)


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


def test_text_of_faults(folder):
    write_folder(folder, {1: [node(number, f"load{number}", m.MEM_LOAD) for number in range(1, 9)]})
    text = str(inspect(folder))
    assert "faults: 10\n" in text
    assert "  size that is not positive: rank 1 node 5 (load5): has no tensor_size (and 3 more)" in text


def test_control_characters_of_names_are_escaped(folder):
    write_folder(folder, {1: [comp(1, "\x1b[31mred", num_ops=0, writes={"\x1b": 900})]})
    assert "\x1b" not in str(inspect(folder))


def test_flops():
    assert [flops_text(value) for value in (9.31e15, 2.5e18, 12)] == ["9.31 PFLOP", "2.50 EFLOP", "12.0 FLOP"]


def test_without_tensors_memory_is_unknown(tmp_path):
    write_folder(tmp_path, {0: [comp(1)]})
    found = inspect(tmp_path)
    assert found.peak_bytes is None and "memory: unknown" in trace_text(found.to_data())


def test_files_without_nodes(tmp_path):
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


def test_progress_is_told(folder):
    told = []
    inspect(folder, watch=lambda done, total, what: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_wrong_arguments(folder):
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
