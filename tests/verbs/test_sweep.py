"""Sweeps from Python, and what is said of their size."""

import os
import re
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from verbs.small import HEAVY_HEAD, MODEL, SWEEP

import dsx
from dsx.errors import IncompleteSweep, InputError, NothingFeasible, SpecError, StoreError
from dsx.results.set_columns import ROW_BYTES
from dsx.units import format_quantity

CAPACITY = "device.hbm_capacity"
ONE = {name: value for name, value in SWEEP.items() if name != "what_if"} | {"num_gpus": 8, "keep": {"top": 2}}


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder for temporary files, and the working directory; both empty."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_folder_the_rows_are_in_memory_alone(scratch):
    swept = dsx.sweep(ONE)
    assert swept.folder is None and swept.to_data()["folder"] is None
    assert len(swept.frame) == swept.rows == 2
    assert os.listdir(scratch) == ["temporary"] and os.listdir(scratch / "temporary") == []


@pytest.mark.slow
def test_frames_in_memory_and_in_a_folder_are_the_same(swept, result_set, caplog):
    again = dsx.load(result_set)
    assert swept.frame.equals(again) and swept.frame.attrs.keys() == again.attrs.keys()
    assert swept.rows == swept.candidates == len(again)
    fastest = again.loc[again.loc[again["reject"] == 0, "step_time_s"].idxmin()]
    assert dsx.show(result_set).plans[0]["candidate"] == fastest["candidate"]
    # What is there is not priced again.
    caplog.set_level("INFO", "dsx")
    told = []
    dsx.sweep(SWEEP, result_set, watch=lambda *now: told.append(now))
    assert told == []
    assert caplog.messages[0].startswith(f"{result_set} is complete since ")
    # Models and machines may be content.
    named = {"extends": "b200-nvs8", "name": "small-memory", "device": {"hbm_capacity": "80 GB"}}
    both = dsx.sweep({**ONE, "cluster": ["b200-nvs8", named], "keep": {"top": 1}})
    assert list(both.frame["cluster"]) == ["b200-nvs8", "small-memory"]
    assert both.frame.attrs["spec"]["model"] == "small"
    assert both.frame.attrs["spec"]["resolved"]["clusters"][1]["device"]["hbm_capacity"] == "80000000000.0 B"
    job = dsx.Job(MODEL, named, 8, 32, assumptions="paper-2410.00273")
    assert dsx.sweep({**ONE, "model": job.model, "cluster": job.cluster}).frame["cluster"].iloc[0] == "small-memory"


@pytest.mark.slow
def test_content_and_fields_are_set_as_in_a_job():
    swept = dsx.sweep({**ONE, "num_gpus": np.array([8, 16]), "global_batch_size": (np.int64(32),)})
    assert {*swept.frame["num_gpus"]} <= {8, 16}
    # Fields are set as in a job.
    changes = {"sweep.num_gpus": [16], "cluster.device.hbm_capacity": "80 GB"}
    swept = dsx.sweep(ONE, set=changes)
    assert swept == dsx.sweep(ONE, set=["sweep.num_gpus=[16]", "cluster.device.hbm_capacity=80 GB"])
    assert {*swept.frame["num_gpus"]} == {16}
    # A memory margin is set as in a job.
    tight = {f"cluster.{CAPACITY}": f"{1.01 * dsx.sweep(ONE).frame['peak_bytes'].max()} B"}
    without, half = (dsx.sweep(ONE, set=tight, memory_margin=margin).feasible for margin in (0, 0.5))
    assert dsx.sweep(ONE, set=tight | {"assumptions.memory_margin": 0.5}).feasible == half < without
    with pytest.raises(InputError, match=r"^memory_margin: 2 is not a share from 0 to 1"):
        dsx.sweep(ONE, memory_margin=2)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({**ONE, "num_gpu": 8}, "sweep: num_gpu: unknown key; did you mean 'num_gpus'?"),
        ({**ONE, "num_gpus": "many"}, "sweep: num_gpus: 'many'"),
        ({**ONE, "model": "llama-3-8c"}, "unknown model 'llama-3-8c'; did you mean 'llama-3-8b'?"),
        ({**ONE, "model": {**MODEL, "dimension": {}}}, "model: dimension: unknown key; did you mean 'dimensions'?"),
        ({**ONE, "cluster": ["b200-nvs8", {"extends": "b200-nvs8"}]}, "two entries are called 'b200-nvs8'"),
        (
            {**ONE, "cluster": [{"extends": "b200-nvs8"}, {"extends": "b200-nvs8"}]},
            "two entries are called 'b200-nvs8'",
        ),
        ("nowhere.yaml", "nowhere.yaml is not a file"),
        (3, "spec: int is not a sweep file or its content"),
    ],
)
def test_what_is_no_sweep_is_refused(spec, says):
    with pytest.raises(InputError) as error:
        dsx.sweep(spec)
    assert says in str(error.value)


