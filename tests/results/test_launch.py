"""Launch flags, parsed back to the plan that they come from."""

import argparse

import pytest

from dsx.graph.derived import derive
from dsx.graph.library import load_layer, load_operators
from dsx.results.launch import RANK_ORDER, megatron_lm, shares_of
from dsx.space.candidates import Candidates
from dsx.space.codes import OFFLOAD

ONE = dict.fromkeys(Candidates.__dataclass_fields__, 1)
SAID = {"strategy": "any", "recompute": "none", "schedule": "1f1b", "sequence_length": 2048}
SAID |= {"stored_layers": 0, "offload": "none", "order": "tp-cp-ep-dp-pp"}
LAYERS = 24
FLAG = "--pipeline-model-parallel-layout"

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
    made_again = args.recompute_num_layers * args.num_virtual_stages_per_pipeline_rank
    others = {
        "zero_replicas": args.num_distributed_optimizer_instances,
        "stored_layers": LAYERS // pp - made_again if args.recompute_method == "block" else 0,
        "offload": OFFLOAD[args.optimizer_cpu_offload + 2 * (args.cpu_offloading_num_layers > 1)],
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
        {"pp": 4, "vpp": 3, "pp_nvs": 4, "schedule": "interleaved"},
        {"dp": 8, "ep": 4, "dp_nvs": 8, "ep_nvs": 4},
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
    launch = megatron_lm(wanted, layer("1d"), LAYERS)
    found = back(launch.arguments, wanted["num_gpus"])
    assert found == {name: wanted[name] for name in found}
    assert launch.lost == ()


@pytest.mark.parametrize(("strategy", "divided_by"), [("2d", "1"), ("2d-expert-tp", "4")])
def test_how_experts_are_divided_is_said(strategy, divided_by):
    mixture = derive(load_layer("moe-transformer", strategy, load_operators(["standard"])))
    launch = megatron_lm(plan(tp=4, dp=4, ep=2, tp_nvs=4, dp_nvs=2), mixture, LAYERS)
    said = dict(launch.flags)
    assert said["--expert-tensor-parallel-size"] == divided_by
    assert said["--expert-model-parallel-size"] == "2"
    assert launch.lost == ()


def test_context_parallelism_returns_and_its_collective_is_lost(layer):
    wanted = plan(tp=2, cp=4, dp=2, tp_nvs=2, cp_nvs=4)
    launch = megatron_lm(wanted, layer("2d"), LAYERS)
    found = back(launch.arguments, wanted["num_gpus"])
    assert found == {name: wanted[name] for name in found}
    (lost,) = launch.lost
    assert "by all-gather of attention.kk, attention.vv" in lost
    assert "around a ring (cp_comm_type=p2p); cp_comm_type=all_gather is what was priced" in lost


def test_a_ring_is_what_megatron_runs(layer):
    launch = megatron_lm(plan(tp=2, cp=4, dp=2, tp_nvs=2, cp_nvs=4), layer("2d-ring"), LAYERS)
    assert launch.lost == ()
    assert dict(launch.flags)["--context-parallel-size"] == "4"


def test_sequence_parallelism_is_read_from_the_layer(layer, tmp_path):
    (tmp_path / "plain.layer").write_text(PLAIN)
    wanted = plan(tp=2, dp=2, tp_nvs=2, dp_nvs=2)
    assert parse(megatron_lm(wanted, layer("1d"), LAYERS).arguments).sequence_parallel
    whole = megatron_lm(wanted, layer(tmp_path / "plain.layer"), LAYERS)
    assert not parse(whole.arguments).sequence_parallel
    assert whole.lost == ()
    alone = megatron_lm(plan(dp=4, dp_nvs=4), layer("1d"), LAYERS)
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
    launch = megatron_lm(plan(**choices), layer("summa"), LAYERS)
    assert launch.flags == ()
    assert len(launch.lost) == len(lost)
    assert all(words in said for words, said in zip(lost, launch.lost, strict=True))


def test_undivided_every_layer_is_expressible(layer):
    assert megatron_lm(plan(dp=8, dp_nvs=8, panels=2), layer("summa"), LAYERS).lost == ()


@pytest.mark.parametrize("choice", [{"zero_stage": 4}, {"recompute": "mlp"}, {"schedule": "zero_bubble"}])
def test_unknown_values_are_lost_by_name(layer, choice):
    ((name, value),) = choice.items()
    assert megatron_lm(plan(**choice), layer("1d"), LAYERS).lost == (f"{name}={value}",)


@pytest.mark.parametrize(
    ("choices", "lost", "without"),
    [
        ({"recompute": "selective", "stored_layers": 3}, "regions of all layers again", "recompute-num-layers"),
        ({"pp": 4, "pp_nvs": 4, "vpp": 2, "recompute": "full", "stored_layers": 1}, "of each chunk again", "block"),
        ({"pp": 2, "pp_nvs": 2, "offload": "activations"}, "without a pipeline", "cpu-offloading-num-layers"),
        ({"recompute": "full", "offload": "activations"}, "without recomputation", "cpu-offloading-num-layers"),
        ({"zero_stage": 3, "dp": 4, "dp_nvs": 4, "offload": "optimizer"}, "DeepSpeed has it", "optimizer-cpu-offload"),
        ({"schedule": "zb-h2", "pp": 2, "pp_nvs": 2}, "schedule=zb-h2", "zb"),
    ],
)
def test_what_megatron_lacks_is_lost(layer, choices, lost, without):
    launch = megatron_lm(plan(**choices), layer("1d"), LAYERS)
    (said,) = launch.lost
    assert lost in said
    assert not any(without in word for word in launch.arguments)


def test_layers_that_are_all_stored_are_not_made_again(layer):
    launch = megatron_lm(plan(recompute="full", stored_layers=LAYERS), layer("1d"), LAYERS)
    assert parse(launch.arguments).recompute_granularity is None
    assert launch.lost == ()


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
    lost = megatron_lm(plan(**choices), layer("1d"), LAYERS).lost
    assert len(lost) == (says is not None)
    assert says is None or (lost[0].startswith("the placement ") and says in lost[0])


def test_an_order_that_is_not_the_default_one_has_a_flag(layer):
    choices = {"tp": 4, "pp": 8, "dp": 2, "tp_nvs": 4, "pp_nvs": 2}
    launch = megatron_lm(plan(**choices, order="tp-cp-ep-pp-dp"), layer("1d"), LAYERS)
    assert "--use-tp-pp-dp-mapping" in launch.arguments
    assert launch.lost == ()
    default = megatron_lm(plan(**choices), layer("1d"), LAYERS)
    assert "--use-tp-pp-dp-mapping" not in default.arguments
    (lost,) = megatron_lm(plan(**choices) | {"dp_leaf": 2}, layer("1d"), LAYERS).lost
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
    arguments = megatron_lm(made, layer("1d"), LAYERS, ends).arguments
    assert (FLAG in arguments) == (layout is not None)
    assert layout is None or arguments[arguments.index(FLAG) + 1] == layout


def test_stored_layers_of_uneven_stages_cannot_be_said(layer):
    made = plan(pp=2, recompute="full", stored_layers=3) | {"stage_layers": "14,12"}
    (lost,) = [lost for lost in megatron_lm(made, layer("1d"), LAYERS, (1, 1)).lost if "stored" in lost]
    assert "stages of unequal length" in lost
    even = plan(pp=2, recompute="full", stored_layers=3) | {"stage_layers": "13,13"}
    assert not [lost for lost in megatron_lm(even, layer("1d"), LAYERS, (1, 1)).lost if "stored" in lost]
