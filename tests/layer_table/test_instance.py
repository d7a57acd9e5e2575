"""Instances and networks as files: what is read, and what a fault says."""

import math
import random
import time

import pytest
from config.instances import REMOVED, changed, networks, small, write

import dsx
from dsx.errors import InputError, SpecError, UnknownNameError
from dsx.layer_table.instance import GIB, read_instance, read_network


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_instances_and_networks_are_read(here):
    read = read_instance(write(here / "small.json", small()))
    assert (read.file, read.layer_ids) == ("small.json", (-1, 0, 1))
    assert (read.num_microbatches, read.device_bytes) == (8, 10_000)
    assert [(table.width, table.devices_per_stage) for table in read.tables] == [(1, 1), (2, 2)]
    chain = read.tables[0].chain
    assert chain.forward_s.tolist() == [0.0, 2.0 * 0.001, 3.0 * 0.001]
    assert chain.backward_s.tolist() == [0.0, 4.0 * 0.001, 6.0 * 0.001]
    assert (chain.parameter_bytes.tolist(), chain.activation_bytes.tolist()) == ([50, 100, 200], [5, 10, 20])
    # An edge past a layer crosses in front of it and behind it.
    assert chain.cut_bytes.tolist() == [0, 9, 17, 0]
    assert read.only(2).tables == read.tables[1:]
    # One layer has no edges.
    document = small() | {"layers": {"a": {"1": [[0, 1.0, 1.0, 1, 1]]}}, "edges": {"1": []}}
    assert read_instance(write(here / "one.json", document)).tables[0].chain.cut_bytes.tolist() == [0, 0]
    # A network.
    file = write(here / "networks.json", networks())
    read = read_network(f"{file}:fast", 8)
    assert read.devices_per_level == (4, 2)
    assert (read.bandwidth, read.latency) == ((100 * GIB, 10 * GIB), (1e-6, 1e-5))