def test_faults_and_sweeps_without_plans():
    with pytest.raises(SpecError) as error:
        dsx.sweep({**ONE, "num_gpus": 0, "keep": "some"})
    assert len(str(error.value).splitlines()) == 2
    # A sweep in which nothing fits says why.
    nothing = dsx.sweep(ONE, set={"cluster.device.hbm_capacity": "1 kB"})
    assert "none of" in nothing.infeasible and nothing.feasible == 0 and nothing.plans == ()
    assert nothing.frame.empty and "step_time_s" in nothing.frame
    # A sweep without a candidate has no frame.
    none = dsx.sweep({**ONE, "fix": {"tp": 3}})
    assert none.infeasible.startswith("no candidate")
    with pytest.raises(NothingFeasible, match="no candidate"):
        none.frame  # noqa: B018


KEEPS = (
    "all", "feasible", {"top": 3}, {"top": 1, "per": ["strategy", "tp_nvs"]}, {"top": 2, "per": ["zero_stage", "dp"]},
    {"pareto": ["step_time_s", "peak_bytes"]}, {"pareto": ["-mfu", "num_gpus"]},
)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_every_keep_mode_has_the_best_of_all(swept, keep):
    found = dsx.sweep(ONE | {"keep": keep, "precision": "float64"})
    every = swept.frame[(swept.frame["num_gpus"] == 8) & (swept.frame[CAPACITY] == 192e9)]
    assert (found.candidates, found.rows) == (len(every), len(found.frame)) and set(found.frame["candidate"]) <= set(
        every["candidate"]
    )
    best = every.loc[every["reject"] == 0, "step_time_s"].min()
    assert found.frame.loc[found.frame["reject"] == 0, "step_time_s"].min() == pytest.approx(best, rel=1e-5)
    assert min(plan["step_time_s"] for plan in found.priced) == pytest.approx(best, rel=1e-5)
    counts = {"candidates", "skipped", "bounded", "cut", "feasible", "rows"}
    assert found.to_data().keys() == {"schema_version", "folder", "left_out", "plans", *counts}
    # Nothing is feasible, or there is no candidate.
    none = dsx.sweep(ONE | {"keep": keep}, set={f"cluster.{CAPACITY}": "1 kB"})
    assert (none.feasible, none.plans, none.rows) == (0, (), none.candidates if keep == "all" else 0)
    assert "fits: the one that needs least memory needs" in none.infeasible and len(none.frame) == none.rows
    never = dsx.sweep(ONE | {"keep": keep, "num_gpus": 127})
    assert never.candidates == 0
    said = "no combination of degrees for 127 GPUs and global_batch_size=32 (pp must divide the 8 layers"
    assert said in never.infeasible


