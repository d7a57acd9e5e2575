"""Traces as other writers make them: files in no program order, sizes in elements, process groups in a node."""

import pytest
from trace_files import ALL_GATHER, coll, comp, groups_of_a_process, receive, send, write_folder

import dsx
from dsx.errors import InputError, TraceError

ELEMENTS = {"schema": "symbolic_tensor_network"}
MACHINE = {"cluster": "h100-nvs8"}


def replayed(folder, **given):
    return dsx.trace.replay(folder, **MACHINE, **given)


def pipeline(size=2**30):
    """Two stages, two microbatches: files of nodes by microbatch, forward and backward, behind what they depend on."""
    first, second = [], []
    for micro in (0, 1):
        at = 10 * micro
        tags = {"there": 2 * micro + 1, "back": 2 * micro + 2}
        first += [comp(at + 1, "backward", data=[at + 4], num_ops=2 * size, tensor_size=size)]
        first += [send(at + 2, 1, tags["there"], 8, data=[at + 3]), comp(at + 3, num_ops=size, tensor_size=size)]
        first += [receive(at + 4, 1, tags["back"], 8)]
        second += [send(at + 1, 0, tags["back"], 8, data=[at + 3]), receive(at + 2, 0, tags["there"], 8)]
        second += [comp(at + 3, data=[at + 4], num_ops=2 * size, tensor_size=size)]
        second += [comp(at + 4, data=[at + 2], num_ops=size, tensor_size=size)]
    return {0: first, 1: second}


def test_a_pipeline_in_no_program_order_has_no_faults_and_runs(tmp_path):
    folder = write_folder(tmp_path, pipeline())
    found = dsx.trace.inspect(folder)
    assert found.data["faults"] == []
    times = replayed(folder)
    # One forward and backward of the first stage, and two of the second one: 9 of 12 in a row, besides sends.
    first, second = times.ranks
    assert first.compute_s == pytest.approx(second.compute_s)
    in_a_row = 2 * first.compute_s
    assert 0.75 * in_a_row < times.step_time_s < 0.9 * in_a_row


def test_memory_is_taken_behind_dependencies(tmp_path):
    """The reader stands before the writer in the file: the tensor is not there from the start."""
    nodes = [
        comp(1, data=[3], reads={"x": 100}),
        comp(2, ctrl=[1], reads={}, writes={"y": 40}),
        comp(3, reads={}, writes={"x": 100}),
    ]
    assert dsx.trace.inspect(write_folder(tmp_path, {0: nodes})).peak_bytes == 100


def test_elements_and_multiply_adds_are_bytes_and_flops(tmp_path):
    nodes = [
        comp(1, reads={"x": "10.0"}, writes={"y": 30}, num_ops=100, tensor_size=40),
        coll(2, "", ALL_GATHER, size=8, ctrl=[1]),
    ]
    counted = write_folder(tmp_path, {0: nodes, 1: nodes}, **ELEMENTS)
    found = dsx.trace.inspect(counted)
    assert found.data["element_bytes"] == 2
    assert found.data["totals"]["total_flops"] == 400 and found.data["totals"]["traffic_bytes"] == 160
    assert found.data["collectives"][0]["size_bytes"] == 32 and found.peak_bytes == 80
    assert "count elements and multiply-adds, here 2 bytes and 2 FLOPs each (--element-bytes)" in str(found)
    wide = dsx.trace.inspect(counted, element_bytes=4)
    assert wide.data["totals"]["total_flops"] == 400 and wide.data["totals"]["traffic_bytes"] == 320
    assert wide.peak_bytes == 160 and "here 4 bytes" in str(wide)


def test_a_replay_counts_elements_too(tmp_path):
    size = 2**28
    nodes = [comp(1, num_ops=size, tensor_size=size)]
    counted, plain = tmp_path / "counted", tmp_path / "plain"
    counted.mkdir()
    plain.mkdir()
    found = replayed(write_folder(counted, {0: nodes}, **ELEMENTS))
    write_folder(plain, {0: [comp(1, num_ops=2 * size, tensor_size=2 * size)]})
    assert found.step_time_s == pytest.approx(replayed(plain).step_time_s)
    assert found.to_data()["element_bytes"] == 2 and "--element-bytes" in str(found)
    assert replayed(plain).to_data()["element_bytes"] is None
    assert replayed(counted, element_bytes=4).step_time_s > 1.5 * found.step_time_s


def test_bytes_of_elements_are_refused_where_a_file_counts_bytes(tmp_path):
    folder = write_folder(tmp_path, {0: [comp(1)]})
    with pytest.raises(TraceError, match=r"trace\.0\.et: counts bytes, so its elements have no size"):
        dsx.trace.inspect(folder, element_bytes=2)
    with pytest.raises(TraceError, match="counts bytes"):
        replayed(folder, element_bytes=2)


@pytest.mark.parametrize("given", [0, -1, 17, True, 2.0, "2"])
def test_bytes_that_no_element_has(tmp_path, given):
    with pytest.raises(InputError, match=r"element_bytes: .* is given, and a number of bytes is wanted, from 1 to 16"):
        dsx.trace.inspect(write_folder(tmp_path, {0: [comp(1)]}), element_bytes=given)


def test_elements_whose_bytes_have_too_many_bits(tmp_path):
    folder = write_folder(tmp_path, {0: [comp(1, num_ops=2**62)]}, **ELEMENTS)
    with pytest.raises(TraceError, match="more than 63 bits"):
        dsx.trace.inspect(folder)


GROUPS = """['[{"pg_name": "5", "backend_config": "cuda:nccl", "ranks": [0, 1], "group_size": 2}, %s]']"""
WHOLE = '{"pg_name": "default", "ranks": [], "group_size": 2}'


@pytest.mark.parametrize("values", [GROUPS % WHOLE, GROUPS.replace('"', '\\"') % WHOLE.replace('"', '\\"')])
def test_process_groups_of_a_node_are_known(tmp_path, values):
    nodes = [coll(2, "5", data=[1]), groups_of_a_process(1, values), coll(3, "default", ctrl=[2])]
    folder = write_folder(tmp_path, {0: nodes, 1: nodes}, {"7": [0, 1]})
    found = dsx.trace.inspect(folder)
    assert found.data["faults"] == [] and found.data["groups"] == 3
    assert replayed(folder).step_time_s > 0


def test_the_file_of_groups_decides_where_both_state_a_group(tmp_path):
    nodes = [groups_of_a_process(1, GROUPS % WHOLE), coll(2, "5")]
    found = dsx.trace.inspect(write_folder(tmp_path, {0: nodes}, {"5": [0]}))
    assert [row["group_size"] for row in found.data["collectives"]] == [1]


@pytest.mark.parametrize(
    "values", ["", "[[]]", "['[{']", '["[{}]"]', '[{"pg_name": "5", "ranks": [0, -1]}]', "[" * 9999]
)
def test_a_group_that_neither_states_is_unknown(tmp_path, values):
    nodes = [groups_of_a_process(1, values), coll(2, "5")]
    (fault,) = dsx.trace.inspect(write_folder(tmp_path, {0: nodes})).faults
    assert fault["what"] == "unknown process group"
