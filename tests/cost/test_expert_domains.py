"""Distinct fast domains of a token's experts, beside cases worked out by hand and random draws."""

import jax.numpy as jnp
import numpy as np
import pytest
from cost.records import KINDS, machine, make_assumptions

from dsx.cost.collectives import collective
from dsx.cost.groups import Routing, distinct_domains, group, routing_of, sent_to_domains
from dsx.notation.sharded_layer import ALL_TO_ALL


def number(value):
    return np.array([float(value)])


def routing(*counts):
    return routing_of(*map(number, counts))


def drawn(domains, choices, groups=None, of_token=None, tokens=20_000):
    """Return the mean number of distinct domains of random choices."""
    random = np.random.default_rng(0)
    places = random.random((tokens, choices))
    if groups is not None:
        allowed = np.argsort(random.random((tokens, groups)), axis=1)[:, :of_token]
        chosen = np.take_along_axis(allowed, random.integers(0, of_token, (tokens, choices)), axis=1)
        places = (chosen + places) / groups
    found = np.sort(np.floor(places * domains), axis=1)
    return float(np.mean(1 + (np.diff(found, axis=1) > 0).sum(axis=1)))


@pytest.mark.parametrize(
    ("counts", "domains", "expected"),
    [
        ((2,), 1, 1.0),
        ((2,), 2, 1.5),  # both choices in one of two domains with probability 1/2
        ((8,), 1e9, 8.0),
        ((2, 2, 1), 2, 1.0),  # all choices in one group, which is one domain
        ((2, 2, 1), 4, 1.5),  # ... which is two domains
        # Two of four groups, two of them in each of two domains: both in one domain with probability 1/3; else the two
        # choices are in two groups, and so two domains, with probability 1/2.
        ((2, 4, 2), 2, 1.0 / 3 + 2.0 / 3 * 1.5),
        ((8, 8, 8), 1, 1.0),
    ],
)
def test_cases_of_known_answer(counts, domains, expected):
    assert distinct_domains(routing(*counts), number(domains)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("domains", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("counts", [(8,), (6, 8, 3), (8, 8, 4), (8, 8, 7)])
def test_random_choices(counts, domains):
    assert distinct_domains(routing(*counts), number(domains)) == pytest.approx(drawn(domains, *counts), rel=0.01)


def test_domains_of_experts_in_either_array_library_and_without_a_limit():
    """It only draws one group with each choice."""
    free, limited = (float(distinct_domains(routing(*counts), number(8))[0]) for counts in [(4,), (4, 8, 8)])
    assert limited == pytest.approx(free)
    # Numpy and jax agree.
    here = routing(8, 8, 4)
    there = Routing(jnp.asarray([8.0]), jnp.asarray([8.0]), jnp.asarray([4.0]), 4)
    assert distinct_domains(there, jnp.asarray([4.0])) == pytest.approx(distinct_domains(here, number(4)))
    # A dispatcher of each copy sends all.
    sent = sent_to_domains(routing(8), number(4), 0.0)
    assert float(sent.share[0]) == 1.0
    # A routing of no plan.
    none = np.zeros(0)
    assert routing_of(none, none, none).most_groups == 0


def times(dispatcher, size, share, **facts):
    """Return the seconds of an all-to-all of 1 GB, two copies of each token."""
    fields = {"algorithms": tuple((kind, ("exchange",)) for kind in KINDS), "dispatcher": dispatcher}
    assumptions = make_assumptions(**fields)
    members = group(number(size), number(share))
    time = collective(ALL_TO_ALL, members, machine(**facts).network, assumptions, routing(2))
    return float(time(number(1e9))[0])


# 400 GB/s inside a domain and 50 GB/s outside.
QUIET = {"nvs_latency": 0.0, "net_latency": 0.0}


def test_a_token_crosses_the_network_once_for_each_domain():
    """Of 1 GB for two domains of eight, half is for the other one, and 3/4 of that is sent."""
    assert times(0.0, 16, 8, **QUIET) == pytest.approx(0.5 / 50)
    assert times(1.0, 16, 8, **QUIET) == pytest.approx(0.75 * 0.5 / 50)
    # With a network as fast as the links inside, 7 of 8 copies on the links inside take longest.
    facts = {**QUIET, "net_bandwidth": 8e11}
    assert times(0.0, 16, 8, **facts) == pytest.approx(0.5 / 400)
    assert times(1.0, 16, 8, **facts) == pytest.approx(7 / 8 / 400)
    # A group in one domain sends each copy.
    assert times(1.0, 8, 8) == pytest.approx(times(0.0, 8, 8))
    # 15 messages of 1 us before, 1 + 7 with one to each domain; the network adds 10 us.
    facts = {"nvs_bandwidth": 8e20, "net_bandwidth": 8e20}
    assert times(0.0, 16, 8, **facts) == pytest.approx(25e-6)
    assert times(1.0, 16, 8, **facts) == pytest.approx(18e-6)
