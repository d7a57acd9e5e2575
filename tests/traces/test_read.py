"""A trace file is read into columns, whoever wrote it; a folder into ranks and process groups."""

import io
import json
import random

import numpy as np
import pytest
from trace_files import coll, comp, content, node, receive, send, set_attribute, write_folder

from dsx.errors import TraceError
from dsx.traces import codec as m
from dsx.traces import read
from dsx.traces.codec import framed, messages
from dsx.traces.read import open_folder, read_stream, read_trace, traces


def read_nodes(*nodes, rank=0):
    return read_stream(io.BytesIO(content(nodes)), "t.0.et", rank)


def test_a_trace_comes_back_byte_for_byte_or_without_nodes():
    nodes = [comp(1, reads={"w": 4}, writes={"x": 8}), send(2, 1, ctrl=[1], data=[1]), coll(3, overlap=0.5)]
    written = content(nodes)
    first, *others = (message for _, message in messages(io.BytesIO(written), "t.0.et"))
    again = [m.GlobalMetadata.FromString(first), *map(m.Node.FromString, others)]
    assert b"".join(framed(message.SerializeToString()) for message in again) == written
    assert again[1:] == nodes
    # A trace without nodes.
    trace = read_nodes()
    assert trace.num_nodes == 0 and trace.reads.starts.tolist() == [0] and trace.comm_size.tolist() == []
    # A foreign trace.
    old = node(5, "x", m.COMM_COLL, comm_type=0, comm_priority=3)
    old.attr.add(name="comm_group").int32_val = 2
    old.attr.add(name="comm_size").uint64_val = 16
    old.attr.add(name="dims").bool_list.values.append(True)
    metadata = m.GlobalMetadata(version="0.0.4").SerializeToString()
    trace = read_stream(io.BytesIO(framed(metadata) + framed(old.SerializeToString())), "t.0.et", 1)
    assert (trace.version, trace.groups.of(0), trace.comm_size.tolist()) == ("0.0.4", "2", [16])
    assert trace.num_ops.tolist() == [-1] and trace.tensors == []
    # Set attribute makes what dsx writes.
    made = m.Node()
    for name, value in {"tensor_size": 1, "comm_tag": 2, "num_ops": 3, "is_cpu_op": False}.items():
        set_attribute(made, name, value)
    kinds = {attribute.name: attribute.WhichOneof("value") for attribute in made.attr}
    assert kinds == {
        "tensor_size": "uint64_val",
        "comm_tag": "int32_val",
        "num_ops": "int64_val",
        "is_cpu_op": "bool_val",
    }


