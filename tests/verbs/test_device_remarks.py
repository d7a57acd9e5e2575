"""What is said of a device that a set was not made for, or that states too little."""

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.verbs.job import cluster_remarks, device_remarks, replicas_left_out, unfilled_domain


def remarks(cluster, assumptions="uncalibrated", changes=()):
    return device_remarks(load_cluster(cluster).device, load_assumptions(assumptions, changes))


def test_nothing_of_a_measured_device_of_the_maker():
    assert remarks("h100-nvs8") == []


def test_the_share_that_is_assumed():
    said = "device MI250X die states no sustained_share: 0.7 of its peak is assumed"
    assert remarks("mi250x-xgmi8")[0] == said
    assert said not in remarks("mi250x-xgmi8", changes=[("matrix_ceiling", "data_sheet")])


def test_a_precision_that_a_device_does_not_have():
    (said,) = remarks("a100-80-nvs8", changes=[("linear_dtype", "fp8")])
    assert said.endswith("states no fp8_flops: multiplies in fp8 take as long as in bf16")
    assert remarks("h100-nvs8", changes=[("linear_dtype", "fp8")]) == []


def test_a_device_of_which_no_attention_is_known():
    (said,) = remarks("v100-32-nvs8", changes=[("attention_efficiency", "0.5")])
    assert said == "device V100 states no attention: 0.5 of what other multiplies reach is assumed of fused kernels"
    assert remarks("v100-32-nvs8", changes=[("attention_kernels", "none")]) == []


def test_a_device_that_states_no_multiprocessors_and_no_generation():
    bare = load_cluster("h100-nvs8").device.model_copy(update={"num_sms": None, "generation": None})
    assumed = load_assumptions("default")
    assert device_remarks(bare, assumed) == [
        f"device {bare.name} states no num_sms: every wave of tiles is taken as full",
        f"device {bare.name} states no generation: it counts as one of which nothing was measured",
    ]
    assert not any("states no" in said for said in device_remarks(load_cluster("tpu-v5p").device, assumed))


def test_numbers_of_another_maker():
    (said,) = remarks("mi300x-xgmi8")
    assert "rocm" in said and "'uncalibrated' are from devices of cuda" in said
    assert remarks("mi300x-xgmi8", changes=[("platforms", "[cuda, rocm]")]) == []
    assert remarks("mi300x-xgmi8", changes=[("platforms", "[]")]) == []


def test_gpus_that_do_not_fill_their_domains_are_said():
    assert [unfilled_domain(*sizes) for sizes in ((8, 8), (4, 8), (64, 8), (72, 72), (72, 8))] == [[]] * 5
    (said,) = unfilled_domain(512, 72)
    assert said.startswith(
        "512 GPUs do not fill fast domains of 72: one after the other, the last has 8; 504 or 576 GPUs would fill"
    )


def test_the_node_that_is_assumed():
    content = load_cluster("h100-nvs8").model_dump(mode="json")
    del content["node"]["host_memory"]
    bare = load_cluster(content)
    (said,) = cluster_remarks(bare, load_assumptions("default"))
    assert (
        said == "cluster h100-nvs8 states no node.host_memory: for offload to the host host_memory=1.024 TB is assumed"
    )
    assert cluster_remarks(bare, load_assumptions("paper-2410.00273")) == []


@pytest.mark.parametrize(
    ("num_gpus", "batch", "says"),
    [
        (72, 512, "dp divides both, so it can be at most 8; a batch of 576 would allow 72, and 64 GPUs 64"),
        (20, 32, "can be at most 4; a batch of 40 would allow 20, and 16 GPUs 16"),
        (2304, 1024, "can be at most 256; a batch of 1,152 would allow 1,152, and 2,048 GPUs 1,024"),
        (3, 2, "at most 1; a batch of 3 would allow 3, and 2 GPUs 2"),
        (72, 1152, ""),
        (64, 512, ""),
        (1024, 8, ""),
    ],
)
def test_a_batch_that_leaves_gpus_without_a_replica_is_said(num_gpus, batch, says):
    said = replicas_left_out(num_gpus, batch)
    assert len(said) == bool(says) and says in " ".join(said)


@pytest.mark.parametrize(("node", "domain", "said"), [(3, 8, True), (8, 12, True), (8, 4, False), (4, 72, False)])
def test_nodes_that_fast_domains_cut(node, domain, said):
    changes = [("node.gpus", str(node)), ("network.nvs.size", str(domain))]
    remark = (
        f"cluster h100-nvs8 has node.gpus={node} and network.nvs.size={domain}: fast domains cut nodes, since neither "
        f"divides the other; nearest: node.gpus={2 if node == 3 else 6}"
    )
    assert (remark in cluster_remarks(load_cluster("h100-nvs8", changes), load_assumptions("default"))) is said


def test_no_more_gpus_than_those_of_a_node_share_a_link_to_the_host():
    def said(sharing):
        return cluster_remarks(
            load_cluster("h100-nvs8", [("node.gpus_per_host_link", sharing)]), load_assumptions("default")
        )

    assert said("8") == []
    (text,) = said("16")
    assert "has node.gpus_per_host_link=16 and node.gpus=8: all GPUs of a node are taken to share one link" in text
