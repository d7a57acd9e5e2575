"""Laws of collectives on several tiers, for both assumption sets."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import Network, cluster_from_spec, load_cluster
from dsx.cost.collectives import collective, send
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER

KINDS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE)
SETS = {name: assumptions_from_spec(load_assumptions(name)) for name in ("default", "paper-2410.00273")}
TWO = {name: cluster_from_spec(load_cluster(name)).network for name in ("h100-nvs8", "a100-80-nvs4", "v100-16-nvs8")}
MANY = {
    name: cluster_from_spec(load_cluster(name)).network
    for name in ("dgx-a100-superpod", "perlmutter", "tpu-v4-pod", "h100-spine-leaf")
}
ROUNDING = 1.0 + 1e-12

assumption_sets = st.sampled_from(sorted(SETS)).map(SETS.__getitem__)
two_tiers = st.sampled_from(sorted(TWO)).map(TWO.__getitem__)
many_tiers = st.sampled_from(sorted(MANY)).map(MANY.__getitem__)
kinds = st.sampled_from(KINDS)
volumes = st.floats(0.0, 1e11)
counts = st.sampled_from([1, 2, 3, 4])
slower = st.floats(1.0, 16.0)


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


def seconds(kind, sizes, volume, network, assumptions):
    """The time of a collective; `sizes` are the members on each tier, one inside the other."""
    shares, size = [], 1
    for members in sizes:
        size *= members
        shares.append(np.asarray(float(size)))
    return float(collective(kind, group(shares[-1], *shares[:-1]), network, assumptions)(volume))


def passing(sizes, volume, network, assumptions):
    """The time of a send."""
    shares, size = [], 1
    for members in sizes:
        size *= members
        shares.append(np.asarray(float(size)))
    return float(send(shares[-1], shares[0], network, assumptions, shares[1:-1])(volume))


def with_outer(network, slow=1.0, far=1.0):
    """The network with one tier more, so much slower and farther than what was the outermost."""
    last = network.tiers[-1]
    outer = replace(last, bandwidth=last.bandwidth / slow, latency=last.latency * far)
    return replace(network, tiers=(*network.tiers, outer))


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-18)


@given(kind=kinds, t=counts, n=counts, m=counts, volume=volumes, network=two_tiers, of=assumption_sets)
def test_equal_tiers_are_one(kind, t, n, m, volume, network, of):
    rings = replace(of, algorithms=tuple((kind, ("ring",)) for kind in KINDS))
    split = seconds(kind, (t, n, m), volume, with_outer(network), rings)
    assert split == close(seconds(kind, (t, n * m), volume, network, rings))
    # Equal tiers are one for an exchange and a send.
    split = seconds(ALL_TO_ALL, (t, n, m), volume, with_outer(network), of)
    assert split == close(seconds(ALL_TO_ALL, (t, n * m), volume, network, of))
    assert passing((t, n, m), volume, with_outer(network), of) == close(passing((t, n * m), volume, network, of))


@given(kind=kinds, t=counts, n=counts, slow=slower, far=slower, volume=volumes, network=two_tiers, of=assumption_sets)
def test_inside_its_first_two_tiers_a_group_costs_what_it_does_on_two(kind, t, n, slow, far, volume, network, of):
    wide = with_outer(network, slow, far)
    assert seconds(kind, (t, n, 1), volume, wide, of) == close(seconds(kind, (t, n), volume, network, of))
    assert passing((t, n, 1), volume, wide, of) == close(passing((t, n), volume, network, of))


@given(kind=kinds, t=counts, m=counts, volume=volumes, slow=slower, network=two_tiers, of=assumption_sets)
def test_a_tier_that_is_not_crossed_changes_nothing(kind, t, m, volume, slow, network, of):
    """A group that has one member, or all of a domain, in each unit of the middle tier."""
    nvs, net = network.tiers
    far = replace(net, bandwidth=net.bandwidth / slow)
    between = [replace(net, latency=net.latency * other) for other in (1.0, 7.0)]
    one, other = (seconds(kind, (t, 1, m), volume, replace(network, tiers=(nvs, tier, far)), of) for tier in between)
    assert one == other


@pytest.mark.sampled(4)
@given(kind=kinds, sizes=st.tuples(counts, counts, counts, counts), volume=volumes, times=slower, of=assumption_sets)
@pytest.mark.parametrize("tier", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(MANY))
def test_more_bandwidth_and_less_latency_are_never_slower(name, tier, kind, sizes, volume, times, of):
    network = MANY[name]
    sizes = sizes[: len(network.tiers)]
    tiers = [*network.tiers]
    tiers[tier] = replace(tiers[tier], bandwidth=tiers[tier].bandwidth * times, latency=tiers[tier].latency / times)
    faster = replace(network, tiers=tuple(tiers))
    assert seconds(kind, sizes, volume, faster, of) <= seconds(kind, sizes, volume, network, of) * ROUNDING
    assert passing(sizes, volume, faster, of) <= passing(sizes, volume, network, of) * ROUNDING


@given(kind=kinds, sizes=st.tuples(counts, counts, counts, counts), low=volumes, high=volumes, network=many_tiers)
def test_more_bytes_never_take_less(kind, sizes, low, high, network):
    low, high = sorted((low, high))
    sizes, of = sizes[: len(network.tiers)], SETS["default"]
    assert seconds(kind, sizes, low, network, of) <= seconds(kind, sizes, high, network, of) * ROUNDING


def test_two_tiers_are_two_tiers():
    assert all(network.middle == () for network in TWO.values())
    assert all(isinstance(network, Network) and network.middle for network in MANY.values())