ROW = ("layers", "b", "2", 0)
INSTANCE_FAULTS = [
    (("time_unit_s",), REMOVED, "small.json: time_unit_s: is required, but missing"),
    (("time_unit_s",), 0, "small.json: time_unit_s: input should be greater than 0, got 0"),
    (("time_unit_s",), True, "small.json: time_unit_s: True is not a finite number"),
    (("microbatches_in_batch",), 0, "small.json: microbatches_in_batch: 0 is not a whole number from 1 to 2147483647"),
    (("microbatches_in_batch",), 2.5, "microbatches_in_batch: 2.5 is not a whole number"),
    (("microbatches_in_batch",), 2**40, "microbatches_in_batch: 1099511627776 is not a whole number from 1 to"),
    (("max_memory_bytes",), -1, "max_memory_bytes: input should be greater than 0, got -1"),
    (("max_memory_bytes",), 10**400, "max_memory_bytes: 100000000000000000...0000000000000000000 is beyond 1e+30"),
    (("max_memory_bytes",), "80 GB", "max_memory_bytes: '80 GB' is not a finite number"),
    (("devices_per_stage", "2"), REMOVED, "small.json: devices_per_stage: has no width 2 (it has 1)"),
    (("devices_per_stage", "2"), 0, "devices_per_stage.2: 0 is not a whole number from 1 to 2147483647"),
    (("edges", "2"), REMOVED, "small.json: edges: has no width 2 (it has 1)"),
    (("layers",), {}, "small.json: layers: has no entries, but at least 1 is needed"),
    (("layers", "b"), {"two": []}, "small.json: layers.b.two: 'two' is not a whole number from 1 to 2147483647"),
    (("layers", "b", "2"), [], "small.json: layers.b.2: has no entries, but at least 1 is needed"),
    (("layer_columns", 1), "forward", "small.json: layer_columns: has no 'fw_latency' (it has id, forward, "),
    ((*ROW,), [0, 1.0], "small.json: layers.b.2.0: has 2 values, but there are 5 columns: id, fw_latency"),
    ((*ROW,), {"id": 0}, "small.json: layers.b.2.0: expected a list of the 5 values of a row, got {'id': 0}"),
    ((*ROW, 1), -2.0, "small.json: layers.b.2.0.fw_latency: input should be greater than or equal to 0, got -2.0"),
    ((*ROW, 1), 1e31, "small.json: layers.b.2.0.fw_latency: 1e+31 is beyond 1e+30, the largest number allowed"),
    ((*ROW, 2), None, "small.json: layers.b.2.0.bw_latency: None is not a finite number"),
    ((*ROW, 3), float("nan"), "small.json: layers.b.2.0.param_bytes: nan is not a finite number"),
    ((*ROW, 4), float("inf"), "small.json: layers.b.2.0.activation_bytes: inf is not a finite number"),
    ((*ROW, 0), 0.5, "small.json: layers.b.2.0.id: 0.5 is not a whole number"),
    ((*ROW, 0), 1, "small.json: layers.b.2: layer 1 is listed twice"),
    ((*ROW,), REMOVED, "small.json: layers.b.2: layer 0 is missing; width 1 has it"),
    (("edges", "1", 2), [1, 0, 16], "small.json: edges.1.2: the edge from layer 1 to 0 leads back"),
    (("edges", "1", 2), [1, 1, 16], "small.json: edges.1.2: the edge from layer 1 to 1 leads nowhere"),
    (("edges", "1", 2), [0, 7, 16], "small.json: edges.1.2.dst: there is no layer 7; the nearest is 1"),
    (("edges", "1", 2), [-3, 1, 16], "small.json: edges.1.2.src: there is no layer -3; the nearest is -1"),
    (
        ("edges", "2"),
        [],
        "small.json: edges.2: no edge crosses the cut between layers -1 and 0, so a transfer there would cost nothing; "
        "add an edge from -1 to 0",
    ),
    (("edges", "2"), [[-1, 0, 8]], "small.json: edges.2: no edge crosses the cut between layers 0 and 1"),
    (("edges", "1", 2, 2), -16, "small.json: edges.1.2.bytes: input should be greater than or equal to 0, got -16"),
    (("edge_columns",), ["src", "dst"], "small.json: edge_columns: has no 'bytes' (it has src, dst)"),
    (("edge_columns",), ["src", "dst", "bytes", "dst"], "small.json: edge_columns: 'dst' is listed twice"),
    (("devices_per_stage", "2"), 2**62, "small.json: devices_per_stage.2: 4611686018427387904 is not a whole number"),
]


@pytest.mark.parametrize(("path", "to", "says"), INSTANCE_FAULTS, ids=[fault[2] for fault in INSTANCE_FAULTS])
def test_faults_of_an_instance(here, path, to, says):
    file = write(here / "small.json", changed(small(), *path, to=to))
    with pytest.raises(SpecError) as raised:
        read_instance(file)
    assert says in str(raised.value)


def test_faults_of_an_instance_are_named(here):
    document = small()
    for rows in document["layers"]["b"].values():
        rows[0][0] = 2
    with pytest.raises(SpecError) as raised:
        read_instance(write(here / "small.json", document))
    assert str(raised.value) == (
        "small.json: layers.b.1: layer 0 is missing, in this width and all others: layer ids must be consecutive, but "
        "-1 is followed by 1"
    )
    # All faults of an instance are listed at once.
    document = changed(small(), "edges", "1", 2, 2, to=-16) | {"time_unit_s": "a"}
    document["layers"]["b"]["2"][0][1] = -1
    with pytest.raises(SpecError) as raised:
        read_instance(write(here / "small.json", document))
    assert [line.split(": ")[1] for line in str(raised.value).splitlines()] == [
        "layers.b.2.0.fw_latency", "edges.1.2.bytes", "time_unit_s"
    ]  # fmt: skip
    # A misspelt key is told.
    document = small()
    document["time_units_s"] = document.pop("time_unit_s")
    with pytest.raises(SpecError, match="time_unit_s: is required, but missing; did you mean 'time_units_s'"):
        read_instance(write(here / "small.json", document))
    # A width that there is not.
    with pytest.raises(SpecError, match=r"small.json: has no width 3; the nearest is 2 \(it has 1, 2\)"):
        read_instance(write(here / "small.json", small())).only(3)


