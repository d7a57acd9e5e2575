"""What-ifs: every form of their points, which fields vary, and every fault at its place."""

import itertools
import json
import time

import pytest
from config.sweeps import COLUMNS, LEAST, read_again, sweep

from dsx.config.sweep_file import load_sweep, sweep_from_data
from dsx.config.what_if import WhatIf, WhatIfField, varied_field
from dsx.errors import SpecError

CAPACITY, BANDWIDTH, SIZE = "device.hbm_capacity", "network.nvs.bandwidth", "network.nvs.size"


def what_if(given):
    return sweep(what_if=given).what_if


def faults(given, **changes):
    with pytest.raises(SpecError) as caught:
        sweep(what_if=given, **changes)
    return str(caught.value).splitlines()


def test_grids_and_points():
    found = what_if({CAPACITY: ["141 GB", "80 GB"], SIZE: [8, 4, 64], "assumptions.matrix_efficiency": 0.6})
    assert found.fields == (CAPACITY, SIZE, "assumptions.matrix_efficiency")
    assert found.points == tuple(itertools.product((141e9, 80e9), (8, 4, 64), (0.6,)))
    assert [type(value) for value in found.points[0]] == [float, int, float]
    # A list of points is as given whatever the order of its fields.
    found = what_if(
        [
            {CAPACITY: "80 GB", BANDWIDTH: "1555 GB/s"},
            {BANDWIDTH: "3 TB/s", CAPACITY: "1 TB"},
            {CAPACITY: "80 GB", BANDWIDTH: "3 TB/s"},
        ]
    )
    assert found.fields == (CAPACITY, BANDWIDTH)
    assert found.points == ((80e9, 1555e9), (1e12, 3e12), (80e9, 3e12))
    # Without a what if there is one point without fields.
    assert sweep().what_if == what_if({}) == WhatIf((), ((),))
    # Values that are the same count once.
    assert what_if({CAPACITY: ["80 GB", "80000 MB", "64 GB"]}).points == ((80e9,), (64e9,))
    assert what_if([{SIZE: 8}, {SIZE: 4}, {SIZE: 8.0}]).points == ((8,), (4,))
    # Sections may be nested as in a cluster file.
    nested = {"device": {"hbm_capacity": ["80 GB"]}, "network": {"nvs": {"size": [4, 8], "bandwidth": "1 TB/s"}}}
    assert what_if(nested) == what_if({CAPACITY: "80 GB", SIZE: [4, 8], BANDWIDTH: "1 TB/s"})
    assert what_if([{"device": {"hbm_capacity": "80 GB"}}]) == what_if({CAPACITY: "80 GB"})
    # A value may have its source.
    assert what_if({CAPACITY: {"value": "80 GB", "source": "x"}}) == what_if({CAPACITY: "80 GB"})
    assert what_if([{SIZE: {"value": 8, "source": "x"}}]) == what_if([{SIZE: 8}])


@pytest.mark.parametrize(
    ("path", "given", "values"),
    [
        (BANDWIDTH, ("100 GB/s", "1.6 TB/s", 2), (100e9, 200e9, 400e9, 800e9, 1600e9)),
        (BANDWIDTH, ("100 GB/s", "1599 GB/s", 2), (100e9, 200e9, 400e9, 800e9)),
        (SIZE, (4, 72, 2), (4, 8, 16, 32, 64)),
        (SIZE, (2**30, 2**31 - 1, 2), (2**30,)),
        ("network.net.latency", ("1 us", "1 ms", 10), (1e-6, 1e-5, 1e-4, 1e-3)),
        ("assumptions.hbm_efficiency", (0.1, 0.16, "1.2"), (0.1, 0.12, 0.144)),
        ("assumptions.hbm_efficiency", (0.1, 0.1, 1.5), (0.1,)),
        ("assumptions.hbm_efficiency", (1 / 3, 0.5, "1.25"), (1 / 3, 0.416666666666667)),
        (CAPACITY, ("1 GiB", "1 TiB", 1024), (2**30, 2**40)),
    ],
)
def test_a_range_is_geometric_and_its_values_are_those_that_people_write(path, given, values):
    assert what_if({path: dict(zip(("from", "to", "times"), given, strict=True))}).points == tuple((v,) for v in values)


