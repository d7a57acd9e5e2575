"""``dsx sweep`` in every keep mode, with and without rows, and what it leaves in its folder."""

import json

import numpy as np
import pytest

import dsx

KEEPS = (
    "all", "feasible", "{top: 3}", "{top: 1, per: [strategy, tp_nvs]}", "{top: 2, per: [zero_stage, dp]}",
    "{pareto: [step_time_s, peak_bytes]}", "{pareto: [-mfu, num_gpus]}",
)  # fmt: skip


def swept(run, *assignments, out="out"):
    options = [option for assignment in assignments for option in ("--set", f"sweep.{assignment}")]
    return run("sweep", "sweep.yaml", "-o", out, *options, "--json")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep", KEEPS)
def test_every_keep_mode_agrees_with_all(run, folder, keep, swept_all):
    done = swept(run, f"keep={keep}", "precision=float64")
    data = json.loads(done.out)
    assert done.code == 0
    counts = {"candidates", "skipped", "bounded", "cut", "feasible", "rows"}
    assert set(data) == {"schema_version", "folder", "left_out", "plans", *counts}
    assert (data["folder"], data["candidates"]) == ("out", len(swept_all))
    frame = dsx.load("out")
    assert data["rows"] == len(frame) > 0
    assert set(frame["candidate"]) <= set(swept_all["candidate"])
    best = swept_all.loc[swept_all["reject"] == 0, "step_time_s"].min()
    np.testing.assert_allclose(frame.loc[frame["reject"] == 0, "step_time_s"].min(), best, rtol=1e-5)
    assert min(plan["step_time_s"] for plan in data["plans"]) == pytest.approx(best, rel=1e-5)


