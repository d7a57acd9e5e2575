"""The scan over stages against every cut, for random costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.partition import cuts

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.config.search_path import names
from dsx.errors import SpecError
from dsx.pricing.optimal_cut import first_layers, least_maxima
from dsx.pricing.problem import MAX_LAYERS, ProblemOptions, check_length, make_problem

PADDED = 8
cut = jax.jit(first_layers)


def random_costs(seed, num_layers):
    """[S, last, first]: different on each stage, with arbitrary values for impossible segments, and some forbidden."""
    random = np.random.default_rng(seed)
    costs = random.uniform(1, 9, (PADDED, PADDED, PADDED)).round(1)
    costs[random.uniform(size=costs.shape) < 0.2] = np.inf
    return costs


def cost_of(costs, layers):
    """The maximum over the stages of one cut; layers of each stage in pipeline order."""
    first, worst = 0, 0.0
    for place, count in enumerate(layers):
        worst = max(worst, costs[len(layers) - 1 - place, first + count - 1, first])
        first += count
    return worst


def least_of_all(costs, num_layers):
    least = np.full(PADDED, np.inf)
    for layers in cuts(num_layers):
        least[len(layers) - 1] = min(least[len(layers) - 1], cost_of(costs, layers))
    return least


@jax.jit
def scan(costs, num_layers, deepest=PADDED):
    return least_maxima(lambda stage: stage, jnp.asarray(costs), num_layers, deepest)


@pytest.mark.parametrize("num_layers", [1, 2, 5, 8])
def test_the_least_maximum_and_its_cut(num_layers):
    for seed in range(5):
        costs = random_costs(seed, num_layers).astype(np.float32)
        made = scan(costs, num_layers)
        least = least_of_all(costs, num_layers)
        np.testing.assert_array_equal(made.least[:, 0], least.astype(np.float32))
        for num_stages in np.flatnonzero(np.isfinite(least)) + 1:
            first = [*reversed(np.asarray(cut(made, num_stages))[:num_stages].tolist()), num_layers]
            assert first[0] == 0
            assert cost_of(costs, np.diff(first)) == least[num_stages - 1]


def test_chains_side_by_side():
    costs = np.stack([random_costs(seed, 6) for seed in range(4)]).astype(np.float32)
    lengths = jnp.array([3, 8, 6, 1])
    together = jax.vmap(scan)(jnp.asarray(costs), lengths)
    for row, (cost, length) in enumerate(zip(costs, lengths.tolist(), strict=True)):
        np.testing.assert_array_equal(together.least[row], scan(cost, length).least)
    # Stages past the deepest are left out.
    costs = random_costs(0, 8).astype(np.float32)
    some, every = scan(costs, 8, 3), scan(costs, 8)
    np.testing.assert_array_equal(some.least[:3], every.least[:3])
    assert np.isinf(some.least[3:]).all()


def test_models_that_are_too_long_are_refused_before_they_are_cut():
    check_length(1000 + 2, "a model", "")
    with pytest.raises(
        SpecError, match=r"model 'm' has 1,025 layers, but an optimal cut takes at most 1,024: .*; cut it"
    ):
        check_length(1025, "model 'm'", "cut it evenly")
    for name in names("models", ".yaml"):
        assert sum(entry.count for entry in load_model(name).sequence) < MAX_LAYERS / 4
    # A model that is too long is refused before it is cut.
    model, cluster, assumptions = load_model("llama-3-8b"), load_cluster("h100-nvs8"), load_assumptions("default")
    long = [entry.model_copy(update={"count": 20_000 if entry.count > 1 else 1}) for entry in model.layers]
    model = model.model_copy(update={"layers": long})
    with pytest.raises(SpecError, match=r"20,002 layers.*an even cut has no such limit"):
        make_problem(model, cluster, assumptions, ["1d"], ProblemOptions(partition="optimal"))
    assert make_problem(model, cluster, assumptions, ["1d"]).num_layers == 20_000
