"""Columns that published tables do not have, read from the notes of a row."""

import pytest
from runs.tables import write

from dsx.runs.setups import Setup, count_rows_by, setups
from dsx.runs.table import read_runs


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
        ("RoCE 4x100Gb/s per node", 50e9 / 8, 12.5e9),
        ("per node: 4 x 100Gbps InfiniBand", 50e9 / 8, 12.5e9),
        ("recompute=full, inter-node 400 Gb/s, node size 8", 50e9 / 8, 25e9),
        ("CX-7 400Gb/s/GPU", 50e9, 50e9),
        ("A100 nodes 400 Gb/s per GPU", 50e9, 50e9),
        ("4 nodes x 8 A100, IB 100Gb/s", 12.5e9, 12.5e9),  # as many NICs as in the cluster file, eight
        ("RoCE 400Gb/s; seen", 50e9, 50e9),
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
        *("H100 nodes 800 Gb/s", "NVLink 400 Gb/s per GPU", "inter-node 800 Gbytes", "IB 100Gb/s cables"),
        *("eight 400 Gb/s NICs per node", "3,200 Gb/s per node", "0x100Gb RoCE per node", "10.4x100Gb RoCE per node"),
        *("A100 nodes 640 Gbytes", "A100 nodes 0 Gb/s", "0 Gb/s/GPU", "RoCE 0 Gb/s"),
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
    assert count_rows_by([read, stated, half], "from_notes") == {"node_network": 2, "kernels": 1}
    # What stands in the notes is no default.
    assert "kernels" not in read.filled


EXPERTS = {"experts": "8", "topk": "2", "kernels": "norm", "ep": "2", "head_dim": "128", "kv_heads": "8"}


@pytest.mark.parametrize(
    ("notes", "etp"),
    [("distributed optimizer; expert-TP=1", 1), ("expert tensor parallel 2 with EP 2", 2), ("ETP: 1", 1)],
)
def test_expert_tensor_parallelism(made, notes, etp):
    (setup,) = made(EXPERTS | {"notes": notes})
    assert (setup.etp, setup.from_notes) == (etp, ("etp",))


def test_degrees_of_experts_and_replicas(made):
    """As Megatron-Core does; where tp divides no expert, or ep needs all ranks, they stay whole."""
    usual, odd, full = made(EXPERTS, EXPERTS | {"ffn_hidden": "1001"}, EXPERTS | {"ep": "8"})
    assert [(setup.etp, "etp" in setup.filled) for setup in (usual, odd, full)] == [(2, True), (1, True), (1, True)]
    (stated,) = made(EXPERTS | {"etp": "1"})
    assert (stated.etp, "etp" in stated.filled) == (1, False)
    # An inferred degree is said.
    (setup,) = made(INTERLEAVED | {"notes": "interleaved PP"})
    assert "vpp" in setup.filled and not setup.unread
    # Replicas and dispatchers.
    (setup,) = made(SHARDED | {"notes": "ZeRO-1 shard group: 4", "zero_replicas": "2"})
    assert (setup.plan["zero_replicas"], setup.from_notes) == (2, ())
    # Dispatchers.
    read, stated, neither = made(
        EXPERTS | {"notes": "MoE with DeepEP"}, EXPERTS | {"dispatcher": "once_per_copy", "notes": "DeepEP"}, EXPERTS
    )
    fields = [dict(setup.assumptions).get("dispatcher") for setup in (read, stated, neither)]
    assert fields == ["once_per_domain", "once_per_copy", None]


INTERLEAVED = {"layers": "32", "pp": "4", "dp": "2", "vpp": ""}


@pytest.mark.parametrize(
    ("changes", "chunks"),
    [
        ({"notes": "interleaved schedule used (degree not printed)"}, 4),  # eight layers of a stage, two to a chunk
        ({"framework": "Interleaved 1F1B"}, 4),
        ({"notes": "interleaved PP", "layers": "30"}, 4),  # eight with embedding and head
        ({"notes": "interleaved PP", "layers": "12"}, 3),  # three layers of a stage: one to a chunk
        ({"notes": "interleaved PP", "layers": "4"}, 1),
        ({"notes": "VPP=2"}, 2),
        ({"notes": "4 virtual stages"}, 4),
        ({"notes": "non-interleaved schedule"}, 1),
        ({"notes": "interleaving not read"}, 4),  # of unknown degree
        ({"notes": "interleaving as in the appendix"}, 1),
        ({"notes": "interleaved PP", "vpp": "2"}, 2),
        ({"notes": "printed VP=12 ignored", "pp": "1", "dp": "8"}, 1),
    ],
)
def test_chunks_of_an_interleaved_schedule(made, changes, chunks):
    (setup,) = made(INTERLEAVED | changes)
    assert setup.plan["vpp"] == chunks


