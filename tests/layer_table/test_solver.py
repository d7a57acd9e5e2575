"""The plan of dsx is the best of all plans, costs what it says, and is the one that ties ask for."""

import csv
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest
from layer_table.chains import plan_of, problem_of, random_case, tense_case
from oracles import partition as oracle

from dsx.layer_table import pipelines as from_instance
from dsx.layer_table.instance import read_instance
from dsx.layer_table.levels import read_network
from dsx.layer_table.solver import smallest, solve

DATA = Path(__file__).resolve().parent.parent / "data" / "partition"
SOLUTIONS = list(csv.DictReader((DATA / "solutions.csv").read_text(encoding="utf-8").splitlines()))
SETUPS = {"tpuv4": "tpuv4_fatTree", "h100": "h100_spineLeaf"}


def assert_is_best(made, case, **choices):
    chain, network, job, per_stage = case
    best = oracle.best(chain, network, job, per_stage, **choices)
    if best is None:
        assert made is None
        return
    least, stages, replicas = best
    assert made.step_time_s == pytest.approx(least, rel=1e-9)
    assert (len(made.stages), made.num_replicas) == (stages, replicas)
    again = oracle.price(chain, network, job, plan_of(made))
    assert again == pytest.approx((made.step_time_s, made.bottleneck_s), rel=1e-12)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(300))
def test_the_plan_is_the_best_of_all(seed):
    case = random_case(seed)
    assert_is_best(solve(problem_of(*case)), case)


@pytest.mark.parametrize("zero_stages", [(0,), (1,), (2,), (3,)])
@pytest.mark.parametrize("recompute", [(False,), (True,)])
def test_the_plan_is_the_best_of_some(zero_stages, recompute):
    choices = {"zero_stages": zero_stages, "recompute": recompute}
    for seed in range(1000, 1008):
        case = random_case(seed, most_layers=7)
        assert_is_best(solve(problem_of(*case, **choices)), case, **choices)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 3000))
def test_the_plan_is_the_best_of_all_again(seed):
    case = random_case(seed)
    assert_is_best(solve(problem_of(*case)), case)


def test_stages_are_what_they_cost():
    chain, network, job, per_stage = random_case(8)
    job = job | {"memory": 1e12, "batch": 4}
    made = solve(problem_of(chain, network, job, per_stage, zero_stages=(1,)))
    loads, fullest, _ = oracle.stages_of(chain, network, job, plan_of(made))
    assert [stage.load_s for stage in made.stages] == pytest.approx(loads, rel=1e-12)
    assert max(stage.memory_bytes for stage in made.stages) == pytest.approx(fullest, rel=1e-12)
    first = np.cumsum([0, *(stage.num_layers for stage in made.stages)])
    assert [stage.first_layer for stage in made.stages] == first[:-1].tolist()
    assert first[-1] == len(chain["forward"])
    for stage in made.stages:
        here = slice(stage.first_layer, stage.first_layer + stage.num_layers)
        assert stage.parameter_bytes == sum(chain["parameters"][here])


WITHOUT = {"zero_stages": (0,), "recompute": (False,)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(200))
def test_the_plan_is_the_best_where_parameters_pull_away(seed):
    case = tense_case(seed)
    assert_is_best(solve(problem_of(*case, **WITHOUT)), case, **WITHOUT)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_the_plan_is_the_best_where_zero_divides_parameters_that_pull_away(zero_stage):
    choices = {"zero_stages": (zero_stage,), "recompute": (False,)}
    for seed in range(40):
        chain, network, job, per_stage = tense_case(seed)
        # Synchronisation that a microbatch waits for is a part of the bottleneck here, not all of it.
        wider = network | {"bandwidth": [30 * width for width in network["bandwidth"]]}
        case = chain, wider, job, per_stage
        assert_is_best(solve(problem_of(*case, **choices)), case, **choices)


@pytest.mark.slow
def test_the_chains_are_not_all_easy():
    """Some fit nowhere, some need each ZeRO stage, and some a larger bottleneck than their pipeline could have."""
    made = [solve(problem_of(*random_case(seed))) for seed in range(300)]
    assert sum(one is None for one in made) > 10
    assert {one.zero_stage for one in made if one is not None} == {0, 1, 2, 3}
    bounded = 0
    for seed in range(200):
        chain, network, job, per_stage = tense_case(seed)
        made = solve(problem_of(chain, network, job, per_stage, **WITHOUT))
        if made is not None:
            others = (layers for layers in oracle.cuts(len(chain["forward"])) if len(layers) == len(made.stages))
            priced = [oracle.price(chain, network, job, plan_of(made) | {"layers": layers}) for layers in others]
            bounded += min(cost[1] for cost in priced if cost) < made.bottleneck_s * (1 - 1e-9)
    assert bounded > 3


def test_the_least_memory_of_all():
    for seed in range(40):
        chain, network, job, per_stage = random_case(seed, most_layers=7)
        made = smallest(problem_of(chain, network, job, per_stage))
        needed = oracle.least_memory(chain, network, job, per_stage)
        assert made.memory_bytes == pytest.approx(needed, rel=1e-12), seed
        assert solve(problem_of(chain, network, job | {"memory": needed * (1 - 1e-9)}, per_stage)) is None
        assert solve(problem_of(chain, network, job | {"memory": needed * (1 + 1e-9)}, per_stage)) is not None


def test_thirds_may_fill_a_device():
    chain = {"forward": [1.0], "backward": [1.0], "parameters": [61817860], "saved": [57928756], "cut": [0, 0]}
    network = {"devices": (3,), "bandwidth": [1e9], "latency": [0.0]}
    job = {"batch": 3, "optimizer": 0, "memory": 61817860 / 3 + 61817860 / 3 + 57928756}
    made = solve(problem_of(chain, network, job, 1))
    assert (made.zero_stage, made.num_replicas) == (3, 3)


def test_too_few_devices_for_a_stage():
    chain, network, job, _ = random_case(0)
    problem = problem_of(chain, network, job, prod(network["devices"]) + 1)
    assert (solve(problem), smallest(problem)) == (None, None)


@cache
def instance(name):
    return read_instance(str(DATA / f"{name}.json"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", SOLUTIONS, ids=lambda row: "-".join(list(row.values())[:5]))
def test_the_solutions_of_another_solver(row):
    machine = next(network for name, network in SETUPS.items() if name in row["instance"])
    problem = from_instance.problem_of(
        instance(row["instance"]).only(int(row["width"])),
        read_network(f"{DATA / 'networks.json'}:{machine}", int(row["devices"])),
        float(row["optimizer_factor"]),
        (0,),
        (row["recompute"] == "1",),
    )
    made = solve(problem)
    if row["t_step_s"] == "infeasible":
        assert made is None
        return
    expected = float(row["t_step_s"]), float(row["bottleneck_s"])
    assert (made.step_time_s, made.bottleneck_s) == pytest.approx(expected, rel=1e-6)
    assert (len(made.stages), made.num_replicas) == (int(row["stages"]), int(row["replicas"]))


def test_all_widths_together_are_as_good_as_the_best():
    table = instance("bert_tpuv4_mbs4")
    network = read_network(f"{DATA / 'networks.json'}:tpuv4_fatTree", 256)
    together = solve(from_instance.problem_of(table, network, 6.0, (0, 1, 2, 3), (False, True)))
    alone = [
        solve(from_instance.problem_of(table.only(one.width), network, 6.0, (0, 1, 2, 3), (False, True)))
        for one in table.tables
    ]
    best = min(alone, key=lambda made: made.step_time_s)
    assert together == best
