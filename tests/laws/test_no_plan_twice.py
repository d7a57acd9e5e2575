"""No two candidates of a space are the same plan: none costs what another with the same degrees costs, part by part."""

from collections import defaultdict

import numpy as np
import pytest
from laws.test_best_of_everything import DENSE, DIMENSIONS, EXPERTS, OF_EXPERTS, problem_for

from dsx.plans.choices import CHOICE_COLUMNS
from dsx.pricing.cuts import cost_columns
from dsx.pricing.keys import price_keys
from dsx.pricing.row_costs import Rows, price_rows
from dsx.search.spaces import Space

MODELS = {"dense": ({**DENSE, "count": 4}, DIMENSIONS), "experts": ({**EXPERTS, "count": 4}, DIMENSIONS | OF_EXPERTS)}
GIVEN = ("num_gpus", "global_batch_size", "num_microbatches", "pp", "dp", "pp_nvs", "dp_nvs")


@pytest.mark.parametrize("body", MODELS)
def test_no_candidate_costs_what_another_costs(body):
    layer, dimensions = MODELS[body]
    model = {"name": "small", "source": "a test", "default_sequence_length": 2048, "dimensions": dimensions}
    model["layers"] = [{"kind": "embedding"}, layer, {"kind": "head"}]
    problem = problem_for(model, {"hbm_capacity": 1e12, "fast_size": 2}, ["2d"])
    space = Space(problem, [4], [8], {"offload": ["none"]})
    positions, choices = space.blocks.rows(0, space.size)
    costs = price_rows(problem, price_keys(problem, space.keys), Rows(np.zeros_like(positions), positions, choices))
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