@pytest.fixture(scope="module")
def swept_all(request):
    return dsx.load(request.getfixturevalue("swept"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep", KEEPS)
def test_nothing_feasible(run, folder, keep):
    capacity = ("--set", "cluster.device.hbm_capacity=1 kB")
    done = run("sweep", "sweep.yaml", "-o", "out", "--set", f"sweep.keep={keep}", *capacity, "--json")
    assert done.code == 3
    data = json.loads(done.out)
    assert (data["feasible"], data["plans"]) == (0, [])
    assert "fits: the one that needs least memory needs" in done.err
    assert len(dsx.load("out")) == data["rows"] == (data["candidates"] if keep == "all" else 0)


def test_nothing_feasible_at_any_hardware_point(run, folder):
    done = swept(run, "what_if={device.hbm_capacity: [1 kB, 3 kB]}")
    assert done.code == 3
    candidates = json.loads(done.out)["candidates"]
    assert f"none of {candidates:,} candidates fits" in done.err
    assert "a GPU has at most 3.00 kB" in done.err
    assert (
        "try stages of unequal numbers of layers (partition optimal), --set assumptions.fixed.recompute=full, "
        in done.err
    )


def test_sweeps_that_are_refused_or_in_which_nothing_fits(run, folder, monkeypatch):
    done = run("sweep", "sweep.yaml", "-o", "out", "--shard", "1/2", "--plot", "front.png")
    assert done.code == 2
    assert "give --plot with --finish" in done.err
    assert not (folder / "out").exists()
    # Nothing is searched by an interval.
    done = swept(run, "keep={pareto: [step_time_s_low, peak_bytes]}")
    assert done.code == 2
    assert "'step_time_s_low' is computed for kept rows alone and cannot be an objective" in done.err
    assert "'step_time_s_low' is a cost; expected a candidate column" in swept(run, "limit.step_time_s_low=['<1']").err
    # Too many groups are refused before anything is written.
    monkeypatch.setattr("dsx.search.sweep.MAX_ROWS", 3)
    done = swept(run, "keep={top: 2, per: [strategy, tp_nvs]}")
    assert done.code == 2
    assert ": keep: " in done.err
    assert "groups of up to 2 rows exceed the limit of 3 rows" in done.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("keep", KEEPS)
def test_no_candidate(run, folder, keep):
    done = swept(run, f"keep={keep}", "num_gpus=127")
    assert done.code == 3
    assert json.loads(done.out)["candidates"] == 0
    assert "no combination of degrees for 127 GPUs and global_batch_size=32 (pp must divide the 8 layers" in done.err
    assert not (folder / "out").exists()


def test_sweeps_for_people_and_again_into_the_same_folder(run, folder):
    done = run("sweep", "sweep.yaml")
    assert done.code == 0
    header, first, *_ = done.out.splitlines()
    assert header.split() == "GPUs batch strategy step MFU memory compute communication bubble plan".split()
    assert first.split()[:3] == ["1", "8", "32"]
    assert done.err.startswith("dsx: ")
    assert done.err.endswith(" rows in results/sweep\n")
    assert (folder / "results" / "sweep" / "manifest.json").exists()
    # Again into the same folder.
    first = swept(run)
    again = swept(run)
    assert (again.code, again.out) == (0, first.out)
    assert "out is complete since" in again.err
    assert "; 0 priced now; " in again.err
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert [name for name in names if not name.startswith("part-")] == ["manifest.json"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keep", ["feasible", "{top: 3, per: [num_gpus]}", "{pareto: [step_time_s, peak_bytes]}"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rows_have_the_interval_of_the_set(run, folder, keep, precision):
    # Domains of eight: a job of 8 GPUs lies in one, one of 16 in two.
    entries = "interval: [{where: {domains: one}, low: 0.9, high: 1.2}, {where: {experts: true}, low: 0.1, high: 9}]"
    (folder / "known.yaml").write_text(f"extends: paper-2410.00273\nname: known\n{entries}\n")
    done = swept(run, f"keep={keep}", f"precision={precision}", "assumptions=known.yaml", "num_gpus=[8, 16]")
    assert done.code == 0
    frame = dsx.load("out")
    one = frame["num_gpus"] == 8
    assert 0 < one.sum() < len(frame) or keep.startswith("{pareto")
    np.testing.assert_allclose(frame["step_time_s_low"], np.where(one, 0.9, np.nan) * frame["step_time_s"], rtol=1e-6)
    np.testing.assert_allclose(frame["step_time_s_high"], np.where(one, 1.2, np.nan) * frame["step_time_s"], rtol=1e-6)


def test_people_see_the_interval_of_a_plan(run, folder):
    (folder / "known.yaml").write_text("extends: paper-2410.00273\nname: known\ninterval: [{low: 0.5, high: 2}]\n")
    job = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32, "dp=8")
    job = (*job, "nvs.dp=8", "microbatch_size=4")
    plan = json.loads(run("evaluate", *job, "--assumptions", "known.yaml", "--json").out)
    assert (plan["step_time_s_low"], plan["step_time_s_high"]) == (plan["step_time_s"] / 2, plan["step_time_s"] * 2)
    assert (
        "80 % interval of step_time_s: 4.07 ms to 16.3 ms" in run("evaluate", *job, "--assumptions", "known.yaml").out
    )
    assert "80 % interval" not in run("evaluate", *job, "--assumptions", "paper-2410.00273").out


@pytest.mark.slow
def test_plans_that_nothing_was_measured_like_say_so_and_have_wider_intervals(run, folder):
    entries = "interval: [{where: {thin: 1}, low: 0.5, high: 2}, {low: 0.9, high: 1.1}]"
    head = f"extends: paper-2410.00273\nname: known\n{entries}\n"
    counts = "trained_on: {stack: {'': 3}, generation: {%s: 3}, kind: {dense: 3}}\n"
    (folder / "like.yaml").write_text(head + counts % "blackwell")
    (folder / "unlike.yaml").write_text(head + counts % "hopper")
    job = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
    plan = ("dp=8", "nvs.dp=8", "microbatch_size=4")
    said = "extrapolated: no measured run has a device of the family blackwell"
    for verb, settings in (("evaluate", plan), ("best", ())):
        like, unlike = (
            run(verb, *job, *settings, "--assumptions", f"{name}.yaml", "--json") for name in ("like", "unlike")
        )
        found = [json.loads(done.out) for done in (like, unlike)]
        assert [one["extrapolated"] for one in found] == [{}, {"generation": "blackwell"}]
        priced = [one if verb == "evaluate" else one["plans"][0] for one in found]
        ends = [one["step_time_s_high"] / one["step_time_s"] for one in priced]
        assert ends == pytest.approx([1.1, 2.0])
        assert said in run(verb, *job, *settings, "--assumptions", "unlike.yaml").out
        assert "extrapolated" not in run(verb, *job, *settings, "--assumptions", "like.yaml").out
