"""The bounds that decide which pipelines are looked at: none is above what a cut takes, and most are close."""

import jax
import numpy as np
from layer_table.chains import problem_of, random_case, tense_case
from oracles import partition as oracle

from dsx.layer_table.pipelines import pipelines
from dsx.layer_table.scans import fewest_parameters, first_bounds, machine_of


def test_no_cut_is_below_its_bound():
    close, fitting = 0, 0
    for seed in range(12):
        for case in (random_case(seed, most_layers=7), tense_case(seed)):
            chain, network, job, per_stage = case
            problem = problem_of(*case)
            found = pipelines(problem)
            with jax.enable_x64(True):
                machine = machine_of(problem)
                fewest = fewest_parameters(machine, found)
                bounds = first_bounds(problem, machine, found, fewest)
            by_stages = {}
            for layers in oracle.cuts(problem.num_layers):
                by_stages.setdefault(len(layers), []).append(layers)
            for row in range(0, len(bounds), 7):
                plan = {
                    "per_stage": per_stage,
                    "replicas": int(found.num_replicas[row]),
                    "zero": int(found.zero_stage[row]),
                    "recompute": bool(found.recomputed[row]),
                }
                some = by_stages[int(found.num_stages[row])]
                priced = [oracle.price(chain, network, job, plan | {"layers": layers}) for layers in some]
                times = [cost[0] for cost in priced if cost]
                if times:
                    assert bounds[row] <= min(times) * (1 + 1e-12), (seed, plan)
                    fitting += 1
                    close += min(times) < 1.2 * bounds[row]
    assert fitting > 300
    assert close > 0.5 * fitting


def test_the_fewest_parameters_of_the_fullest_stage():
    case = tense_case(3)
    problem = problem_of(*case)
    found = pipelines(problem)
    with jax.enable_x64(True):
        fewest = fewest_parameters(machine_of(problem), found)
    for num_stages in np.unique(found.num_stages).tolist():
        sums = [
            max(map(sum, np.split(np.array(case[0]["parameters"]), np.cumsum(layers)[:-1])))
            for layers in oracle.cuts(problem.num_layers)
            if len(layers) == num_stages
        ]
        assert set(fewest[found.num_stages == num_stages].tolist()) == {float(min(sums))}
