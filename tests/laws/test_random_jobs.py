"""Random jobs on every cluster, with plans in rank order beside `best`.

What a launcher lays out, one rank after the other, is legal, so no such plan that fits is faster than the best one; and
better hardware makes neither of them slower.
"""

import random

import pytest

import dsx
from dsx.errors import PlanError

MODELS = {
    "gpt3-5b": ["model.layers.1.count=6"],
    "llama-3-8b": ["model.layers.1.count=8"],
    "mixtral-8x7b": ["model.layers.1.count=4"],
    "qwen3-30b-a3b": ["model.layers.1.count=4"],
}
EXPERTS = {"mixtral-8x7b": 8, "qwen3-30b-a3b": 128}
CLUSTERS = dsx.names("clusters")
GPUS = (4, 6, 8, 12, 16, 20, 24, 32, 36, 40, 48, 64, 72, 80, 96, 128, 144)
STRATEGIES = ("1d", "2d", "2d-ring", "ulysses", "1d-no-sp")
EVERYONE = "any"  # frameworks price the same plan differently
SCHEDULES = ("1f1b", "1f1b", "1f1b", "gpipe", "zb-h1")
BETTER = {
    "cluster.device.hbm_capacity": (2.0, "B"),
    "cluster.device.hbm_bandwidth": (1.5, "B/s"),
    "cluster.device.matrix_flops": (1.5, "FLOP/s"),
    "cluster.device.vector_flops": (1.5, "FLOP/s"),
    "cluster.network.nvs.bandwidth": (1.5, "B/s"),
    "cluster.network.net.bandwidth": (1.5, "B/s"),
    "cluster.network.net.latency": (0.5, "s"),
}


pytestmark = pytest.mark.usefixtures("quiet")


def drawn_job(rng):
    model = rng.choice(sorted(MODELS))
    num_gpus = rng.choice(GPUS)
    batch = num_gpus * rng.choice([1, 2, 4])
    return dsx.Job(model, rng.choice(CLUSTERS), num_gpus, batch, 2048, set=MODELS[model])


def divisors(number):
    return [value for value in range(1, number + 1) if number % value == 0]


def drawn_plan(rng, job):
    """A plan whose ranks are placed in rank order: no tier's share is stated."""
    left = job.num_gpus
    degrees = {}
    for axis in ("tp", "cp", "pp"):
        degrees[axis] = rng.choice([value for value in divisors(left) if value <= 16])
        left //= degrees[axis]
    degrees["dp"] = left
    strategy = rng.choice(STRATEGIES)
    if experts := EXPERTS.get(job.model.name):
        degrees["ep"] = rng.choice([value for value in divisors(left * degrees["tp"]) if value <= experts])
    micro = rng.choice([value for value in divisors(max(job.global_batch_size // left, 1)) if value <= 4])
    choices = {
        "microbatch_size": micro,
        "zero_stage": rng.choice([0, 1, 1, 2, 3]),
        "recompute": rng.choice(["none", "none", "full"]),
        "schedule": rng.choice(SCHEDULES) if degrees["pp"] > 1 else "1f1b",
    }
    return strategy, degrees | choices


def legal_plans(rng, job, wanted, tries):
    """Return up to `wanted` plans in rank order that break no rule, with their seconds."""
    found = []
    for _ in range(tries):
        strategy, plan = drawn_plan(rng, job)
        try:
            priced = dsx.evaluate(job, plan, strategy=strategy, framework=EVERYONE)
        except PlanError:
            continue
        if not priced.reject:
            found.append((strategy, plan, priced.step_time_s))
        if len(found) == wanted:
            break
    return found


def best_of(job):
    """Return the fastest of all plans that dsx prices, over the choices that are drawn."""
    fix = {"zero_stage": [0, 1, 2, 3], "recompute": ["none", "full"], "schedule": ["1f1b", "gpipe", "zb-h1"]}
    fix |= {"stored_layers": 0, "zero_replicas": 1, "offload": "none", "vpp": 1}
    # The plans beside it fit without a margin.
    return dsx.best(job, 1, fix=fix, framework=EVERYONE, strategy=STRATEGIES, memory_margin=0.0)


def better(job, field, factor, unit):
    """Return the job on a cluster in which one field is better by a factor."""
    value = job.cluster
    for name in field.split(".")[1:]:
        value = getattr(value, name)
    return job.replace(set={field: f"{factor * value!r} {unit}"})


@pytest.mark.sampled(0, 10)
@pytest.mark.parametrize("seed", range(40))
def test_no_plan_in_rank_order_is_faster_than_the_best(seed):
    rng = random.Random(seed)
    job = drawn_job(rng)
    plans = legal_plans(rng, job, 25, 75)
    found = best_of(job)
    for strategy, plan, seconds in plans:
        assert found.step_time_s <= seconds * (1 + 1e-6), (job.cluster.name, job.num_gpus, strategy, plan)


@pytest.mark.sampled(0, 10)
@pytest.mark.parametrize("seed", range(40))
def test_better_hardware_never_makes_a_step_slower(seed):
    rng = random.Random(1000 + seed)
    job = drawn_job(rng)
    field, (factor, unit) = rng.choice(sorted(BETTER.items()))
    improved = better(job, field, factor, unit)
    before, after = best_of(job), best_of(improved)
    if len(before.frame):
        assert after.step_time_s <= before.step_time_s * (1 + 1e-6), (job, field)
    for strategy, plan, seconds in legal_plans(rng, job, 6, 24):
        again = dsx.evaluate(improved, plan, strategy=strategy, framework=EVERYONE)
        assert not again.reject
        assert again.step_time_s <= seconds * (1 + 1e-9), (job.cluster.name, field, strategy, plan)
