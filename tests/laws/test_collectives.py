"""Laws of collectives, for both assumption sets on a machine with a switch and one without."""

from dataclasses import replace

import jax
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

KINDS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE)
SETS = {name: assumptions_from_spec(load_assumptions(name)) for name in ("default", "paper-2410.00273")}
NETWORKS = {name: cluster_from_spec(load_cluster(name)).network for name in ("h100-nvs8", "a100-80-nvs4")}
ROUNDING = 1.0 + 1e-12

assumption_sets = st.sampled_from(sorted(SETS)).map(SETS.__getitem__)
networks = st.sampled_from(sorted(NETWORKS)).map(NETWORKS.__getitem__)
shares = st.sampled_from([1, 2, 3, 4])
domains = st.sampled_from([1, 2, 3, 4, 8, 60, 512])
volumes = st.floats(0.0, 1e11)


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


def seconds(kind, num_domains, share, volume, network, assumptions):
    members = group(np.asarray(float(num_domains * share)), np.asarray(float(share)))
    return float(collective(kind, members, network, assumptions)(volume))


def only(assumptions, algorithm, kinds=(ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)):
    return replace(assumptions, algorithms=tuple((kind, (algorithm,)) for kind in kinds))


@given(
    kind=st.sampled_from(KINDS), n=domains, t=shares, low=volumes, high=volumes, network=networks, of=assumption_sets
)
def test_more_bytes_never_take_less(kind, n, t, low, high, network, of):
    low, high = sorted((low, high))
    assert seconds(kind, n, t, low, network, of) <= seconds(kind, n, t, high, network, of) * ROUNDING


@given(kind=st.sampled_from(KINDS), n=domains, t=shares, times=st.integers(2, 4), volume=volumes, of=assumption_sets)
def test_more_domains_never_take_less(kind, n, t, times, volume, of):
    network = NETWORKS["h100-nvs8"]
    few, many = (seconds(kind, number, t, volume, network, of) for number in (n, times * n))
    assert few <= many * ROUNDING


@given(kind=st.sampled_from(KINDS), n=domains, t=shares, volume=volumes, network=networks, of=assumption_sets)
def test_nothing_is_faster_than_a_call_and_the_whole_volume_at_full_speed(kind, n, t, volume, network, of):
    assume(n * t > 1)
    peak = max(network.nvs.bandwidth, t * network.net.bandwidth)
    least = of.call_latency + (n * t - 1) / (n * t) * volume / peak
    assert seconds(kind, n, t, volume, network, of) * ROUNDING >= least


@given(kind=st.sampled_from(KINDS), volume=volumes, network=networks, of=assumption_sets)
def test_one_member_costs_nothing(kind, volume, network, of):
    assert seconds(kind, 1, 1, volume, network, of) == 0.0


@given(n=domains, t=shares, volume=volumes, network=networks, of=assumption_sets)
def test_an_all_reduce_and_two_stages_take_as_long_as_their_parts_and_the_best_algorithm_is_taken(
    n, t, volume, network, of
):
    """With the same algorithms: a tree of an all-reduce has fewer hops than a ring of a gather."""
    for algorithm in ("ring", "hierarchical"):
        assumptions = replace(only(of, algorithm), call_latency=0.0)
        both = sum(seconds(kind, n, t, volume, network, assumptions) for kind in (ALL_GATHER, REDUCE_SCATTER))
        assert seconds(ALL_REDUCE, n, t, volume, network, assumptions) == pytest.approx(both, rel=1e-12)
    # Per protocol: a scatter inside, an all-reduce of each rail's part, and a gather inside.
    for protocol in of.protocols:
        assumptions = replace(of, call_latency=0.0, protocols=(protocol,))
        rings = only(assumptions, "ring")
        inside = [seconds(kind, 1, t, volume, network, rings) for kind in (REDUCE_SCATTER, ALL_GATHER)]
        between = seconds(ALL_REDUCE, n, 1, volume / t, network, rings)
        found = seconds(ALL_REDUCE, n, t, volume, network, only(assumptions, "hierarchical"))
        assert found == pytest.approx(sum(inside) + between, rel=1e-12)
    # The best algorithm is taken.
    algorithms = ("ring", "tree", "hierarchical")
    each = [seconds(ALL_REDUCE, n, t, volume, network, only(of, name)) for name in algorithms]
    every = replace(of, algorithms=((ALL_REDUCE, algorithms),))
    assert seconds(ALL_REDUCE, n, t, volume, network, every) == pytest.approx(min(each), rel=1e-12)


@given(stages=st.integers(2, 64), volume=volumes, network=networks, of=assumption_sets)
def test_a_send_inside_a_domain_is_no_slower_than_between_domains(stages, volume, network, of):
    size = np.asarray(float(stages))
    inside, between = (send(size, share, network, of)(volume) for share in (size, np.asarray(1.0)))
    assert of.call_latency <= float(inside) <= float(between) * ROUNDING
