"""``dsx best``: launch flags that a shell takes, the width of a terminal, and which options belong together."""

import json
import re
import subprocess

import pytest

JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
ONE = (*JOB, "--strategy", "1d")  # each strategy takes a search of its own
FEW = ("--fix", "zero_replicas=1", "--fix", "stored_layers=0", "--fix", "offload=none")


def test_flags_can_be_pasted(run, folder):
    launch = json.loads(run("best", *ONE, *FEW, "--json", "--top", 1).out)["plans"][0]["launch"]["megatron_lm"]
    block = run("best", *ONE, *FEW, "--top", 1).out.partition("Megatron-LM flags of plan 1:\n")[2]
    flags, *rest = block.split("\ncannot be expressed: ")
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {flags}"], capture_output=True, text=True, check=True)
    assert words.stdout.split("\n")[:-1] == launch["flags"]
    assert [" ".join(line.split()) for line in rest] == launch["lost"]
    assert all(line.endswith(" \\") for line in flags.splitlines()[:-1])
    assert len(flags.splitlines()) > 1


@pytest.mark.parametrize("top", [(), ("--top", 20)], ids=["three", "list"])
def test_an_answer_fits_the_terminal(run, folder, top):
    text = (folder / "small.yaml").read_text()
    (folder / "wide.yaml").write_text(text.replace("count: 8", "count: 61").replace("small", "a-model-of-a-long-name"))
    layouts = ("--model", "wide.yaml", *ONE[2:], *FEW, "--fix", "pp=8", "--fix", "microbatch_size=1")
    said = run("best", *layouts, *top).out
    assert ("layers of stages: " in said or "stage_layers=" in said) and max(map(len, said.splitlines())) <= 100


@pytest.mark.slow
def test_a_search_leaves_room_for_errors_of_memory(run, folder):
    even = ("best", *ONE, *FEW, "--partition", "even")
    needed = json.loads(run(*even, "--json").out)["plans"][0]["peak_bytes"]
    capacity = f"cluster.device.hbm_capacity={1.05 * needed} B"
    tight = run(*even, "--set", capacity, "--memory-margin", "0", "--top", 1).out
    assert "plan 1 needs 95.2 % of the memory of a GPU and fits with a probability of" in tight
    assert re.search(r"^1 .* GB  \d\d %  ", tight, re.MULTILINE)
    wrong = run(*even, "--memory-margin", "-0.1")
    assert wrong.code == 2
    assert "'--memory-margin': -0.1 is not a share from 0 to 1, as 0.1 for 10 %" in wrong.err
    nothing = run(*even, "--set", "cluster.device.hbm_capacity=1 kB")
    least = re.search(r"needs least memory needs ([0-9.]+) ([GM]B)", nothing.err)
    assert least is not None
    for capacity, helps in (("1 MB", False), (f"{1.02 * float(least[1])} {least[2]}", True)):
        nothing = run(*even, "--memory-margin", "1", "--set", f"cluster.device.hbm_capacity={capacity}")
        assert nothing.code == 3
        assert "with the memory margin of 1, and a GPU has" in nothing.err
        assert ("no margin (--memory-margin 0)" in nothing.err) == helps
        assert nothing.err.count("states no num_sms") == 1


def test_options_of_one_job_and_of_several(run, folder):
    several = (*ONE[:4], *ONE[-2:], "--num-gpus", "8,16", "--global-batch-size", "32,64")
    for options, says in (
        ((*several, "--objective", "speed"), "unknown objective 'speed'"),
        ((*several, "--top", 3), "--top is about one job: give one of --num-gpus"),
        ((*several, "--train-tokens", "1T"), "one batch is wanted with --train-tokens"),
        ((*ONE, "--objective", "mfu"), "--objective is about several jobs"),
    ):
        done = run("best", *options)
        assert (done.code, done.out) == (2, "") and says in done.err
    nothing = run("best", *several, *FEW, "--partition", "even", "--set", "cluster.device.hbm_capacity=1 kB")
    assert nothing.code == 3 and "candidates fits" in nothing.err
