"""The scan over stages against every cut, for costs that are just numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.partition import cuts

from dsx.search.chain import first_layers, least_maxima

PADDED = 8
cut = jax.jit(first_layers)


def random_costs(seed, num_layers):
    """[S, last, first]: different on every stage, with rubbish where nothing is, and some segments forbidden."""
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


def test_many_chains_at_once():
    costs = np.stack([random_costs(seed, 6) for seed in range(4)]).astype(np.float32)
    lengths = jnp.array([3, 8, 6, 1])
    together = jax.vmap(scan)(jnp.asarray(costs), lengths)
    for row, (cost, length) in enumerate(zip(costs, lengths.tolist(), strict=True)):
        np.testing.assert_array_equal(together.least[row], scan(cost, length).least)


def test_stages_past_the_deepest_are_left_out():
    costs = random_costs(0, 8).astype(np.float32)
    some, every = scan(costs, 8, 3), scan(costs, 8)
    np.testing.assert_array_equal(some.least[:3], every.least[:3])
    assert np.isinf(some.least[3:]).all()