KNOWN = {"extends": "paper-2410.00273", "name": "known"}
# Domains of eight: a job of 8 GPUs lies in one, one of 16 in two.
OF_DOMAINS = [{"where": {"domains": "one"}, "low": 0.9, "high": 1.2}]
OF_DOMAINS += [{"where": {"experts": True}, "low": 0.1, "high": 9}]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "keep", ["feasible", {"top": 3, "per": ["num_gpus"]}, {"pareto": ["step_time_s", "peak_bytes"]}]
)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rows_have_the_interval_of_the_set(keep, precision):
    stated = {"assumptions": KNOWN | {"interval": OF_DOMAINS}, "num_gpus": [8, 16]}
    frame = dsx.sweep(ONE | stated | {"keep": keep, "precision": precision}).frame
    one = frame["num_gpus"] == 8
    assert 0 < one.sum() < len(frame) or "pareto" in keep
    for end, share in (("low", 0.9), ("high", 1.2)):
        wanted = np.where(one, share, np.nan) * frame["step_time_s"]
        np.testing.assert_allclose(frame[f"step_time_s_{end}"], wanted, rtol=1e-6)


def test_plans_that_nothing_was_measured_like_say_so_and_have_wider_intervals(job):
    ends = [{"where": {"thin": 1}, "low": 0.5, "high": 2}, {"low": 0.9, "high": 1.1}]
    for generation, extrapolated, low, high in (("blackwell", [], 0.9, 1.1), ("hopper", ["generation"], 0.5, 2.0)):
        counts = {"stack": {"": 3}, "generation": {generation: 3}, "kind": {"dense": 3}}
        stated = job.replace(assumptions=KNOWN | {"interval": ends, "trained_on": counts})
        evaluated, found = dsx.evaluate(stated, "dp=8 nvs.dp=8 microbatch_size=4"), dsx.best(stated, 1)
        for answer, priced in ((evaluated, evaluated.to_data()), (found, found.priced[0])):
            assert [*answer.to_data()["extrapolated"]] == extrapolated
            factors = [priced[f"step_time_s_{end}"] / priced["step_time_s"] for end in ("low", "high")]
            assert factors == pytest.approx([low, high])
            said = "extrapolated: no measured run has a device of the family blackwell"
            assert (said in str(answer)) == bool(extrapolated)
        assert "80 % interval of step_time_s: " in str(evaluated)
    assert "80 % interval" not in str(dsx.evaluate(job, "dp=8"))


def test_an_interrupted_sweep_says_how_it_goes_on(scratch):
    def interrupt(done, total, what):
        raise KeyboardInterrupt

    with pytest.raises(IncompleteSweep, match="with a folder as `out` the same call would continue"):
        dsx.sweep(ONE, watch=interrupt)
    assert os.listdir(scratch / "temporary") == []
    with pytest.raises(IncompleteSweep, match="the same command begins again, and loses less with a smaller part_size"):
        dsx.sweep(ONE, "set", watch=interrupt)
    assert dsx.sweep(ONE, "set").rows == 2


def test_shards_make_a_set(scratch):
    parts = {**SWEEP, "part_size": 100}
    for shard in ((1, 2), (2, 2)):
        done = dsx.sweep_shard(parts, "set", shard)
        assert isinstance(done, dsx.SweptShard) and done.shard == shard and 0 < done.parts < done.of
        if shard == (1, 2):
            with pytest.raises(IncompleteSweep):
                dsx.finish_sweep(parts, "set")
    finished = dsx.finish_sweep(parts, "set")
    assert finished.rows == len(finished.frame) == dsx.sweep(SWEEP).rows


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), "1/2", (1,), None])
def test_a_shard_that_there_is_not_is_refused(scratch, shard):
    with pytest.raises(InputError, match=r"is not a shard: the second of eight is \(2, 8\)"):
        dsx.sweep_shard(ONE, "set", shard)


