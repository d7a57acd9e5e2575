"""The network of a node: how it is written, and what it makes of a cluster."""

import pytest
from runs.tables import write

from dsx.config.cluster_file import load_cluster
from dsx.errors import RunTableError
from dsx.runs.table import NodeNetwork, node_network, read_runs, with_node_network


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("400 Gb/s", NodeNetwork(50e9, None)),
        ("4x100 Gb/s", NodeNetwork(50e9, 12.5e9)),
        ("8 x 25 GB/s", NodeNetwork(200e9, 25e9)),
    ],
)
def test_texts(text, network):
    assert node_network(text) == network


@pytest.mark.parametrize(
    "text",
    [
        *("400", "0 Gb/s", "-1 Gb/s", "four NICs", "4x", "0x100 Gb/s", "400 Gb", "4x100Gb", "1e400 Gb/s"),
        *("9999x1e307 GB/s", "99999x1 GB/s", "8 * 400 Gb/s", "400 Gb/s each"),
    ],
)
def test_a_faulty_cell_has_its_place_and_an_example(tmp_path, text):
    table = write(tmp_path / "runs.csv", {"node_network": text})
    with pytest.raises(RunTableError) as caught:
        read_runs(table)
    assert str(caught.value) == (
        f"{table}:2: node_network: {text!r} is not the network of a node: write for example '400 Gb/s', or "
        "'4x100 Gb/s' for its NICs"
    )


@pytest.mark.parametrize(
    ("network", "share", "nic"),
    [
        (NodeNetwork(50e9, None), 6.25e9, 25e9),  # a NIC of the data sheet
        (NodeNetwork(12.5e9, None), 1.5625e9, 12.5e9),  # one NIC, which cannot be more than the node has
        (NodeNetwork(50e9, 12.5e9), 6.25e9, 12.5e9),
        (NodeNetwork(800e9, None), 100e9, 100e9),  # each GPU has more than the data sheet's NIC
    ],
)
def test_each_gpu_has_its_share(network, share, nic):
    found = with_node_network(load_cluster("a100-80-nvs8"), network, 8)
    assert (found.network.net.bandwidth, found.network.net.nic_bandwidth) == (share, nic)


def test_its_name_says_so():
    found = with_node_network(load_cluster("a100-80-nvs8"), NodeNetwork(50e9, 12.5e9), 8)
    assert found.name == "a100-80-nvs8, 50.0 GB/s to a node"
