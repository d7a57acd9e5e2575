"""The memory of the host by hand: what a GPU keeps there, and the bandwidth that the GPUs of a node share."""

import pytest
from cost.records import machine
from cost.test_offload import offloading
from cost.test_step import close

from dsx.plans.choices import CODES


def test_what_a_gpu_keeps_on_the_host():
    assert offloading("none")["host_bytes"] == offloading("none", CODES["offload"][:1])["host_bytes"] == 0.0
    # State and gradients of the rank.
    # 7.5e8 parameters of a rank: twelve bytes of Adam, four of the gradient.
    assert offloading("optimizer")["host_bytes"] == close(3 * 2e9 / 8 * 16)
    # What the layers of the first stage save.
    # Four microbatches in flight, three layers, 1 GB each.
    assert offloading("activations")["host_bytes"] == close(4 * 3 * 1e9)
    both, optimizer, activations = (offloading(what)["host_bytes"] for what in ("both", "optimizer", "activations"))
    assert both == close(optimizer + activations)
    # It is no part of the memory of a gpu.
    found = offloading("both")
    parts = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "overhead_bytes")
    assert found["peak_bytes"] == close(sum(found[name] for name in parts))


def test_transfers_share_the_memory_of_the_host():
    """Half of 80 GB/s for eight GPUs is 5 GB/s each, a fifth of the link: 1 GB takes 200 ms."""
    found, plain = (offloading(what, cluster=machine(host_memory_bandwidth=8e10)) for what in ("activations", "none"))
    assert found["memory_s"] - plain["memory_s"] == close(12 * (0.190 + 0.180))
    found = offloading("optimizer", cluster=machine(host_memory_bandwidth=8e10))
    assert found["optimizer_s"] == close(3 * 2e9 / 8 * (4 + 28) / 5e9)


@pytest.mark.parametrize(("num_gpus", "busy"), [(32.0, 8), (8.0, 8), (4.0, 4)])
def test_a_small_job_has_the_host_for_itself(num_gpus, busy):
    found = offloading("optimizer", cluster=machine(host_memory_bandwidth=8e10), num_gpus=num_gpus)
    assert found["optimizer_s"] == close(3 * 2e9 / 8 * (4 + 28) / (0.5 * 8e10 / busy))


@pytest.mark.parametrize(("num_gpus", "sharing"), [(32.0, 2), (2.0, 2), (1.0, 1)])
def test_gpus_behind_one_switch_share_its_link(num_gpus, sharing):
    """Half of 50 GB/s for the GPUs of a job behind a switch; four bytes each way, 28 bytes through the memory."""
    found = offloading("optimizer", cluster=machine(gpus_per_host_link=2.0), num_gpus=num_gpus)
    rank, memory = 3 * 2e9 / 8, 0.5 * 1.6e12 / min(num_gpus, 8)
    assert found["optimizer_s"] == close(rank * (4 / (0.5 * 5e10 / sharing) + 28 / memory))


def test_a_link_is_shared_by_no_more_gpus_than_a_node_has():
    steps = [
        offloading("optimizer", cluster=machine(gpus_per_host_link=float(sharing)), num_gpus=32.0)["step_time_s"]
        for sharing in (4, 8, 16)
    ]
    assert steps[0] < steps[1] == steps[2]
    # Layers stall as with a link of half the bandwidth.
    shared, slower = ({"gpus_per_host_link": 2.0}, {"host_bandwidth": 2.5e10})
    for what in ("activations", "both"):
        halves = [offloading(what, cluster=machine(**changes))["step_time_s"] for changes in (shared, slower)]
        assert halves[0] == halves[1] > offloading(what)["step_time_s"]