def test_a_row_is_explained_by_itself_or_by_its_id(result_set, swept):
    row = swept.frame.iloc[0]
    explained = dsx.why_row(result_set, row)
    assert explained.plan["candidate"] == row["candidate"]
    assert explained.costs["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-5)
    fastest = swept.frame.loc[swept.frame[swept.frame["reject"] == 0]["step_time_s"].idxmin()]
    assert "It is the fastest of " in str(dsx.why_row(result_set, fastest))
    hardware = {CAPACITY: row[CAPACITY]}
    assert dsx.why_row(result_set, row["candidate"], hardware) == explained
    texts = [f"{CAPACITY}={row[CAPACITY] / 1e9:g} GB"]
    assert dsx.why_row(result_set, str(row["candidate"]), texts) == explained
    with pytest.raises(InputError, match="was priced on 2 hardware points"):
        dsx.why_row(result_set, row["candidate"])
    with pytest.raises(InputError, match="the candidate was not priced there; it was at 2 GB, 192 GB"):
        dsx.why_row(result_set, row["candidate"], {CAPACITY: 81e9})
    with pytest.raises(InputError, match="no candidate '3'"):
        dsx.why_row(result_set, 3)


POINTS = ONE | {
    "cluster": ["a100-nvs8", "b200-nvs8"],
    "what_if": {CAPACITY: ["3 GB", "80 GB"]},
    "strategy": ["1d", "2d"],
}


@pytest.mark.slow
def test_plans_of_each_hardware_point(tmp_path):
    swept = dsx.sweep(POINTS | {"keep": "all"}, tmp_path / "set")
    frame, per = swept.frame, ["cluster", CAPACITY]
    shown = dsx.show(swept.folder, per=per)
    points = [(cluster, capacity) for cluster in POINTS["cluster"] for capacity in (3e9, 80e9)]
    assert [tuple(plan["hardware"].values()) for plan in shown.priced] == points
    best = frame[frame["reject"] == 0].groupby(per, observed=True)["step_time_s"].min()
    assert [plan["step_time_s"] for plan in shown.priced] == list(best)
    assert dsx.show(swept.folder, 2, per=per).plans[::2] == shown.plans
    data = shown.to_data()
    assert data["what_if"] == {CAPACITY: [3e9, 80e9]} and data["plans"][0]["hardware"].keys() == {*per}
    said = [" ".join(line.split()) for line in str(shown).splitlines()]
    assert said[0] == "small on a100-nvs8, b200-nvs8, 2 what-if points"
    assert {f"{CAPACITY} 3.00 GB, 80.0 GB", "strategy 1d, 2d"} <= {*said}
    assert any(line.startswith("cluster hbm_capacity GPUs batch strategy ") for line in said)
    # One candidate is shown at each of them, whether it fits or not.
    candidate = frame[(frame["reject"] != 0) & (frame[CAPACITY] == 3e9)]["candidate"].iloc[0]
    at_each = dsx.show(swept.folder, candidate=candidate)
    plans = at_each.to_data()["plans"]
    assert "\n1 is rejected: memory\n" in str(at_each)
    assert [tuple(plan["hardware"].values()) for plan in plans] == points
    assert {plan["plan"]["candidate"] for plan in plans} == {candidate}
    assert [plan["reject"] for plan in plans if plan["hardware"][CAPACITY] == 3e9] == [["memory"]] * 2
    assert [plan["fits"] for plan in plans] == [not plan["reject"] for plan in plans]


@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ({"top": 1}, "the fastest at each of 8 hardware points: 8 rows in 1 file"),
        ({"top": 2, "per": ["tp", "cluster"]}, "the 2 fastest for each tp at each of 8 hardware points: "),
        (
            {"pareto": ["step_time_s", "peak_bytes"]},
            "the Pareto front of step_time_s, peak_bytes at each of 8 hardware",
        ),
        ("feasible", "feasible: "),
    ],
)
def test_what_is_kept_of_several_hardware_points(tmp_path, keep, says):
    what_if = {"network.nvs.bandwidth": ["300 GB/s", "900 GB/s"], CAPACITY: ["40 GB", "80 GB"]}
    swept = dsx.sweep(POINTS | {"keep": keep, "what_if": what_if}, tmp_path / "set")
    about = [line.strip() for line in str(dsx.show(swept.folder)).partition("\n\n")[0].splitlines()]
    assert re.match(f"kept  +{says}", about[-1])
    assert [line.split()[0] for line in about if "." in line.split()[0]] == [*what_if]


