"""``dsx launch``, and ``dsx best --launch``."""

import json
import os
import stat

import pytest

MODEL = ("--model", "small.yaml", "--cluster", "h100-nvs8", "--num-gpus", 8, "--global-batch-size", 32)


def test_plans_and_rows_of_sets_are_written(run, folder):
    done = run("launch", *MODEL, "tp=2", "dp=4", "zero_stage=1", "-o", "here")
    assert (done.code, done.out.splitlines()[0]) == (0, "Megatron-LM: wrote here/launch.sh")
    printed = run("launch", *MODEL, "tp=2", "dp=4", "zero_stage=1")
    assert (folder / "here" / "launch.sh").read_text() in printed.out
    data = json.loads(run("launch", *MODEL, "tp=2", "dp=4", "zero_stage=1", "--json").out)
    assert data["files"]["launch.sh"] == (folder / "here" / "launch.sh").read_text()


def test_bad_input_is_said(run, folder):
    cases = {
        ("set",): "--candidate ID",
        ("tp=2",): "missing: --model, --cluster, --num-gpus, --global-batch-size",
        ("--candidate", 7): "give a result folder",
        (*MODEL, "dp=8", "--framework", "megatrom"): "did you mean 'megatron'",
        (*MODEL, "pp=2", "dp=4", "schedule=zb-h1", "zero_stage=1"): "schedule=zb-h1; nearest: schedule=1f1b",
        (*MODEL, "dp=8", "-o", ""): "has an empty name",
        (*MODEL, "tp=2", "dp=4", "nvs.tp=8"): "nvs.tp=8 does not divide tp=2; nearest: nvs.tp=2",
        ("set", "--candidate", 7, "--num-gpus", 16): "--num-gpus: a row of a result set has that of its sweep",
        ("set", "--candidate", 7, "--assumptions", "paper-2410.00273"): "--assumptions: a row of a result set",
        ("set", "--candidate", 7, "--set", "cluster.pue=1.2"): "--set: a row of a result set",
    }
    for words, message in cases.items():
        done = run("launch", *words)
        assert (done.code, done.out) == (2, ""), words
        assert message in done.err, words


def test_a_file_of_somebody_else_stays(run, folder):
    (folder / "theirs").mkdir()
    (folder / "theirs" / "launch.sh").write_text("echo mine\n")
    done = run("launch", *MODEL, "tp=2", "dp=4", "zero_stage=1", "-o", "theirs")
    assert (done.code, done.out) == (2, "")
    assert "theirs/launch.sh is there, and not written by dsx" in done.err
    assert (folder / "theirs" / "launch.sh").read_text() == "echo mine\n"
    done = run("best", *MODEL, "--launch", "theirs")
    assert done.code == 2 and "not written by dsx" in done.err


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "torchtitan", "deepspeed"])
def test_files_of_dsx_are_replaced(run, folder, framework):
    model = ("--model", "llama-3-8b", *MODEL[2:])
    plan = ("dp=8", f"zero_stage={1 if 'megatron' in framework else 2}", "--framework", framework)
    strategy = "1d-no-sp" if framework == "deepspeed" else "1d"
    for _ in range(2):
        done = run("launch", *model, *plan, "--strategy", strategy, "--partition", "even", "-o", framework)
        assert done.code == 0, done.err


def test_an_edited_file_is_replaced_with_a_word_and_modes_follow_the_umask(run, folder):
    write = ("launch", *MODEL, "tp=2", "dp=4", "zero_stage=1", "-o", "mine")
    before = os.umask(0o077)
    try:
        assert "other content" not in run(*write).err
    finally:
        os.umask(before)
    script = folder / "mine" / "launch.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    assert "other content" not in run(*write).err
    script.write_text(script.read_text() + "# edited\n")
    assert "mine/launch.sh had other content, and is replaced" in run(*write).err


@pytest.mark.parametrize(
    ("framework", "model", "cluster", "part"),
    [
        ("torchtitan", "gpt3-5b", "h100-nvs8", "layer norms: no model of TorchTitan has that"),
        ("megatron", "nemotron-h-8b", "h100-nvs8", "layers of the kind"),
        ("deepspeed", "llama-3-8b", "tpu-v5p", "programmed with xla"),
    ],
)
def test_a_job_that_a_framework_cannot_launch_is_said_before_its_search(
    run, folder, monkeypatch, framework, model, cluster, part
):
    monkeypatch.setattr("dsx.best", lambda *_, **__: pytest.fail("searched"))
    job = ("--model", model, "--cluster", cluster, "--num-gpus", 16, "--global-batch-size", 32)
    done = run("best", *job, "--framework", framework, "--launch", "here")
    assert done.code == 2
    assert f"cannot run any plan of {model}" in done.err
    assert part in done.err


def test_the_fastest_plan_is_written(run, folder):
    few = ("--strategy", "1d", "--fix", "pp=1", "--fix", "tp=1,2", "--fix", "zero_stage=1", "--fix", "recompute=none")
    few += ("--fix", "offload=none", "--partition", "even")
    done = run("best", *MODEL, *few, "--top", 1, "--launch", "here", "--json")
    plan = json.loads(done.out)["plans"][0]["plan"]
    assert f"--tensor-model-parallel-size {plan['tp']}" in (folder / "here" / "launch.sh").read_text()
    assert "wrote here/launch.sh" in done.err
