"""Collectives and sends by hand: 50 GB/s and 10 us on a slow link, 400 GB/s and 1 us on a fast one."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cost.records import KINDS, machine, make_assumptions

from dsx.config.cluster_file import Network
from dsx.cost.collectives import collective, send
from dsx.cost.groups import group
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER

GB = 1e9


def time(size, share, volume, kind=ALL_GATHER, algorithms=("ring",), network=None, **changes):
    members = group(np.asarray([float(size)]), np.asarray([float(share)]))
    assumptions = make_assumptions(**{"algorithms": ((kind, algorithms),)} | changes)
    return float(collective(kind, members, network or machine().network, assumptions)(volume)[0])


def close(value):
    return pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("size", "share", "volume", "latency", "seconds"),
    [
        (8, 1, 8 * GB, 7 * 10e-6, 7 / 50),  # every hop is slow
        (2, 1, 8 * GB, 10e-6, 4 / 50),
        (8, 8, 8 * GB, 7 * 1e-6, 7 / 400),  # every hop is fast
        (16, 4, 16 * GB, 3 * 10e-6 + 12 * 1e-6, 15 / 200),  # four NICs of a domain
        (32, 16, 32 * GB, 1 * 10e-6 + 30 * 1e-6, 31 / 400),  # sixteen NICs are faster than the fast link
        (6, 2, 6 * GB, 2 * 10e-6 + 3 * 1e-6, 5 / 100),
        (1, 1, 8 * GB, 0.0, 0.0),  # no one to talk to
    ],
)
def test_a_ring(size, share, volume, latency, seconds):
    for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        assert time(size, share, volume, kind) == close(latency + seconds), kind


@pytest.mark.parametrize(("size", "share"), [(8, 1), (8, 8), (16, 4), (32, 16), (1, 1)])
def test_an_all_reduce_makes_two_passes(size, share):
    for algorithm in ("ring", "hierarchical"):
        gather = time(size, share, GB, algorithms=(algorithm,))
        assert time(size, share, GB, ALL_REDUCE, (algorithm,)) == close(2 * gather)


@pytest.mark.parametrize(
    ("size", "share", "latency", "seconds"),
    [(8, 1, 7 * 10e-6, 8 / 50), (8, 8, 7 * 1e-6, 8 / 400), (16, 4, 3 * 10e-6 + 12 * 1e-6, 8 / 200), (1, 1, 0, 0)],
)
def test_a_broadcast_sends_everything(size, share, latency, seconds):
    for kind in (BROADCAST, REDUCE):
        assert time(size, share, 8 * GB, kind) == close(latency + seconds), kind


def test_a_call_its_protocols_and_relays():
    assert time(8, 1, 0.0) == close(7 * 10e-6)
    # The inside of an exchange can be what takes long.
    slow_inside = machine(nvs_bandwidth=2e9).network  # 1 GB/s
    assert time(8, 4, 8 * GB, ALL_TO_ALL, ("exchange",), slow_inside) == close(10e-6 + 7 * 1e-6 + 3 / 1)
    # A call and its protocols.
    one = time(8, 1, 8 * GB, bulk_latency=3.0, call_latency=5e-6)
    assert one == close(5e-6 + 3 * 70e-6 + 7 / 50)
    both = {"protocols": ("bulk", "eager"), "bulk_latency": 3.0, "call_latency": 5e-6}
    assert time(8, 1, 8 * GB, **both) == one  # large: the short hops do not pay
    assert time(8, 1, 8e4, **both) == close(5e-6 + 35e-6 + 7e4 / (0.25 * 50e9))  # 80 kB: half of a hop, a quarter
    assert time(8, 8, 8e4, **both) == close(5e-6 + 7 * 0.2e-6 + 7e4 / (0.25 * 400e9))
    assert time(16, 4, 16e4, **both) == close(5e-6 + 3 * 5e-6 + 12 * 0.2e-6 + 15e4 / (0.25 * 50e9))  # one NIC of four
    assert time(1, 1, 8 * GB, **both) == 0.0
    # A gpu that relays between its nic and itself.
    assert time(8, 1, 8 * GB, relay=0.5) == close(70e-6 + 7 / 50 * 1.5)
    assert time(16, 4, 16 * GB, relay=0.5) == close(42e-6 + 15 / 200 * 1.125)  # a quarter of the traffic
    assert time(8, 8, 8 * GB, relay=0.5) == time(8, 8, 8 * GB)


@pytest.mark.parametrize(
    ("size", "share", "latency", "seconds"),
    [
        (8, 1, 2 * 3 * 10e-6, 1 / 50 / 0.8),  # three levels, each hop twice a ring's
        (16, 4, 2 * (2 * 10e-6 + 3 * 1e-6), 1 / 200 / 0.8),  # a chain of four in each of four domains
        (8, 8, 2 * 7 * 1e-6, 1 / 400 / 0.8),
        (1, 1, 0.0, 0.0),
    ],
)
def test_a_tree(size, share, latency, seconds):
    for kind, passes in ((BROADCAST, 1), (REDUCE, 1), (ALL_REDUCE, 2)):
        assert time(size, share, GB, kind, ("tree",)) == close(passes * (latency + seconds)), kind


@pytest.mark.parametrize(
    ("size", "share", "latency", "seconds"),
    [
        (16, 4, 3 * 10e-6 + 3 * 1e-6, 12 / 400 + 3 / 50),  # 16 GB inside, 4 GB between on each of four rails
        (8, 1, 7 * 10e-6, 14 / 50),
        (8, 8, 7 * 1e-6, 14 / 400),
        (1, 1, 0.0, 0.0),
    ],
)
def test_two_stages(size, share, latency, seconds):
    for kind in (ALL_GATHER, REDUCE_SCATTER):
        assert time(size, share, 16 * GB, kind, ("hierarchical",)) == close(latency + seconds), kind


@pytest.mark.parametrize(
    ("size", "share", "latency", "seconds"),
    [
        (16, 4, 10e-6 + 15 * 1e-6, 12 / 50),  # twelve sixteenths leave the domain, on the GPU's own NIC
        (8, 8, 7 * 1e-6, 14 / 400),
        (8, 1, 10e-6 + 7 * 1e-6, 14 / 50),
        (1, 1, 0.0, 0.0),
    ],
)
def test_an_exchange(size, share, latency, seconds):
    assert time(size, share, 16 * GB, ALL_TO_ALL, ("exchange",)) == close(latency + seconds)


@pytest.mark.parametrize(("share", "links"), [(2, 1), (3, 2), (4, 3)])
def test_a_domain_without_a_switch_has_the_links_among_the_members(share, links):
    nvs, net = machine().network.tiers
    meshed = Network(tiers=(replace(nvs, peers=3), net))
    found = time(share, share, share * GB, network=meshed)
    assert found == close((share - 1) * 1e-6 + (share - 1) / (400 * links / 3))


def test_groups_of_several_sizes_and_over_two_axes():
    sizes, shares = np.asarray([8.0, 8.0, 1.0]), np.asarray([1.0, 8.0, 1.0])
    link = collective(ALL_GATHER, group(sizes, shares), machine().network, make_assumptions())
    np.testing.assert_allclose(link(8 * GB), [70e-6 + 7 / 50, 7e-6 + 7 / 400, 0.0], rtol=1e-12)
    # A group over two axes is the product of theirs.
    whole = group(np.asarray([48.0]), np.asarray([8.0]))
    product = group(np.asarray([12.0]), np.asarray([4.0])).times(group(np.asarray([4.0]), np.asarray([2.0])))
    np.testing.assert_allclose(product[:-1], whole[:-1], rtol=1e-15)
    assert product.outer == whole.outer == ()


def test_the_fields_can_be_fitted():
    """The derivative of a time by a parameter is finite, also for groups of one GPU."""
    members = group(np.asarray([1.0, 2.0, 16.0, 64.0]), np.asarray([1.0, 2.0, 4.0, 1.0]))
    algorithms = tuple((kind, ("ring", "tree")) for kind in KINDS)

    def total(parameter, volume):
        assumptions = make_assumptions(
            relay=parameter, call_latency=parameter, tree_bandwidth=parameter, algorithms=algorithms
        )
        return collective(ALL_REDUCE, members, machine().network, assumptions)(volume).sum()

    for volume in (0.0, 1e5, 1e9):
        slope = jax.grad(total)(0.5, volume)
        step = 1e-6
        assert float(slope) == pytest.approx(
            float(total(0.5 + step, volume) - total(0.5 - step, volume)) / (2 * step), rel=1e-6
        )


def hop(size, share, volume, network=None, **changes):
    stages = np.asarray([float(size)]), np.asarray([float(share)])
    return float(send(*stages, network or machine().network, make_assumptions(**changes))(volume)[0])


SLOW, FAST = 10e-6 + 1 / 50, 1e-6 + 1 / 400  # one GB over one link


@pytest.mark.parametrize(
    ("size", "share", "seconds"),
    [
        (4, 1, SLOW),
        (4, 4, FAST),
        (8, 4, (6 * FAST + 1 * SLOW) / 7),  # the one link between two domains is slow (C1)
        (8, 2, (4 * FAST + 3 * SLOW) / 7),
        (2, 1, SLOW),
        (2, 2, FAST),
    ],
)
def test_a_send_takes_the_mean_of_the_links(size, share, seconds):
    assert hop(size, share, GB) == close(seconds)


def test_a_small_send_is_eager():
    changes = {"protocols": ("bulk", "eager"), "call_latency": 5e-6}
    assert hop(2, 1, 1e4, **changes) == close(5e-6 + 5e-6 + 1e4 / (0.25 * 50e9))
    assert hop(2, 1, GB, **changes) == close(5e-6 + SLOW)


@pytest.mark.parametrize(("share", "used"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_a_send_uses_the_shares_of_a_nic_that_others_leave_idle(share, used):
    network = machine().network
    shared = replace(network, gpus_per_nic=4.0)
    slow, fast = 10e-6 + 1 / (50 * used), share - 1
    links = 2 * share - 1
    assert hop(2 * share, share, GB, shared) == close((2 * fast * FAST + slow) / links)
