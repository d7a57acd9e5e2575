"""Plans that need no more nodes than their GPUs fill: those of the whole space that the nodes of each plan leave."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from laws.spaces import hardware, on, problem_of

import dsx
from dsx.launching.hosts import other_placement
from dsx.plans.enumerate import SearchedCodes, take
from dsx.plans.placement import ORDERS, axes_in, numbered_shares, partly_filled
from dsx.search.fastest import spaces_of
from dsx.tables.plans import nodes_in_part

JOB = dsx.Job("llama-3-8b", "h100-nvs8", 20, 40)
FIX = {"pp": 1, "cp": 1, "strategy": "1d", "offload": "none", "zero_stage": 2, "recompute": "none"}


def plans(space):
    """Every plan of a space as (tp, cp, pp, dp, their shares, order, microbatch size)."""
    keys, choices = space.blocks.rows(0, space.size)
    table = take(space.keys, keys) | choices
    axes = ("tp", "cp", "pp", "dp")
    names = (*axes, *(f"{axis}_nvs" for axis in axes), "order", "microbatch_size")
    return {tuple(int(one) for one in row) for row in np.stack([table[name] for name in names], axis=1)}


def in_part(plan, size, node):
    axes = ("tp", "cp", "pp", "dp")
    degrees = {**dict(zip(axes, plan[:4], strict=True)), "tp2": 1}
    shares = {**dict(zip(axes, plan[4:8], strict=True)), "tp2": 1}
    order = axes_in(ORDERS[plan[8]])
    return partly_filled({axis: degrees[axis] for axis in order}, {axis: shares[axis] for axis in order}, size, node)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("num_gpus", "size", "some"), [(20, 8, True), (24, 8, True), (36, 16, True), (32, 8, False), (48, 24, True)]
)
def test_the_spaces_that_fill_nodes_have_the_plans_that_do(num_gpus, size, some):
    problem = on(problem_of("default", ("1d", "2d")), hardware(fast_size=size, hbm_capacity=1e13))
    whole = spaces_of([problem], num_gpus, 2 * num_gpus, {})
    filling = whole.as_launched
    assert problem.node_size == 8
    expected = {plan for plan in plans(whole.spaces[0]) if in_part(plan, size, 8) is None}
    assert plans(filling.spaces[0]) == expected
    assert (len(expected) < len(plans(whole.spaces[0]))) == some
    assert filling.counted.candidates == sum(space.size for space in filling.spaces) > 0


def in_order(plan, order):
    """Whether the shares of a plan are those of the first ranks of an order, or uneven, as only ranks in order are."""
    axes = ("tp", "cp", "pp", "dp")
    degrees, shares = ({**dict(zip(axes, plan[at : at + 4], strict=True)), "tp2": 1} for at in (0, 4))
    degrees = {axis: degrees[axis] for axis in axes_in(ORDERS[order])}
    uneven = any(degrees[axis] % shares[axis] for axis in degrees)
    return uneven or numbered_shares(degrees, math.prod(shares.values())) == shares


@pytest.mark.parametrize("num_gpus", [16, 20, 24])
def test_the_spaces_of_a_launcher_have_the_plans_whose_ranks_are_in_order(num_gpus):
    problem = on(problem_of("default", ("1d", "2d")), hardware(fast_size=8, hbm_capacity=1e13))
    problem = replace(problem, workload=replace(problem.workload, searched=SearchedCodes(order=(0, 1))))
    (whole,) = spaces_of([problem], num_gpus, 2 * num_gpus, {}).spaces
    found = plans(whole.placed(1, in_rank_order=True))
    assert all(in_order(plan, plan[8]) for plan in found)
    expected = [plan for plan in plans(whole) if any(in_order(plan, order) for order in (0, 1))]
    assert {plan[:8] + plan[9:] for plan in found} == {plan[:8] + plan[9:] for plan in expected}
    assert len(expected) < len(plans(whole))
    assert any(plan[8] for plan in found)  # where the first order does not lay them


@pytest.mark.parametrize("strategy", ["1d", "2d"])
@pytest.mark.parametrize(("num_gpus", "size"), [(24, 8), (36, 16), (32, 8)])
def test_plans_are_placed_as_launched_or_otherwise(strategy, num_gpus, size):
    problem = on(problem_of("default", (strategy,)), hardware(fast_size=size, hbm_capacity=1e13))
    problem = replace(problem, workload=replace(problem.workload, searched=SearchedCodes(order=(0, 1))))
    (whole,) = spaces_of([problem], num_gpus, 2 * num_gpus, {}).spaces

    def of(space):  # in any of the orders that make the same plan
        return Counter(plan[:8] + plan[9:] for plan in plans(space))

    for node_size, in_rank_order in ((8, False), (1, True), (8, True)):
        launched = whole.placed(node_size, in_rank_order)
        others = whole.placed(node_size, in_rank_order, otherwise=True)
        assert of(launched) + of(others) == of(whole)
        assert plans(others) <= plans(whole)
        assert launched.size + others.size == whole.size


@cache
def fastest_of_all():
    return dsx.best(JOB, fix=FIX, top=1)


@pytest.mark.slow
def test_an_answer_fills_its_nodes_where_measurements_do_not_tell():
    found = dsx.best(JOB, fix=FIX)
    assert (found.plan["tp"], found.plan["tp_nvs"] * found.plan["dp_nvs"]) in ((1, 8), (2, 8), (4, 8))
    listed = fastest_of_all()
    assert listed.plan["dp_nvs"] == 7
    assert found.faster_placement["plan"] == listed.plan
    assert listed.step_time_s < found.step_time_s < listed.step_time_s * (1 + JOB.assumptions.resolution)
    assert nodes_in_part(found.beyond.plan, found.problem) is None  # of another framework, compared alike
    assert found.to_data()["faster_placement"]["plan"]["dp_nvs"] == 7
    said = " ".join(str(found).split())
    assert "Another placement would take" in said
    assert "It takes 7 GPUs of each fast domain of 8, 6 of the last: of the 3 whole nodes of 8 that it needs" in said


@pytest.mark.slow
def test_jobs_that_are_ranked_have_the_plans_of_each_alone():
    """The table had the plan of the fewest seconds, on 7 + 7 + 6 GPUs."""
    several = dsx.several_jobs(JOB, [16, 20], fix=FIX)
    (of_20,) = (plan for plan in several.priced if plan["plan"]["num_gpus"] == 20)
    assert of_20["plan"] == dsx.best(JOB, fix=FIX).plan


@pytest.mark.slow
def test_placements_that_are_as_fast_are_not_named():
    """The leanest alone was placed by hand; the fastest was named beside itself, as 0.0 % faster."""
    job, fix = dsx.Job("llama-3-8b", "h100-nvs8", 16, 64), {"pp": [2, 4, 8], "offload": "none", "cp": 1}
    fix |= {"recompute": "none", "stored_layers": 0}
    found = dsx.best(job, framework="deepspeed", fix=fix)
    assert found.as_launched and found.faster_placement is None
    assert found.step_time_s == dsx.best(job, 1, framework="deepspeed", fix=fix).step_time_s
    assert "Another placement" not in str(found)
    assert "Of the plans placed as launched" in " ".join(str(found).split())
    assert not any(other_placement(plan) for plan in (found.fastest, found.simplest, found.leanest))
    # All of the reduction hides; dp as 67 + 67 + 66 on racks of 72 was said to take 0.0 % less.
    job = dsx.Job("gpt3-5b", "gb200-nvl72", 200, 200, 32768)
    fix = {"strategy": "1d", "tp": 1, "pp": 1, "recompute": "none", "zero_stage": 1, "zero_replicas": 1}
    found = dsx.best(job, framework="zero-bubble", fix=fix)
    listed = dsx.best(job, 1, framework="zero-bubble", fix=fix)
    by_hand = dsx.best(job, framework="zero-bubble", fix=fix | {"dp_nvs": 67})
    assert listed.plan["dp_nvs"] == found.plan["dp_nvs"] == 72 and by_hand.plan["dp_nvs"] == 67
    assert found.step_time_s == listed.step_time_s == by_hand.step_time_s
    assert found.as_launched and found.faster_placement is None
    # A plan that fills nodes in part says so.
    text = "of each fast domain of 8, 6 of the last: of the 3 whole nodes of 8 that it needs, 4 GPUs stay free"
    evaluated = dsx.evaluate(JOB, "dp=20 zero_stage=2 nvs.dp=7")
    only = dsx.best(JOB, fix=FIX | {"dp_nvs": 7})
    assert only.faster_placement is None and only.plan["dp_nvs"] == 7
    for answer in (evaluated, only, fastest_of_all()):
        assert text in " ".join(str(answer).split())
    assert "stay free" not in str(dsx.evaluate(JOB, "dp=20 zero_stage=2"))


@pytest.mark.slow
def test_plans_of_frameworks_and_racks():
    """The leanest had the four stages of a replica in a node, where DeepSpeed numbers replicas first."""
    found = dsx.best(dsx.Job("llama-3-8b", "h100-nvs8", 64, 512), framework="deepspeed")
    for plan in (found.fastest, found.simplest, found.leanest):
        assert other_placement(plan) == []
        assert not any(lost.startswith("the placement") for lost in found.launch("leanest").lost)
    # A job of whole racks is answered on these.
    found = dsx.best(RACKS, fix={"strategy": "1d", "ep": 8, "recompute": "full", "zero_stage": 1, "pp": [1, 3, 9]})
    for plan in (found.fastest, found.simplest, found.leanest):
        assert nodes_in_part(plan, found.problem) is None


RACKS = dsx.Job("deepseek-v3", "gb200-nvl72", 288, 2304)  # four of 72


def test_a_plan_that_takes_more_racks_says_so():
    in_part = dsx.evaluate(RACKS, "tp=2 ep=32 pp=3 dp=48 vpp=7 recompute=full nvs.dp=16 stage_layers=3*21")
    said = " ".join(str(in_part).split())
    assert "takes 32 GPUs of each fast domain of 72: of the 9 domains that it needs, 360 GPUs stay free" in said


@pytest.mark.slow
def test_a_set_says_which_of_its_plans_leave_gpus_free(tmp_path):
    fix = {"pp": 1, "dp": 20, "dp_nvs": [7, 8], "zero_stage": 2, "recompute": "none", "microbatch_size": 1}
    fix |= {"vpp": 1, "zero_replicas": 1, "stored_layers": 0, "offload": "none", "order": "tp-cp-ep-dp-pp"}
    job = {"model": "llama-3-8b", "cluster": "h100-nvs8", "num_gpus": 20, "global_batch_size": 40}
    swept = dsx.sweep(job | {"strategy": "1d", "fix": fix, "keep": "all"}, tmp_path / "set")
    taken = "takes 7 GPUs of each fast domain of 8, 6 of the last: of the 3 whole nodes of 8 that it needs, 4 GPUs stay"
    shown, reported = dsx.show(swept.folder), dsx.report(swept.folder)
    for answer in (shown, reported):
        number = 1 + next(at for at, plan in enumerate(answer.plans) if plan["dp_nvs"] == 7)
        said = " ".join(str(answer).split())
        assert f"{number} {taken} free" in said
        assert said.count(taken) == sum(plan["dp_nvs"] == 7 for plan in answer.plans)
    assert len(shown.plans) > 1 and f"{taken} free" in " ".join(reported.html.split())


@pytest.mark.slow
def test_a_list_begins_with_a_plan_that_is_launched_among_those_that_tie():
    job = dsx.Job("llama-3-70b", "h100-nvs8", 64, 256)
    fix = "tp=4 cp=1 pp=4 vpp=5 microbatch_size=1 zero_stage=1 recompute=none stored_layers=0 offload=optimizer"
    first, *_, by_hand = (found := dsx.best(job, 2, fix=fix)).plans
    assert not other_placement(first) and other_placement(by_hand)
    first_s, by_hand_s = found.frame["step_time_s"]
    assert by_hand_s < first_s < by_hand_s * 1.001
    assert "plans 1 and 2 tie: differences of up to 0.1 % count as equal; those launched" in " ".join(
        str(found).split()
    )
    (alone,) = dsx.best(job, 1, fix=fix).plans
    assert alone == first
