"""A training run: the plan of each number of GPUs is that of `dsx.best`, and the answer says what it costs."""

import math

import pytest
from verbs.small import MODEL

import dsx
from dsx.errors import InputError, NothingFeasible
from dsx.results.ranked_by import Goal
from dsx.verbs.training_run import least_gpus

COUNTS = [8, 16, 32]
TOKENS = 2e9
ASSUMED = "paper-2410.00273"  # it fixes most choices, so that a search takes little time
PRICED = {"cluster.price": "3 USD/h", "cluster.device.power": "1 kW"}


@pytest.fixture(scope="module")
def job():
    return dsx.Job(MODEL, "b200-nvs8", 1, 32, assumptions=ASSUMED, set=PRICED)


@pytest.fixture(scope="module")
def run(job):
    return dsx.training_run(job, TOKENS, COUNTS)


def with_goal(run, deadline=None, budget=None):
    return dsx.TrainingRun(run.job, run.train_tokens, Goal(deadline, budget), run.answers)


def test_plans_of_a_training_run(job, run):
    assert [plan["num_gpus"] for plan in run.plans] == COUNTS
    alone = dsx.best(job.replace(num_gpus=16), 1)
    assert run.plans[1] == alone.plan
    assert run.priced[1]["step_time_s"] == alone.step_time_s
    # What a run takes is worked out.
    for plan in run.priced:
        steps = TOKENS / (32 * run.job.sequence_length)
        hours = steps * plan["step_time_s"] / 3600 * plan["plan"]["num_gpus"]
        assert plan["gpu_hours"] == pytest.approx(hours)
        assert plan["cost_usd"] == pytest.approx(3 * hours)
        assert plan["energy_kwh"] == pytest.approx(hours)
        assert plan["training_days"] == pytest.approx(hours / 24 / plan["plan"]["num_gpus"])
    # The frame has a row for each number.
    assert list(run.frame["num_gpus"]) == COUNTS
    assert run.frame.attrs["units"]["cost_usd"] == "USD"


def test_the_chosen_plan_and_what_is_late(run):
    days = [plan["training_days"] for plan in run.priced]
    tight = with_goal(run, deadline=(days[0] + days[1]) / 2)
    assert tight.plan["num_gpus"] in (16, 32)
    assert tight.best.plan == tight.plan
    first = str(tight).splitlines()
    assert first[0].endswith(f"USD/h: 2 B tokens, in {tight.goal.deadline_days:g} days")
    assert "the cheapest of those compared that is done in time" in first[3]
    assert "compared: 8, 16, 32 GPUs with a batch of 32;" in str(tight)
    assert sum("  late  " in line for line in first) == 1
    assert sum(line.startswith("*") for line in first) == 1
    assert max(map(len, first)) <= 100


def test_budgets_of_a_run(run, job):
    costs = sorted(plan["cost_usd"] for plan in run.priced)
    taken = with_goal(run, budget=costs[1]).chosen
    affordable = [plan for plan in run.priced if plan["cost_usd"] <= costs[1]]
    assert taken["training_days"] == min(plan["training_days"] for plan in affordable)
    # A budget needs a price.
    unpriced = dsx.Job(MODEL, "b200-nvs8", 1, 32, assumptions=ASSUMED)
    says = "--budget 5M: cost_usd is asked for, and cluster 'b200-nvs8' states no price: give --set cluster.price="
    with pytest.raises(InputError, match=says):
        dsx.training_run(unpriced, TOKENS, COUNTS, budget="5M")
    # Without a price gpu hours decide.
    run = dsx.training_run(unpriced, "2B", 8, deadline="1 days")
    assert run.chosen is not None and math.isnan(run.chosen["cost_usd"])
    assert run.to_data()["paid_in"] == "gpu_hours"
    assert "\nthe cluster states no price: --set cluster.price=" in str(run)
    assert "\nfailures and checkpoints are not counted: the cluster states no failures\n" in str(run)


