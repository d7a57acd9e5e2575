"""The command line that others are written against: text, exit codes, what goes where."""

import json
import re

import pytest

from dsx.plans.choices import CODES, JOINED, SEARCHED_COLUMNS
from dsx.plans.rules import DEGREES

# The paper's optimum for GPT3-1T on 16384 B200 in domains of eight, 1d.
JOB = ("--model", "gpt3-1t", "--cluster", "b200-nvs8", "--num-gpus", 16384, "--global-batch-size", 4096)
OPTIMUM = (
    *("evaluate", *JOB, "--assumptions", "paper-2410.00273", "--strategy", "1d"),
    *("tp=8", "pp=64", "dp=32", "microbatch_size=1", "nvs.tp=8"),
)
SMALL = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
FEW = ("--strategy", "1d", "--fix", "zero_replicas=1", "--fix", "stored_layers=0", "--fix", "offload=none")


def test_evaluate_for_people_with_uncalibrated_assumptions_and_overflows(run, folder):
    done = run(*OPTIMUM)
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "gpt3-1t on 16384 x b200-nvs8, 1d: tp=8 pp=64 dp=32 microbatch_size=1 nvs.tp=8"
    assert lines[1] == "4,096 sequences of 2,048 tokens, 8,388,608 tokens a step"
    assert "step_time_s 3.23 s 100.0 %" in lines
    assert "peak_bytes 64.0 GB 100.0 %" in lines
    assert lines[-1] == "fits, and breaks no rule"
    assert "\n\n\n" not in done.out
    # Uncalibrated assumptions are said on stderr.
    done = run("best", *SMALL, *FEW, "--top", 1, "--json", "--assumptions", "uncalibrated")
    assert "assumption set 'uncalibrated' is not calibrated yet" in done.err
    assert len(json.loads(done.out)["plans"]) == 1
    # A plan that overflows is still printed.
    done = run("evaluate", *SMALL, "dp=8", "--set", "cluster.device.matrix_flops=1e-300 FLOP/s")
    assert done.code == 0
    assert "nan" not in done.out
    assert ["step_time_s", "-", "-"] in [line.split() for line in done.out.splitlines()]


def test_rejected_plans_are_priced_and_exit_3(run, folder):
    done = run("evaluate", *SMALL, "tp=8", "nvs.tp=4", "--set", "cluster.device.hbm_capacity=1 MB", "--json")
    data = json.loads(done.out)
    assert done.code == 3
    assert done.err.splitlines() == [
        "dsx: device B200 states no num_sms: every wave of tiles is taken as full",
        "dsx: cluster.device.hbm_capacity is 1.00 MB: packaged clusters have 17.2 GB to 309 GB",
        "dsx: error: the plan is rejected: memory, domain_not_filled",
    ]
    assert (data["fits"], data["reject"]) == (False, ["memory", "domain_not_filled"])
    assert data["step_time_s"] > 0
    done = run("evaluate", *SMALL, "tp=8", "nvs.tp=4", "--set", "cluster.device.hbm_capacity=1 MB")
    assert done.code == 3
    assert "rejected:\n  memory: " in done.out
    # It breaks a rule, though it fits.
    assert run("evaluate", *SMALL, "tp=8", "nvs.tp=4").code == 3
    assert run("evaluate", *SMALL, "tp=8", "nvs.tp=8").code == 0


def test_help_has_every_choice_of_a_plan(run, folder):
    words = set(re.findall(r"[\w-]+", run("evaluate", "--help").out))
    assert {*SEARCHED_COLUMNS, *DEGREES, "panels", "microbatch_size"} <= words
    assert {part for names in CODES.values() for name in names for part in name.split(JOINED)} <= words
    assert {*SEARCHED_COLUMNS} - {"ep"} <= set(re.findall(r"\w+", run("best", "--help").out))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "candidates", "says"),
    [
        (
            (*FEW, "--set", "cluster.device.hbm_capacity=1 kB"),
            True,
            "candidates fits: the one that needs least memory needs",
        ),
        (("--sequence-length", 1, "--strategy", "2d"), False, "no candidate: the rules of 2d"),
    ],
)
def test_best_where_nothing_is_feasible(run, folder, arguments, candidates, says):
    done = run("best", *SMALL, *arguments, "--json")
    data = json.loads(done.out)
    assert done.code == 3
    assert (data["candidates"] > 0, data["feasible"], data["plans"]) == (candidates, 0, [])
    assert says in done.err
    done = run("best", *SMALL, *arguments)
    assert (done.code, done.out) == (3, "")
    assert says in done.err


def test_pareto(run, swept, tmp_path):
    people = run("pareto", swept, "--objective", "num_gpus", "--objective", "-mfu", "--plot", tmp_path / "a.svg")
    assert people.err == f"dsx: wrote {tmp_path / 'a.svg'}\n"
    assert people.out.splitlines()[0].split() == ["num_gpus", "mfu", "global_batch_size", "strategy", "plan"]


def test_pareto_of_nothing_feasible(run, nothing_fits, tmp_path):
    done = run("pareto", nothing_fits, "--json", "--plot", tmp_path / "a.png")
    assert done.code == 3
    assert json.loads(done.out)["plans"] == []
    assert "no front: none of the" in done.err
    assert (tmp_path / "a.png").stat().st_size > 0
    assert run("pareto", nothing_fits).out == ""
