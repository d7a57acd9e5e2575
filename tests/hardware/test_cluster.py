"""The machine as records: the numbers of the file, as leaves that a what-if can vary."""

import dataclasses

import jax
import pytest

from dsx.config.cluster_file import load_cluster
from dsx.hardware.cluster import anonymous, cluster_from_spec


@pytest.fixture
def cluster():
    return cluster_from_spec(load_cluster("a100-nvs4"))


def test_the_numbers_are_those_of_the_file(cluster):
    assert cluster.name == "a100-nvs4"
    device = cluster.device
    assert device.name == "A100"
    assert (device.matrix_flops, device.vector_flops) == (312e12, 78e12)
    assert (device.hbm_bandwidth, device.hbm_capacity) == (1555e9, 80e9)
    nvs, net = cluster.network.nvs, cluster.network.net
    assert (nvs.name, nvs.size, nvs.bandwidth, nvs.latency) == ("nvs", 4, 300e9, 2.5e-6)
    assert (net.name, net.size, net.bandwidth, net.latency) == ("net", 0, 25e9, 5e-6)


def test_real_numbers_are_leaves_and_integers_are_structure(cluster):
    leaves = jax.tree_util.tree_leaves(cluster)
    assert len(leaves) == 33
    assert all(type(leaf) is float for leaf in leaves)
    other = cluster_from_spec(load_cluster("a100-nvs8"))
    assert jax.tree_util.tree_structure(cluster) != jax.tree_util.tree_structure(other)


def test_a_record_does_not_change(cluster):
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.device.hbm_capacity = 1.0


def test_a_what_if_is_a_map_over_leaves(cluster):
    doubled = jax.tree_util.tree_map(lambda leaf: 2 * leaf, cluster)
    assert doubled.device.hbm_capacity == 160e9
    assert doubled.network.nvs.size == 4


def test_links_of_each_gpu_to_each_other():
    meshed = cluster_from_spec(load_cluster("a100-80-nvs4"))
    switched = cluster_from_spec(load_cluster("a100-nvs4"))
    assert (meshed.network.nvs.peers, switched.network.nvs.peers) == (3, 0)
    assert anonymous(meshed).network.nvs.peers == 3


def test_a_nic_that_gpus_share():
    assert cluster_from_spec(load_cluster("v100-16-nvs8")).network.gpus_per_nic == 8.0
    assert cluster_from_spec(load_cluster("h100-nvs8")).network.gpus_per_nic == 1.0