def test_a_range_that_passes_its_end_by_rounding_alone_ends_there():
    factor = 1.000000000001 * 10 ** (1 / 3)
    points = what_if({"assumptions.hbm_efficiency": {"from": 0.1, "to": 1, "times": factor}}).points
    assert points[-1] == (1.0,)
    assert [value for (value,) in points] == pytest.approx([0.1, 0.215443469, 0.464158883, 1.0])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {CAPACITY: ["141 GB", "80 GB"], SIZE: [8, 4], "network.net.latency": "2.5 us"},
        {CAPACITY: {"from": "10 GB", "to": "1 TB", "times": 1.3}, "assumptions.overhead": ["0 GB", "2 GiB"]},
        [{CAPACITY: "80 GB", SIZE: 8}, {CAPACITY: "141 GB", SIZE: 4}],
        [{CAPACITY: "80 GB", SIZE: 8}],
        [{"assumptions.optimizer_bytes_per_parameter": 12}, {"assumptions.optimizer_bytes_per_parameter": 0}],
    ],
)
def test_what_was_written_reads_as_the_same(given):
    spec = sweep(what_if=given)
    assert read_again(spec) == spec
    assert read_again(spec).what_if == spec.what_if
    assert sweep_from_data(json.loads(json.dumps(spec.model_dump(mode="json"))), COLUMNS) == spec


def test_a_grid_is_written_as_lists_and_points_as_points():
    grid = {CAPACITY: ["80 GB", "141 GB"], SIZE: [4, 8]}
    assert sweep(what_if=grid).model_dump(mode="json")["what_if"] == {
        CAPACITY: ["80000000000.0 B", "141000000000.0 B"],
        SIZE: [4, 8],
    }
    points = [{CAPACITY: "80 GB", SIZE: 4}, {CAPACITY: "141 GB", SIZE: 8}]
    assert sweep(what_if=points).model_dump(mode="json")["what_if"] == [
        {CAPACITY: "80000000000.0 B", SIZE: 4},
        {CAPACITY: "141000000000.0 B", SIZE: 8},
    ]
    many = [{CAPACITY: f"{n} GB", BANDWIDTH: f"{n} GB/s", SIZE: n} for n in range(1, 2000)]
    assert len(sweep(what_if=many).model_dump(mode="json")["what_if"]) == 1999
    every = [{CAPACITY: capacity, SIZE: size} for capacity in grid[CAPACITY] for size in grid[SIZE]]
    assert sweep(what_if=every) == sweep(what_if=grid)


UNITS = {
    "flop/s": "device.matrix_flops device.vector_flops",
    "bytes/s": "device.hbm_bandwidth network.nvs.bandwidth network.net.bandwidth",
    "bytes": "device.hbm_capacity assumptions.overhead",
    "s": "network.nvs.latency network.net.latency assumptions.call_latency assumptions.launch_latency",
    "": f"{SIZE} assumptions.matrix_efficiency assumptions.relay assumptions.optimizer_bytes_per_parameter",
}


@pytest.mark.parametrize(("path", "unit"), [(path, unit) for unit, paths in UNITS.items() for path in paths.split()])
def test_a_field_has_the_unit_of_its_spec(path, unit):
    section, _, name = path.rpartition(".")
    of = {"network.nvs": "nvs network", "network.net": "net network"}.get(section, section)
    assert varied_field(path) == WhatIfField(path, unit, f"{name} of the {of}, varied by the sweep", path == SIZE)


