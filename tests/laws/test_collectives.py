"""Laws of collectives, for both assumption sets, on two tiers with a switch and without one, and on several tiers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.cost.collectives import collective, send
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER

pytestmark = pytest.mark.usefixtures("float64")

KINDS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE)
SETS = {name: assumptions_from_spec(load_assumptions(name)) for name in ("default", "paper-2410.00273")}


def networks_of(*clusters):
    return {name: cluster_from_spec(load_cluster(name)).network for name in clusters}


TWO = networks_of("h100-nvs8", "a100-80-nvs4", "v100-16-nvs8")
MANY = networks_of("dgx-a100-superpod", "perlmutter", "tpu-v4-pod", "h100-spine-leaf")
ROUNDING = 1.0 + 1e-12

kinds = st.sampled_from(KINDS)
assumption_sets = st.sampled_from(sorted(SETS)).map(SETS.__getitem__)
two_tiers = st.sampled_from(sorted(TWO)).map(TWO.__getitem__)
networks = st.sampled_from(sorted(TWO | MANY)).map((TWO | MANY).__getitem__)
counts = st.sampled_from([1, 2, 3, 4])
domains = st.sampled_from([1, 2, 3, 4, 8, 60, 512])
volumes = st.floats(0.0, 1e11)
slower = st.floats(1.0, 16.0)


def shares_of(sizes):
    """The members that share a unit of each tier; `sizes` are the members on each tier, one inside the other."""
    return [np.asarray(float(size)) for size in np.cumprod(sizes)]


def seconds(kind, sizes, volume, network, assumptions):
    """The time of a collective."""
    *shares, size = shares_of(sizes)
    return float(collective(kind, group(size, *shares), network, assumptions)(volume))


def passing(sizes, volume, network, assumptions):
    """The time of a send."""
    first, *between, size = shares_of(sizes)
    return float(send(size, first, network, assumptions, between)(volume))


def only(assumptions, algorithm, kinds=(ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)):
    return replace(assumptions, algorithms=tuple((kind, (algorithm,)) for kind in kinds))


def with_outer(network, slow=1.0, far=1.0):
    """The network with one tier more, so much slower and farther than what was the outermost."""
    last = network.tiers[-1]
    outer = replace(last, bandwidth=last.bandwidth / slow, latency=last.latency * far)
    return replace(network, tiers=(*network.tiers, outer))


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-18)


@given(kind=kinds, t=counts, n=counts, m=counts, volume=volumes, network=two_tiers, of=assumption_sets)
def test_equal_tiers_are_one(kind, t, n, m, volume, network, of):
    rings = only(of, "ring", KINDS)
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


@given(kind=kinds, sizes=st.tuples(counts, domains, counts, counts), low=volumes, high=volumes, network=networks,
       of=assumption_sets)  # fmt: skip
def test_more_bytes_never_take_less(kind, sizes, low, high, network, of):
    low, high = sorted((low, high))
    sizes = sizes[: len(network.tiers)]
    assert seconds(kind, sizes, low, network, of) <= seconds(kind, sizes, high, network, of) * ROUNDING


@given(kind=kinds, n=domains, t=counts, times=st.integers(2, 4), volume=volumes, of=assumption_sets)
def test_more_domains_never_take_less(kind, n, t, times, volume, of):
    network = TWO["h100-nvs8"]
    few, many = (seconds(kind, (t, number), volume, network, of) for number in (n, times * n))
    assert few <= many * ROUNDING


@given(kind=kinds, n=domains, t=counts, volume=volumes, network=two_tiers, of=assumption_sets)
def test_nothing_is_faster_than_a_call_and_the_whole_volume_at_full_speed(kind, n, t, volume, network, of):
    assume(n * t > 1)
    peak = max(network.nvs.bandwidth, t * network.net.bandwidth)
    least = of.call_latency + (n * t - 1) / (n * t) * volume / peak
    assert seconds(kind, (t, n), volume, network, of) * ROUNDING >= least


@given(kind=kinds, volume=volumes, network=two_tiers, of=assumption_sets)
def test_one_member_costs_nothing(kind, volume, network, of):
    assert seconds(kind, (1, 1), volume, network, of) == 0.0


@given(n=domains, t=counts, volume=volumes, network=two_tiers, of=assumption_sets)
def test_an_all_reduce_and_two_stages_take_as_long_as_their_parts_and_the_best_algorithm_is_taken(
    n, t, volume, network, of
):
    """With the same algorithms: a tree of an all-reduce has fewer hops than a ring of a gather."""
    for algorithm in ("ring", "hierarchical"):
        assumptions = replace(only(of, algorithm), call_latency=0.0)
        both = sum(seconds(kind, (t, n), volume, network, assumptions) for kind in (ALL_GATHER, REDUCE_SCATTER))
        assert seconds(ALL_REDUCE, (t, n), volume, network, assumptions) == pytest.approx(both, rel=1e-12)
    # Per protocol: a scatter inside, an all-reduce of each rail's part, and a gather inside.
    for protocol in of.protocols:
        assumptions = replace(of, call_latency=0.0, protocols=(protocol,))
        rings = only(assumptions, "ring")
        inside = [seconds(kind, (t, 1), volume, network, rings) for kind in (REDUCE_SCATTER, ALL_GATHER)]
        between = seconds(ALL_REDUCE, (1, n), volume / t, network, rings)
        found = seconds(ALL_REDUCE, (t, n), volume, network, only(assumptions, "hierarchical"))
        assert found == pytest.approx(sum(inside) + between, rel=1e-12)
    # The best algorithm is taken.
    algorithms = ("ring", "tree", "hierarchical")
    each = [seconds(ALL_REDUCE, (t, n), volume, network, only(of, name)) for name in algorithms]
    every = replace(of, algorithms=((ALL_REDUCE, algorithms),))
    assert seconds(ALL_REDUCE, (t, n), volume, network, every) == pytest.approx(min(each), rel=1e-12)


@given(stages=st.integers(2, 64), volume=volumes, network=two_tiers, of=assumption_sets)
def test_a_send_inside_a_domain_is_no_slower_than_between_domains(stages, volume, network, of):
    inside, between = (passing(sizes, volume, network, of) for sizes in ((stages, 1), (1, stages)))
    assert of.call_latency <= inside <= between * ROUNDING
