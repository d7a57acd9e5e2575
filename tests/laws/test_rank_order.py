"""What a launcher does is a plan: ranks in order on fast domains of any size, which groups fill unevenly or not at all.

The best of a search is never slower than such a plan. A larger domain never makes the best slower, nor a plan whose
groups it holds as the smaller one did.
"""

import math
import random
from functools import cache
from itertools import pairwise

import pytest
from laws.spaces import hardware, on, problem_of
from priced import evaluate_plan

import dsx
from dsx.plans.placement import ORDERS
from dsx.pricing.one_plan import PricedPlan, price_plan
from dsx.search.spaces import Space
from dsx.search.sweep import search_of

AXES = {"1d": ("tp",), "2d": ("tp", "cp")}
GPUS, DOMAINS = (12, 20, 24, 48, 72, 96, 288), (4, 8, 16, 64, 72)
JOBS = [(strategy, gpus, domain) for strategy in AXES for gpus in GPUS for domain in DOMAINS]
# So much memory that the rules of plans alone decide.
CAPACITY = 1e13


@cache
def problem(strategy, domain):
    return on(problem_of("default", (strategy,)), hardware(fast_size=domain, hbm_capacity=CAPACITY))


@cache
def best_s(strategy, num_gpus, domain):
    """The step time of the best plan, and its price by itself."""
    found = problem(strategy, domain)
    space = Space(found, [num_gpus], [2 * num_gpus])
    rows, _ = search_of(found, space, space.table(found)).best(1, ())
    return float(rows["step_time_s"][0])


def divisor(rng, number):
    return rng.choice([one for one in range(1, number + 1) if number % one == 0])


def in_rank_order(rng, strategy, num_gpus, domain) -> PricedPlan:
    """A random plan whose ranks are in order, which may break rules."""
    degrees, left = {}, num_gpus
    for axis in rng.sample([*AXES[strategy], "pp"], len(AXES[strategy]) + 1):
        degrees[axis] = divisor(rng, left) if rng.random() < 0.7 else 1
        left //= degrees[axis]
    settings = [f"{axis}={degree}" for axis, degree in (degrees | {"dp": left}).items()]
    settings.append(f"microbatch_size={divisor(rng, 2 * num_gpus // left)}")
    settings.append(f"order={rng.choice(ORDERS)}")
    return evaluate_plan(problem(strategy, domain), settings, num_gpus, 2 * num_gpus)


@pytest.mark.slow
def test_the_best_is_never_slower_than_ranks_in_order_of_any_job():
    legal = uneven = 0
    for strategy, num_gpus, domain in [*JOBS[::3], ("1d", 20, 8), ("1d", 48, 64)]:
        rng, longest = random.Random(f"{strategy} {num_gpus} {domain}"), best_s(strategy, num_gpus, domain)
        for _ in range(50):
            try:
                plan = in_rank_order(rng, strategy, num_gpus, domain)
            except Exception as error:
                assert "leaves stages without a layer" in str(error)
                continue
            shares = [(plan.plan[axis], plan.plan[f"{axis}_nvs"]) for axis in ("tp", "cp", "pp", "dp")]
            assert math.prod(share for _, share in shares) <= domain, plan.plan.text
            assert all(share <= degree for degree, share in shares), plan.plan.text
            placed = {"share_not_divisible", "domain_exceeded", "domain_not_filled", "expert_share_not_nested"}
            assert not placed & {one.reason.name for one in plan.broken}, plan.plan.text
            if plan.broken:
                continue
            legal += 1
            uneven += any(degree % share for degree, share in shares)
            assert longest <= plan.costs["step_time_s"] * (1 + 1e-9), (domain, plan.plan.text)
    assert legal > 500
    assert uneven > 100


@pytest.mark.slow
@pytest.mark.parametrize("strategy", AXES)
@pytest.mark.parametrize("num_gpus", [20, *GPUS[::3]])
def test_a_larger_domain_never_slows_the_best_of_any_job(strategy, num_gpus):
    times = [best_s(strategy, num_gpus, domain) for domain in sorted({*DOMAINS, 5, 6, 12, 20, 36})]
    for smaller, larger in pairwise(times):
        assert larger <= smaller * (1 + 1e-9), times


@pytest.mark.slow
def test_a_multiple_of_a_domain_never_slows_ranks_in_order():
    rng, compared = random.Random(1), 0
    for num_gpus in (24, 48, 96):
        for _ in range(12):
            try:
                plan = in_rank_order(rng, "2d", num_gpus, 4)
            except Exception as error:
                assert "leaves stages without a layer" in str(error)
                continue
            shares = {axis: plan.plan[f"{axis}_nvs"] for axis in ("tp", "cp", "pp", "dp")}
            if any(plan.plan[axis] % share for axis, share in shares.items()):
                continue  # groups begin at other places in the larger domain
            settings = [part for part in plan.plan.text.split() if not part.startswith("nvs.")]
            larger = evaluate_plan(problem("2d", 8), settings, num_gpus, 2 * num_gpus)
            if any(larger.plan[axis] % larger.plan[f"{axis}_nvs"] for axis in shares):
                continue
            compared += 1
            assert larger.costs["step_time_s"] <= plan.costs["step_time_s"] * (1 + 1e-9), plan.plan.text
    assert compared > 10


@pytest.mark.slow
def test_what_a_search_returns_is_priced_the_same_by_itself():
    for strategy, num_gpus, domain in JOBS[3::25]:
        found = problem(strategy, domain)
        space = Space(found, [num_gpus], [2 * num_gpus])
        rows, _ = search_of(found, space, space.table(found)).best(5, ())
        for row in range(len(rows["candidate"])):
            shares = [f"nvs.{axis}={rows[f'{axis}_nvs'][row]}" for axis in ("tp", "cp", "pp", "dp")]
            degrees = [f"{axis}={rows[axis][row]}" for axis in ("tp", "cp", "pp", "dp", "microbatch_size")]
            alone = evaluate_plan(
                found, [*degrees, *shares, f"order={ORDERS[rows['order'][row]]}"], num_gpus, 2 * num_gpus
            )
            assert price_plan(found, alone.plan).broken == alone.broken == ()
            assert alone.costs["step_time_s"] == pytest.approx(rows["step_time_s"][row], rel=1e-12)


@pytest.mark.sampled(0)
@pytest.mark.parametrize(("num_gpus", "batch", "nearly_s"), [(20, 40, 1.95), (12, 24, 1.85)])
def test_a_last_host_of_fewer_gpus(num_gpus, batch, nearly_s):
    job = dsx.Job("llama-3-8b", "h100-nvs8", num_gpus=num_gpus, global_batch_size=batch)
    in_order = dsx.evaluate(job, tp=4, dp=num_gpus // 4)
    assert (in_order.plan["tp_nvs"], in_order.plan["dp_nvs"], in_order.reject) == (4, 2, ())
    assert in_order.step_time_s < 1.1 * nearly_s
    assert dsx.best(job, fix={"tp": 4}, top=1).frame["step_time_s"].min() <= in_order.step_time_s
