"""Traces that others read or write."""

import numpy as np
import pytest
from trace_files import ALL_GATHER, coll, comp, groups_of_a_process, receive, send, write_folder
from written_traces import communications, job_of, written

import dsx
from dsx.errors import InputError, TraceError
from dsx.traces.codec import COMP, Node, messages
from dsx.traces.read import open_folder, traces

FEW_LAYERS = ["model.layers.1.count=4"]


def job(*more, cluster="h100-nvs8"):
    return job_of("llama-3-8b", 4, 8, cluster, sequence_length=2048, set=[*FEW_LAYERS, *more])


def kernels(trace):
    return np.flatnonzero(trace.types == COMP)


def test_traffic_and_microseconds_of_nodes(tmp_path):
    per_parameter, microbatches = 6, 4
    (trace,) = written(tmp_path, job(), [0], tp=2, dp=2).values()
    found = [row for row in kernels(trace) if trace.op_types.of(row) == "accumulation"]
    # The matrices of four layers and the head, divided by two; the embedding is looked up.
    parameters = 4 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) / 2 + 128256 * 4096 / 2
    assert trace.tensor_size[found].sum() == per_parameter * microbatches * parameters
    # Whole microseconds are not biased.
    whole, exact = micros(tmp_path / "timed")
    assert (whole >= 1).all()
    assert whole.sum() == pytest.approx(exact.sum(), rel=2e-4)
    assert np.maximum(np.round(exact), 1).sum() != pytest.approx(exact.sum(), rel=2e-4)


def micros(folder):
    """The whole microseconds of a rank's computations, and their exact ones."""
    (trace,) = written(folder, job(), [0], durations=True, tp=2, dp=2).values()
    rows = kernels(trace)
    with (folder / "trace.0.et").open("rb") as file:
        _, *nodes = (message for _, message in messages(file, "trace.0.et"))
    return np.array([Node.FromString(node).duration_micros for node in nodes])[rows], trace.duration_ns[rows] / 1000.0


def test_a_buffer_has_one_name_however_often_it_is_written(tmp_path):
    trace, *_ = written(tmp_path, job(), tp=2, dp=2).values()
    assert not dsx.trace.inspect(tmp_path).faults
    assert not [name for name in trace.tensors if "#" in name]
    gradients = [place for place, name in enumerate(trace.tensors) if name.startswith("L001.d ")]
    assert gradients
    assert min(int(np.sum(trace.writes.values == gradient)) for gradient in gradients) == 4  # microbatches


@pytest.mark.slow
def test_a_slow_rank_has_longer_kernels_and_a_replay_says_that_it_takes_none(tmp_path, caplog):
    plan = {"tp": 2, "dp": 2}
    usual = written(tmp_path / "usual", job(), durations=True, **plan)
    slow = written(tmp_path / "slow", job(), durations=True, slow="1=1.5", **plan)
    for rank, factor in ((0, 1.0), (1, 1.5)):
        rows = kernels(usual[rank])
        np.testing.assert_allclose(slow[rank].duration_ns[rows], factor * usual[rank].duration_ns[rows])
        others = usual[rank].types != COMP
        np.testing.assert_array_equal(slow[rank].duration_ns[others], usual[rank].duration_ns[others])
    with caplog.at_level("INFO", logger="dsx"):
        plain = dsx.trace.replay(tmp_path / "usual", "h100-nvs8").step_time_s
        assert dsx.trace.replay(tmp_path / "slow", "h100-nvs8").step_time_s == plain
        assert "have slow ranks (1=1.5), but a replay prices the work of nodes: --slow" in caplog.text
        caplog.clear()
        assert dsx.trace.replay(tmp_path / "slow", "h100-nvs8", slow="1=1.5").step_time_s > plain
        assert "slow ranks" not in caplog.text
    # Slow ranks need durations.
    with pytest.raises(InputError, match="a slow rank differs in its durations alone"):
        dsx.trace.write(job(), tp=2, dp=2, out=tmp_path, durations=False, slow="1=1.5")


def test_panels_are_collectives_that_simulators_run(tmp_path):
    summa = job_of("gpt3-5b", 4, 2, sequence_length=512, set=["model.layers.1.count=1"])
    plan = {"strategy": "summa", "tp": 2, "tp2": 2, "panels": 2}
    kinds = {}
    for portable in (True, False):
        folder = tmp_path / str(portable)
        dsx.trace.write(summa, out=folder, durations=False, portable=portable, **plan)
        (kinds[portable], *_) = [{kind for kind, *_ in communications(trace)} for trace in traces(open_folder(folder))]
    assert kinds[True] == {"all-gather", "all-reduce", "reduce-scatter"}
    assert {"broadcast", "reduce"} <= kinds[False]


def test_a_replay_has_the_software_that_it_is_told(tmp_path, caplog):
    folder, usual, plan = tmp_path / "own", tmp_path / "usual", {"dp": 4, "zero_stage": 3}
    own = job("assumptions.framework=torchtitan")
    written(folder, own, durations=True, **plan)
    with caplog.at_level("INFO", logger="dsx"):
        other = dsx.trace.replay(folder, "h100-nvs8").step_time_s
        assert (
            "the trace was written as torchtitan runs it; the replay is as megatron runs it (--framework)"
            in caplog.text
        )
        caplog.clear()
        found = dsx.trace.replay(folder, "h100-nvs8", set={"assumptions.framework": "torchtitan"}).step_time_s
        assert "software" not in caplog.text
    # Attention of FlexAttention is slower than that of cuDNN.
    assert found > 1.01 * other
    # A replay overlaps what a price adds up, alike with both.
    written(usual, job(), durations=True, **plan)
    replayed = found / dsx.trace.replay(usual, "h100-nvs8").step_time_s
    priced = dsx.evaluate(own, **plan).step_time_s / dsx.evaluate(job(), **plan).step_time_s
    assert replayed == pytest.approx(priced, rel=0.01)


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


def test_elements_without_bytes(tmp_path):
    folder = write_folder(tmp_path, {0: [comp(1)]})
    with pytest.raises(TraceError, match=r"trace\.0\.et: counts bytes, so its elements have no size"):
        dsx.trace.inspect(folder, element_bytes=2)
    with pytest.raises(TraceError, match="counts bytes"):
        replayed(folder, element_bytes=2)
    # Elements whose bytes have too many bits.
    folder = write_folder(tmp_path, {0: [comp(1, num_ops=2**62)]}, **ELEMENTS)
    with pytest.raises(TraceError, match="more than 63 bits"):
        dsx.trace.inspect(folder)


@pytest.mark.parametrize("given", [0, -1, 17, True, 2.0, "2"])
def test_bytes_that_no_element_has(tmp_path, given):
    with pytest.raises(InputError, match=r"element_bytes: .* is given, and a number of bytes is wanted, from 1 to 16"):
        dsx.trace.inspect(write_folder(tmp_path, {0: [comp(1)]}), element_bytes=given)


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
