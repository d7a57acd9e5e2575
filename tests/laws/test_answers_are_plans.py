"""What `best` returns under any fixed and limited choices is a legal plan for `evaluate`, of the same price."""

import random

import pytest

import dsx
from dsx.errors import DsxError

SMALL = {
    "gpt3-5b": ["model.layers.1.count=2", "model.layers.1.count=6"],
    "llama-3-8b": ["model.layers.1.count=2", "model.layers.1.count=5"],
    "mixtral-8x7b": ["model.layers.1.count=2"],
}
FIXED = {
    "tp": (1, 2, 4), "pp": (1, 2, 3, 4), "microbatch_size": (1, 2), "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "full", "selective"), "schedule": ("1f1b", "zb-h1", "gpipe"), "vpp": (1, 2), "cp": (1, 2),
}  # fmt: skip
LIMITS = ("pp>=3", "pp>=2", "tp<=2", "dp<=4", "nvs.tp>=2", "nvs.dp<=2", "vpp>=2", "microbatch_size>=2", "cp>=2")


pytestmark = pytest.mark.usefixtures("quiet")


def check(seed):
    """Return how many plans an answer of a random question has, each of which is evaluated."""
    rng = random.Random(seed)
    model = rng.choice(sorted(SMALL))
    cluster, num_gpus = rng.choice(["h100-nvs8", "gb200-nvl72"]), rng.choice([4, 6, 8, 12, 16, 20, 24, 40])
    job = dsx.Job(model, cluster, num_gpus, num_gpus * rng.choice([1, 2, 6]), 2048, set=[rng.choice(SMALL[model])])
    fix = {column: rng.choice(values) for column, values in rng.sample(sorted(FIXED.items()), rng.choice([0, 1, 2]))}
    limit, partition = rng.sample(LIMITS, rng.choice([0, 1, 2])), rng.choice(["even", "optimal"])
    try:
        found = dsx.best(job, 3, fix=fix, limit=limit, partition=partition)
    except DsxError:
        return 0  # no plan, or a value that none can have
    for plan, seconds in zip(found.plans, found.frame["step_time_s"], strict=True):
        alone = dsx.evaluate(job, plan, partition=partition)
        assert alone.reject == (), (job, fix, limit, plan)
        assert alone.step_time_s == pytest.approx(seconds, rel=1e-9), (job, fix, limit, plan)
    return len(found.plans)


def test_every_layer_that_an_even_cut_counts_may_be_a_stage():
    job = dsx.Job("llama-3-8b", "h100-nvs8", 8, 16, set=["model.layers.1.count=2"])
    found = dsx.best(job, 1, fix="zero_stage=1 recompute=none", limit="pp>=3", strategy="1d", partition="even")
    assert dsx.evaluate(job, found.plans[0]).step_time_s == pytest.approx(found.frame["step_time_s"][0], rel=1e-9)


@pytest.mark.slow
def test_answers_to_any_question_are_plans():
    assert sum(check(seed) for seed in range(100, 116)) > 10
