"""Replays of small folders through the API; a foreign trace, whose operations are FLOPs."""

import json

import pytest
from trace_files import coll, comp, receive, send, write_folder

from dsx.errors import InputError, SpecError, StoreError, TraceError
from dsx.verbs.trace_replay import replay

FLOPS, BYTES = 10**15, 10**9


@pytest.fixture
def folder(tmp_path):
    """Two ranks that compute and add; the first one sends what the second one waits for."""
    first = [comp(1, num_ops=FLOPS), coll(2, size=BYTES, axis="tp", data=[1]), send(3, 1, size=BYTES, data=[2])]
    second = [comp(1, num_ops=FLOPS), coll(2, size=BYTES, axis="tp", data=[1]), receive(3, 0, size=BYTES)]
    second += [comp(4, num_ops=FLOPS, data=[3])]
    return write_folder(tmp_path, {0: first, 1: second}, {"1": [0, 1]})


def test_a_folder_is_replayed_and_says_where_the_time_goes(folder):
    found = replay(folder, "h100-nvs8")
    assert found.step_time_s == found.ranks[1].step_s > 2 * found.ranks[0].compute_s
    assert found.ranks[1].bubble_s > 0
    assert found.slowdown == 0
    data = json.loads(json.dumps(found.to_data()))
    assert data["step_time_s"] == found.step_time_s
    assert data["nodes"] == 7
    for rank in data["ranks"]:
        parts = [rank[f"{name}_s"] for name in ("compute", "send", "bubble", "offload", "host")]
        assert sum(parts) + sum(rank["comm_s"].values()) == pytest.approx(rank["step_s"])
    # The text says where the time goes.
    text = str(replay(folder, "h100-nvs8", slow=["1=2"]))
    for word in ("2 ranks, 7 nodes, on h100-nvs8 under default", "step time: ", "slowdown: ", "tp comm", "bubble"):
        assert word in text
    assert "kernels take 2 times as long on 1" in text


@pytest.mark.parametrize("slow", ["1=2", ["1=2"], {1: 2.0}])
def test_slow_ranks_make_the_step_slower(folder, slow):
    plain, found = replay(folder, "h100-nvs8"), replay(folder, "h100-nvs8", slow=slow)
    assert found.ranks[1].compute_s == 2 * plain.ranks[1].compute_s
    assert found.slowdown == pytest.approx(found.step_time_s / plain.step_time_s - 1)
    assert 0.5 < found.slowdown < 1


@pytest.mark.parametrize(
    ("slow", "wrong"),
    [
        ("1", "RANKS=FACTOR is wanted"),
        ("1=fast", "'fast' is no positive number"),
        ("1=-1", "'-1' is no positive number"),
        ("x=2", "'x' is no rank and no range"),
        ("1-0=2", "1-0 ends before it begins"),
        ("0-5=2", "rank 2 has no trace; there are ranks 0 to 1"),
        ("0,0=2", "rank 0 is named twice"),
        (3, "RANKS=FACTOR is wanted"),
    ],
)
def test_wrong_slow_ranks_are_refused(folder, slow, wrong):
    with pytest.raises(InputError, match=wrong):
        replay(folder, "h100-nvs8", slow=slow)


def test_timelines_have_all_events_and_ranks_may_be_alike(folder, tmp_path):
    replay(folder, "h100-nvs8", chrome=tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    names = sorted((event["pid"], event["name"]) for event in events if event["ph"] == "X")
    assert names == [(0, "coll2"), (0, "comp1"), (0, "send3"), (1, "coll2"), (1, "comp1"), (1, "comp4")]
    with pytest.raises(StoreError, match="is read by this command"):
        replay(folder, "h100-nvs8", chrome=folder / "trace.0.et")
    # A rank that is missing may be like another one.
    (folder / "trace.1.et").unlink()
    with pytest.raises(TraceError, match=r"rank 0 waits for rank 1, whose file is not there: node 2 \('coll2'\)"):
        replay(folder, "h100-nvs8")
    (folder / "manifest.json").write_text(json.dumps({"stands_for": {"0": [0, 1]}, "ranks_per_domain": 1}))
    apart = replay(folder, "h100-nvs8")
    assert [rank.rank for rank in apart.ranks] == [0]
    (folder / "manifest.json").write_text(json.dumps({"stands_for": {"0": [0, 1]}, "ranks_per_domain": 8}))
    assert replay(folder, "h100-nvs8").step_time_s < apart.step_time_s


def test_a_replay_says_where_it_differs_from_the_trace(folder, caplog):
    caplog.set_level("INFO", logger="dsx")
    (folder / "manifest.json").write_text(json.dumps({"assumptions": "default", "ranks_per_domain": 8}))
    usual = replay(folder, "h100-nvs8").step_time_s
    assert "as they were traced" not in caplog.text and "the replay is" not in caplog.text
    assert replay(folder, "h100-nvs8", set={"cluster.device.matrix_flops": "10 TFLOP/s"}).step_time_s > usual
    replay(folder, "h100-nvs8", "uncalibrated", set={"cluster.network.nvs.size": 1})
    assert "the trace was written under default; the replay is under uncalibrated (--assumptions)" in caplog.text
    assert "the ranks are placed 8 to a fast domain, as they were traced; the cluster has 1 in one" in caplog.text
    with pytest.raises(SpecError, match="--set model: a trace has its model"):
        replay(folder, "h100-nvs8", set={"model.name": "x"})


@pytest.mark.parametrize("manifest", [{"ranks_per_domain": 0}, {"ranks_per_domain": "8"}, {"stands_for": [1]}])
def test_a_manifest_with_wrong_values_is_refused(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TraceError, match=f"the manifest has {next(iter(manifest))}"):
        replay(folder, "h100-nvs8")


def test_a_trace_without_a_plan_has_no_effect_that_needs_one(folder, caplog):
    """CUDA graphs need choices of a plan and CUDA; a trace of another writer states no plan, and says so."""
    caplog.set_level("INFO", logger="dsx")
    found = replay(folder, "h100-nvs8")
    said = caplog.text
    caplog.clear()
    assert "the trace states no plan, so the host takes 20 us to issue a kernel: 10 us" in said
    assert "needs zero_stage <= 1" in said
    stated = replay(folder, "h100-nvs8", set={"assumptions.dispatch_latency": "20 us"})
    assert caplog.text == ""
    assert (
        stated.step_time_s
        == found.step_time_s
        > replay(folder, "h100-nvs8", set={"assumptions.dispatch_latency": "10 us"}).step_time_s
    )


def test_effects_that_need_a_platform_are_settled_for_any_trace(folder, caplog):
    caplog.set_level("INFO", logger="dsx")
    stated = {"assumptions.dispatch_latency": "20 us"}
    assert replay(folder, "mi300x-xgmi8").step_time_s == replay(folder, "mi300x-xgmi8", set=stated).step_time_s
    assert "no plan" not in caplog.text
