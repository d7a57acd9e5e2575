"""The numbers of the examples are those of dsx: each is computed here, and looked for in the arithmetic of its page."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from model_document.arithmetic import read
from model_document.commands import PLAN, found
from model_document.pages import PAGES, blocks

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.cost.collectives import ALGORITHMS, GroupLinks, bulk, collective
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group
from dsx.notation.model import parameters
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL
from dsx.plans.choices import KEY_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.placement import shares_on_tiers
from dsx.pricing.keys import price_keys
from dsx.pricing.problem import make_problem
from dsx.search.spaces import Space

# As dsx prices the plans of the framework that the set names.
DEFAULT = load_assumptions("default")
DEFAULT = DEFAULT.run_by(read_framework(DEFAULT.of_framework))
LAYER = "dsx layer transformer --model llama-3-70b"
GPT3 = (
    "dsx layer transformer layernorm qkv_bias out_bias ff_bias ff_out_bias dropout residual_dropout "
    "core=unfused-attention-core --model gpt3-175b"
)


def problem(model, cluster="h100-nvs8"):
    return make_problem(load_model(model), load_cluster(cluster), DEFAULT, ["1d"])


def passes(model, **degrees):
    """Return the costs of embedding, body layer and head of a model under 1d, at one key."""
    given = problem(model)
    key = dict.fromkeys(KEY_COLUMNS, 1) | {"strategy": 0} | degrees
    kinds = price_keys(given, {name: np.array([value]) for name, value in key.items()})
    return [
        SimpleNamespace(
            forward_s=float(kind.forward_s[0, 0]),
            backward_s=float(kind.backward_s[0, 0]),
            both_s=float(kind.forward_s[0, 0] + kind.backward_s[0, 0]),
            weight_bytes=float(kind.weight_bytes[0, :, 0].sum()),
            saved_bytes=float(kind.stash_bytes[0, 0, 0]),
            shared_gradient_s=float(kind.replicated_gradient_s[0, 0]),
        )
        for kind in kinds
    ]


def seconds(kind, num_bytes, size, share, cluster="h100-nvs8"):
    """Return the time of a collective of `size` GPUs, `share` of them in each fast domain."""
    machine, assumptions = problem("llama-3-8b", cluster).at_point(0)
    with jax.enable_x64(True):
        members = group(np.float64(size), np.float64(share))
        return float(collective(kind, members, machine.network, assumptions)(num_bytes))


def kernel(of, name, direction):
    return next(k for k in of["operators"] if k["name"] == name)[direction]


def of_layer(of, name, direction):
    """Return matrix FLOPs, bytes and the FLOPs of single multiplies of a kernel that ``dsx layer`` describes."""
    part = next(k for k in of["kernels"] if k["name"] == name)[direction]
    flops = [multiply["matrix_flops"]["value"] for multiply in part["multiplies"]]
    return part["matrix_flops"]["value"], part["bytes"]["value"], flops


def all_reduce_of_1_gb(cluster, num_gpus, assumptions="default"):
    times = found(f"dsx clusters show {cluster} --assumptions {assumptions}")["collectives"]
    wanted = ("all-reduce", num_gpus, 1e9)
    return next(t["time_s"] for t in times if (t["kind"], t["num_gpus"], t["bytes"]) == wanted)


def operators():
    return found(f"{PLAN} --operators")


def readme():
    plan = found(PLAN)
    return {name: plan[name] for name in ("step_time_s", "peak_bytes")}


def work():
    layer = found(f"{LAYER} --set tp=8")
    forward, forward_bytes, _ = of_layer(layer, "feed-forward.z", "forward")
    backward, backward_bytes, (of_x, of_w) = of_layer(layer, "feed-forward.z", "backward")
    attention, attention_bytes, (scores, weighted) = of_layer(layer, "self-attention.attention", "forward")
    (z,) = (op for op in layer["operators"] if op["name"] == "feed-forward.z")
    return {
        "local columns": z["outputs"][0]["local_shape"][-1], "forward FLOPs": forward, "forward bytes": forward_bytes,
        "gradient of x": of_x, "gradient of w": of_w, "backward FLOPs": backward, "backward bytes": backward_bytes,
        "scores": scores, "weighted values": weighted, "attention FLOPs": attention,
        "attention bytes": attention_bytes,
    }  # fmt: skip


def multiplies():
    generation = load_cluster("h100-nvs8").device.family
    return {
        "slowdown, \u03c3": assumptions_from_spec(DEFAULT, generation).kernel_slowdown,
        "compute": kernel(operators(), "feed-forward.z", "forward")["compute_s"],
    }


def kernels():
    norm = kernel(operators(), "n1", "forward")
    forward = [k["forward"] for k in operators()["operators"] if k["counted"]]
    issued = len([k for k in forward if k["bytes"]]) + sum(len(k["collectives"]) for k in forward)
    return {
        "vector FLOPs": norm["vector_flops"],
        "compute": norm["compute_s"],
        "bytes": norm["bytes"],
        "memory": norm["memory_s"],
        "accumulation": kernel(operators(), "feed-forward.z", "backward")["memory_s"],
        "issued by the host": issued * DEFAULT.dispatch_latency,
    }


def collectives():
    machine, assumptions = problem("llama-3-8b").at_point(0)
    with jax.enable_x64(True):
        members = group(np.float64(64), np.float64(8))
        links = GroupLinks(members, bulk(machine.network, assumptions), machine.network)
        ways = {name: float(ALGORITHMS[name](ALL_REDUCE, links)(1e9)) for name in ("ring", "tree", "hierarchical")}
    return ways | {"all-reduce": all_reduce_of_1_gb("h100-nvs8", 64)}


def tiers():
    return {"all-reduce": all_reduce_of_1_gb("dgx-a100-superpod", 320)}


def overlap():
    (gathered,) = kernel(operators(), "self-attention.qkv", "forward")["collectives"]
    return {
        "all-gather": seconds(ALL_GATHER, gathered["bytes"], 8, 8),
        "exposed behind qkv": kernel(operators(), "self-attention.qkv", "forward")["tp_comm_s"],
        "exposed behind z": kernel(operators(), "feed-forward.z", "forward")["tp_comm_s"],
        "exposed behind output": kernel(operators(), "r", "backward")["tp_comm_s"],
    }


def memory():
    plan = found(PLAN)
    embedding, layer, _ = passes("llama-3-70b", tp=8, tp_nvs=8)
    names = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "overhead_bytes", "peak_bytes")
    saved = 4 * (20 * layer.saved_bytes + embedding.saved_bytes)
    return {name: plan[name] for name in names} | {
        "parameters of a layer": layer.weight_bytes / 2,
        "embedding": embedding.weight_bytes / 2,
        "parameters of a stage": plan["weight_bytes"] / 2,
        "saved by a layer, A": layer.saved_bytes,
        "saved by the embedding": embedding.saved_bytes,
        "largest transient": plan["activation_bytes"] - saved,
    }


def recomputation():
    layer = found(GPT3)
    kept = {"none": "saved_bytes", "selective": "saved_bytes_selective", "full": "saved_bytes_full"}
    return {f"kept: {mode}": layer[name]["value"] for mode, name in kept.items()} | {
        "forward of a layer": passes("llama-3-70b", tp=8, tp_nvs=8)[1].forward_s,
        "recompute_s": found(f"{PLAN} recompute=full")["recompute_s"],
    }


def offload():
    plan = found(f"{PLAN} offload=both")
    return {"memory_s": plan["memory_s"], "optimizer_s": plan["optimizer_s"]}


def step():
    plan = found(PLAN)
    embedding, layer, head = passes("llama-3-70b", tp=8, tp_nvs=8)
    whole = found(LAYER)
    sequence = problem("llama-3-70b").workload.forward_flops
    of_layer = sum(k["forward"]["matrix_flops"]["value"] for k in whole["kernels"])
    work_of_a_stage = plan["compute_s"] + plan["memory_s"] + plan["tp_comm_s"]
    return {
        "microbatches": plan["plan"]["num_microbatches"], "a layer": layer.both_s, "embedding": embedding.both_s,
        "head": head.both_s, "work of a stage": work_of_a_stage, "its parts": work_of_a_stage,
        "tokens_per_s": plan["tokens_per_s"], "FLOPs of a layer": of_layer,
        "FLOPs of the head": sequence - 80 * of_layer, "FLOPs of a sequence": sequence, "mfu": plan["mfu"],
    }  # fmt: skip


def pipeline():
    plan = found(PLAN)
    embedding, layer, head = passes("llama-3-70b", tp=8, tp_nvs=8)
    first, between, last = 20 * layer.both_s + embedding.both_s, 20 * layer.both_s, 20 * layer.both_s + head.both_s
    mean = (first + 2 * between + last) / 4
    return {
        "pp_comm_s": plan["pp_comm_s"], "of the mean stage": plan["pp_comm_s"] / 32, "first stage": first,
        "stages 2 and 3": between, "last stage": last, "mean stage": mean, "second stage": 21 * layer.both_s,
        "last stage now": 19 * layer.both_s + head.both_s, "bubble_s": plan["bubble_s"],
    }  # fmt: skip


def layouts():
    embedding, layer, head = passes("llama-3-405b", tp=8, tp_nvs=8)
    job = "--model llama-3-405b --cluster h100-nvs8 --num-gpus 16384 --global-batch-size 2048"
    return {
        "a layer": layer.both_s,
        "embedding": embedding.both_s,
        "head": head.both_s,
        "first stage": 7 * layer.both_s + embedding.both_s,
        "stages 2 to 15": 8 * layer.both_s,
        "last stage": 7 * layer.both_s + head.both_s,
        "stage of 9": 9 * layer.both_s,
        "memory of an H100": load_cluster("h100-nvs8").device.hbm_capacity,
        "memory of stage 2": found(f"dsx evaluate {job} tp=8 pp=16 dp=128")["peak_bytes"],
    }


def reduction():
    plan = found(PLAN)
    embedding, layer, _ = passes("llama-3-70b", tp=8, tp_nvs=8)
    return {
        "weights of a layer": layer.weight_bytes,
        "weights of embedding": embedding.weight_bytes,
        "a layer, G or S": seconds(ALL_GATHER, layer.weight_bytes, 8, 1),
        "embedding, G or S": seconds(ALL_GATHER, embedding.weight_bytes, 8, 1),
        "norms of a layer, Q": layer.shared_gradient_s,
        "dp_comm_s": plan["dp_comm_s"],
        "optimizer_s": plan["optimizer_s"],
    }


def hybrid_sharding():
    job = "--model llama-3-8b --cluster h100-nvs8 --num-gpus 64 --global-batch-size 256"
    plan = found(f"dsx evaluate {job} dp=64 zero_stage=3 zero_replicas=8")
    embedding, layer, _ = passes("llama-3-8b")
    (model,) = problem("llama-3-8b").models
    assert f"the {parameters(model) / 1e9:.2f} billion parameters" in PAGES["hybrid-sharding"]
    return {
        "gathered": embedding.weight_bytes + layer.weight_bytes,
        "weight_bytes": plan["weight_bytes"],
        "gradient_bytes": plan["gradient_bytes"],
        "optimizer_bytes": plan["optimizer_bytes"],
        "gather over 64": seconds(ALL_GATHER, layer.weight_bytes, 64, 8),
        "gather in a node": seconds(ALL_GATHER, layer.weight_bytes, 8, 8),
        "H, once a step": seconds(ALL_REDUCE, layer.weight_bytes / 8, 8, 1),
    }


def experts():
    job = "--model mixtral-8x7b --cluster h100-nvs8 --num-gpus 64 --global-batch-size 512 --sequence-length 4096"
    plan = found(f"dsx evaluate {job} ep=8 dp=64 --operators")
    gate = kernel(plan, "experts.gate", "forward")
    (exchanged,) = gate["collectives"]
    back = kernel(plan, "experts.c", "forward")
    rows = next(shape["m"] for shape in plan["shapes"] if (shape["n"], shape["k"]) == (14336, 4096))
    return {
        "volume, V": exchanged["bytes"],
        "all-to-all": seconds(ALL_TO_ALL, exchanged["bytes"], 8, 8),
        "to the experts": gate["ep_comm_s"],
        "back": back["ep_comm_s"],
        "of a layer": 2 * (gate["ep_comm_s"] + back["ep_comm_s"]),
        "ep_comm_s": plan["ep_comm_s"],
        "slots of an expert": rows,
        "forward FLOPs": gate["matrix_flops"],
        "compute": gate["compute_s"],
    }


def placement():
    plan = found(PLAN.replace("tp=8 pp=4 dp=8", "tp=4 pp=4 dp=16"))["plan"]
    layer = passes("llama-3-70b", tp=4, tp_nvs=4)[1]
    pod = problem("llama-2-70b", "dgx-a100-superpod")
    choices = plan | {"tp": 8, "pp": 4, "dp": 10, "tp_nvs": 8, "dp_nvs": 1, "order": 0}
    on_rail = shares_on_tiers(choices, pod.cluster.network, pod.expert_axes[0])
    return {
        "room": load_cluster("h100-nvs8").network.nvs.size,
        "nvs.tp": plan["tp_nvs"],
        "nvs.dp": plan["dp_nvs"],
        "weights": layer.weight_bytes,
        "with nvs.dp=2": seconds(ALL_GATHER, layer.weight_bytes, 16, 2),
        "with nvs.dp=1": seconds(ALL_GATHER, layer.weight_bytes, 16, 1),
        "dp on the rail": on_rail["dp_rail"],
        "pp on the rail": on_rail["pp_rail"],
    }


def space():
    usual = {"zero_stage": [1], "zero_replicas": [1], "recompute": ["none"], "vpp": [1], "offload": ["none"]}
    made = problem("llama-3-8b").searching(usual | {"schedule": ["1f1b"]})
    return {"candidates": Space(made, [8], [8]).size}


def assumptions():
    prior = load_assumptions("software-neutral").hbm_efficiency
    return {
        "traffic": DEFAULT.optimizer_traffic_per_parameter,
        "prior": found(f"{PLAN} --set assumptions.hbm_efficiency={prior}")["optimizer_s"],
        "fitted": found(PLAN)["optimizer_s"],
    }


def intervals():
    plan = found(PLAN)
    return {name: plan[name] for name in ("step_time_s_low", "step_time_s_high")}


def what_ifs():
    faster = found(f"{PLAN} --set cluster.network.net.bandwidth='800 Gb/s'")
    return {"pp_comm_s": faster["pp_comm_s"], "before": found(PLAN)["pp_comm_s"]}


def precision():
    flops = problem("llama-3-70b").workload.forward_flops
    return {"lost in float32": flops - float(np.float32(flops)), "a 10,000th of it": found(PLAN)["step_time_s"] / 1e4}


def corrections():
    return {"dsx": all_reduce_of_1_gb("b200-nvs8", 8, "paper-2410.00273")}


def limits():
    return {"ring of eight": all_reduce_of_1_gb("h100-nvs8", 8)}


NUMBERS = {
    "README": readme, "work": work, "multiplies": multiplies, "kernels": kernels, "collectives": collectives,
    "tiers": tiers, "overlap": overlap, "memory": memory, "recomputation": recomputation, "offload": offload,
    "step": step, "pipeline": pipeline, "layouts": layouts, "reduction": reduction,
    "hybrid-sharding": hybrid_sharding, "experts": experts, "placement": placement, "space": space,
    "assumptions": assumptions, "intervals": intervals, "what-ifs": what_ifs, "precision": precision,
    "corrections": corrections, "limits": limits,
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_numbers_of_an_example_are_those_of_dsx(page):
    lines = {line.label: line for block in blocks(page, "text") for line in read(block)}
    numbers = NUMBERS[page]()
    for label, value in numbers.items():
        assert lines[label].shows(value), (lines[label], value)
    assert {label for label, line in lines.items() if line.expression is None} <= numbers.keys()