SHARDED = {"tp": "1", "sp": "0", "pp": "1", "dp": "16", "zero_stage": "3"}


@pytest.mark.parametrize(
    ("notes", "replicas"),
    [
        ("ZeRO-1 shard group: 4", 4),
        ("ZeRO-1 group 8; seen", 2),
        ("HSDP, torch.compile", 2),  # a group in each node of eight
        ("printed 450.6 sequences/s; DP 4 x FSDP 4 x TP 1", 4),
        ("data 2 x dcn FSDP 4 x ici FSDP 2; seen", 2),
        ("FSDP=8 x DP", 2),
        ("FSDP8xDP2", 2),
        ("ici_fsdp 8 x dcn_fsdp 2", 1),
    ],
)
def test_zero_groups(made, notes, replicas):
    (setup,) = made(SHARDED | {"notes": notes, "kernels": "norm"})
    assert (setup.plan["zero_replicas"], setup.from_notes) == (replicas, ("zero_replicas",))


@pytest.mark.parametrize("notes", ["FSDP2+TP", "FSDP=0", "shard group: all", "FSDP 5", "FSDP, torch.compile"])
def test_no_zero_groups(made, notes):
    (setup,) = made(SHARDED | {"notes": notes})
    assert setup.plan["zero_replicas"] == 1 and not setup.from_notes


@pytest.mark.parametrize(
    ("notes", "unread"),
    [
        ("CUDA graphs; AsyncTP", ("asynchronous tensor parallelism", "CUDA graphs")),
        ("AsyncTP=0", ()),
        ("1 shared expert", ("shared experts",)),
        ("alternating sliding-window(128)/full attention", ("sliding-window attention",)),
        ("InfiniBand of 200 Gb/s", ("bandwidth of NICs",)),
        ("80GB GPUs; steady", ()),
        ("HSDP over 3 nodes; a group of FSDP 5", ("ZeRO groups",)),
        ("fused cross-entropy", ()),
    ],
)
def test_what_notes_name_and_the_row_was_not_priced_with_is_said(made, notes, unread):
    (setup,) = made({"notes": notes})
    assert setup.unread == unread


def test_gaps_of_columns_are_said_where_nothing_fills_them(made):
    graphs, stages = made({"notes": "CUDA graphs"}, {"layers": "31", "notes": "first/last stage have one layer fewer"})
    assert (graphs.unread, stages.unread) == (("CUDA graphs",), ("stages with fewer layers",))
    assert count_rows_by([graphs, stages], "unread") == {"CUDA graphs": 1, "stages with fewer layers": 1}
    # A microbatch of a device is that of its replica.
    note = {"notes": "inferred: per-device batch", "tp": "4", "sp": "", "microbatch": "2", "global_batch": "16"}
    divided, alone = made(note | {"dp": "2"}, note | {"tp": "1", "dp": "8"})
    assert (divided.plan["microbatch_size"], divided.plan["num_microbatches"], divided.sp) == (8, 1, True)
    assert (alone.plan["microbatch_size"], alone.plan["num_microbatches"]) == (2, 1)
    (odd,) = made(note | {"dp": "2", "global_batch": "12"})  # no replica has that many
    assert odd.plan["microbatch_size"] == 2
    # A layer fewer at the ends is the even cut of 30 layers with embedding and head.
    fewer, network = made(
        {"layers": "30", "notes": "first/last stage have one layer fewer"},
        {"notes": "8 NICs of 200 Gb/s", "node_network": "8x200 Gb/s"},
    )
    assert (fewer.unread, network.unread) == ((), ())
    assert count_rows_by([fewer, network], "unread") == {}
