"""Rings and sends by hand: 50 GB/s and 10 us on a slow link, 400 GB/s and 1 us on a fast one."""

import jax.numpy as jnp
import numpy as np
import pytest
from cost.records import believed, machine

from dsx.cost.collectives import group, passes, ring, send, sends_all
from dsx.graph.match import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER

GB = 1e9


def time(size, share, volume, kind=ALL_GATHER, **changes):
    members = group(jnp.asarray([float(size)]), jnp.asarray([float(share)]))
    return float(ring(members, machine(**changes).network, believed(), passes(kind), sends_all(kind))(volume)[0])


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
def test_a_gather(size, share, volume, latency, seconds):
    for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        assert time(size, share, volume, kind) == pytest.approx(latency + seconds, rel=1e-12), kind


@pytest.mark.parametrize(("size", "share"), [(8, 1), (8, 8), (16, 4), (32, 16), (1, 1)])
def test_an_all_reduce_makes_two_passes(size, share):
    assert time(size, share, GB, ALL_REDUCE) == pytest.approx(2 * time(size, share, GB), rel=1e-12)


@pytest.mark.parametrize(
    ("size", "share", "latency", "seconds"),
    [(8, 1, 7 * 10e-6, 8 / 50), (8, 8, 7 * 1e-6, 8 / 400), (16, 4, 3 * 10e-6 + 12 * 1e-6, 8 / 200), (1, 1, 0, 0)],
)
def test_a_broadcast_sends_everything(size, share, latency, seconds):
    for kind in (BROADCAST, REDUCE):
        assert time(size, share, 8 * GB, kind) == pytest.approx(latency + seconds, rel=1e-12), kind


def test_an_empty_message_still_costs_its_hops():
    assert time(8, 1, 0.0) == pytest.approx(7 * 10e-6)


def test_groups_of_several_sizes_at_once():
    sizes, shares = jnp.asarray([8.0, 8.0, 1.0]), jnp.asarray([1.0, 8.0, 1.0])
    link = ring(group(sizes, shares), machine().network, believed())
    np.testing.assert_allclose(link(8 * GB), [70e-6 + 7 / 50, 7e-6 + 7 / 400, 0.0], rtol=1e-12)


def test_a_group_over_two_axes_is_the_product_of_theirs():
    whole = group(jnp.asarray([48.0]), jnp.asarray([8.0]))
    product = group(jnp.asarray([12.0]), jnp.asarray([4.0])).times(group(jnp.asarray([4.0]), jnp.asarray([2.0])))
    np.testing.assert_allclose(product, whole, rtol=1e-15)


def hop(size, share, volume):
    link = send(jnp.asarray([float(size)]), jnp.asarray([float(share)]), machine().network, believed())
    return float(link(volume)[0])


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
    assert hop(size, share, GB) == pytest.approx(seconds, rel=1e-12)
