"""The record of a cluster: its numbers, and the tiers of its topology."""

import dataclasses

import jax
import pytest

from dsx.config.cluster_file import anonymous, cluster_from_spec, load_cluster, network_from_spec
from dsx.config.topology import NetworkSpec, changed_network
from dsx.errors import SpecError


@pytest.fixture
def cluster():
    return cluster_from_spec(load_cluster("a100-nvs4"))


def test_a_cluster_has_the_numbers_of_its_file(cluster):
    assert cluster.name == "a100-nvs4"
    device = cluster.device
    assert device.name == "A100"
    assert (device.matrix_flops, device.vector_flops) == (312e12, 78e12)
    assert (device.hbm_bandwidth, device.hbm_capacity) == (1555e9, 80e9)
    nvs, net = cluster.network.nvs, cluster.network.net
    assert (nvs.name, nvs.size, nvs.bandwidth, nvs.latency) == ("nvs", 4, 300e9, 2.5e-6)
    assert (net.name, net.size, net.bandwidth, net.latency) == ("net", 0, 25e9, 5e-6)
    # Real numbers are leaves and integers are structure.
    leaves = jax.tree_util.tree_leaves(cluster)
    assert len(leaves) == 33
    assert all(type(leaf) is float for leaf in leaves)
    other = cluster_from_spec(load_cluster("a100-nvs8"))
    assert jax.tree_util.tree_structure(cluster) != jax.tree_util.tree_structure(other)
    # A record does not change.
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.device.hbm_capacity = 1.0
    # A what if is a map over leaves.
    doubled = jax.tree_util.tree_map(lambda leaf: 2 * leaf, cluster)
    assert doubled.device.hbm_capacity == 160e9
    assert doubled.network.nvs.size == 4


def test_links_and_nics_that_gpus_share_read_back():
    meshed = cluster_from_spec(load_cluster("a100-80-nvs4"))
    switched = cluster_from_spec(load_cluster("a100-nvs4"))
    assert (meshed.network.nvs.peers, switched.network.nvs.peers) == (3, 0)
    assert anonymous(meshed).network.nvs.peers == 3
    # A nic that gpus share.
    assert cluster_from_spec(load_cluster("v100-16-nvs8")).network.gpus_per_nic == 8.0
    assert cluster_from_spec(load_cluster("h100-nvs8")).network.gpus_per_nic == 1.0
    # A network reads back as it was written.
    for name in ("tpu-v4-pod", "perlmutter", "h100-spine-leaf"):
        spec = load_cluster(name).network
        assert changed_network(spec, {}) == spec
    assert network(None).model_dump(mode="json").keys() == {"nvs", "net"}


def network(topology, size=8, inside="400 GB/s", outside="50 GB/s"):
    """A network as a cluster file describes it."""
    facts = {
        "nvs": {"size": size, "bandwidth": inside, "latency": "2 us"},
        "net": {"bandwidth": outside, "latency": "5 us"},
    }
    return NetworkSpec.model_validate(facts | ({"topology": topology} if topology else {}))


def levels(topology, **changes):
    """(name, GPUs, GB/s, us) of the tiers beyond the fast domain."""
    tiers = network_from_spec(network(topology, **changes)).tiers
    assert (tiers[0].name, tiers[0].size) == ("nvs", changes.get("size", 8))
    return [(tier.name, tier.size, tier.bandwidth / 1e9, round(tier.latency * 1e6, 9)) for tier in tiers[1:]]


def test_fat_trees():
    assert levels(None) == [("net", 0, 50.0, 5.0)]
    # A fat tree divides by the oversubscription of the levels below.
    tree = {
        "kind": "fat_tree",
        "levels": [
            {"name": "leaf", "units": 4, "oversubscription": 2},
            {"name": "pod", "units": 8, "oversubscription": 2.5, "latency": "7 us"},
            {"name": "core", "units": 3},
        ],
    }
    assert levels(tree) == [("leaf", 32, 50.0, 5.0), ("pod", 256, 25.0, 7.0), ("core", 768, 10.0, 7.0)]
    made = network_from_spec(network(tree))
    assert [made.oversubscription(tier) for tier in range(4)] == [1.0, 1.0, 2.0, 5.0]
    # The oversubscription of a spine and its leaves is that of their links.
    tree = {
        "kind": "spine_leaf",
        "domains_per_leaf": 4,
        "uplinks_per_leaf": 16,
        "uplink_bandwidth": "50 GB/s",
        "spine_latency": "6 us",
    }
    assert levels(tree) == [("leaf", 32, 50.0, 5.0), ("spine", 0, 25.0, 6.0)]  # 800 GB/s for 32 GPUs
    assert levels(tree | {"uplinks_per_leaf": 64, "leaves": 2})[1] == ("spine", 64, 50.0, 6.0)  # no more than a NIC's
    # A unit of rails is one switch wide.
    rails = {"kind": "rail_optimized", "domains_per_unit": 32, "units": 4, "oversubscription": 2}
    assert levels(rails) == [("rail", 256, 50.0, 5.0), ("spine", 1024, 25.0, 5.0)]


