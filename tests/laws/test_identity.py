"""Ids of plans: unique, stable, and no plan under two."""

from collections import defaultdict

import numpy as np
import pytest
from laws.spaces import candidates_of, hardware, on, problem_of
from laws.test_best_of_everything import DENSE, DIMENSIONS, EXPERTS, OF_EXPERTS, problem_for
from validation.cases import STRATEGIES, reference_problem

from dsx.plans.choices import CHOICE_COLUMNS
from dsx.pricing.cuts import candidate_columns, cost_columns
from dsx.pricing.row_costs import Rows, price_rows
from dsx.search.spaces import Space


def rows_of(problem, num_gpus, batches):
    space = Space(problem, num_gpus, batches)
    return candidate_columns(problem, space.keys, *candidates_of(space))


def by_name(problem, rows):
    """{all choices with the strategy by name: id}"""
    names = np.array(problem.strategies)[rows["strategy"]].tolist()
    others = [column.tolist() for name, column in rows.items() if name not in ("strategy", "candidate")]
    return dict(zip(zip(names, *others, strict=True), rows["candidate"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("num_gpus", "least"),
    [((768, 2048), 100_000), pytest.param((512, 1024, 2048, 4096, 8192, 16384), 1_000_000, marks=pytest.mark.slow)],
)
def test_ids_are_unique(num_gpus, least):
    problem = reference_problem("gpt3_1T", "B200", 8, "summa")
    ids = rows_of(problem, num_gpus, (1536, 2048, 3072, 4096))["candidate"]
    assert len(ids) > least
    assert len(np.unique(ids)) == len(ids)
    assert (ids >= 0).all()
    assert ids.dtype == np.int64


def test_ids_are_those_that_are_known_whatever_is_assumed():
    problem = problem_of("default")
    other = problem_of("paper-2410.00273")
    part = by_name(other, rows_of(other, (12,), (24,)))  # it has no uneven placements
    assert part
    assert part.items() <= by_name(problem, rows_of(problem, (12,), (24,))).items()
    # Stored results join on these: a change of the hash makes them unreadable beside new ones.
    problem = problem_of("default", ("1d",))
    rows = rows_of(problem, (1,), (2,))
    assert rows["microbatch_size"].tolist() == [1, 2]
    assert rows["candidate"].tolist() == [2240942466397288060, 2103322904243814203]


def test_ids_do_not_depend_on_the_cluster_or_on_what_else_is_searched():
    problem = problem_of("default")
    whole = by_name(problem, rows_of(problem, (12, 24), (24, 48)))
    assert len(set(whole.values())) == len(whole)
    slower = on(problem, hardware(matrix_flops=1e13, hbm_capacity=1e9))
    assert by_name(slower, rows_of(slower, (12, 24), (24, 48))) == whole
    larger = on(problem, hardware(fast_size=11))  # as many members of a domain have work as in one of 8, laid evenly
    found = by_name(larger, rows_of(larger, (12, 24), (24, 48)))
    both = found.keys() & whole.keys()
    assert both
    assert {plan: found[plan] for plan in both} == {plan: whole[plan] for plan in both}
    for strategy in STRATEGIES:  # alone, a strategy has another code
        alone = problem_of("default", (strategy,))
        part = by_name(alone, rows_of(alone, (24,), (48,)))
        assert part
        assert part.items() <= whole.items()
    backwards = problem_of("default", STRATEGIES[::-1])
    assert by_name(backwards, rows_of(backwards, (12, 24), (24, 48))) == whole


MODELS = {"dense": ({**DENSE, "count": 4}, DIMENSIONS), "experts": ({**EXPERTS, "count": 4}, DIMENSIONS | OF_EXPERTS)}
GIVEN = ("num_gpus", "global_batch_size", "num_microbatches", "pp", "dp", "pp_nvs", "dp_nvs")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("body", MODELS)
def test_no_candidate_costs_what_another_costs(body):
    layer, dimensions = MODELS[body]
    layers = [{"kind": "embedding"}, layer, {"kind": "head"}]
    problem = problem_for((layers, dimensions), {"hbm_capacity": 1e12, "fast_size": 2}, ["2d"])
    space = Space(problem, [4], [8], {"offload": ["none"]})
    positions, choices = space.blocks.rows(0, space.size)
    costs = price_rows(problem, space.table(problem), Rows(np.zeros_like(positions), positions, choices))
    names = [name for name in CHOICE_COLUMNS if name not in GIVEN]
    chosen = np.stack([choices[name] for name in names], axis=1)
    alike = defaultdict(list)
    for row, cost in enumerate(np.stack([*cost_columns(costs).values()], axis=1)):
        given = (positions[row], *(int(choices[name][row]) for name in GIVEN))
        alike[(*given, *(f"{value:.12e}" for value in cost))].append(row)
    found = set()
    for rows in alike.values():
        if len(rows) > 1:
            differ = (chosen[rows] != chosen[rows[0]]).any(axis=0)
            found.add(tuple(name for name, other in zip(names, differ, strict=True) if other))
    assert len(alike) > 1000
    # ZeRO over a single rank shards nothing, but a framework may run it only so.
    assert found == {("zero_stage",), ("zero_stage", "zero_replicas")}
