"""Columns that published tables do not have, read from the notes of a row."""

import pytest
from measured.tables import write

from dsx.measured.node_network import NodeNetwork
from dsx.measured.runs import read_runs
from dsx.measured.setups import Setup, count_from_notes, setups


@pytest.fixture
def made(tmp_path):
    """Return the setups of rows that differ from a good one as stated."""

    def rows(*changes: dict[str, str]) -> list[Setup]:
        found = setups(read_runs(write(tmp_path / "runs.csv", *({"kernels": ""} | change for change in changes))))
        return [setup for setup in found if isinstance(setup, Setup)]

    return rows


@pytest.mark.parametrize(
    ("notes", "unfused"),
    [
        ("trial 7; kernel=flash_attention2 + RMS kernel; seen", set()),
        ("kernel=flash_attentionv1.0.8; seen", {"norm"}),
        ("trial 7; kernel=fused", {"norm"}),
        ("kernels=torch", {"norm", "softmax"}),
        ("a kernel of its own", set()),
        ("", set()),
    ],
)
def test_kernels(made, notes, unfused):
    (setup,) = made({"notes": notes})
    assert setup.unfused == unfused
    assert setup.from_notes == (("kernels",) if "=" in notes else ())


@pytest.mark.parametrize(
    ("notes", "gpus", "nic"),
    [
        ("4x100Gb RoCE per node; seen", 50e9 / 8, 12.5e9),
        ("8 x 200 Gb/s per node", 25e9, 25e9),
        ("400 Gbps per node", 50e9 / 8, 25e9),  # of DGX A100 a NIC has 200 Gb/s
        ("FSDP; A100 nodes 400 Gb/s, H100 nodes 800 Gb/s; seen", 50e9 / 8, 25e9),
        ("H100 nodes 800 Gb/s", 25e9, None),  # of another GPU
        ("IB 100Gb/s", 25e9, None),  # of a node or of a NIC
        ("inter-node 800 Gb/s, node size 8", 25e9, None),
    ],
)
def test_networks(made, notes, gpus, nic):
    (setup,) = made({"notes": notes})
    assert (setup.cluster.network.net.bandwidth, setup.cluster.network.net.nic_bandwidth) == (gpus, nic)
    assert setup.from_notes == (() if nic is None else ("node_network",))


def test_a_column_wins(made):
    notes = {"notes": "4x100Gb RoCE per node; kernel=torch"}
    read, stated, half = made(
        notes, notes | {"kernels": "flash + RMS norm", "node_network": "8x200 Gb/s"}, notes | {"kernels": "RMS norm"}
    )
    assert stated.cluster.network.net.bandwidth == 25e9 and stated.unfused == frozenset()
    assert [setup.from_notes for setup in (read, stated, half)] == [("kernels", "node_network"), (), ("node_network",)]
    assert count_from_notes([read, stated, half]) == {"node_network": 2, "kernels": 1}
    # What stands in the notes is no default.
    assert "kernels" not in read.filled


def test_a_network_is_read_with_its_table(tmp_path):
    (run,) = read_runs(write(tmp_path / "runs.csv", {"node_network": "2 x 25 GB/s"}))
    assert run.node_network == NodeNetwork(50e9, 25e9)