@pytest.mark.slow
def test_flags_are_those_of_the_hardware_and_the_effects_of_a_row(tmp_path):
    what_if = {"assumptions.tp_overlap": [0, 0.5]}
    varied = ONE | {"cluster": ["tpu-v4", "b200-nvs8"], "what_if": what_if, "keep": {"top": 1}, "fix": {"tp": 8}}
    asked = {
        (*plan["hardware"].values(),): [
            flag in plan["launch"]["megatron_lm"]["flags"] for flag in ("--bf16", "--tp-comm-overlap")
        ]
        for plan in dsx.show(dsx.sweep(varied, tmp_path / "points").folder).to_data()["plans"]
    }
    assert asked == {
        ("b200-nvs8", 0): [True, False],
        ("b200-nvs8", 0.5): [True, True],
        ("tpu-v4", 0): [False, False],
        ("tpu-v4", 0.5): [False, False],
    }
    # CUDA graphs are priced, and set, for ZeRO up to stage 1.
    fix = {"tp": 1, "pp": 1, "recompute": "none", "offload": "none"}
    for stage, graphs in ((3, False), (1, True)):
        one = ONE | {"assumptions": "uncalibrated", "keep": {"top": 1}, "fix": fix | {"zero_stage": stage}}
        (plan,) = dsx.show(dsx.sweep(one, tmp_path / f"zero-{stage}").folder).to_data()["plans"]
        launch = plan["launch"]["megatron_lm"]
        assert ("--cuda-graph-impl" in launch["flags"]) is graphs
        assert not [lost for lost in launch["lost"] if "CUDA graphs" in lost]


CUT = {
    "model": HEAVY_HEAD, "cluster": "b200-nvs8", "num_gpus": [8, 12], "global_batch_size": 24, "strategy": "1d",
    "partition": "optimal", "fix": {"vpp": 1, "zero_stage": 1, "recompute": "none"}, "keep": "all",
}  # fmt: skip


@pytest.mark.slow
def test_rows_have_their_cuts(tmp_path):
    cut, even = dsx.sweep(CUT, tmp_path / "cut"), dsx.sweep(CUT | {"partition": "even"}, tmp_path / "even").frame
    rows = cut.frame
    sizes = [[*map(int, text.split(","))] for text in rows.stage_layers]
    assert [len(row) for row in sizes] == rows.pp.tolist()
    assert {sum(row) for row in sizes} == {8} and min(min(row) for row in sizes) == 1
    assert "layers of each pipeline stage" in rows.attrs["descriptions"]["stage_layers"]
    assert "stage_layers" not in even.columns and "partition" not in even.attrs["spec"]
    with pytest.raises(StoreError, match="partition"):  # another sweep
        dsx.sweep(CUT, tmp_path / "even")
    # A plan is the same candidate however it is cut.
    both = even.merge(rows, on="candidate", suffixes=("_even", ""))
    fits = both.reject_even == 0
    assert len(both) == len(even) and (both.reject[fits] == 0).all()
    assert (both.step_time_s[fits] <= both.step_time_s_even[fits] * (1 + 1e-6)).all()
    # A row is explained with its own cut.
    row = rows[rows.pp == 4].iloc[0]
    explained = dsx.why_row(cut.folder, row)
    stages = explained.to_data()["stages"]
    assert [stage["num_layers"] for stage in stages] == [*map(int, row.stage_layers.split(","))]
    assert explained.step_time_s == pytest.approx(row.step_time_s, rel=1e-5)
    slowest = max(range(4), key=lambda index: stages[index]["load_s"])
    (marked,) = [line for line in str(explained).splitlines() if "<- bottleneck" in line]
    assert marked.split()[0] == f"{slowest + 1}"