def test_every_column():
    trace = read_nodes(
        comp(
            1,
            "first",
            num_ops=9,
            tensor_size=8,
            matrix_flops=6,
            vector_flops=3,
            unfused_bytes=2,
            launches=5,
            multiplies=[1, 2, 3, 4, 5, 6],
            op_type="einsum+add",
            kernel="k",
            panels=2,
            duration_ns=1500.5,
            micros=2,
            reads={"w": 4, "x": 5},
            writes={"y": 6},
        ),
        coll(2, "7", m.COLLECTIVES["ALL_GATHER"], 64, axis="tp", overlap=0.25, partner=1, ctrl=[1], data=[1], micros=3),
        send(3, 5, tag=9, size=77, ctrl=[2], data=[1, 2], reads={"y": 6}),
        receive(4, 6, tag=8, size=78),
        rank=3,
    )
    assert (trace.rank, trace.version, trace.num_nodes) == (3, "1.0.0", 4)
    assert trace.ids.tolist() == [1, 2, 3, 4]
    assert [trace.names.of(row) for row in range(4)] == ["first", "coll2", "send3", "receive4"]
    assert trace.types.tolist() == [m.COMP, m.COMM_COLL, m.COMM_SEND, m.COMM_RECV]
    assert [trace.ctrl_deps.of(row).tolist() for row in range(4)] == [[], [0], [1], []]
    assert [trace.data_deps.of(row).tolist() for row in range(4)] == [[], [0], [0, 1], []]
    first = ("num_ops", "tensor_size", "matrix_flops", "vector_flops", "unfused_bytes", "launches", "panels")
    assert {name: getattr(trace, name).tolist() for name in first} == {
        name: [value, -1, -1, -1] for name, value in zip(first, (9, 8, 6, 3, 2, 5, 2), strict=True)
    }
    assert trace.multiplies.of(0).tolist() == [1, 2, 3, 4, 5, 6] and trace.multiplies.of(1).tolist() == []
    assert [trace.op_types.of(row) for row in range(2)] == ["einsum+add", ""]
    assert [trace.kernels.of(row) for row in range(2)] == ["k", ""]
    assert trace.comm_type.tolist() == [-1, 2, -1, -1]
    assert trace.comm_size.tolist() == [-1, 64, 77, 78]
    assert trace.comm_src.tolist() == [-1, -1, -1, 6]
    assert trace.comm_dst.tolist() == [-1, -1, 5, -1]
    assert trace.comm_tag.tolist() == [-1, -1, 9, 8]
    assert [trace.groups.of(row) for row in range(3)] == ["", "7", ""]
    assert [trace.axes.of(row) for row in range(2)] == ["", "tp"]
    assert trace.partner.tolist() == [-1, 0, -1, -1]
    np.testing.assert_array_equal(trace.overlap, [np.nan, 0.25, np.nan, np.nan])
    np.testing.assert_array_equal(trace.duration_ns, [1500.5, 3000, np.nan, np.nan])
    assert trace.tensors == ["w", "x", "y"] and trace.tensor_bytes.tolist() == [4, 5, 6]
    assert [trace.reads.of(row).tolist() for row in range(4)] == [[0, 1], [], [2], []]
    assert [trace.writes.of(row).tolist() for row in range(4)] == [[2], [], [], []]
    assert trace.unknown_deps.tolist() == []


def test_ids_attributes_and_lists(monkeypatch):
    trace = read_nodes(comp(40), comp(7, data=[40], ctrl=[9]), comp(9, data=[7, 5]))
    assert trace.data_deps.values.tolist() == [0, 1] and trace.data_deps.starts.tolist() == [0, 0, 1, 2]
    assert trace.ctrl_deps.of(1).tolist() == [2]
    assert trace.unknown_deps.tolist() == [[2, 5]]
    # An unknown partner is an unknown dependency.
    trace = read_nodes(comp(1), coll(2, partner=8))
    assert trace.partner.tolist() == [-1, -1] and trace.unknown_deps.tolist() == [[1, 8]]
    # Attributes are the same when few are remembered.
    nodes = [comp(number, num_ops=number % 3 + 1, kernel=f"k{number % 2}") for number in range(1, 50)]
    usual = read_nodes(*nodes)
    monkeypatch.setattr(read, "_MOST_KNOWN", 2)
    few = read_nodes(*nodes)
    assert few.num_ops.tolist() == usual.num_ops.tolist() == [number % 3 + 1 for number in range(1, 50)]
    assert [few.kernels.of(row) for row in range(49)] == [f"k{number % 2}" for number in range(1, 50)]
    # A list that is no text.
    bad = comp(1, reads={"abc": 1}).SerializeToString().replace(b"abc", b"a\xff\xfe")
    with pytest.raises(TraceError, match=r"node 1 \('comp1'\): inputs is no list of texts"):
        read_stream(io.BytesIO(content([]) + framed(bad)), "t.0.et", 0)


@pytest.mark.parametrize("field", m.INTEGER_VALUES)
def test_integers_of_any_type(field):
    made = node(1, "a", m.COMP)
    setattr(made.attr.add(name="num_ops"), field, 1)
    assert read_nodes(made).num_ops.tolist() == [1]


def _bad(name, field, value):
    made = node(6, "six", m.COMP)
    attribute = made.attr.add(name=name)
    if field.endswith("_list"):
        getattr(attribute, field).values.extend(value)
    else:
        setattr(attribute, field, value)
    return made