def test_tori_dragonflies_and_meshes():
    torus = {"kind": "torus", "shape": [8, 4, 2], "link_bandwidth": "200 GB/s", "latency": "1 us"}
    assert levels(torus) == [("y", 32, 400.0, 1.0), ("z", 64, 400.0, 1.0), ("net", 0, 50.0, 5.0)]
    made = network_from_spec(network(torus))
    assert [(tier.chain, tier.wraps) for tier in made.tiers] == [(8, True), (4, True), (2, True), (0, False)]
    assert (made.linked, made.net.name) == (3, "net")
    grid = {"kind": "torus", "shape": [8, 4], "link_bandwidth": "400 GB/s", "wrap": False}
    assert levels(grid) == [("y", 32, 400.0, 2.0), ("net", 0, 50.0, 5.0)]  # one link in each direction
    # A dragonfly has the links of its routers.
    fly = {
        "kind": "dragonfly", "gpus_per_router": 16, "routers_per_group": 9, "groups": 10,
        "local_bandwidth": "80 GB/s", "global_bandwidth": "100 GB/s", "global_links_per_router": 4,
        "global_latency": "8 us",
    }  # fmt: skip
    assert levels(fly) == [("router", 16, 50.0, 5.0), ("group", 144, 40.0, 5.0), ("global", 1440, 25.0, 8.0)]
    # Fully connected domains are a mesh.
    mesh = {"kind": "fully_connected", "domains": 5, "link_bandwidth": "80 GB/s"}
    assert levels(mesh) == [("net", 40, 40.0, 5.0)]  # four links for eight GPUs
    assert network_from_spec(network(mesh)).tiers[1].peers == 4


def test_bandwidths_of_paths_and_changes_of_nics():
    numbers = {
        "kind": "levels",
        "levels": [
            {"name": "leaf", "units": 4, "bandwidth": "10 GB/s", "latency": "2 us"},
            {"name": "spine", "bandwidth": "30 GB/s", "latency": "3 us"},
        ],
    }
    assert levels(numbers) == [("leaf", 32, 10.0, 2.0), ("spine", 0, 10.0, 3.0)]
    # Other nics change every tier beyond them.
    tree = {"kind": "fat_tree", "levels": [{"name": "leaf", "units": 4, "oversubscription": 2}, {"name": "spine"}]}
    changed = network_from_spec(changed_network(network(tree), {"net.bandwidth": 1e11, "nvs.size": 4}))
    assert [(tier.size, tier.bandwidth) for tier in changed.tiers] == [(4, 4e11), (16, 1e11), (0, 5e10)]
    # A change that the topology does not fit is refused.
    torus = network({"kind": "torus", "shape": [8, 4], "link_bandwidth": "200 GB/s"})
    with pytest.raises(SpecError, match=r"network\.nvs\.size = 6: .* is 6, 2 short of the first size of shape, 8"):
        changed_network(torus, {"nvs.size": 6})


@pytest.mark.parametrize(
    ("name", "tiers"),
    [
        ("dgx-a100-superpod", [("nvs", 8), ("rail", 160), ("spine", 1120)]),
        ("h100-nvl8-rail", [("nvs", 8), ("rail", 256), ("spine", 0)]),
        ("gb200-nvl72-rail", [("nvs", 72), ("rail", 576), ("spine", 9216)]),
        ("tpuv4-fat-tree", [("nvs", 8), ("leaf", 32), ("spine", 1024)]),
        ("h100-spine-leaf", [("nvs", 8), ("leaf", 32), ("spine", 1024)]),
        ("tpu-v4-pod", [("nvs", 16), ("y", 256), ("z", 4096), ("net", 0)]),
        ("perlmutter", [("nvs", 4), ("router", 16), ("group", 512), ("global", 7168)]),
    ],
)
def test_the_tiers_of_the_packaged_topologies(name, tiers):
    found = network_from_spec(load_cluster(name).network)
    assert [(tier.name, tier.size) for tier in found.tiers] == tiers
    paces = [tier.bandwidth for tier in found.tiers[found.linked :]]
    assert paces == sorted(paces, reverse=True)
