"""Small spaces with every kind of candidate, and the same problem on drawn hardware."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
from hypothesis import strategies as st
from validation.cases import PAPER, STRATEGIES, cluster_spec
from validation.cases import priced as priced_rows_of
from verbs.small import model_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import anonymous, cluster_from_spec
from dsx.config.model_file import ModelSpec
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.search.spaces import Space

SETS = (PAPER, "default")
TIME_PARTS = (
    "compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s",
    "recompute_s", "optimizer_s",
)  # fmt: skip
# One value for each of the choices that `default` searches, as in the paper's set: the spaces stay small.
USUAL = {
    "zero_stage": [1], "zero_replicas": [1], "recompute": ["none"], "stored_layers": [0], "vpp": [1],
    "schedule": ["1f1b"], "offload": ["none"],
}  # fmt: skip
MEMORY_PARTS = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "overhead_bytes")

SYSTEM = {
    "matrix_flops": 9.9e14, "vector_flops": 1.3e14, "hbm_bandwidth": 4.8e12, "hbm_capacity": 5e9,
    "fast_bandwidth": 4.5e11, "slow_bandwidth": 5e10, "fast_latency": 2.5e-6, "slow_latency": 5e-6, "fast_size": 8,
}  # fmt: skip
# Grouped-query attention and thirds, for the default set; the layer of the paper has neither.
DIMENSIONS = {"e": 3072, "h": 24, "g": 12, "k": 128, "f": 9216}


def hardware(**changes):
    """A cluster record in which some facts of SYSTEM are changed."""
    return cluster_from_spec(cluster_spec(SYSTEM | changes))


def on(problem, cluster):
    """The same problem on another cluster."""
    leaves = jax.tree.map(lambda leaf: np.array([leaf]), anonymous(cluster))
    return replace(problem, cluster=cluster, hardware=leaves)


def problem_with(layers, dimensions, strategies, assumptions="default", options=None, **system):
    """A problem of some layers on SYSTEM with changes; `assumptions` are a name, or a name and fields.

    The fields of `options` are those of ProblemOptions.
    """
    spec = ModelSpec.model_validate(model_of(layers, dimensions))
    name, *stated = (assumptions,) if isinstance(assumptions, str) else assumptions
    of_options = ProblemOptions(**(options or {}))
    return make_problem(spec, cluster_spec(SYSTEM | system), load_assumptions(name, stated), strategies, of_options)


@cache
def problem_of(assumptions, strategies=STRATEGIES):
    """A model of 12 layers, with one or several strategies."""
    exact = (assumptions, ("memory_margin", "0"))  # a search keeps what fits exactly
    layers = [{"kind": "transformer", "count": 12}]
    return problem_with(layers, DIMENSIONS, strategies, exact, {"train_tokens": 1e12}).searching(USUAL)


@cache
def space_of(assumptions, num_gpus=(24, 32), batches=(48,), strategies=STRATEGIES):
    return Space(problem_of(assumptions, strategies), num_gpus, batches)


def candidates_of(space):
    """The positions in the key table, and the choices, of all candidates of a space."""
    return space.blocks.rows(0, space.size)


def priced(problem, space):
    """All candidates of a space and their costs, by column."""
    rows = priced_rows_of(problem, space)
    del rows["reject"]
    return rows


# Facts that are better when larger, with a range of real machines and beyond.
RATES = {
    "matrix_flops": st.floats(1e13, 1e16),
    "vector_flops": st.floats(1e12, 1e15),
    "hbm_bandwidth": st.floats(1e11, 1e13),
    "fast_bandwidth": st.floats(1e10, 1e13),
    "slow_bandwidth": st.floats(1e9, 1e12),
}
LATENCIES = {"fast_latency": st.floats(0, 1e-4), "slow_latency": st.floats(0, 1e-4)}
MACHINES = st.fixed_dictionaries(RATES | LATENCIES).map(lambda facts: hardware(**facts))


def assert_rows_equal(found, expected, rtol):
    """Both have the same columns with the same values."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=1e-15, err_msg=name)