@pytest.mark.parametrize(("text", "size"), [("2097152.0", 2097152), ("8", 8), ("1.5", 2), ("3.25", 3), ("7.", 7)])
def test_sizes_of_tensors_may_have_decimals(text, size):
    made = node(1, "one", m.COMP)
    set_attribute(made, "outputs", ["a", text])
    assert read_nodes(made).tensor_bytes.tolist() == [size]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_bad("num_ops", "string_val", "7"), "num_ops: an integer is wanted, and a string_val is given"),
        (_bad("num_ops", "double_val", 7.0), "num_ops: an integer is wanted, and a double_val is given"),
        (_bad("tensor_size", "uint64_val", 2**63), "a number has more than 63 bits"),
        (_bad("overlap", "string_val", "7"), "overlap: a number is wanted"),
        (_bad("kernel", "double_val", 7.0), "kernel: a text is wanted"),
        (_bad("multiplies", "int64_val", 7), "multiplies: a list of integers is wanted"),
        (_bad("multiplies", "int64_list", [1, 2, 3]), "multiplies has 3 numbers"),
        (_bad("inputs", "string_list", ["a"]), "inputs has 1 texts"),
        (_bad("outputs", "string_list", ["a", "4.x"]), "outputs: 'a' has the size '4.x', which is no number of bytes"),
        (
            _bad("outputs", "string_list", ["a", "4 kB"]),
            "outputs: 'a' has the size '4 kB', which is no number of bytes",
        ),
        (node(6, "six", 0), "the type 0 is none of Chakra's"),
        (node(6, "six", 57), "the type 57 is none of Chakra's"),
    ],
)
def test_values_that_cannot_be_are_named_with_their_node(made, message):
    with pytest.raises(TraceError, match=rf"t.0.et: node 6 \('six'\): {message}"):
        read_nodes(comp(1), made)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"", "t.0.et: is empty"),
        (
            b'{"schema": "1.0.2", "nodes": [{"id": 1, "name": "x", "inputs": {"values": []}}]}' * 9,
            "t.0.et: byte 1 has no",
        ),
        (framed(comp(1).SerializeToString()), "t.0.et: byte 1 has no metadata"),
        (content([]) + framed(b"\xff\xff\xff"), r"t.0.et: byte \d+ has no node of Chakra"),
        (content([comp(1)])[:-1], "t.0.et: ends inside a message"),
    ],
)
def test_files_of_no_trace(tmp_path, written, message):
    (tmp_path / "t.0.et").write_bytes(written)
    with pytest.raises(TraceError, match=message):
        read_trace(tmp_path / "t.0.et", 0)


def test_files_and_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(TraceError, match=r"t.0.et: cannot be read: No such file"):
        read_trace(tmp_path / "t.0.et", 0)
    # No folder.
    with pytest.raises(TraceError, match="cannot be read as a folder of traces"):
        open_folder(tmp_path / "nowhere")
    # Ranks are read when they are asked for.
    write_folder(tmp_path, {0: [comp(1)]})
    (tmp_path / "trace.1.et").write_bytes(b"")
    ranks = traces(open_folder(tmp_path))
    assert next(ranks).rank == 0
    with pytest.raises(TraceError, match=r"trace.1.et: is empty"):
        next(ranks)


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
def test_tensors_are_those_of_their_nodes_however_many_are_parsed_at_once(at_once, monkeypatch):
    monkeypatch.setattr(read, "_AT_ONCE", at_once)
    rng = random.Random(at_once)
    reads = [
        {f"t{rng.randrange(9)}": 4 for _ in range(rng.randrange(4))} if rng.random() < 0.8 else None for _ in range(40)
    ]
    trace = read_nodes(*(comp(number, reads=names, writes={"": 1}) for number, names in enumerate(reads, 1)))
    found = [[trace.tensors[place] for place in trace.reads.of(row)] for row in range(40)]
    assert found == [list(names or ()) for names in reads]
    assert [trace.tensors[place] for place in trace.writes.values] == [""] * 40
    sizes = dict(zip(trace.tensors, trace.tensor_bytes.tolist(), strict=True))
    assert sizes == {name: 4 for names in reads for name in names or ()} | {"": 1}


