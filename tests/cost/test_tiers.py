"""Collectives on three and four tiers by hand: 400 GB/s and 1 us inside a domain, 50 GB/s and 10 us on a NIC.

Behind the NICs a middle tier of 50 GB/s, and one that is oversubscribed: 12.5 GB/s and 20 us.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cost.records import KINDS, make_assumptions

from dsx.config.cluster_file import Network, Tier
from dsx.cost.collectives import collective, send
from dsx.cost.groups import group
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

GB = 1e9
NVS, NIC = Tier(4e11, 1e-6, "nvs", 8), Tier(5e10, 1e-5, "leaf", 32)
SPINE = Tier(1.25e10, 2e-5, "spine", 0)
TREE = Network(tiers=(NVS, NIC, SPINE))
# A torus of rings of eight, four and two, two links of 100 GB/s along each, and NICs between tori.
RINGS = tuple(Tier(2e11, 1e-6, "", 0, chain=length, wraps=True) for length in (8, 4, 2))
TORUS = Network(tiers=(*RINGS, Tier(5e10, 1e-5, "net", 0)), linked=3)
PLAIN = {"nvs_efficiency": 1.0, "net_efficiency": 1.0, "relay": 0.0}


def time(size, *shares, volume=GB, kind=ALL_GATHER, algorithm="ring", network=TREE, **changes):
    members = group(*(np.asarray([float(count)]) for count in (size, *shares)))
    assumptions = make_assumptions(**PLAIN | {"algorithms": ((kind, (algorithm,)),)} | changes)
    return float(collective(kind, members, network, assumptions)(volume)[0])


def close(value):
    return pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("size", "shares", "latency", "per_byte"),
    [
        (8, (8, 8), 7e-6, 1 / 400),  # inside a domain
        (32, (8, 32), 28e-6 + 3e-5, 1 / 400),  # inside a leaf: eight NICs are as fast as the domain
        (4, (1, 4), 3e-5, 1 / 50),
        (64, (8, 32), 56e-6 + 6e-5 + 2e-5, 1 / 400),  # 32 shares of the spine are as fast too
        (8, (1, 4), 6e-5 + 2e-5, 1 / 50),  # four shares of 12.5 GB/s: one NIC
        (4, (1, 2), 2e-5 + 2e-5, 1 / 25),  # two of them are slower than a NIC
        (4, (1, 1), 3 * 2e-5, 1 / 12.5),
        (16, (2, 2), 8e-6 + 7 * 2e-5, 1 / 25),
    ],
)
def test_a_ring_runs_at_the_slowest_tier_that_it_crosses(size, shares, latency, per_byte):
    part = (size - 1) / size
    assert time(size, *shares, volume=8 * GB) == close(latency + part * 8 * per_byte)
    assert time(size, *shares, volume=8 * GB, kind=ALL_REDUCE) == close(2 * (latency + part * 8 * per_byte))


def test_stages_and_levels_of_each_tier():
    stages = 7 / 8 / 400 + (1 / 8 - 1 / 32) / 50 + (1 / 32 - 1 / 128) / 12.5
    hops = 7e-6 + 3e-5 + 3 * 2e-5
    assert time(128, 8, 32, algorithm="hierarchical") == close(hops + stages)
    assert time(128, 8, 32, algorithm="hierarchical", kind=ALL_REDUCE) == close(2 * (hops + stages))
    # A tree has levels on each tier.
    levels = 7 * 1e-6 + 2 * 1e-5 + 3 * 2e-5  # a chain of eight, four domains, eight leaves
    assert time(256, 8, 32, kind=ALL_REDUCE, algorithm="tree") == close(2 * (2 * levels + 1 / 400 / 0.8))
    # Scatter and gather take the same.
    for algorithm in ("ring", "hierarchical"):
        assert time(64, 8, 32, kind=REDUCE_SCATTER, algorithm=algorithm) == time(64, 8, 32, algorithm=algorithm)


@pytest.mark.parametrize(
    ("size", "shares", "latency", "seconds"),
    [
        (8, (8, 8), 7e-6, 7 / 8 / 400),
        (32, (8, 32), 1e-5 + 31e-6, 24 / 32 / 50),
        (64, (8, 32), 2e-5 + 63e-6, 32 / 64 / 12.5),  # half of the bytes leave the leaf
        (36, (1, 32), 2e-5 + 35e-6, 32 / 36 / 12.5),  # of the four GPUs in the second leaf eight ninths do
    ],
)
def test_of_an_exchange_the_slowest_tier_decides(size, shares, latency, seconds):
    assert time(size, *shares, kind=ALL_TO_ALL, algorithm="exchange") == close(latency + seconds)


def hop(size, *shares, network=TREE, **changes):
    stages = [np.asarray([float(count)]) for count in (size, *shares)]
    assumptions = make_assumptions(**PLAIN | changes)
    return float(send(stages[0], stages[1], network, assumptions, stages[2:])(GB)[0])


@pytest.mark.parametrize(
    ("size", "shares", "seconds"),
    [
        (2, (2, 2), 1e-6 + 1 / 400),
        (2, (1, 2), 1e-5 + 1 / 50),
        (2, (1, 1), 2e-5 + 1 / 12.5),  # every GPU of the leaf sends out of it
        (4, (1, 2), (2 * (1e-5 + 1 / 50) + 2e-5 + 1 / 25) / 3),  # half of them do, on twice the share
        (64, (2, 8), (32 * (1e-6 + 1 / 400) + 24 * (1e-5 + 1 / 50) + 7 * (2e-5 + 1 / 50)) / 63),
    ],
)
def test_a_send_takes_the_outermost_tier_that_it_crosses(size, shares, seconds):
    assert hop(size, *shares) == close(seconds)


def test_what_is_beyond_a_nic_is_shared_and_what_relays_is_no_switch():
    shared = replace(TREE, gpus_per_nic=4.0)
    changes = {"protocols": ("eager",), "eager_bandwidth": 1.0}
    found = time(32, 8, 8, volume=32 * GB, network=TREE, **changes)
    assert found == close(28 * 0.2e-6 + 3 * 1e-5 + 31 / 50)  # eight shares of the spine, one NIC
    found = time(32, 8, 8, volume=32 * GB, network=shared, **changes)
    assert found == close(28 * 0.2e-6 + 3 * 1e-5 + 31 / 100)
    # What relays is a nic and no switch.
    slow = time(4, 1, 1, relay=0.5) - 3 * 2e-5
    assert slow == close(3 / 4 / 12.5)  # a share of the spine, a quarter of a NIC, hides it
    assert time(8, 1, 4, relay=0.5) == close(8e-5 + 7 / 8 * 1.5 / 50)
    stages = (1 - 1 / 4) * 1.5 / 50 + (1 / 4 - 1 / 16) / 12.5
    assert time(16, 1, 4, algorithm="hierarchical", relay=0.5) == close(3 * 1e-5 + 3 * 2e-5 + stages)


@pytest.mark.parametrize(
    ("size", "shares", "latency", "per_byte"),
    [
        (8, (8, 8, 8), 7e-6, 7 / 8 / 200),  # the whole ring, both ways around
        (4, (4, 4, 4), 3e-6, 3 / 4 / 100),  # half of one has one way
        (4, (1, 4, 4), 3e-6, 3 / 4 / 200),
        (2, (1, 2, 2), 1e-6, 1 / 2 / 100),
        (32, (8, 32, 32), 31e-6, 31 / 32 / 200),
        (128, (8, 32, 64), 126e-6 + 1e-5, 127 / 128 / 200),  # 64 NICs
        (2, (1, 1, 1), 1e-5, 1 / 2 / 50),
    ],
)
def test_a_ring_on_a_torus(size, shares, latency, per_byte):
    assert time(size, *shares, network=TORUS) == close(latency + per_byte)


def test_an_exchange_on_a_torus_goes_a_quarter_of_each_ring_and_neighbours_have_one_link():
    def exchange(*shares):
        return time(*shares, kind=ALL_TO_ALL, algorithm="exchange", network=TORUS)

    assert exchange(8, 8, 8, 8) == close(7e-6 + 8 / 4 / 200)
    assert exchange(64, 8, 32, 64) == close(1e-6 + 63e-6 + 8 / 4 / 200)  # dimensions at once: the longest decides
    assert exchange(4, 1, 4, 4) == close(1e-6 + 3e-6 + 4 / 4 / 200)
    assert exchange(2, 2, 2, 2) == close(1e-6 + 2 / 4 / 100)  # neighbours: half of the bytes on one link
    # Neighbours on a torus have one of its links.
    assert hop(8, 8, 8, 8, network=TORUS) == close(1e-6 + 1 / 100)
    assert hop(2, 1, 1, 1, network=TORUS) == close(1e-5 + 1 / 50)


def test_meshes_products_and_groups_of_one():
    mesh = Network(tiers=(NVS, replace(NIC, peers=4)))
    assert time(40, 8, network=mesh) == close(35e-6 + 4e-5 + 39 / 40 / 400)  # eight GPUs of a domain have 400 GB/s
    assert time(2, 1, network=mesh) == close(1e-5 + 1 / 2 / 12.5)  # one link of four
    assert hop(2, 1, network=mesh) == close(1e-5 + 1 / 12.5)
    assert time(5, 1, kind=ALL_TO_ALL, algorithm="exchange", network=mesh) == close(1e-5 + 4e-6 + 4 / 5 / 50)
    # A product of groups lies as they do.
    whole = group(*(np.asarray([count]) for count in (48.0, 8.0, 16.0)))
    parts = [group(*(np.asarray([count]) for count in counts)) for counts in ((12.0, 4.0, 4.0), (4.0, 2.0, 4.0))]
    product = parts[0].times(parts[1])
    for one, other in zip(jax.tree.leaves(product), jax.tree.leaves(whole), strict=True):
        assert float(one[0]) == pytest.approx(float(other[0]), rel=1e-15)
    assert [float(units.share[0]) for units in product.by_tier] == [8.0, 16.0]
    # One gpu communicates nothing.
    for network, shares in ((TREE, (1, 1)), (TORUS, (1, 1, 1))):
        for kind in KINDS:
            for algorithm in ("ring", "tree", "hierarchical", "exchange"):
                assert time(1, *shares, kind=kind, algorithm=algorithm, network=network, relay=0.5) == 0.0
