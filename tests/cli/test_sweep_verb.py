"""``dsx sweep``: what it prints, refuses, and leaves in its folder."""

import json


def swept(run, *assignments, out="out"):
    options = [option for assignment in assignments for option in ("--set", f"sweep.{assignment}")]
    return run("sweep", "sweep.yaml", "-o", out, *options, "--json")


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