@pytest.mark.parametrize("odd", [(3,), (3, 4), (3, 9), (20,)])
def test_the_first_list_of_an_odd_length_is_named(odd):
    nodes = [comp(number, reads={"a": 1, "b": 2}) for number in range(1, 21)]
    for number in odd:
        next(a for a in nodes[number - 1].attr if a.name == "inputs").string_list.values.append("a")
    with pytest.raises(TraceError, match=rf"t.0.et: node {odd[0]} \('comp{odd[0]}'\): inputs has 5 texts"):
        read_nodes(*nodes)


def test_a_folder_and_its_groups(tmp_path):
    write_folder(tmp_path, {10: [comp(1)], 2: [comp(1), comp(2)]}, {"1": [2, 10], "5": [11, 2]})
    (tmp_path / "manifest.json").write_text('{"model": "m"}')
    (tmp_path / "notes.txt").write_text("mine")
    folder = open_folder(tmp_path)
    assert folder.prefix == "trace" and list(folder.files) == [2, 10]
    assert folder.groups == {"1": (2, 10), "5": (11, 2)} and folder.manifest == {"model": "m"}
    assert folder.num_ranks == 12
    assert folder.members("5") == (11, 2) and folder.members("0") == range(12) and folder.members("9") is None
    assert [(trace.rank, trace.num_nodes) for trace in traces(folder)] == [(2, 2), (10, 1)]


def test_groups_in_the_only_other_json_file(tmp_path):
    write_folder(tmp_path, {0: []})
    (tmp_path / "workload.json").write_text('{"1": [0, 1]}')
    (tmp_path / "system.json").write_text('{"scheduling": "LIFO"}')
    assert open_folder(tmp_path).groups == {"1": (0, 1)}
    (tmp_path / "other.json").write_text('{"1": [0, 1]}')
    with pytest.raises(TraceError, match=r"2 files of process groups \(other.json, workload.json\)"):
        open_folder(tmp_path)
    (tmp_path / "comm_groups.json").write_text('{"1": [1, 0]}')
    assert open_folder(tmp_path).groups == {"1": (1, 0)}


@pytest.mark.parametrize(("manifest", "num_ranks"), [('{"num_ranks": 64}', 64), ('{"num_ranks": 2}', 4), ("{}", 4)])
def test_ranks_of_the_job_are_at_least_those_that_are_known(tmp_path, manifest, num_ranks):
    write_folder(tmp_path, {3: []})
    (tmp_path / "manifest.json").write_text(manifest)
    assert open_folder(tmp_path).num_ranks == num_ranks


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": ""}, "has no file <prefix>"),
        ({"a.0.et": "", "b.1.et": ""}, r"2 prefixes \(a\.\*\.et, b\.\*\.et\)"),
        ({"a.1.et": "", "a.01.et": ""}, r"rank 1 has two files, a.01.et and a.1.et"),
        ({"a.9999999999.et": ""}, "has a rank that is too large"),
        ({"a.0.et": "", "comm_groups.json": "{"}, "comm_groups.json: is not JSON"),
        ({"a.0.et": "", "manifest.json": "{"}, "manifest.json: is not JSON"),
        ({"a.0.et": "", "comm_groups.json": "[1]"}, "process groups are wanted"),
        ({"a.0.et": "", "comm_groups.json": json.dumps({"tp": [0]})}, "process groups are wanted"),
        ({"a.0.et": "", "comm_groups.json": json.dumps({"3": [0, 1, 0]})}, "group 3 has rank 0 twice"),
        ({"a.0.et": "", "comm_groups.json": json.dumps({"3": [0, -1]})}, "group 3 has -1, which is no rank"),
        ({"a.0.et": "", "comm_groups.json": json.dumps({"3": [True]})}, "group 3 has True, which is no rank"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=message):
        open_folder(tmp_path)
