"""Launch flags, parsed back to the plan that they come from."""

import argparse

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.launching.hosts import RANK_ORDER, shares_of
from dsx.launching.megatron import flags_of
from dsx.launching.request import LaunchSettings, run_of
from dsx.notation.library import load_layer, load_operators
from dsx.notation.model import Model
from dsx.notation.syntax import Settings
from dsx.notation.work import derive
from dsx.plans.choices import CODES, PLAN_COLUMNS
from dsx.plans.plan import Plan

ONE = dict.fromkeys(PLAN_COLUMNS, 1)
SAID = {"strategy": "any", "recompute": "none", "schedule": "1f1b", "sequence_length": 2048}
SAID |= {"stored_layers": 0, "offload": "none", "order": "tp-cp-ep-dp-pp"}
LAYERS = 24
SIZES = {"x": 8, "topk": 2, "capacity_percent": 100}
# What Megatron-LM runs without a word: nothing in 8 bits, and only the reduction over dp beside compute.
PLAIN_SET = load_assumptions("software-neutral")
DEVICE = load_cluster("h100-nvs8").device
FLAG = "--pipeline-model-parallel-layout"
FSDP_FLAGS = ("--ckpt-format", "--use-megatron-fsdp")

# A user's strategy: tensor parallelism whose residual stream every rank holds whole.
PLAIN = """strategy plain
role rs = s      role is = s    role wi = e
role re = e      role ie = e    role wf = f/tp   role wc = c/tp
role hg = g/tp   role uf = f/tp role vf = f/tp   role oe = e
role hm = m/tp   role um = m/tp role vm = m/tp   role ve = e
"""


@pytest.fixture(scope="module")
def layer():
    """The transformer layer under a strategy."""
    table = load_operators(["standard"])
    return lambda strategy: derive(load_layer("transformer", str(strategy), table))


def launched(made, layer, ends=(0, 0), device=DEVICE, body=None, **assumptions) -> LaunchSettings:
    """The launch of a plan of a model of so many layers, with as many entries before and behind them."""
    before, behind = ends
    body = body or ((layer, LAYERS),)
    model = Model("a model", SIZES, (*[(layer, 1)] * before, *body, *[(layer, 1)] * behind), before, behind)
    return flags_of(run_of(Plan(made), model, PLAIN_SET.model_copy(update=assumptions), device))