def test_ids_cuts_and_keys_of_instances(here):
    document = small()
    for table, columns in ((document["layers"]["b"], (0,)), (document["edges"], (0, 1))):
        for rows in table.values():
            for row in rows:
                for column in columns:
                    row[column] += 7
    assert read_instance(write(here / "small.json", document)).layer_ids == (6, 7, 8)
    # A cut may be crossed by edges past it.
    document = small()
    document["edges"]["1"] = [[-1, 0, 8], [-1, 1, 1]]
    assert read_instance(write(here / "small.json", document)).tables[0].chain.cut_bytes.tolist() == [0, 9, 1, 0]
    # Of core configurations before the last nothing is read.
    document = changed(small(), "layers", "a", to={"two": [[]]})
    read = [read_instance(write(here / "small.json", file)) for file in (document, small())]
    assert repr(read[0]) == repr(read[1])
    # Layers that take no time.
    document = small()
    for row in document["layers"]["b"]["2"]:
        row[1] = row[2] = 0
    with pytest.raises(SpecError, match=r"small.json: layers.b.2: no layer takes any time"):
        read_instance(write(here / "small.json", document))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "broken.json:1:2: is not JSON"),
        (b"[1, 2]", "broken.json: expected an object with keys, got [1, 2]"),
        (b"\xff", "broken.json: is not UTF-8 text"),
        (b'{"layers": {}, "layers": {}}', "broken.json: an object has the key 'layers' twice"),
        (b"[" * 100_000, "broken.json: lists and objects are nested too deeply"),
        (b'{"time_unit_s": ' + b"1" * 5000 + b"}", "broken.json: is not JSON that can be read"),
    ],
)
def test_no_instance_at_all(here, text, says):
    (here / "broken.json").write_bytes(text)
    with pytest.raises(SpecError) as raised:
        read_instance("broken.json")
    assert says in str(raised.value)


def test_files_and_networks_that_there_are_not(here):
    write(here / "small.json", small())
    with pytest.raises(SpecError, match=r"instance 'smal.json': .* is not a file; did you mean 'small.json'"):
        read_instance("smal.json")
    # A network that there is not.
    file = write(here / "networks.json", networks())
    with pytest.raises(UnknownNameError) as raised:
        read_network(f"{file}:fas", 8)
    assert "unknown network 'fas'; did you mean 'fast'? (known: fast, slow); looked for in networks.json" in str(
        raised.value
    )
    for reference in (file, f"{file}:", ":fast"):
        with pytest.raises(SpecError, match="write FILE:NAME"):
            read_network(reference, 8)
    # A network of many levels is refused.
    document = networks()
    name = next(iter(document))
    document[name]["devices_per_level"] = {"4": [3] * 100_000}
    with pytest.raises(SpecError, match=r"devices_per_level\.4: has 100000 entries, but at most 40 are needed"):
        read_network(f"{write(here / 'n.json', document)}:{name}", 4)


NETWORK_FAULTS = [
    (("fast", "latency_s"), [0], "networks.json: fast: latency_s: has 1 levels, but devices_per_level.8 has 2"),
    (("fast", "latency_s", 0), -1, "fast: latency_s.0: input should be greater than or equal to 0, got -1"),
    (("fast", "bandwidth_GiBps", 1), 0, "fast: bandwidth_GiBps.1: input should be greater than 0, got 0"),
    (("fast", "devices_per_level", "8"), [4, 4], "fast: devices_per_level.8: 4 x 4 = 16 devices, not 8"),
    (("fast", "devices_per_level", "8"), [4, 0], "fast: devices_per_level.8.1: 0 is not a whole number from 1"),
    (("fast", "devices_per_level", "eight"), [8], "fast: devices_per_level.eight: 'eight' is not a whole number"),
    (("fast", "devices_per_level", "8"), REMOVED, "has no entry for 8 devices, only for 4; the nearest is 4"),
    (("fast", "latency_s"), REMOVED, "networks.json: fast: latency_s: is required, but missing"),
    (("fast",), 5, "networks.json: fast: expected a section with the keys bandwidth_GiBps, latency_s"),
]