@pytest.mark.slow
def test_rows_are_explained_with_the_choices_that_their_sweep_searched(tmp_path):
    fix = {"zero_stage": [0, 3], "recompute": ["full"], "offload": ["none", "optimizer"]}
    swept = dsx.sweep(ONE | {"keep": "all", "fix": fix}, tmp_path / "set")
    rows = swept.frame
    for _, row in rows.sample(5, random_state=1).iterrows():
        explained = dsx.why_row(swept.folder, row)
        assert all(explained.plan[name] == row[name] for name in ("candidate", *fix))
        assert explained.step_time_s == pytest.approx(row.step_time_s, rel=1e-5)
        assert explained.costs["peak_bytes"] == pytest.approx(row.peak_bytes, rel=1e-5)
    # The fastest beside it is the fastest of all that the sweep searched.
    assert explained.fastest["step_time_s"] == pytest.approx(rows[rows.reject == 0].step_time_s.min(), rel=1e-5)


@pytest.mark.slow
def test_objectives_of_money_are_those_of_all_rows():
    priced = {**ONE, "train_tokens": "20B", "precision": "float64"}, {"cluster.price": "2 USD/h"}
    every = dsx.sweep(ONE | {"keep": "feasible", "precision": "float64"}).frame
    front = dsx.sweep(priced[0] | {"keep": {"pareto": ["cost_usd", "training_days"]}}, set=priced[1]).frame
    hours = 20e9 / front["tokens_per_s"] / 3600 * front["num_gpus"]
    np.testing.assert_allclose(front["gpu_hours"], hours, rtol=1e-9)
    np.testing.assert_allclose(front["cost_usd"], 2 * hours, rtol=1e-9)
    assert front["training_days"].min() == pytest.approx(20e9 / every["tokens_per_s"].max() / 86400, rel=1e-9)
    assert front.attrs["units"]["cost_usd"] == "USD"
    cheapest = dsx.sweep(priced[0] | {"keep": {"top": 3, "objective": "cost_usd"}}, set=priced[1]).frame
    best = (every["tokens_per_s"] / every["num_gpus"]).nlargest(3)
    np.testing.assert_allclose(sorted(cheapest["tokens_per_s_per_gpu"]), sorted(best), rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keep": {"pareto": ["-goodput", "-mfu"]}}, "states no failures: give --set cluster.failures='{mtbf:"),
        (
            {"keep": {"top": 1, "objective": "energy_kwh"}, "train_tokens": "20B", "cluster": "tpu-v5p"},
            "cluster 'tpu-v5p' states no power of its device: give --set cluster.device.power='700 W'",
        ),
    ],
)
def test_what_an_objective_needs_is_said(change, says):
    with pytest.raises(InputError) as error:
        dsx.sweep(ONE | change)
    assert says in str(error.value)


def test_a_row_has_the_days_of_its_training(tmp_path):
    trained = dsx.sweep(ONE | {"train_tokens": 1e12}, tmp_path / "set")
    row = trained.frame.iloc[0]
    explained = dsx.why_row(trained.folder, row)
    assert explained.costs["training_days"] == pytest.approx(row["training_days"], rel=1e-5)
    assert row["training_days"] > 0 and "training_days" in str(explained)


def test_columns_and_hardware_of_a_set(result_set, swept):
    assert dsx.show(result_set, per="num_gpus") == dsx.show(result_set, per=["num_gpus"])
    assert dsx.front(result_set, "step_time_s") == dsx.front(result_set, ["step_time_s"])
    assert dsx.compare_sets(result_set, result_set, "num_gpus") == dsx.compare_sets(
        result_set, result_set, ["num_gpus"]
    )
    assert dsx.compare(swept.frame, swept.frame, "num_gpus").equals(dsx.compare(swept.frame, swept.frame, ["num_gpus"]))
    # Plans of a set have their hardware.
    shown = dsx.show(result_set, 4)
    assert len(shown.plans) == len(shown.frame) == 4 and CAPACITY in shown.frame
    front = dsx.front(result_set)
    assert {*front.frame["candidate"]} == {*dsx.pareto(swept.frame, "step_time_s", "peak_bytes")["candidate"]}
    rejected = swept.frame[swept.frame["reject"] != 0].iloc[0]
    rows = dsx.show(result_set, candidate=rejected["candidate"]).frame
    assert rejected["reject"] in set(rows["reject"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda what: dsx.pareto(what, "step_time_s"),
        lambda what: dsx.compare(what, what),
        dsx.plot.front,
        dsx.plot.scaling,
        lambda what: dsx.plot.breakdown(what, "tp"),
    ],
)
def test_what_is_no_frame_is_refused(ask, swept):
    for what in (swept, "results/sweep", Path("results/sweep")):
        with pytest.raises(InputError, match=r"is no DataFrame: dsx\.load reads that of a folder"):
            ask(what)