def plan(**choices) -> dict:
    """A plan of these choices that fills its domains as Megatron-LM's rank order does."""
    made = ONE | SAID | {"num_microbatches": 4} | choices
    made["num_gpus"] = made["tp"] * made["tp2"] * made["cp"] * made["pp"] * made["dp"]
    made["global_batch_size"] = made["dp"] * made["microbatch_size"] * made["num_microbatches"]
    return made


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in (
        *("tensor-model-parallel-size", "context-parallel-size", "pipeline-model-parallel-size"),
        *("expert-model-parallel-size", "num-virtual-stages-per-pipeline-rank", "recompute-num-layers"),
        *("num-distributed-optimizer-instances", "cpu-offloading-num-layers"),
        *("micro-batch-size", "global-batch-size", "seq-length"),
    ):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--optimizer-offload-fraction", type=float)
    host = ("optimizer-cpu-offload", "use-precision-aware-optimizer")
    for name in ("sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", *host):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("bf16", "grad-reduce-in-bf16", "no-overlap-p2p-communication", "moe-grouped-gemm"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in (
        "moe-router-fusion",
        "moe-permute-fusion",
        "cross-entropy-loss-fusion",
        "no-create-attention-mask-in-dataloader",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("moe-router-dtype", "megatron-fsdp-main-grads-dtype", "megatron-fsdp-grad-comm-dtype"):
        parser.add_argument(f"--{name}", choices=["fp32", "bf16"])
    parser.add_argument("--cp-comm-type", choices=["p2p", "all_gather", "a2a", "a2a+p2p"])
    routing = ("num-experts", "moe-router-topk", "moe-router-num-groups", "moe-router-group-topk")
    for name in (*routing, "expert-tensor-parallel-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--moe-token-dispatcher-type", choices=["allgather", "alltoall", "flex"])
    parser.add_argument("--moe-flex-dispatcher-backend", choices=["deepep", "hybridep"])
    parser.add_argument("--overlap-grad-reduce", action="store_true")
    parser.add_argument("--overlap-param-gather", action="store_true")
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    parser.add_argument("--ckpt-format", choices=["fsdp_dtensor"])
    sharded = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
    parser.add_argument("--data-parallel-sharding-strategy", choices=sharded, default="no_shard")
    return parser.parse_args(arguments)


def back(arguments: list[str], num_gpus: int) -> dict:
    """The choices that flags give a job of `num_gpus` ranks."""
    args = parse(arguments)
    tp, cp, pp = args.tensor_model_parallel_size, args.context_parallel_size, args.pipeline_model_parallel_size
    dp, rest = divmod(num_gpus, tp * cp * pp)
    assert rest == 0
    stage = {"no_shard": int(args.use_distributed_optimizer), "optim_grads": 2, "optim_grads_params": 3}
    batch, microbatch = args.global_batch_size, args.micro_batch_size
    degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": args.expert_model_parallel_size}
    sizes = {"microbatch_size": microbatch, "global_batch_size": batch, "num_microbatches": batch // dp // microbatch}
    recomputed = args.recompute_num_layers * args.num_virtual_stages_per_pipeline_rank
    others = {
        "zero_replicas": args.num_distributed_optimizer_instances,
        "stored_layers": LAYERS // pp - recomputed if args.recompute_method == "block" else 0,
        "offload": CODES["offload"][args.optimizer_cpu_offload + 2 * (args.cpu_offloading_num_layers > 1)],
        "vpp": args.num_virtual_stages_per_pipeline_rank,
        "sequence_length": args.seq_length,
        "zero_stage": stage[args.data_parallel_sharding_strategy],
        "recompute": args.recompute_granularity or "none",
    }
    return degrees | sizes | others


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"tp": 8, "pp": 64, "dp": 32, "tp_nvs": 8, "num_microbatches": 128, "sequence_length": 4096},
        {"tp": 4, "dp": 6, "tp_nvs": 4, "dp_nvs": 2, "microbatch_size": 2, "zero_stage": 0},
        {"dp": 16, "dp_nvs": 8, "zero_stage": 2},
        {"dp": 16, "dp_nvs": 8, "zero_stage": 3, "recompute": "full"},
        {"pp": 4, "vpp": 3, "pp_nvs": 4, "recompute": "selective", "zero_stage": 1},
        {"pp": 4, "vpp": 3, "pp_nvs": 4, "schedule": "1f1b"},
        {"dp": 16, "dp_nvs": 8, "zero_replicas": 4},
        {"dp": 16, "dp_nvs": 8, "zero_replicas": 2, "zero_stage": 3},
        {"pp": 4, "pp_nvs": 4, "recompute": "full", "stored_layers": 2},
        {"pp": 4, "vpp": 2, "pp_nvs": 4, "recompute": "full", "stored_layers": 4},
        {"dp": 4, "dp_nvs": 4, "offload": "optimizer"},
        {"dp": 4, "dp_nvs": 4, "offload": "activations"},
        {"dp": 4, "dp_nvs": 4, "offload": "both"},
    ],
)
def test_every_expressible_choice_returns(layer, choices):
    wanted = plan(**choices)
    launch = launched(wanted, layer("1d"))
    found = back(launch.arguments, wanted["num_gpus"])
    assert found == {name: wanted[name] for name in found}
    assert launch.lost == ()


@pytest.mark.parametrize(("pp", "vpp", "counted"), [(13, 1, True), (13, 2, True), (8, 3, False), (5, 1, False)])
def test_embedding_and_head_count_as_layers_where_the_body_does_not_divide(layer, pp, vpp, counted):
    flags = ("--account-for-embedding-in-pipeline-split", ""), ("--account-for-loss-in-pipeline-split", "")
    found = launched(plan(pp=pp, vpp=vpp, num_gpus=pp), layer("1d")).flags
    assert [flag in found for flag in flags] == [counted] * 2