@pytest.mark.parametrize(("path", "to", "says"), NETWORK_FAULTS, ids=[fault[2] for fault in NETWORK_FAULTS])
def test_faults_of_a_network(here, path, to, says):
    file = write(here / "networks.json", changed(networks(), *path, to=to))
    with pytest.raises(SpecError) as raised:
        read_network(f"{file}:fast", 8)
    assert says in str(raised.value)


def long_instance(num_layers, edges):
    document = small()
    document["layers"] = {"1": {"1": [[index, 1, 2, 3, 4] for index in range(num_layers)]}}
    document["layer_columns"] = ["id", "fw_latency", "bw_latency", "param_bytes", "activation_bytes"]
    document["edges"], document["edge_columns"] = {"1": edges}, ["src", "dst", "bytes"]
    return document | {"devices_per_stage": {"1": 1}}


def test_the_bytes_that_cross_a_cut_are_summed_exactly(here):
    random.seed(3)
    edges = [[index, index + 1, 0.1] for index in range(59)]
    for _ in range(400):
        first, last = sorted(random.sample(range(60), 2))
        edges.append([first, last, random.choice([1e-300, 1e30, 1e16, 0.1, 3]) * random.random()])
    table = read_instance(write(here / "a.json", long_instance(60, edges))).tables[0]
    sums = [math.fsum(size for first, last, size in edges if first < cut <= last) for cut in range(61)]
    assert table.chain.cut_bytes.tolist() == sums


@pytest.mark.parametrize(
    ("extra", "says"),
    [([[0, 19_999, 1]] * 20_000, ""), ([[0, 20_000, 1]], "there is no layer 20000; the nearest is 19999")],
)
def test_tables_of_many_layers_are_read_in_linear_time(here, extra, says):
    edges = [[index, index + 1, 5] for index in range(19_999)]
    file = write(here / "a.json", long_instance(20_000, edges + extra))
    begun = time.process_time()
    if says:
        with pytest.raises(SpecError, match=says):
            read_instance(file)
    else:
        assert len(read_instance(file).layer_ids) == 20_000
    assert time.process_time() - begun < 4


@pytest.mark.parametrize(
    ("last", "says"), [(19_998, "layer 19998 is listed twice"), (20_005, "layer 19999 is missing, in this width")]
)
def test_faults_of_many_layers_are_found_in_linear_time(here, last, says):
    document = long_instance(20_000, [[0, 1, 1]])
    document["layers"]["1"]["1"][-1][0] = last
    begun = time.process_time()
    with pytest.raises(SpecError, match=says):
        read_instance(write(here / "a.json", document))
    assert time.process_time() - begun < 4


@pytest.mark.slow
def test_a_partition_of_a_table_keeps_to_its_choices(here):
    write(here / "small.json", small())
    write(here / "networks.json", networks())

    def plan(**choices):
        return dsx.partition_table("small.json", "networks.json:fast", 8, **choices).to_data()

    assert [*plan()] == ["t_step_s", "bottleneck_s", "stages", "replicas", "width", "zero_stage", "recompute"]
    assert plan()["stages"][0].keys() == {
        *("layers", "first_layer", "devices", "first_device"),
        *("load_s", "memory_bytes", "parameter_bytes", "producer_level"),
    }
    wide = plan(width=2)
    assert (wide["width"], wide["stages"][0]["devices"]) == (2, 2)
    assert [plan(zero_stages=[stage])["zero_stage"] for stage in range(4)] == [0, 1, 2, 3]
    assert plan(recompute="full")["recompute"] == "full" and plan(recompute="none") == plan()
    memory = [plan(optimizer=name)["stages"][0]["memory_bytes"] for name in ("adam", "none")]
    assert memory == [8 * 350 + 35, 2 * 350 + 35]
    write(here / "small.json", long_instance(1025, [[row, row + 1, 8] for row in range(1024)]))
    with pytest.raises(InputError, match="has 1,025 layers, but an optimal cut takes at most 1,024"):
        plan()