def test_a_folder_without_a_set_is_refused(tmp_path):
    for ask in (dsx.load, dsx.show, dsx.front):
        with pytest.raises(StoreError, match="no result set at"):
            ask(tmp_path / "nowhere")


def test_no_compiled_code_is_kept_unless_asked(tmp_path, monkeypatch):
    import jax

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    try:
        dsx.keep_compiled()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def large(monkeypatch):
    """Make the small sweep a large one."""
    monkeypatch.setattr("dsx.verbs.sweep._LARGE", 10)


def said(caplog, folder, **changes):
    caplog.set_level("INFO", "dsx")
    found = dsx.sweep(SWEEP | changes, folder)
    return found, [message for message in caplog.messages if "to price" in message]


@pytest.mark.parametrize(("precision", "keep"), [("float32", "all"), ("float64", "feasible")])
def test_rows_and_bytes_are_said_before_the_sweep_starts(large, caplog, tmp_path, precision, keep):
    found, (message,) = said(caplog, tmp_path / "set", keep=keep, precision=precision)
    begins = f"{found.candidates:,} candidates to price; {'at most ' if keep == 'feasible' else ''}{found.candidates:,}"
    size = format_quantity(found.candidates * ROW_BYTES[precision], "bytes")
    assert message == f"{begins} rows, about {size}, go into {tmp_path / 'set'}"
    assert caplog.messages.index(message) < len(caplog.messages) - 1


@pytest.mark.slow
def test_of_the_best_few_the_rows_are_bounded_and_of_a_front_they_are_unknown(large, caplog, tmp_path):
    found, (message,) = said(caplog, tmp_path / "top", keep={"top": 2})
    assert f"; at most {found.rows} rows, about " in message
    caplog.clear()
    _, (message,) = said(caplog, tmp_path / "front", keep={"pareto": ["step_time_s", "peak_bytes"]})
    assert message.endswith(f"; the rows of each front go into {tmp_path / 'front'}")


def test_a_small_sweep_and_parts_that_are_there_say_nothing(caplog, tmp_path, monkeypatch):
    assert said(caplog, tmp_path / "set")[1] == []
    monkeypatch.setattr("dsx.verbs.sweep._LARGE", 10)
    assert said(caplog, tmp_path / "set")[1] == []


def test_a_full_disk_is_warned_of(large, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: namedtuple("Usage", "free")(1000))
    said(caplog, tmp_path / "set", keep="all")
    assert any(f"{tmp_path / 'set'} has 1.00 kB free; keep: {{top: 10}}" in message for message in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ROW_BYTES)
def test_a_row_takes_about_the_bytes_that_are_said(precision, tmp_path):
    spec = {"model": "gpt3-1t", "cluster": "b200-nvs8", "num_gpus": [1024, 4096, 16384], "global_batch_size": 4096}
    spec |= {
        "strategy": ["1d", "2d", "summa"],
        "assumptions": "paper-2410.00273",
        "keep": "all",
        "precision": precision,
    }
    found = dsx.sweep(spec, tmp_path / "set")
    size = sum(file.stat().st_size for file in (tmp_path / "set").rglob("*") if file.is_file())
    assert 0.75 < size / found.rows / ROW_BYTES[precision] < 1.1