@pytest.fixture(scope="module")
def mixture():
    """The layer with experts under a strategy."""
    table = load_operators(["standard"])
    experts = Settings(frozenset({"rotary"}), (("ffn", "experts"),))
    return lambda strategy: derive(load_layer("transformer", str(strategy), table, chosen=experts))


@pytest.mark.parametrize(("strategy", "divided_by"), [("2d", "1"), ("2d-expert-tp", "4")])
def test_how_experts_are_divided_and_reached_is_said(mixture, strategy, divided_by):
    wanted = plan(tp=4, dp=4, ep=2, tp_nvs=4, dp_nvs=2)
    launch = launched(wanted, mixture(strategy))
    found = back(launch.arguments, wanted["num_gpus"])
    assert found == {name: wanted[name] for name in found}
    said = dict(launch.flags)
    assert said["--expert-tensor-parallel-size"] == divided_by
    assert said["--expert-model-parallel-size"] == "2"
    assert (said["--num-experts"], said["--moe-router-topk"]) == ("8", "2")
    assert said["--moe-token-dispatcher-type"] == "alltoall"
    assert "--moe-grouped-gemm" in said
    assert not {"--moe-layer-freq", "--moe-expert-capacity-factor"} & said.keys()
    assert launch.lost == ()


def test_experts_in_flags(mixture, layer, monkeypatch):
    launch = launched(plan(dp=8, ep=2, dp_nvs=8), mixture("1d"), dispatcher="once_per_domain")
    said = dict(launch.flags)
    assert said["--moe-token-dispatcher-type"] == "flex"
    assert parse(launch.arguments).moe_flex_dispatcher_backend == "deepep"
    # A dense model has no flags of experts.
    words = launched(plan(dp=8, dp_nvs=8), layer("1d")).arguments
    assert not [word for word in words if "moe" in word or "expert" in word]
    # Which layers have experts and what room is said.
    experts = mixture("1d")
    body = ((layer("1d"), 1), (experts, 2), (experts, 21))
    monkeypatch.setitem(SIZES, "capacity_percent", 125)
    said = dict(launched(plan(dp=8, dp_nvs=8), experts, body=body).flags)
    assert said["--moe-layer-freq"] == "[0]*1+[1]*23"
    assert eval(said["--moe-layer-freq"], {}) == [0] + 23 * [1]
    assert said["--moe-expert-capacity-factor"] == "1.25"
    assert "--moe-pad-expert-input-to-capacity" in said
    # Experts beside tensor parallelism need sequence parallelism.
    launch = launched(plan(tp=2, dp=2, tp_nvs=2, dp_nvs=2), mixture("1d-no-sp"))
    assert launch.flags == ()
    assert launch.lost == ("experts with tp=2 without sequence parallelism: Megatron-LM refuses them",)
    assert launch.none_since == "the rest would start another plan"
    assert launched(plan(dp=2, dp_nvs=2), mixture("1d-no-sp")).lost == ()


def test_groups_of_experts_are_said(monkeypatch):
    monkeypatch.setitem(SIZES, "ng", 4)
    monkeypatch.setitem(SIZES, "tg", 2)
    experts = Settings(frozenset({"rotary", "limited"}), (("ffn", "experts"),))
    layer = derive(load_layer("transformer", "1d", load_operators(["standard"]), chosen=experts))
    said = dict(launched(plan(dp=8, ep=2, dp_nvs=8), layer).flags)
    assert (said["--moe-router-num-groups"], said["--moe-router-group-topk"]) == ("4", "2")


@pytest.mark.parametrize(("strategy", "kind"), [("2d", "all_gather"), ("2d-ring", "p2p"), ("ulysses", "a2a")])
def test_how_context_parallelism_exchanges_is_a_flag(layer, strategy, kind):
    wanted = plan(tp=2, cp=4, dp=2, tp_nvs=2, cp_nvs=4)
    launch = launched(wanted, layer(strategy))
    found = back(launch.arguments, wanted["num_gpus"])
    assert found == {name: wanted[name] for name in found}
    assert dict(launch.flags)["--cp-comm-type"] == kind
    assert launch.lost == ()
    assert "--cp-comm-type" not in launched(plan(tp=2, dp=2, tp_nvs=2, dp_nvs=2), layer(strategy)).arguments
    hidden = launched(wanted, layer(strategy), cp_overlap=0.5).lost
    assert len(hidden) == (kind == "all_gather")
    assert not hidden or "cp_overlap=0.5" in hidden[0]


