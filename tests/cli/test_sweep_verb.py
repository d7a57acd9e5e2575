"""``dsx sweep`` in every keep mode, with and without rows, and what it leaves in its folder."""

import json

import numpy as np
import pytest

import dsx

KEEPS = (
    "all",
    "feasible",
    "{top: 3}",
    "{top: 1, per: [strategy, tp_nvs]}",
    "{top: 2, per: [zero_stage, dp]}",
    "{pareto: [step_time_s, peak_bytes]}",
    "{pareto: [-mfu, num_gpus]}",
)


def swept(run, *assignments, out="out"):
    options = [option for assignment in assignments for option in ("--set", f"sweep.{assignment}")]
    return run("sweep", "sweep.yaml", "-o", out, *options, "--json")


@pytest.mark.parametrize("keep", KEEPS)
def test_every_keep_mode_agrees_with_all(run, folder, keep, swept_all):
    done = swept(run, f"keep={keep}", "precision=float64")
    data = json.loads(done.out)
    assert done.code == 0
    assert set(data) == {"schema_version", "folder", "candidates", "feasible", "rows", "plans"}
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


def test_limits_per_group(run, folder):
    swept(run, "keep={top: 1, per: [strategy, tp_nvs]}")
    frame = dsx.load("out")
    assert not frame.duplicated(["strategy", "tp_nvs"]).any()
    assert frame["tp_nvs"].nunique() > 1


def test_fixed_and_limited(run, folder):
    done = swept(run, "fix.tp=2", "fix.recompute=none", "limit.dp=['>=2', '<4']", "strategy=[2d, 2d]")
    assert done.code == 0
    frame = dsx.load("out")
    assert set(frame["tp"]) == {2}
    assert set(frame["dp"]) == {2}
    assert list(frame["strategy"].cat.categories) == ["2d"]


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


def test_a_shard_draws_no_picture(run, folder):
    done = run("sweep", "sweep.yaml", "-o", "out", "--shard", "1/2", "--plot", "front.png")
    assert done.code == 2
    assert "give --plot with --finish" in done.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("keep", KEEPS)
def test_no_candidate(run, folder, keep):
    done = swept(run, f"keep={keep}", "num_gpus=127")
    assert done.code == 3
    assert json.loads(done.out)["candidates"] == 0
    assert "no combination of degrees for 127 GPUs and global_batch_size=32 (pp must divide the 8 layers" in done.err
    assert not (folder / "out").exists()


def test_for_people(run, folder):
    done = run("sweep", "sweep.yaml")
    assert done.code == 0
    header, first, *_ = done.out.splitlines()
    assert header.split() == "GPUs batch strategy step MFU memory compute communication bubble plan".split()
    assert first.split()[:3] == ["1", "8", "32"]
    assert done.err.startswith("dsx: ")
    assert done.err.endswith(" rows in results/sweep\n")
    assert (folder / "results" / "sweep" / "manifest.json").exists()


def test_again_into_the_same_folder(run, folder):
    first = swept(run)
    again = swept(run)
    assert (again.code, again.out) == (0, first.out)
    assert "out is complete since" in again.err
    assert "; 0 priced now; " in again.err
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert [name for name in names if not name.startswith("part-")] == ["manifest.json"]
