"""Columns that published tables do not have, read from the notes of a row."""

import pytest
from runs.tables import write

from dsx.runs.run_table import read_runs
from dsx.runs.setups import Setup, count_from_notes, setups


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
        ("kernel=torch;", {"norm", "softmax"}),
    ],
)
def test_kernels(made, notes, unfused):
    (setup,) = made({"notes": notes})
    assert setup.unfused == unfused
    assert setup.from_notes == ("kernels",)


@pytest.mark.parametrize(
    ("notes", "gpus", "nic"),
    [
        ("4x100Gb RoCE per node; seen", 50e9 / 8, 12.5e9),
        ("with 8x200 Gb/s InfiniBand per node", 25e9, 25e9),
        ("FSDP; A100 nodes 400 Gb/s, H100 nodes 800 Gb/s; seen", 50e9 / 8, 25e9),  # a NIC of DGX A100 has 200 Gb/s
        ("16 A100 nodes 400 Gb/s", 50e9 / 8, 25e9),
    ],
)
def test_networks(made, notes, gpus, nic):
    (setup,) = made({"notes": notes})
    assert (setup.cluster.network.net.bandwidth, setup.cluster.network.net.nic_bandwidth) == (gpus, nic)
    assert setup.from_notes == ("node_network",)


@pytest.mark.parametrize(
    "notes",
    [
        *("", "a kernel of its own", "kernel=", "kernel=none of ours", "kernel=torch, norms measured later"),
        *("H100 nodes 800 Gb/s", "IB 100Gb/s", "inter-node 800 Gb/s, node size 8", "CX-7 400Gb/s/GPU"),
        *("eight 400 Gb/s NICs per node", "3,200 Gb/s per node", "0x100Gb RoCE per node", "10.4x100Gb RoCE per node"),
        *("A100 nodes 400 Gb/s per GPU", "A100 nodes 400Gb/s/GPU", "A100 nodes 640 Gbytes", "A100 nodes 0 Gb/s"),
        *("512 Gb RAM per node", "600 Gb/s NVLink per node", f"{'9' * 400}x100Gb RoCE per node"),
    ],
)
def test_other_notes_are_for_people(made, notes):
    (setup,) = made({"notes": notes})
    assert (setup.from_notes, setup.unfused) == ((), frozenset())
    assert (setup.cluster.network.net.bandwidth, setup.cluster.network.net.nic_bandwidth) == (25e9, None)


def test_a_column_wins(made):
    notes = {"notes": "4x100Gb RoCE per node; kernel=torch"}
    read, stated, half = made(
        notes, notes | {"kernels": "norm,softmax", "node_network": "8x200 Gb/s"}, notes | {"kernels": "Norm"}
    )
    assert stated.cluster.network.net.bandwidth == 25e9
    assert [setup.unfused for setup in (read, stated, half)] == [{"norm", "softmax"}, frozenset(), {"softmax"}]
    assert [setup.from_notes for setup in (read, stated, half)] == [("kernels", "node_network"), (), ("node_network",)]
    assert count_from_notes([read, stated, half]) == {"node_network": 2, "kernels": 1}
    # What stands in the notes is no default.
    assert "kernels" not in read.filled
