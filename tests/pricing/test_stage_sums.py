"""Stages as sums over their layers cost what `StageCosts` says, under every schedule, ZeRO stage and offload."""

import numpy as np
import pytest
from laws.spaces import hardware, on
from pricing.test_cut_probe import CHAINS, EVERY
from pricing.test_optimal_cut import problem_of, rows_of, some

from dsx import arrays as xp
from dsx.cost.cut_bounds import first_stage, stage_bytes
from dsx.cost.stages import Stage, layers_between
from dsx.pricing.problem import stage_costs
from dsx.pricing.row_costs import plans_of

EXACT = 1e-12


def costs_of(chain):
    """The costs of the stages of some plans, and the length of their chain."""
    problem, _, where = rows_of(on(problem_of(CHAINS[chain]), hardware(hbm_capacity=1e12)), (12,), (24,), **EVERY)
    where = some(where, np.random.default_rng(2).permutation(len(where[1].positions))[:300])
    return stage_costs(*plans_of(problem, *where)), int(problem.workload.stack.num_layers)


@pytest.mark.parametrize("chain", CHAINS)
@xp.unchecked
def test_memory_and_what_a_first_stage_adds(chain):
    costs, length = costs_of(chain)
    found = stage_bytes(costs)
    none = np.zeros_like(costs.choices.pp)
    for begin, end in [(0, 1), (0, 2), (0, 5), (1, 2), (2, length - 1), (length - 2, length), (0, length)]:
        layers = layers_between(costs.stack, none + begin, none + end)
        for microbatches in (none, none + 1.0, none + 7.0):
            expected = costs.memory(Stage(none, layers, even=False), microbatches).peak_bytes
            sums = found.peak(layers, microbatches, costs.stack, costs)
            np.testing.assert_allclose(sums, expected, rtol=EXACT)
    # What a first stage adds.
    found = first_stage(costs)
    for end in (1, 2, 3, 5, length):
        layers = layers_between(costs.stack, none, none + end)
        expected = sum(costs.reduction_and_update_s(Stage(none, layers, even=False)))
        sums = found.added_s(layers, costs.stack)
        np.testing.assert_allclose(sums, expected, rtol=EXACT)
        assert (sums >= found.least_s).all()
