"""The machine and the software of a row: clusters by GPU, the network of nodes, stacks by word, release and year."""

import pytest

from dsx.config.cluster_file import load_cluster
from dsx.runs.row_job import cluster_of, described, known_clusters, known_stacks, software_of, with_node_network
from dsx.runs.table import NodeNetwork, UnmodelledError

CLUSTERS = known_clusters()
STACKS = known_stacks()


@pytest.mark.parametrize(
    ("gpu", "gpus_per_node", "cluster"),
    [
        ("A100", 8, "a100-80-nvs8"),
        ("a100-40gb-sxm4", 8, "a100-40-nvs8"),
        ("A100-40GB", 4, "a100-40-nvs4"),
        ("NVIDIA A100 80GB", 4, "a100-80-nvs4"),
        ("A800-80GB", 8, "a800-nvs8"),
        ("H100-80GB-SXM", 8, "h100-nvs8"),
        ("H100-96GB-HBM2e-500W", 8, "h100-96-nvs8"),
        ("H200-141GB-SXM", 8, "h200-141-nvs8"),
        ("H800", 8, "h800-nvs8"),
        ("V100-16GB-SXM2", 8, "v100-16-nvs8"),
        ("V100-32GB", 16, "v100-32-nvs16"),
        ("B200-180GB", 8, "b200-180-nvs8"),
        ("b300", 8, "b300-288-nvs8"),
        ("GB200-NVL72", 4, "gb200-nvl72"),
        ("GB300", 72, "gb300-nvl72"),
        ("GH200-96GB", 1, "gh200-96-nvs4, 1 to a node"),
        ("MI250X", 8, "mi250x-xgmi8"),
        ("MI300X", 8, "mi300x-xgmi8"),
        ("AMD Instinct MI300X", 8, "mi300x-xgmi8"),
        ("MI325X-256GB", 8, "mi325x-xgmi8"),
        ("MI350X", 8, "mi350x-xgmi8"),
        ("mi355x", 4, "mi355x-xgmi8, 4 to a node"),
        ("Gaudi 2", 8, "gaudi2-eth8"),
        ("Intel Gaudi3", 8, "gaudi3-eth8"),
        ("TPU v5e", 8, "tpu-v5e"),
        ("TPUv5p", 4, "tpu-v5p"),
        ("TPU v6e", 4, "tpu-v6e"),
        ("TPU7x", 8, "tpu-7x"),
        ("TPU-v5p", 8960, "tpu-v5p"),
        ("TPU-v5p", 512, "tpu-v5p, 512 to a node"),
        ("TPU-v5e", 16, "tpu-v5e, 16 to a node"),
        ("TPUv4", 4, "tpu-v4"),
        ("TPU v4", 4, "tpu-v4"),
        ("H100 SXM", 8, "h100-nvs8"),
        ("h100_80g", 8, "h100-nvs8"),
        ("H100-SXM5-80GB", 8, "h100-nvs8"),
        ("H100SXM5", 8, "h100-nvs8"),
        ("A100-SXM4-40GB", 8, "a100-40-nvs8"),
        ("h200-nvs64", 8, "h200-nvs64"),
        ("H100", 2, "h100-nvs8, 2 to a node"),
    ],
)
def test_a_gpu_is_matched_by_its_longest_prefix(gpu, gpus_per_node, cluster):
    assert cluster_of(gpu, gpus_per_node, CLUSTERS).name == cluster


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [
        ("H1000", "H100"),
        ("H100X", "H100"),
        ("A10", "A100"),
        ("V100S", "V100"),
        ("TPUv42", "TPU-v4"),
        ("GB2000", "GB200"),
        ("MI300A", "MI300X"),
        ("TPUv5", "TPU-v5p"),
    ],
)
def test_a_longer_name_is_another_gpu(gpu, nearest):
    with pytest.raises(UnmodelledError, match=f"^no cluster has this gpu .{gpu!r}, nearest: {nearest}"):
        cluster_of(gpu, 8, CLUSTERS)


def test_nodes_and_software_of_runs():
    assert cluster_of("H100", 2, CLUSTERS).network.nvs.size == 2
    # Its name says so.
    found = with_node_network(load_cluster("a100-80-nvs8"), NodeNetwork(50e9, 12.5e9), 8)
    assert found.name == "a100-80-nvs8, 50.0 GB/s to a node"
    # A run that states no software is no unknown one.
    assert software_of(None, None, 2024, STACKS).unknown is None
    assert software_of("anything", None, 2024, []) is None


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


@pytest.mark.parametrize(
    ("software", "framework", "year", "stack"),
    [
        (None, "Megatron-LM", 2021, "megatron-2019"),
        (None, "megatron-lm", 2023, "megatron-2023"),
        (None, "NeMo/Megatron-Core", 2024, "megatron-2024-mid"),  # the middle of the year
        ("24.05", "NeMo/Megatron-Core", 2024, "megatron-2024"),
        ("24.06", "NeMo/Megatron-Core", 2024, "megatron-2024-mid"),
        ("NeMo 25.04", "NeMo/Megatron-Core", 2024, "megatron-2025"),  # a release wins over the year
        ("ngc23.09 NeMo", None, 2025, "megatron-2023"),
        ("release of 2023-10", "PaxML/JAX", 2024, "xla-2023"),
        (None, "Megatron-DeepSpeed", 2024, "deepspeed-2023"),  # the longer word
        (None, "Megatron-DeepSpeed (Habana)", 2024, "graph-compiler-2023"),
        (None, "torchtitan FSDP2", 2024, "torchtitan-2024"),
        (None, "PyTorch FSDP2", 2024, "fsdp-2024"),
        ("fsdp-2022", "torchtitan", 2025, "fsdp-2022"),  # the name of a stack
        (None, "Megatron-LM", None, "megatron-lm-2025"),  # as new as the newest
        (None, "Megatron-LM", 1999, "megatron-2019"),  # all are later
    ],
)
def test_the_stack_of_known_software(software, framework, year, stack):
    found = software_of(software, framework, year, STACKS)
    assert (found.stack.name, found.unknown) == (stack, None)


@pytest.mark.parametrize(("year", "stack"), [(2018, "generic-2019"), (2023, "generic-2023"), (2026, "generic-2024")])
def test_unknown_software_has_the_stack_of_its_year_and_is_reported(year, stack):
    found = software_of("3.1", "Megatrn", year, STACKS)
    assert (found.stack.name, found.unknown) == (stack, "3.1 Megatrn")
    remark = described("Megatrn 3.1", found.stack, STACKS)
    assert remark == f"software 'Megatrn 3.1' is not known; did you mean 'megatron'?; the stack {stack!r} is assumed"