def test_what_varies_of_the_assumptions_are_the_leaves_that_no_work_expression_holds():
    with pytest.raises(SpecError, match=r"unknown field 'x' \(known: ") as caught:
        varied_field("x")
    known = str(caught.value).partition("known: ")[2].rstrip(")").split(", ")
    assert len(known) == 65
    assert [path for path in known if varied_field(path).integer] == [SIZE, "node.gpus", "node.gpus_per_host_link"]
    # dsx.config cannot know the records of dsx.cost; this holds the two together.
    from dsx.cost.context import Assumptions
    from dsx.records import leaves

    with pytest.raises(SpecError) as caught:
        varied_field("assumptions.layers")
    varying = str(caught.value).partition("can vary are ")[2].replace("assumptions.", "").split(", ")
    assert set(varying) == {*leaves(Assumptions)} - {"weight_bytes", "gradient_bytes", "dispatcher"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "what_if: expected fields with their values, such as {device.hbm_capacity: [80 GB, 141 GB]}, or a list"),
        ("80 GB", "or a list of points, got '80 GB'"),
        ([], "what_if: the list is empty: expected at least one value"),
        ([5], "what_if.0: 5 is not a point, such as {device.hbm_capacity: 80 GB}"),
        ([{}], "what_if.0: {} is not a point"),
        ({CAPACITY: []}, "what_if.device.hbm_capacity: the list is empty"),
        ({CAPACITY: 80}, "what_if.device.hbm_capacity: 80 has no unit: write for example '80 GB'"),
        ({CAPACITY: ["1 GB", "0 GB"]}, "what_if.device.hbm_capacity.1: input should be greater than 0, got '0 GB'"),
        ({CAPACITY: "80 GB/s"}, "'GB/s' is a unit of bytes/s; expected a unit of bytes"),
        ({CAPACITY: None}, "what_if.device.hbm_capacity: None is not a quantity in bytes"),
        ({CAPACITY: [["80 GB"]]}, "what_if.device.hbm_capacity.0: ['80 GB'] is not one value"),
        ({SIZE: [4, 0]}, "what_if.network.nvs.size.1: 0 is not a whole number from 1 to 2147483647"),
        ({SIZE: 1.5}, "what_if.network.nvs.size: 1.5 is not a whole number"),
        ({"assumptions.matrix_efficiency": 1.2}, "input should be less than or equal to 1, got 1.2"),
        ({"assumptions.matrix_efficiency": "high"}, "'high' is not a share from 0 to 1"),
        ([{CAPACITY: ["80 GB"]}], "what_if.0.device.hbm_capacity: ['80 GB'] is not one value"),
        ([{CAPACITY: {"from": "1 GB"}}], "what_if.0.device.hbm_capacity: {'from': '1 GB'} is not one value"),
        ({CAPACITY: {"from": "1 GB", "to": "2 GB"}}, "a range is {from: 1 GB, to: 2 GB, times: 2}; times is missing"),
        ({CAPACITY: {"form": "1 GB", "to": "2 GB", "times": 2}}, "unknown key 'form'; did you mean 'from'?"),
        ({CAPACITY: {"from": "2 GB", "to": "1 GB", "times": 2}}, "from 2 GB to 1 GB times 2: expected 0 < from <= to"),
        ({CAPACITY: {"from": "1 GB", "to": "2 GB", "times": 1}}, "from 1 GB to 2 GB times 1: expected"),
        ({CAPACITY: {"from": "1 GB", "to": "2 GB", "times": "x"}}, "what_if.device.hbm_capacity: 'x' is not a finite"),
        ({"network.net.latency": {"from": "0 s", "to": "1 us", "times": 2}}, "from 0 s to 1 us times 2: expected"),
        ({SIZE: {"from": 4, "to": 64, "times": 1.5}}, "what_if.network.nvs.size: 1.5 is not a whole number"),
        ({CAPACITY: {"from": 1, "to": "2 GB", "times": 2}}, "what_if.device.hbm_capacity.from: 1 has no unit"),
        ({"device.hbm_capcity": "80 GB"}, "unknown field 'device.hbm_capcity'; did you mean 'device.hbm_capacity'?"),
        ({"hbm_capacity": "80 GB"}, "unknown field 'hbm_capacity'; did you mean 'device.hbm_capacity'?"),
        ({"cluster.device.hbm_capacity": "1 GB"}, "did you mean 'device.hbm_capacity'?"),
        ({"matrix_efficiency": 1}, "did you mean 'assumptions.matrix_efficiency'?"),
        ({"devise": {"hbm_capacity": "1 GB"}}, "what_if.devise: unknown field 'devise'; did you mean 'device'?"),
        ({"device": {"hbm": "1 GB"}}, "what_if.device.hbm: unknown field 'device.hbm'"),
        ({"device": "1 GB"}, "'device' is a section: name one of its fields, such as 'device.matrix_flops'"),
        ({"network": "1 GB"}, "name one of its fields, such as 'network.nvs.bandwidth'"),
        ({"assumptions": ["default"]}, "name one of its fields, such as 'assumptions.kernel_slowdown'"),
        ({"device.name": ["a"]}, "'device.name' is not a number; the fields that can vary are device.matrix_flops, "),
        ({"name": ["a"]}, "'name' is not a number; to compare clusters, give a list of them as 'cluster' at top level"),
        (
            {"assumptions.calibrated": [True]},
            "is not a number; the fields that can vary are assumptions.kernel_slowdown, ",
        ),
        ({"assumptions.effects": {"stack_deviation": 1}}, "'assumptions.effects' is not a number; the fields that"),
        ({"assumptions.effects.stack_deviation": 1}, "unknown field 'assumptions.effects.stack_deviation'"),
        ({"assumptions.layers": {"a": "b"}}, "'assumptions.layers' is not a number"),
        ({"num_gpus": [1, 2]}, "'num_gpus' is a setting of the sweep: state it at top level, where it takes a list"),
        ({"global_batch_size": 8}, "'global_batch_size' is a setting of the sweep: state it at top level"),
        ({"strategy": ["1d"]}, "'strategy' is a setting of the sweep: state it at top level, where it takes a list"),
        ({"cluster": ["a"]}, "'cluster' is a setting of the sweep: state it at top level, where it takes a list"),
        ({"model": ["a"]}, "'model' is a setting of the sweep: state it at top level, where it takes one value"),
        ({"sequence_length": [1, 2]}, "state it at top level, where it takes one value; for several, make several"),
        ({"tp": [1, 2]}, "'tp' is a choice of the plan, which a sweep searches: restrict it with fix or limit"),
        ({CAPACITY: "1 GB", "device": {"hbm_capacity": "2 GB"}}, "'device.hbm_capacity' is given twice"),
    ],
)
def test_a_fault_names_place_value_and_the_right_thing(given, says):
    (line,) = faults(given)
    assert says in line
    assert line.startswith("sweep: what_if")