@pytest.mark.parametrize(
    ("sizes", "flags", "lost"),
    [
        ((2, 2, 2, 12), ["--bf16", "--grad-reduce-in-bf16"], []),
        ((2, 2, 4, 12), ["--bf16"], []),  # added up and reduced in FP32, as without a flag
        ((4, 4, 4, 8), [], []),
        ((4, 4, 2, 8), [], ["gradients of 2 bytes"]),
        ((2, 2, 1, 12), ["--bf16"], ["gradients of 1 bytes"]),
        ((2, 4, 4, 12), [], ["weights of 2 and activations of 4 bytes"]),
        ((1, 1, 2, 12), [], ["weights of 1 and activations of 1 bytes", "gradients of 2 bytes"]),
        ((2, 2, 2, 6), ["--bf16", "--grad-reduce-in-bf16"], ["optimizer state of 6 bytes per parameter"]),
    ],
)
def test_number_formats_that_were_priced_are_those_that_run(layer, sizes, flags, lost):
    names = ("weight_bytes", "activation_bytes", "gradient_bytes", "optimizer_bytes_per_parameter")
    launch = launched(plan(dp=8, dp_nvs=8), layer("1d"), **dict(zip(names, sizes, strict=True)))
    assert [flag for flag, _ in launch.flags if "bf16" in flag] == flags
    assert len(launch.lost) == len(lost)
    assert all(said.startswith(words) for words, said in zip(lost, launch.lost, strict=True))


@pytest.mark.parametrize(
    ("stage", "gradient_bytes", "flags"),
    [
        (0, 2, ["--fp16"]),  # gradients have the type of the weights
        (0, 4, ["--fp16", "--accumulate-allreduce-grads-in-fp32"]),
        (3, 2, ["--fp16", "--megatron-fsdp-main-grads-dtype", "--megatron-fsdp-grad-comm-dtype"]),
    ],
)
def test_a_device_without_bf16_trains_in_fp16(layer, stage, gradient_bytes, flags):
    device = load_cluster("v100-32-nvs8").device
    wanted = plan(dp=8, dp_nvs=8, zero_stage=stage)
    launch = launched(wanted, layer("1d"), device=device, gradient_bytes=gradient_bytes)
    assert [flag for flag, value in launch.flags if "fp" in flag + value and flag not in FSDP_FLAGS] == flags
    assert not any("bf16" in word for word in launch.arguments)
    assert "gradients" not in str(launch.lost)


@pytest.mark.parametrize(("gradient_bytes", "said"), [(2, "as many bytes in all"), (4, "2 bytes more of each")])
def test_whole_matrices_for_muon_take_a_reduction_in_place_of_a_gather(layer, gradient_bytes, said):
    """Scatter of gradients, gathers of momentum and weights, 2 + 2 + 2 bytes; here a reduction is two of gradients."""
    given = {"optimizer": "muon", "gradient_bytes": gradient_bytes}
    launch = launched(plan(dp=8, dp_nvs=8, zero_stage=1), layer("1d"), **given)
    assert said in " ".join(launch.lost)


