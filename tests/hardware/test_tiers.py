"""Tiers by hand, for each kind of topology: domains of eight, 400 GB/s inside, 50 GB/s and 5 us on a NIC."""

import pytest

from dsx.config.cluster_file import load_cluster
from dsx.config.topology import NetworkSpec, changed_network
from dsx.errors import SpecError
from dsx.hardware.cluster import network_from_spec


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


def test_without_a_topology_there_are_two_tiers():
    assert levels(None) == [("net", 0, 50.0, 5.0)]


def test_a_fat_tree_divides_by_the_oversubscription_of_the_levels_below():
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


def test_the_oversubscription_of_a_spine_and_its_leaves_is_that_of_their_links():
    tree = {
        "kind": "spine_leaf",
        "domains_per_leaf": 4,
        "uplinks_per_leaf": 16,
        "uplink_bandwidth": "50 GB/s",
        "spine_latency": "6 us",
    }
    assert levels(tree) == [("leaf", 32, 50.0, 5.0), ("spine", 0, 25.0, 6.0)]  # 800 GB/s for 32 GPUs
    assert levels(tree | {"uplinks_per_leaf": 64, "leaves": 2})[1] == ("spine", 64, 50.0, 6.0)  # no more than a NIC's


def test_a_unit_of_rails_is_one_switch_wide():
    rails = {"kind": "rail_optimized", "domains_per_unit": 32, "units": 4, "oversubscription": 2}
    assert levels(rails) == [("rail", 256, 50.0, 5.0), ("spine", 1024, 25.0, 5.0)]


def test_a_torus_has_a_tier_for_each_dimension():
    torus = {"kind": "torus", "shape": [8, 4, 2], "link_bandwidth": "200 GB/s", "latency": "1 us"}
    assert levels(torus) == [("y", 32, 400.0, 1.0), ("z", 64, 400.0, 1.0), ("net", 0, 50.0, 5.0)]
    made = network_from_spec(network(torus))
    assert [(tier.chain, tier.wraps) for tier in made.tiers] == [(8, True), (4, True), (2, True), (0, False)]
    assert (made.linked, made.net.name) == (3, "net")
    grid = {"kind": "torus", "shape": [8, 4], "link_bandwidth": "400 GB/s", "wrap": False}
    assert levels(grid) == [("y", 32, 400.0, 2.0), ("net", 0, 50.0, 5.0)]  # one link in each direction


def test_a_dragonfly_has_the_links_of_its_routers():
    fly = {
        "kind": "dragonfly",
        "gpus_per_router": 16,
        "routers_per_group": 9,
        "groups": 10,
        "local_bandwidth": "80 GB/s",
        "global_bandwidth": "100 GB/s",
        "global_links_per_router": 4,
        "global_latency": "8 us",
    }
    assert levels(fly) == [("router", 16, 50.0, 5.0), ("group", 144, 40.0, 5.0), ("global", 1440, 25.0, 8.0)]


def test_fully_connected_domains_are_a_mesh():
    mesh = {"kind": "fully_connected", "domains": 5, "link_bandwidth": "80 GB/s"}
    assert levels(mesh) == [("net", 40, 40.0, 5.0)]  # four links for eight GPUs
    assert network_from_spec(network(mesh)).tiers[1].peers == 4


def test_a_path_runs_at_the_least_bandwidth_of_its_levels():
    numbers = {
        "kind": "levels",
        "levels": [
            {"name": "leaf", "units": 4, "bandwidth": "10 GB/s", "latency": "2 us"},
            {"name": "spine", "bandwidth": "30 GB/s", "latency": "3 us"},
        ],
    }
    assert levels(numbers) == [("leaf", 32, 10.0, 2.0), ("spine", 0, 10.0, 3.0)]


def test_other_nics_change_every_tier_beyond_them():
    tree = {"kind": "fat_tree", "levels": [{"name": "leaf", "units": 4, "oversubscription": 2}, {"name": "spine"}]}
    changed = network_from_spec(changed_network(network(tree), {"net.bandwidth": 1e11, "nvs.size": 4}))
    assert [(tier.size, tier.bandwidth) for tier in changed.tiers] == [(4, 4e11), (16, 1e11), (0, 5e10)]


def test_a_change_that_the_topology_does_not_fit_is_refused():
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


def test_a_network_reads_back_as_it_was_written():
    for name in ("tpu-v4-pod", "perlmutter", "h100-spine-leaf"):
        spec = load_cluster(name).network
        assert changed_network(spec, {}) == spec
    assert network(None).model_dump(mode="json").keys() == {"nvs", "net"}