@pytest.mark.parametrize("name", ["activation_bytes", "weight_bytes", "gradient_bytes"])
def test_element_sizes_shape_the_work_of_a_layer(name):
    (line,) = faults({f"assumptions.{name}": [2, 4]})
    assert f"shapes the work of a layer; use --set assumptions.{name}=... in a sweep of its own" in line


@pytest.mark.slow
def test_all_points_need_the_same_fields():
    lines = faults([{CAPACITY: "80 GB", BANDWIDTH: "1 TB/s"}, {CAPACITY: "90 GB", SIZE: 8}, {CAPACITY: "99 GB"}])
    assert [line.partition(", but ")[2] for line in lines] == [
        "'network.nvs.bandwidth' is missing here",
        "'network.nvs.size' is missing in the points before",
        "'network.nvs.bandwidth' is missing here",
    ]
    assert [line.split(":")[1] for line in lines] == [" what_if.1", " what_if.1", " what_if.2"]
    # A misspelt field of a point is not missing too.
    assert len(faults([{"device.hbm_capcity": "80 GB"}, {CAPACITY: "90 GB"}])) == 1
    # A grid that no one could mean is refused before it is made.
    (line,) = faults({CAPACITY: {"from": "1 GB", "to": "99 GB", "times": 1.000001}})
    assert "from 1 GB to 99 GB times 1.000001 has more than 1,000,000 values; take a larger factor" in line
    many = [{"from": "1 GB", "to": "1 TB", "times": 1.005}, {"from": "1 GB/s", "to": "1 TB/s", "times": 1.005}]
    (line,) = faults({CAPACITY: many[0], BANDWIDTH: many[1]})
    assert "sweep: what_if: 1386 x 1386 = 1,920,996 points; a sweep has at most 1,000,000" in line


