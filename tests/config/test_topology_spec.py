"""Topologies that do not fit together: each fault says where, what was short, and by how much."""

import pytest

from dsx.config.cluster_file import load_cluster
from dsx.config.topology import Topology
from dsx.errors import SpecError

TREE = "{kind: fat_tree, levels: [{name: leaf, units: 4}, {name: spine, units: 8}]"


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (
            f"{{kind: fat_tree, levels: [{', '.join(f'{{name: a{level}, units: 2}}' for level in range(41))}]}}",
            "network.topology.levels: has 41 entries, but at most 40 are needed",
        ),
        (
            "{kind: fat_tree, levels: [{name: a, units: 2147483647}, {name: b, units: 2147483647}]}",
            "the levels multiply to 36893488113059364872 GPUs; at most 2147483647 are allowed",
        ),
        ("{kind: fat_tre}", "kind: 'fat_tre' is not one of fat_tree, spine_leaf, "),
        ("{kind: fat_tre}", "did you mean 'fat_tree'?"),
        ("{kind: [fat_tree]}", "kind: \"['fat_tree']\" is not one of fat_tree, spine_leaf, "),
        ("{kind: {value: torus}}", "kind: \"{'value': 'torus'}\" is not one of fat_tree, spine_leaf, "),
        ("{levels: []}", "network.topology: 'kind' is required, one of fat_tree, "),
        ("7", "expected a section with a kind: fat_tree, spine_leaf, "),
        ("{kind: torus, shape: [8, 4]}", "network.topology.link_bandwidth: is required, but missing"),
        (
            "{kind: fat_tree, levels: [{name: leaf, unts: 4}]}",
            "unts: unknown key; did you mean 'units'? (known: name, ",
        ),
        (
            "{kind: fat_tree, level: []}",
            "network.topology.level: unknown key; did you mean 'levels'? (known: gpus, kind",
        ),
        (f"{TREE}, gpus: 300}}", "gpus: nvs=8 * leaf=4 * spine=8 = 256 GPUs, 44 short of the stated 300"),
        (f"{TREE}, gpus: 250}}", "256 GPUs, 6 more than the stated 250"),
        (
            "{kind: levels, gpus: 100, levels: [{name: leaf, units: 4, bandwidth: 1 GB/s, latency: 1 us}, "
            "{name: spine, bandwidth: 1 GB/s, latency: 1 us}]}",
            "gpus: 100 GPUs are not a multiple of nvs=8 * leaf=4 = 32: 28 short of 4 such units",
        ),
        (
            "{kind: fat_tree, levels: [{name: leaf}, {name: spine, units: 8}]}",
            "'leaf' states no units; only the outermost level may leave them out",
        ),
        ("{kind: fat_tree, levels: [{name: leaf, units: 4}, {name: leaf, units: 8}]}", "two levels are called 'leaf'"),
        (
            "{kind: fat_tree, levels: [{name: leaf, units: 4, oversubscription: 2}]}",
            "'leaf' is the outermost level and has no uplinks: an oversubscription of 2 belongs to the level below",
        ),
        (
            "{kind: fat_tree, levels: [{name: nvs, units: 4}]}",
            "levels.0.name: 'nvs' cannot be the name of a level: it is the fast domain",
        ),
        (
            "{kind: fat_tree, levels: [{name: Leaf2, units: 4}]}",
            "'Leaf2' cannot be the name of a level: write small letters and digits, a letter first; nearest: 'leaf2'",
        ),
        ("{kind: fat_tree, levels: [{name: 2nd leaf, units: 4}]}", "a letter first; nearest: 'ndleaf'"),
        ("{kind: torus, shape: 8x8, link_bandwidth: 1 GB/s}", "shape: expected a list, as in [a, b], got '8x8'"),
        ("{kind: torus, shape: [8], link_bandwidth: 1 GB/s}", "shape: has one entry, but at least 2 are needed"),
        (
            "{kind: torus, shape: [8, 8, 8, 8], link_bandwidth: 1 GB/s}",
            "shape: has 4 entries, but at most 3 are needed",
        ),
        ("{kind: fat_tree, levels: []}", "topology.levels: has no entries, but at least 1 is needed"),
        ("{kind: fat_tree, levels: [{name: leaf, oversubscription: 0.5}]}", "greater than or equal to 1, got 0.5"),
        (
            "{kind: torus, shape: [6, 4], link_bandwidth: 225 GB/s}",
            "network.nvs.size is 8, 2 more than the first size of shape, 6",
        ),
        (
            "{kind: torus, shape: [8, 4], link_bandwidth: 100 GB/s}",
            "two links of a chip carry 2e+11 B/s, and network.nvs.bandwidth is 4.5e+11 B/s",
        ),
        (
            "{kind: dragonfly, gpus_per_router: 12, routers_per_group: 4, local_bandwidth: 1 GB/s, "
            "global_bandwidth: 1 GB/s, global_links_per_router: 2}",
            "gpus_per_router: 12 GPUs are not a multiple of the fast domain, 8: 4 short of 2 domains",
        ),
        (
            "{kind: dragonfly, gpus_per_router: 16, routers_per_group: 4, groups: 20, local_bandwidth: 1 GB/s, "
            "global_bandwidth: 1 GB/s, global_links_per_router: 2}",
            "with 20 groups, each needs a link to 19 others, but has routers_per_group * global_links_per_router = "
            "4 * 2 = 8: 11 short",
        ),
        ("{kind: fully_connected, domains: 1, link_bandwidth: 1 GB/s}", "greater than or equal to 2, got 1"),
    ],
)
def test_a_fault_says_what_is_short_and_by_how_much(topology, says):
    with pytest.raises(SpecError) as caught:
        load_cluster("h100-nvs8", [("network.topology", topology)])
    assert says in str(caught.value)
    assert str(caught.value).startswith("--set cluster.network.topology: ")


def test_a_fault_in_a_file_has_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: h100-nvs8\nname: mine\nnetwork:\n  topology:\n    kind: fat_tree\n    levels:\n"
        "      - {name: leaf, unit: 4}\n"
    )
    with pytest.raises(SpecError, match=r"mine\.yaml:7: network\.topology\.levels\.0\.unit: unknown key"):
        load_cluster(file)
    # A cluster without a topology states none.
    assert "topology" not in load_cluster("h100-nvs8").model_dump(mode="json")["network"]


def test_a_topology_without_levels_cannot_be_made():
    with pytest.raises(TypeError, match="levels_outside"):
        Topology()