def test_multiplies_in_fewer_bits_are_asked_for_where_there_are_any(layer):
    wanted = plan(dp=8, dp_nvs=8)
    assert "--fp8-format" not in launched(wanted, layer("1d")).arguments
    said = launched(wanted, layer("1d"), linear_dtype="fp8")
    assert (dict(said.flags)["--fp8-format"], said.lost) == ("hybrid", ())
    older = launched(wanted, layer("1d"), device=load_cluster("a100-80-nvs8").device, linear_dtype="fp8")
    assert "--fp8-format" not in older.arguments
    assert older.lost[0].startswith("multiplies in 8 bits: ")
    # Multiplies in 4 bits and of integers.
    blackwell = load_cluster("b200-180-nvs8").device
    four = launched(wanted, layer("1d"), device=blackwell, linear_dtype="fp4")
    assert (dict(four.flags)["--fp4-format"], four.lost) == ("e2m1", ())
    assert "4 bits: H100 has none" in "".join(launched(wanted, layer("1d"), linear_dtype="fp4").lost)
    of_integers = blackwell.model_copy(update={"int8_flops": 4.5e15})
    whole = launched(wanted, layer("1d"), device=of_integers, linear_dtype="int8")
    assert whole.lost == ("multiplies in integers of 8 bits: Megatron-LM has none",)


@pytest.mark.parametrize(
    ("choices", "assumptions", "flags", "lost"),
    [
        ({"tp": 4, "tp_nvs": 4}, {"tp_overlap": 0.8}, {"--tp-comm-overlap"}, ""),
        ({"dp": 4, "dp_nvs": 4}, {"tp_overlap": 0.8}, set(), ""),
        ({"pp": 4, "pp_nvs": 4, "vpp": 2}, {"pp_overlap": 0}, {"--no-overlap-p2p-communication"}, ""),
        ({"pp": 4, "pp_nvs": 4, "vpp": 2}, {"pp_overlap": 1}, set(), ""),
        ({"pp": 4, "pp_nvs": 4}, {"pp_overlap": 0.5}, set(), "sends during a microbatch (pp_overlap=0.5) with vpp=1"),
        ({"dp": 4, "dp_nvs": 4, "ep": 2}, {"ep_overlap": 0.5}, {"--overlap-moe-expert-parallel-comm"}, ""),
        ({"dp": 4, "dp_nvs": 4, "ep": 2, "recompute": "full"}, {"ep_overlap": 0.5}, set(), "recompute=full"),
        ({"dp": 4, "dp_nvs": 4}, {"ep_overlap": 0.5}, set(), ""),
    ],
)
def test_what_was_priced_beside_compute_is_asked_for(mixture, choices, assumptions, flags, lost):
    launch = launched(plan(**choices), mixture("1d"), **assumptions)
    asked = {"--tp-comm-overlap", "--no-overlap-p2p-communication", "--overlap-moe-expert-parallel-comm"}
    assert {flag for flag, _ in launch.flags} & asked == flags
    assert len(launch.lost) == bool(lost)
    assert all(lost in said for said in launch.lost)


def test_overlaps_are_set_where_they_were_priced(layer):
    wanted = plan(dp=4, dp_nvs=4)
    assert parse(launched(wanted, layer("1d")).arguments).overlap_grad_reduce
    alone = parse(launched(wanted, layer("1d"), dp_overlap=0).arguments)
    assert (alone.overlap_grad_reduce, alone.overlap_param_gather, alone.use_distributed_optimizer) == (0, 0, 1)
    sharded = plan(dp=4, dp_nvs=4, zero_stage=2)
    assert parse(launched(sharded, layer("1d"), dp_overlap=0).arguments).overlap_grad_reduce
    # Tensor parallel overlap is of sequence parallelism.
    launch = launched(plan(tp=4, tp_nvs=4), layer("1d-no-sp"), tp_overlap=0.8)
    assert not launch.lost and "--tp-comm-overlap" not in launch.arguments  # all-reduces are priced without overlap


@pytest.mark.parametrize(("cluster", "runs"), [("tpu-v4", False), ("tpu-v4-pod", False), ("tpuv4-fat-tree", False),
                                               ("h100-nvs8", True)])  # fmt: skip
def test_a_device_that_megatron_does_not_run_on_has_no_flags(layer, cluster, runs):
    launch = launched(plan(dp=4, dp_nvs=4), layer("1d"), device=load_cluster(cluster).device)
    assert bool(launch.flags) == runs
    assert launch.none_since == ("" if runs else "Megatron-LM does not run on this device")
    assert runs or "is programmed with xla: Megatron-LM runs on cuda and rocm" in launch.lost[0]


