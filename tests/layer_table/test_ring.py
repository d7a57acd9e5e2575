"""Transfers and all-reduces in a hierarchy, against replicas that are placed one by one, and by hand."""

from math import prod
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import partition as oracle

from dsx.layer_table.instance import Hierarchy, all_reduce, joining_level, path_bandwidth, ring_sizes, transfer_s

GB = 1e9
NETWORK = {"devices": (4, 2, 3), "bandwidth": (400 * GB, 50 * GB, 100 * GB), "latency": (1e-6, 1e-5, 2e-5)}


pytestmark = pytest.mark.usefixtures("float64")


def hierarchy(network=NETWORK):
    return Hierarchy(*(np.array(network[name]) for name in ("devices", "bandwidth", "latency")))


def test_transfers_and_levels_of_a_path():
    np.testing.assert_array_equal(path_bandwidth(hierarchy()), [400 * GB, 50 * GB, 50 * GB])
    # A transfer.
    assert transfer_s(jnp.float64(5 * GB), 1e-5, 50 * GB) == pytest.approx(0.10001)
    assert transfer_s(jnp.float64(0), 1e-5, 50 * GB) == 0
    # The level that joins two devices.
    devices = np.arange(24)
    one, other = np.repeat(devices, 24), np.tile(devices, 24)
    expected = [oracle.level_of(*pair, NETWORK) for pair in zip(one.tolist(), other.tolist(), strict=True)]
    np.testing.assert_array_equal(joining_level(one, other, hierarchy()), expected)


@pytest.mark.parametrize("devices", [(4, 2, 3), (2, 2, 2), (1, 5, 2), (3, 4, 5), (8, 1, 1), (7,)])
def test_groups_of_members_at_any_stride(devices):
    levels = Hierarchy(np.array(devices), np.ones(len(devices)), np.ones(len(devices)))
    total = prod(devices)
    pairs = [(members, stride) for stride in range(1, total + 1) for members in range(1, total // stride + 1)]
    sizes = np.stack(ring_sizes(*np.array(pairs).T, levels), axis=1)
    np.testing.assert_array_equal(sizes, [oracle.group_sizes(*pair, devices) for pair in pairs])


@pytest.mark.slow
def test_all_reduces_by_hand_and_side_by_side():
    draw = Random(0)
    for _ in range(50):
        stride = draw.randint(1, 24)
        members = draw.randint(1, 24 // stride)
        num_bytes = draw.choice([0, 10**6, 10**10])
        made = all_reduce(jnp.array(members), jnp.array(stride), hierarchy())(float(num_bytes))
        assert float(made) == pytest.approx(oracle.sync(members, stride, num_bytes, NETWORK), rel=1e-12)
    # An all reduce by hand.
    # Eight members, four in each of two domains: 3/4 of the bytes twice inside, 1/2 of a quarter twice between.
    made = all_reduce(jnp.array(8), jnp.array(1), hierarchy())(8 * GB)
    inside, between = 6 * (1e-6 + 2 / 400), 2 * (1e-5 + 1 / 50)
    assert float(made) == pytest.approx(inside + between, rel=1e-12)
    # Networks side by side.
    bandwidth = np.array([[400 * GB, 50 * GB, 100 * GB], [400 * GB, 25 * GB, 100 * GB]])
    sizes, latency = np.array([NETWORK["devices"]] * 2), np.array([NETWORK["latency"]] * 2)
    made = jax.vmap(lambda levels: all_reduce(jnp.array(24), jnp.array(1), levels)(8 * GB))(
        Hierarchy(sizes, bandwidth, latency)
    )
    for seconds, width in zip(made.tolist(), bandwidth.tolist(), strict=True):
        assert seconds == pytest.approx(oracle.sync(24, 1, 8 * GB, NETWORK | {"bandwidth": width}), rel=1e-12)