def test_a_goal_that_nothing_meets_says_what_comes_nearest(run):
    late = with_goal(run, deadline=1e-6)
    assert late.chosen is None
    quickest = min(plan["training_days"] for plan in run.priced)
    assert late.infeasible.startswith("no plan on 8 to 32 GPUs trains 2 B tokens in 1e-06 days; the fastest takes ")
    assert f"{quickest:.2f} days" in late.infeasible
    with pytest.raises(NothingFeasible, match="the fastest takes"):
        _ = late.plan
    dear = with_goal(run, budget=1e-3)
    assert "for at most 0.001 USD; the cheapest takes " in dear.infeasible
    both = with_goal(run, deadline=quickest * 1.0001, budget=min(plan["cost_usd"] for plan in run.priced) * 1.0001)
    assert both.chosen is not None or "the cheapest in time takes" in both.infeasible
    assert late.to_data()["chosen"] is None and len(late.to_data()["plans"]) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"train_tokens": "15 X"}, "--train-tokens: '15 X': unknown suffix 'X'"),
        ({"train_tokens": 0}, "--train-tokens: 0 is not above zero"),
        ({"train_tokens": None}, "--train-tokens: a number of tokens is wanted"),
        ({"deadline": "60"}, "--deadline: '60' is no time with its unit"),
        ({"deadline": "0 d"}, "--deadline: 0 d is not above zero"),
        ({"deadline": "soon"}, "--deadline: 'soon' is no time with its unit, as in '60 days'"),
        (
            {"deadline": "8 weeks"},
            "--deadline: '8 weeks' is no time with its unit, as in '60 days' or '48 h' (known: s,",
        ),
        ({"deadline": "60d 12h"}, "or '48 h' (known: s, min, h, d, day, days)"),
        ({"deadline": "0 Days"}, "--deadline: 0 Days is not above zero"),
        ({"budget": "-5M"}, "--budget: -5M is not above zero"),
        ({"num_gpus": []}, "num_gpus: an empty list"),
        ({"num_gpus": [8, 0]}, "num_gpus: 0 is not a whole number from 1"),
        ({"num_gpus": "8,16"}, "num_gpus: '8,16' is not a whole number, as in 512"),
        ({"train_tokens": 1e30, "num_gpus": None}, "at the peak of their data sheet they need"),
    ],
)
def test_a_fault_names_value_and_rule(job, options, says):
    with pytest.raises(InputError) as caught:
        dsx.training_run(job, **{"train_tokens": TOKENS, "num_gpus": COUNTS} | options)
    assert says in str(caught.value)


@pytest.mark.slow
def test_default_numbers_watchers_and_pictures(job, run, tmp_path):
    problem, device = job.problem(), job.cluster.device
    least = least_gpus(problem, device, 1e15, 10.0)
    flops = 3 * problem.workload.forward_flops * 1e15 / job.sequence_length
    assert flops / (least * device.matrix_flops) <= 10 * 86400 < flops / ((least - 1) * device.matrix_flops)
    found = dsx.training_run(job, TOKENS, deadline="30 days", fix="tp=1 pp=1")
    assert [one.job.num_gpus for one in found.answers] == [8, 16, 32, 64, 128]
    # A watcher is told of each number.
    told = []
    dsx.training_run(job, TOKENS, [16, 8], strategy="1d", partition="even", watch=lambda *seen: told.append(seen))
    assert told == [(1, 2, "numbers of GPUs"), (2, 2, "numbers of GPUs")]
    # The picture is drawn.
    with_goal(run, deadline=1.0).draw(tmp_path / "cost.png")
    assert (tmp_path / "cost.png").stat().st_size > 5000


@pytest.mark.slow
def test_failures_of_a_run(job, run):
    failing = job.replace(set={"cluster.failures": "{mtbf: 0.01 h, restart: 10 min, checkpoint: 1 min}"})
    found = dsx.training_run(failing, "2B", [8])
    assert not found.priced and found.chosen is None
    assert "on 8 GPUs less than 1 % of its time: one of 8 fails every 4.50 s" in found.infeasible
    # The numbers on which a job fails all the time are said.
    failing = job.replace(set={"cluster.failures": "{mtbf: 1 h, restart: 10 min, checkpoint: 10 s}"})
    found = dsx.training_run(failing, "2B", [8, 32])
    assert [one["plan"]["num_gpus"] for one in found.priced] == [8]
    assert "failures leave a job on 32 GPUs less than 1 % of its time" in str(found)
    # Failures are in the days.
    failing = job.replace(set={"cluster.failures": "{mtbf: 100 h, restart: 10 min, checkpoint: 1 min}"})
    found = dsx.training_run(failing, TOKENS, 8)
    kept = found.chosen["goodput"]
    assert 0 < kept < 1
    assert found.chosen["training_days"] == pytest.approx(run.priced[0]["training_days"] / kept)
    assert "failures and checkpoints take" in str(found)
