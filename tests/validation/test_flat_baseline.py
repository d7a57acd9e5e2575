"""The flat function that the benchmark compares with is the same cost model: it finds the plan that a search finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws.spaces import candidates_of, problem_of, space_of

from dsx.pricing.cuts import candidate_columns
from dsx.pricing.keys import price_keys
from dsx.pricing.row_costs import Rows, price_rows


@pytest.mark.slow
def test_the_flat_function_finds_the_best_plan(benchmark_script):
    problem, space = problem_of("paper-2410.00273", ("1d",)), space_of("paper-2410.00273", strategies=("1d",))
    positions, choices = candidates_of(space)
    columns = candidate_columns(problem, space.keys, positions, choices)
    rows = Rows(np.zeros_like(positions), positions, choices)
    costs = price_rows(problem, price_keys(problem, space.keys), rows)
    expected = np.where(costs.peak_bytes <= problem.cluster.device.hbm_capacity, costs.step_time_s, np.inf)
    price = benchmark_script("baselines")._flat_function(problem)
    with jax.numpy_dtype_promotion("standard"):
        best, step_s = price({name: jnp.asarray(column, dtype=jnp.float32) for name, column in columns.items()})
    np.testing.assert_allclose(step_s, expected.min(), rtol=1e-5)
    np.testing.assert_allclose(expected[int(best)], expected.min(), rtol=1e-5)