def test_sequence_parallelism_is_read_from_the_layer(layer, tmp_path):
    (tmp_path / "plain.layer").write_text(PLAIN)
    wanted = plan(tp=2, dp=2, tp_nvs=2, dp_nvs=2)
    assert parse(launched(wanted, layer("1d")).arguments).sequence_parallel
    whole = launched(wanted, layer(tmp_path / "plain.layer"))
    assert not parse(whole.arguments).sequence_parallel
    assert whole.lost == ()
    alone = launched(plan(dp=4, dp_nvs=4), layer("1d"))
    assert not parse(alone.arguments).sequence_parallel


@pytest.mark.parametrize(
    ("choices", "lost"),
    [
        (
            {"tp": 4, "tp2": 2, "panels": 8, "tp_nvs": 4, "tp2_nvs": 2},
            ["two dimensions (tp=4 by tp2=2)", "8 panels", "hidden"],
        ),
        ({"tp": 4, "panels": 8, "tp_nvs": 4}, ["8 panels", "hidden"]),
        ({"tp": 4, "tp_nvs": 4}, ["hidden"]),
    ],
)
def test_a_layout_that_is_lost_leaves_no_flags(layer, choices, lost):
    launch = launched(plan(**choices), layer("summa"))
    assert launch.flags == ()
    assert len(launch.lost) == len(lost)
    assert all(words in said for words, said in zip(lost, launch.lost, strict=True))


def test_what_is_lost_only_where_it_matters(layer):
    assert launched(plan(dp=8, dp_nvs=8, panels=2), layer("summa")).lost == ()
    # A schedule is lost where there is a pipeline.
    assert launched(plan(schedule="zb-h1", pp=2), layer("1d")).lost == ("schedule=zb-h1",)
    assert launched(plan(schedule="zb-h1"), layer("1d")).lost == ()
    # Layers that are all stored are not recomputed.
    launch = launched(plan(recompute="full", stored_layers=LAYERS), layer("1d"))
    assert parse(launch.arguments).recompute_granularity is None
    assert launch.lost == ()
    # Stored layers of uneven stages cannot be said.
    made = plan(pp=2, recompute="full", stored_layers=3) | {"stage_layers": "14,12"}
    (lost,) = [lost for lost in launched(made, layer("1d"), (1, 1)).lost if "stored" in lost]
    assert "with uneven stages" in lost
    even = plan(pp=2, recompute="full", stored_layers=3) | {"stage_layers": "13,13"}
    assert not [lost for lost in launched(even, layer("1d"), (1, 1)).lost if "stored" in lost]


@pytest.mark.parametrize("choice", [{"zero_stage": 4}, {"recompute": "mlp"}])
def test_unknown_values_are_lost_by_name(layer, choice):
    ((name, value),) = choice.items()
    assert launched(plan(**choice), layer("1d")).lost == (f"{name}={value}",)


@pytest.mark.parametrize(
    ("choices", "lost", "without"),
    [
        ({"recompute": "selective", "stored_layers": 3}, "recomputes regions of all layers", "recompute-num-layers"),
        ({"pp": 4, "pp_nvs": 4, "vpp": 2, "recompute": "full", "stored_layers": 1}, "of layers in each chunk", "block"),
        ({"pp": 2, "pp_nvs": 2, "offload": "activations"}, "without a pipeline", "cpu-offloading-num-layers"),
        ({"recompute": "full", "offload": "activations"}, "without recomputation", "cpu-offloading-num-layers"),
        ({"zero_stage": 3, "dp": 4, "dp_nvs": 4, "offload": "optimizer"}, "DeepSpeed has it", "optimizer-cpu-offload"),
        ({"schedule": "zb-h2", "pp": 2, "pp_nvs": 2}, "schedule=zb-h2", "zb"),
    ],
)
def test_what_megatron_lacks_is_lost(layer, choices, lost, without):
    launch = launched(plan(**choices), layer("1d"))
    (said,) = launch.lost
    assert lost in said
    assert not any(without in word for word in launch.arguments)


