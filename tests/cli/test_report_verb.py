"""``dsx report`` and ``dsx why`` of a row of a result set."""

import json

import pytest

from dsx.results.frames import read_manifest


def test_it_writes_a_page_of_a_plan_or_of_the_reasons_for_none(run, swept, tmp_path, nothing_fits):
    file = tmp_path / "report.html"
    done = run("report", swept, "-o", file)
    assert done.code == 0, done.err
    assert done.out.startswith("Which plan trains small fastest on 8 GPUs of b200-nvs8")
    assert f"wrote {file}" in done.err
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    data = json.loads(run("report", swept, "-o", file, "--json").out)
    assert data["plans"][0]["plan"]["num_gpus"] == 8
    assert data["rows"] == sum(part.rows for part in read_manifest(swept).parts)
    # A set without a plan has its reasons.
    file = tmp_path / "report.html"
    done = run("report", nothing_fits, "-o", file)
    assert done.code == 3
    assert "no row is feasible" in done.err
    text = file.read_text(encoding="utf-8")
    assert "No plan is feasible." in text
    assert f"{read_manifest(nothing_fits).counts.rejected['memory']:,}" in text
    # What the sweep was told is part of the command that runs it again.
    assert "--set &#x27;cluster.device.hbm_capacity=1 kB&#x27;" in text


def test_bad_input_is_said(run, swept, tmp_path):
    file = tmp_path / "report.html"
    for options, said in (
        (("--candidate", "7"), "no candidate '7'"),
        (("--hardware", "device.hbm_capacity=80 GB"), "--hardware"),
    ):
        done = run("report", swept, "-o", file, *options)
        assert done.code == 2
        assert said in done.err
        assert not file.exists()
    part = next(swept.glob("part-*"))
    for output, said in ((part, "is read by this command"), (tmp_path / "page.yaml", "name it ")):
        before = part.read_bytes()
        done = run("report", swept, "-o", output)
        assert (done.code, said in done.err) == (2, True), done.err
        assert part.read_bytes() == before and not (tmp_path / "page.yaml").exists()
    assert run("report", tmp_path / "none", "-o", file).code == 2
    for _ in range(2):  # the page may be in the folder of the set
        assert run("report", swept, "-o", swept / "report.html").code == 0
    (swept / "report.html").unlink()
    assert run("report", swept).code == 2


@pytest.fixture(scope="module")
def result_set(tmp_path_factory, command):
    """A result set whose sweep searches choices that are fixed in the assumption set."""
    from cli.conftest import MODEL, SWEEP

    place = tmp_path_factory.mktemp("searched")
    (place / "small.yaml").write_text(MODEL)
    fix = "fix: {zero_stage: [1, 3], recompute: [none, full], offload: [none, optimizer]}\n"
    (place / "sweep.yaml").write_text(SWEEP + fix)
    assert command("sweep", place / "sweep.yaml", "-o", place / "set") == 0
    return place / "set"


@pytest.mark.slow
def test_a_row_is_explained_with_the_choices_that_its_sweep_searched(run, result_set):
    import dsx

    rows = dsx.load(result_set)
    assert len(rows) > 8
    for _, row in rows.sample(5, random_state=1).iterrows():
        found = json.loads(run("why", result_set, row.candidate, "--json").out)
        assert found["plan"]["candidate"] == row.candidate
        for name in ("zero_stage", "recompute", "offload"):
            assert found["plan"][name] == row[name]
        assert found["step_time_s"] == pytest.approx(row.step_time_s, rel=1e-5)
        assert found["peak_bytes"] == pytest.approx(row.peak_bytes, rel=1e-5)
    # The fastest beside it is the fastest of all that the sweep searched.
    fastest = rows[rows.reject == 0].step_time_s.min()
    assert found["best"]["step_time_s"] == pytest.approx(fastest, rel=1e-5)
