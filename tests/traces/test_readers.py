"""What readers of other makers find in a trace that dsx writes: rooflines, whole microseconds, memory trackers."""

import numpy as np
import pytest
from written_traces import communications, job_of, written

import dsx
from dsx.errors import InputError
from dsx.traces.codec import COMP, Node, messages
from dsx.traces.trace_folder import open_folder, traces

FEW_LAYERS = ["model.layers.1.count=4"]


def job(*more, cluster="h100-nvs8"):
    return job_of("llama-3-8b", 4, 8, cluster, sequence_length=2048, set=[*FEW_LAYERS, *more])


def kernels(trace):
    return np.flatnonzero(trace.types == COMP)


def test_traffic_of_gradient_accumulation_is_in_nodes(tmp_path):
    per_parameter, microbatches = 6, 4
    (trace,) = written(tmp_path, job(), [0], tp=2, dp=2).values()
    found = [row for row in kernels(trace) if trace.op_types.of(row) == "accumulation"]
    # The matrices of four layers and the head, divided by two; the embedding is looked up.
    parameters = 4 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) / 2 + 128256 * 4096 / 2
    assert trace.tensor_size[found].sum() == per_parameter * microbatches * parameters


def micros(folder):
    """The whole microseconds of a rank's computations, and their exact ones."""
    (trace,) = written(folder, job(), [0], durations=True, tp=2, dp=2).values()
    rows = kernels(trace)
    with (folder / "trace.0.et").open("rb") as file:
        _, *nodes = (message for _, message in messages(file, "trace.0.et"))
    return np.array([Node.FromString(node).duration_micros for node in nodes])[rows], trace.duration_ns[rows] / 1000.0


def test_whole_microseconds_are_not_biased(tmp_path):
    whole, exact = micros(tmp_path)
    assert (whole >= 1).all()
    assert whole.sum() == pytest.approx(exact.sum(), rel=2e-4)
    assert np.maximum(np.round(exact), 1).sum() != pytest.approx(exact.sum(), rel=2e-4)


def test_a_buffer_has_one_name_however_often_it_is_written(tmp_path):
    trace, *_ = written(tmp_path, job(), tp=2, dp=2).values()
    assert not dsx.trace.inspect(tmp_path).faults
    assert not [name for name in trace.tensors if "#" in name]
    gradients = [place for place, name in enumerate(trace.tensors) if name.startswith("L001.d ")]
    assert gradients
    assert min(int(np.sum(trace.writes.values == gradient)) for gradient in gradients) == 4  # microbatches


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


def test_slow_ranks_need_durations(tmp_path):
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