@pytest.mark.parametrize(
    ("degrees", "domain", "shares"),
    [
        ((8, 1, 32, 64), 8, (8, 1, 1, 1)),
        ((16, 1, 4, 1), 8, (8, 1, 1, 1)),
        ((2, 2, 8, 1), 8, (2, 2, 2, 1)),
        ((2, 1, 2, 8), 8, (2, 1, 2, 2)),
        ((1, 1, 1, 4), 4, (1, 1, 1, 4)),
        ((6, 1, 4, 1), 8, None),
        ((1, 1, 3, 8), 8, None),
    ],
)
def test_shares_of_the_rank_order(degrees, domain, shares):
    made = plan(**dict(zip(RANK_ORDER, degrees, strict=True)), tp_nvs=domain)
    assert shares_of(made) == (None if shares is None else dict(zip(RANK_ORDER, shares, strict=True)))


def test_shares_count_the_ranks_of_a_domain():
    """Against ranks that are numbered one by one."""
    degrees, domain = {"tp": 2, "cp": 2, "dp": 4, "pp": 3}, 8
    position = {axis: 1 for axis in RANK_ORDER}
    stride = 1
    for axis in RANK_ORDER:
        position[axis], stride = stride, stride * degrees[axis]
    first = range(domain)
    expected = {axis: len({rank // position[axis] % degrees[axis] for rank in first}) for axis in RANK_ORDER}
    assert shares_of(plan(**degrees, tp_nvs=domain)) == expected


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"tp": 4, "pp": 8, "dp": 2, "tp_nvs": 4, "dp_nvs": 2}, None),
        (
            {"tp": 4, "pp": 8, "dp": 2, "tp_nvs": 4, "pp_nvs": 2},
            "nvs.tp=4 nvs.pp=2 on fast domains of 8 GPUs: the default rank order (tp-cp-ep-dp-pp, tp innermost) puts "
            "nvs.tp=4 nvs.dp=2 there; the order tp-cp-ep-pp-dp would do as priced",
        ),
        ({"tp": 8, "dp": 8, "dp_nvs": 8}, "puts nvs.tp=8 there"),
        ({"tp": 6, "dp": 4, "tp_nvs": 2, "dp_nvs": 4}, "cuts its groups unevenly"),
    ],
)
def test_placement(layer, choices, says):
    lost = launched(plan(**choices), layer("1d")).lost
    assert len(lost) == (says is not None)
    assert says is None or (lost[0].startswith("the placement ") and says in lost[0])


def test_an_order_that_is_not_the_default_one_has_a_flag(layer):
    choices = {"tp": 4, "pp": 8, "dp": 2, "tp_nvs": 4, "pp_nvs": 2}
    launch = launched(plan(**choices, order="tp-cp-ep-pp-dp"), layer("1d"))
    assert "--use-tp-pp-dp-mapping" in launch.arguments
    assert launch.lost == ()
    default = launched(plan(**choices), layer("1d"))
    assert "--use-tp-pp-dp-mapping" not in default.arguments
    (lost,) = launched(plan(**choices) | {"dp_leaf": 2}, layer("1d")).lost
    assert "the default rank order" in lost and "would do as priced" not in lost


@pytest.mark.parametrize(
    ("stage_layers", "ends", "layout"),
    [
        ("7,7,6,6", (1, 1), "Et*6|t*7|t*6|t*5L"),
        ("1,24,1", (1, 1), "E|t*24|L"),
        ("2,24", (1, 1), "Et|t*23L"),
        ("13,11", (0, 0), "Et*13|t*11L"),
        ("9,8,8", (1, 0), None),
        ("13,13", (1, 1), None),
        ("26", (1, 1), None),
    ],
)
def test_an_uneven_cut_is_a_layout(layer, stage_layers, ends, layout):
    made = plan(pp=len(stage_layers.split(",")), dp=2) | {"stage_layers": stage_layers}
    arguments = launched(made, layer("1d"), ends).arguments
    assert (FLAG in arguments) == (layout is not None)
    assert layout is None or arguments[arguments.index(FLAG) + 1] == layout