def test_all_faults_are_listed_at_once_with_their_lines(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "model: m\ncluster: []\nnum_gpus: 8\nglobal_batch_size: 8\nwhat_if:\n"
        "  device.hbm_capacity:\n  - 80 GB\n  - 90\n  - 1 TB/s\n"
        "  network.nvs: {sise: 4, bandwidth: {from: 1, to: 2 GB, times: 2}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_sweep(file, COLUMNS)
    found = [line.partition("sweep.yaml:")[2] for line in str(caught.value).splitlines()]
    assert [": ".join(line.split(": ")[:2]) for line in found] == [
        "2: cluster",
        "10: what_if.network.nvs.sise",
        "8: what_if.device.hbm_capacity.1",
        "9: what_if.device.hbm_capacity.2",
        "10: what_if.network.nvs.bandwidth.from",
        "10: what_if.network.nvs.bandwidth.to",
    ]


def test_set_replaces_and_adds_fields(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "model: m\ncluster: c\nnum_gpus: 8\nglobal_batch_size: 8\nwhat_if:\n  device.hbm_capacity: [80 GB]\n"
    )
    changes = [("what_if.device.hbm_capacity", "[1 GB, 2 GB]"), ("what_if.network.nvs.size", "4")]
    changes += [("what_if.network.nvs.bandwidth", "{from: 1 GB/s, to: 2 GB/s, times: 2}")]
    found = load_sweep(file, COLUMNS, changes).what_if
    assert found.fields == (CAPACITY, SIZE, BANDWIDTH)
    assert found.points == tuple(itertools.product((1e9, 2e9), (4,), (1e9, 2e9)))
    whole = [("what_if", "{network.nvs.size: [4, 8]}")]
    assert load_sweep(file, COLUMNS, whole).what_if == WhatIf((SIZE,), ((4,), (8,)))
    assert sweep_from_data(LEAST, COLUMNS, [("what_if.network.nvs.size", "4")]).what_if == WhatIf((SIZE,), ((4,),))
    points = LEAST | {"what_if": [{CAPACITY: "80 GB"}]}
    assert sweep_from_data(points, COLUMNS, [("what_if.0.device.hbm_capacity", "1 GB")]).what_if.points == ((1e9,),)


def test_a_fault_of_what_was_set_names_the_option():
    changes = [("what_if.device.hbm_capcity", "80 GB"), ("what_if.device.hbm_bandwidth", "[80 GB]")]
    with pytest.raises(SpecError) as caught:
        sweep_from_data(LEAST, COLUMNS, changes)
    first, second = str(caught.value).splitlines()
    assert first.startswith("--set sweep.what_if.device.hbm_capcity: what_if.device.hbm_capcity: unknown field")
    assert second.startswith("--set sweep.what_if.device.hbm_bandwidth: what_if.device.hbm_bandwidth.0: '80 GB'")
    with pytest.raises(SpecError, match="has no part 'device'"):
        sweep_from_data(LEAST | {"what_if": [{SIZE: 8}]}, COLUMNS, [("what_if.device.hbm_capacity", "1 GB")])


@pytest.mark.parametrize(
    "given",
    [
        [{f"device.hbm_capacit{index}": 1} for index in range(20_000)],
        {f"device.hbm_capacit{index}": 1 for index in range(20_000)},
        {"device.hbm_capacity": ["x"] * 20_000},
    ],
)
def test_of_many_faults_the_first_ones_are_listed(given):
    begun = time.process_time()
    with pytest.raises(SpecError, match=r"\.\.\. and 60 more faults$"):
        what_if(given)
    assert time.process_time() - begun < 4
