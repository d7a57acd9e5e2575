"""``--limit`` of ``dsx best`` and ``dsx partition``."""

import json

import pytest

JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
# One strategy, and one value of what no limit here is about.
FEW = ("--strategy", "1d", *("--fix", "schedule=1f1b"), *("--fix", "zero_stage=1"), *("--fix", "recompute=none"))


def test_limits_are_repeated(run, folder):
    done = run("best", *JOB, *FEW, "--limit", "tp<=4", "--limit", "tp>=2", "--limit", "microbatch_size<8", "--json")
    data = json.loads(done.out)
    assert data["limit"] == {"tp": ["<=4", ">=2"], "microbatch_size": ["<8"]}
    assert {plan["plan"]["tp"] for plan in data["plans"]} <= {2, 4}
    said = run("best", *JOB, *FEW, "--limit", "tp<=4", "--fix", "pp=2").out.splitlines()
    assert "only schedule=1f1b zero_stage=1 recompute=none pp=2; limit tp<=4" in said


def test_limits_of_a_partition(run, folder):
    job = (*JOB, "--strategy", "1d", "pp=2,4", "zero_stage=1", "--limit", "pp>2")
    done = run("partition", *job, "--json")
    data = json.loads(done.out)
    assert (data["plan"]["pp"], data["limit"]) == (4, {"pp": [">2"]})
    assert "\nonly pp=2,4 zero_stage=1; limit pp>2\n" in run("partition", *job).out


@pytest.mark.parametrize("verb", ["best", "partition"])
@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("tpp<=8", "unknown candidate column 'tpp'; did you mean 'tp'?"),
        ("tp", "'tp' is not a limit, such as 'tp<=8'; in a shell it needs quotes, since < and > redirect"),
        ("1<=tp<=8", "give two limits, 'tp>=1' and 'tp<=8'"),
        ("schedule<=1", "'schedule' holds names"),
    ],
)
def test_bad_limits(run, folder, verb, limit, says):
    done = run(verb, *JOB, "--limit", limit)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", ["best", "partition"])
def test_limits_that_leave_nothing(run, folder, verb):
    done = run(verb, *JOB, "--limit", "tp>=16")
    assert done.code == 3
    assert (
        "the command: tp >= 16: tp divides num_gpus and obeys the rules of a searched strategy; nearest: tp = 8"
        in done.err
    )


def test_a_limit_against_a_fixed_choice(run, folder):
    done = run("best", *JOB, "--fix", "tp=8", "--limit", "tp<=4")
    assert (done.code, done.out) == (2, "")
    assert "limit: tp<=4 contradicts the fixed tp=8: leave out one of the two" in done.err


def test_a_table_of_layers_has_no_columns(run, folder):
    done = run("partition", "--instance", "x.json", "--network", "n.json:n", "--devices", 2, "--limit", "tp<=4")
    assert done.code == 2
    assert "--limit does not go with --instance" in done.err


@pytest.mark.parametrize(
    ("fix", "says"),
    [
        (
            "recompute=ful",
            "recompute = 'ful' is not known; did you mean 'full'? (known: none, selective, full, or",
        ),
        ("zero_stage=4", "zero_stage = 4 must be one of 0, 1, 2, 3"),
        ("tp=3", "tp=3 does not divide num_gpus=8; nearest: tp=2"),
        ("microbatch_size=0", "microbatch_size must be a whole number of at least 1"),
    ],
)
def test_values_that_no_plan_can_be_fixed_to(run, folder, fix, says):
    done = run("best", *JOB, "--fix", fix)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
