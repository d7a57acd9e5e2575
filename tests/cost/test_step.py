"""A step by hand: the pipeline, the data-parallel reduction and its cover, the update, the rates."""

import pytest
from cost.records import WORKLOAD, believed, choices, layer_costs, machine

from dsx.cost.step import step_costs


def cost(layer=None, made=None, workload=WORKLOAD, cluster=None, assumptions=None):
    costs = step_costs(
        (layer or layer_costs(),), made or choices(), workload, cluster or machine(), assumptions or believed()
    )
    return {name: float(getattr(costs, name)[0]) for name in costs.__dataclass_fields__}


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-15)


def test_work_of_a_stage():
    # Three layers on a stage, six microbatches.
    found = cost()
    assert found["compute_s"] == close(18 * 0.021)
    assert found["memory_s"] == close(18 * 0.003)
    assert found["tp_comm_s"] == close(18 * 0.004)
    assert found["cp_comm_s"] == close(18 * 0.002)
    assert (found["ep_comm_s"], found["recompute_s"], found["optimizer_s"]) == (0.0, 0.0, 0.0)


SEND = 10e-6 + 1e8 / 50e9  # of 100 MB over a slow link


def test_sends_and_bubble():
    found = cost()
    assert found["pp_comm_s"] == close(6 * 2 * SEND)
    assert found["bubble_s"] == close(3 * (3 * 0.030 + 2 * SEND))


def test_no_pipeline():
    found = cost(made=choices(pp=1.0))
    assert (found["pp_comm_s"], found["bubble_s"]) == (0.0, 0.0)
    assert found["compute_s"] == close(6 * 12 * 0.021)


def test_a_pipeline_in_one_domain():
    assert cost(made=choices(pp_nvs=4.0))["pp_comm_s"] == close(6 * 2 * (1e-6 + 1e8 / 400e9))


GATHER = 7 * 10e-6 + 7 / 8 * 4e9 / 50e9  # of 4 GB over eight GPUs, each alone in its domain: 70.07 ms


def test_reduction_behind_the_layers():
    # The last of three layers has nothing to hide behind, the others a layer of one microbatch each.
    assert GATHER > 0.020
    assert cost()["dp_comm_s"] == close(2 * GATHER + 2 * (GATHER - 0.010) + 2 * (GATHER - 0.020))


def test_reduction_that_the_backward_hides_only():
    found = cost(layer_costs(forward_s=[0.060], backward_s=[0.100]))
    assert found["dp_comm_s"] == close(2 * GATHER + 2 * (GATHER - 0.060))


def test_reduction_of_one_layer_is_not_hidden():
    found = cost(layer_costs(forward_s=[1.0], backward_s=[1.0]), choices(pp=12.0))
    assert found["dp_comm_s"] == close(2 * GATHER)


def test_gradients_of_four_bytes_take_twice_as_long():
    scatter = 7 * 10e-6 + 7 / 8 * 8e9 / 50e9
    found = cost(made=choices(pp=12.0), assumptions=believed(gradient_bytes=4.0))
    assert found["dp_comm_s"] == close(GATHER + scatter)


def test_no_replicas_reduce_nothing():
    assert cost(made=choices(dp=1.0))["dp_comm_s"] == 0.0


def test_a_group_of_weights_that_context_parallel_ranks_share():
    # Its four members, all in one domain, and the eight replicas are one ring of 32 with 4 in a domain.
    layer = layer_costs(weight_bytes=[[3e9], [1e9]], group_size=[[1.0], [4.0]], group_share=[[1.0], [4.0]])
    alone = 7 * 10e-6 + 7 / 8 * 3e9 / 50e9
    shared = 7 * 10e-6 + 24 * 1e-6 + 31 / 32 * 1e9 / 200e9
    found = cost(layer, choices(pp=12.0))
    assert found["dp_comm_s"] == close(2 * (alone + shared))
    assert found["optimizer_bytes"] == close(6 * 3e9 / 8 + 6 * 1e9 / 32)


def test_gradients_that_tensor_parallel_ranks_share_once_a_step():
    found = cost(layer_costs(replicated_gradient_s=[0.005]), choices(pp=12.0))
    assert found["dp_comm_s"] == close(2 * GATHER + 0.005)
    found = cost(layer_costs(replicated_gradient_s=[0.005]), choices(dp=1.0))
    assert found["dp_comm_s"] == close(3 * 0.005)


def test_the_update_reads_and_writes_the_shard():
    # 2e9 parameters a layer over eight replicas, three layers, 28 bytes each, at 1 TB/s.
    found = cost(assumptions=believed(optimizer_traffic_per_parameter=28.0))
    assert found["optimizer_s"] == close(3 * 2e9 / 8 * 28 / 1e12)


def test_memory():
    found = cost()
    assert found["weight_bytes"] == close(3 * 4e9)
    assert found["gradient_bytes"] == close(3 * 4e9)
    assert found["optimizer_bytes"] == close(3 * 2e9 * 12 / 8)
    assert found["activation_bytes"] == close(3 * 1e9 * 4)  # as many microbatches in flight as stages
    assert found["peak_bytes"] == close(24e9 + 9e9 + 12e9)


def test_memory_of_other_element_sizes():
    found = cost(assumptions=believed(gradient_bytes=4.0, overhead=2e9, optimizer_bytes_per_parameter=8.0))
    assert found["weight_bytes"] == close(12e9)
    assert found["gradient_bytes"] == close(24e9)
    assert found["optimizer_bytes"] == close(6e9)
    assert found["overhead_bytes"] == close(2e9)
    assert found["peak_bytes"] == close(12e9 + 24e9 + 6e9 + 2e9 + 12e9)


@pytest.mark.parametrize(
    ("stages", "microbatches", "in_flight"), [(4, 6, 4), (4, 4, 4), (4, 3, 3), (12, 1, 1), (1, 6, 1)]
)
def test_microbatches_in_flight(stages, microbatches, in_flight):
    found = cost(made=choices(pp=float(stages), num_microbatches=float(microbatches)))
    assert found["activation_bytes"] == close(12 / stages * 1e9 * in_flight)


def test_rates():
    found = cost()
    step = found["step_time_s"]
    assert step == close(18 * 0.030 + found["pp_comm_s"] + found["bubble_s"] + found["dp_comm_s"])
    assert found["tokens_per_s"] == close(48 * 1000 / step)
    assert found["mfu"] == close(3 * 1e12 * 48 / (step * 32 * 1e15))
    assert found["training_days"] == close(8.64e9 / (48000 / step) / 86400)
