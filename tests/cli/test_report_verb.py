"""``dsx report``: the page that it writes, and what it says of bad input."""

import json

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
