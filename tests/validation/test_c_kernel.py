"""Speed beside a kernel in C and a flat baseline."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws.spaces import candidates_of, problem_of, space_of
from oracles.formulas import system_from_inputs
from validation.cases import INPUTS, problem_for

from dsx.cost.layer import LayerCosts
from dsx.plans.choices import BY_NAME, CHOICE_COLUMNS
from dsx.pricing.cuts import candidate_columns
from dsx.pricing.row_costs import Rows, price_rows

REL = 1e-5  # float32 beside float64
KEYS, BLOCKS = 30, 40
GROUPS = 3 * BLOCKS  # of choices: those of a block fall in one of three


@pytest.fixture(scope="module")
def c_kernel(benchmark_script):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    return benchmark_script("c_kernel")


@pytest.fixture(scope="module")
def kernel(c_kernel):
    return c_kernel.build()


def slow_network(fast_bandwidth):
    """A problem of a machine whose latencies show beside everything else."""
    system = system_from_inputs(INPUTS["systems"]["A100"], 4)
    system |= {"fast_bandwidth": fast_bandwidth, "fast_latency": 3e-3, "slow_latency": 5e-3}
    return problem_for(INPUTS["models"]["gpt3_1T"], system, "1d")


def layer_table(random, weight_groups):
    """Layer costs of about the size of real ones; some keys have no weights in the last of several groups."""

    def between(low, high, *shape):
        return np.exp(random.uniform(np.log(low), np.log(high), shape))

    weight_bytes = between(1e7, 1e9, weight_groups, KEYS)
    weight_bytes[1:, ::3] = 0.0
    group_share = 2.0 ** random.integers(0, 3, (weight_groups, KEYS))
    unused = dict.fromkeys(("compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s"), np.zeros(KEYS))
    costs = LayerCosts(
        **unused,
        forward_s=between(1e-3, 1e-1, KEYS),
        backward_s=between(1e-3, 1e-1, KEYS),
        replicated_gradient_s=between(1e-5, 1e-3, KEYS),
        weight_gradient_s=np.zeros(KEYS),
        split_s=np.zeros(KEYS),
        recompute_s=np.zeros((3, KEYS)),
        stash_bytes=np.broadcast_to(between(1e7, 1e10, KEYS), (3, KEYS)),
        working_bytes=np.zeros((3, KEYS)),
        scattered_bytes=np.zeros((3, KEYS)),
        boundary_bytes=between(1e6, 1e8, KEYS),
        weight_bytes=weight_bytes,
        group_size=group_share * 2.0 ** random.integers(0, 2, (weight_groups, KEYS)),
        group_share=group_share,
        group_ep=np.ones_like(group_share),
    )
    return (jax.tree.map(lambda leaf: leaf[None], costs),)  # one hardware point of one layer kind


def random_block(random, number):
    """Two keys, choices of which many fit, and the group of each; pipelines need not divide the layers."""
    count = 600 if number == 0 else random.integers(1, 50)
    pp_nvs, dp_nvs = 2 ** random.integers(0, 3, (2, count))
    pp, dp = pp_nvs * random.integers(1, 24, count), dp_nvs * random.integers(1, 8, count)
    microbatches = random.integers(1, 256, count)
    columns = {name: np.full(count, BY_NAME[name].default_code) for name in CHOICE_COLUMNS}
    columns |= {"zero_stage": np.ones(count, dtype=int), "pp_nvs": pp_nvs, "dp_nvs": dp_nvs}
    columns |= {"num_gpus": pp * dp, "pp": pp, "dp": dp}
    columns |= {"global_batch_size": dp * microbatches, "num_microbatches": microbatches}
    matrix = np.stack([columns[name] for name in CHOICE_COLUMNS])
    return random.permutation(KEYS)[:2], matrix, 3 * number + random.integers(0, 3, count)


def expected(problem, table, blocks):
    """Step time by key and choice of what fits, in float64, a dictionary for each group; and how many fit."""
    positions = np.concatenate([np.repeat(keys, matrix.shape[1]) for keys, matrix, _ in blocks])
    rows = np.concatenate([np.tile(matrix, len(keys)) for keys, matrix, _ in blocks], axis=1)
    groups = np.concatenate([np.tile(group, len(keys)) for keys, _, group in blocks])
    choices = dict(zip(CHOICE_COLUMNS, rows, strict=True))
    costs = price_rows(problem, table, Rows(np.zeros_like(positions), positions, choices))
    found = [{} for _ in range(GROUPS)]
    fits = costs.peak_bytes <= problem.cluster.device.hbm_capacity
    for row in np.flatnonzero(fits):
        found[groups[row]][int(positions[row]), *rows[:, row].tolist()] = costs.step_time_s[row]
    return found, fits.sum()


# The network is 25 GB/s: a fast domain faster, and one slower than that.
@pytest.mark.parametrize("fast_bandwidth", [60e9, 20e9])
@pytest.mark.parametrize("weight_groups", [1, 2, 3])
def test_winners_are_those_of_float64(c_kernel, kernel, weight_groups, fast_bandwidth):
    random = np.random.default_rng(weight_groups)
    problem, table = slow_network(fast_bandwidth), layer_table(random, weight_groups)
    blocks = [random_block(random, number) for number in range(BLOCKS)]

    winners = kernel.price(c_kernel.shares(problem, table, blocks, GROUPS, threads=1))

    halves = kernel.price(c_kernel.shares(problem, table, blocks, GROUPS, threads=2))
    assert winners.feasible == halves.feasible
    np.testing.assert_array_equal(winners.time, halves.time)
    feasible, count = expected(problem, table, blocks)
    assert winners.feasible == count
    assert np.isinf(winners.time).tolist() == (winners.key == -1).tolist() == [not group for group in feasible]
    for code in np.flatnonzero(winners.key >= 0):
        plan = (int(winners.key[code]), *winners.choices[:, code].tolist())
        best = min(feasible[code].values())
        assert winners.time[code] == pytest.approx(best, rel=REL)
        assert feasible[code][plan] == pytest.approx(best, rel=REL)


@pytest.mark.usefixtures("kernel")
def test_a_process_that_loads_the_kernel_keeps_subnormal_numbers():
    assert kernel is not None
    assert np.array([np.finfo(np.float64).tiny]) * 0.5 > 0.0


@pytest.mark.slow
def test_the_flat_function_finds_the_best_plan(benchmark_script):
    problem, space = problem_of("paper-2410.00273", ("1d",)), space_of("paper-2410.00273", strategies=("1d",))
    positions, choices = candidates_of(space)
    columns = candidate_columns(problem, space.keys, positions, choices)
    rows = Rows(np.zeros_like(positions), positions, choices)
    costs = price_rows(problem, space.table(problem), rows)
    expected = np.where(costs.peak_bytes <= problem.cluster.device.hbm_capacity, costs.step_time_s, np.inf)
    price = benchmark_script("baselines")._flat_function(problem)
    with jax.numpy_dtype_promotion("standard"):
        best, step_s = price({name: jnp.asarray(column, dtype=jnp.float32) for name, column in columns.items()})
    np.testing.assert_allclose(step_s, expected.min(), rtol=1e-5)
    np.testing.assert_allclose(expected[int(best)], expected.min(), rtol=1e-5)
