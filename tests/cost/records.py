"""Records with round numbers, to be worked out by hand."""

import numpy as np

from dsx.config.cluster_file import Cluster, Device, DeviceOperation, Network, Node, Tier
from dsx.cost.context import Assumptions, StepChoices, StepPlans
from dsx.cost.layer import LayerCosts
from dsx.cost.stages import Stack
from dsx.cost.step import Workload
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER
from dsx.plans.enumerate import SearchedCodes
from dsx.records import leaves

KINDS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE)

_DEVICE = ("matrix_flops", "vector_flops", "hbm_bandwidth", "hbm_capacity", "fp8_flops", "power_share", "num_sms")
_DEVICE += ("host_bandwidth", "fp4_flops", "int8_flops", "sustained_share", "fp8_sustained_share")
_DEVICE += ("attention_forward", "attention_backward")


def machine(**changes):
    """1 PFLOP/s matrix, 100 TFLOP/s vector, 2 TB/s; 800 GB/s and 1 us inside a domain, 100 GB/s and 10 us outside.

    Eight GPUs to a node, whose host has 8 TB at 1.6 TB/s.
    """
    facts = {
        "matrix_flops": 1e15, "vector_flops": 1e14, "hbm_bandwidth": 2e12, "hbm_capacity": 1e11,
        "fp8_flops": 2e15, "power_share": 1.0, "num_sms": 100.0, "host_bandwidth": 5e10,
        "fp4_flops": 4e15, "int8_flops": 2e15, "sustained_share": 0.0, "fp8_sustained_share": 0.0,
        "attention_forward": (0.0, 0.0, 0.0, 0.0), "attention_backward": (0.0, 0.0, 0.0, 0.0),
        "gpus": 8.0, "gpus_per_host_link": 1.0, "host_memory": 8e12, "host_memory_bandwidth": 1.6e12,
        "nvs_bandwidth": 8e11, "nvs_latency": 1e-6, "net_bandwidth": 1e11, "net_latency": 1e-5,
    } | changes  # fmt: skip
    nvs, net = (
        Tier(bandwidth=facts[f"{name}_bandwidth"], latency=facts[f"{name}_latency"], name="", size=0)
        for name in ("nvs", "net")
    )
    device = {name: facts[name] for name in _DEVICE}
    operation = DeviceOperation(**{name: facts.get(name, 0.0) for name in leaves(DeviceOperation)})
    network = Network(tiers=(nvs, net))
    node = Node(**{name: facts[name] for name in leaves(Node)})
    device = Device(**device, name="")
    return Cluster(device=device, network=network, node=node, operation=operation, name="", label="")


_ZERO = (
    "attention_kernels tile_latency tile_half tile_quantisation wave_quantisation attention_half cast_traffic "
    "clock_exponent unfused_share dispatch_latency tp_overlap cp_overlap dispatcher ep_overlap pp_overlap "
    "call_latency relay optimizer_traffic_per_parameter muon_traffic_per_parameter "
    "accumulation_traffic_per_parameter overhead memory_margin fragmentation"
).split()
_HALF = (
    "matrix_efficiency vector_efficiency hbm_efficiency nvs_efficiency net_efficiency host_efficiency "
    "host_memory_efficiency host_memory_share eager_net_latency"
).split()
_ONE = (
    "kernel_slowdown sustained_share attention_efficiency attention_gradient_efficiency fp8_efficiency "
    "grouped_efficiency dp_overlap fsdp_overlap bulk_latency launch_hidden"
).split()


def make_assumptions(**changes):
    """Efficiencies of one half, 10 us a launch, 2 bytes an element, 12 bytes of Adam; an update costs nothing."""
    others = {
        "matrix_ceiling": "data_sheet", "launch_latency": 1e-5, "eager_nvs_latency": 0.2, "eager_bandwidth": 0.25,
        "tree_latency": 2.0, "tree_bandwidth": 0.8, "weight_bytes": 2.0, "gradient_bytes": 2.0,
        "optimizer_bytes_per_parameter": 12.0, "host_gradient_bytes": 4.0, "muon_bytes_per_parameter": 8.0,
        "muon_steps": 5.0, "muon_bytes": 2.0, "muon_tp_bytes": 4.0, "charge_replicated_gradients": False,
        "protocols": ("bulk",), "algorithms": tuple((kind, ("ring",)) for kind in KINDS), "linear_dtype": "bf16",
        "panel_overlap": "first_apart", "pipeline_sends": "mean", "optimizer": "adam", "tiles": (),
    }  # fmt: skip
    same = dict.fromkeys(_ZERO, 0.0) | dict.fromkeys(_HALF, 0.5) | dict.fromkeys(_ONE, 1.0)
    return Assumptions(**same | others | changes)


def layer_costs(**changes):
    """A layer of one key: 10 ms forward, 20 ms backward, one weight group of 4 GB."""
    fields = {
        "forward_s": [0.010], "backward_s": [0.020], "compute_s": [0.021], "memory_s": [0.003], "tp_comm_s": [0.004],
        "cp_comm_s": [0.002], "ep_comm_s": [0.0], "replicated_gradient_s": [0.0], "weight_gradient_s": [0.008],
        "split_s": [0.0], "recompute_s": [[0.0], [0.002], [0.010]], "stash_bytes": [[1e9], [6e8], [1e8]],
        "working_bytes": [[0.0], [0.0], [0.0]], "scattered_bytes": [[0.0], [0.0], [0.0]], "boundary_bytes": [1e8],
        "weight_bytes": [[4e9]], "group_size": [[1.0]], "group_share": [[1.0]], "group_ep": [[1.0]],
    } | changes  # fmt: skip
    return LayerCosts(**{name: np.asarray(value) for name, value in fields.items()})


def choices(**changes):
    """48 sequences on 32 GPUs: 4 stages, 8 replicas, 6 microbatches."""
    fields = {
        "num_gpus": 32.0, "global_batch_size": 48.0, "pp": 4.0, "dp": 8.0, "num_microbatches": 6.0,
        "pp_nvs": 1.0, "dp_nvs": 1.0, "vpp": 1.0, "zero_stage": 1.0, "recompute": 0.0, "schedule": 0.0,
        "zero_replicas": 1.0, "stored_layers": 0.0, "offload": 0.0,
        "order": 0.0,
    } | changes  # fmt: skip
    return StepChoices(**{name: np.asarray([value]) for name, value in fields.items()})


WORKLOAD = Workload(
    stack=Stack(counts=((12.0,),), segments=((0,),)),
    searched=SearchedCodes(),
    sequence_length=1000.0,
    forward_flops=1e12,
    gradient_flops=2e12,
    train_tokens=8.64e9,
)


def step_plans(made, searched):
    """Plans on the machine, of a stack of twelve layers."""
    return StepPlans(made, searched, WORKLOAD.stack, machine(), make_assumptions())
