"""A plan as settings of Megatron Core, and what they cannot express: for Megatron-LM, and for Megatron-Bridge.

    launch = flags_of(run_of(plan, model, assumptions, device))  # a plan as columns by name, its strategy's model
    launch.arguments                                             # ["--tensor-model-parallel-size", "8", ...]

The world size is no flag: the launcher starts num_gpus ranks, and Megatron-LM derives dp from tp, cp and pp. The
settings that are no columns of a plan are in `dsx.launching.megatron_settings`. The script starts Megatron-LM with
torchrun. It needs no data: it trains on made-up tokens unless it is told otherwise.

Sources: the argument parser of megatron-core 0.19.2 (megatron.training.arguments) for the flags, and its checks; its
order of the ranks (parallel_state.initialize_model_parallel), its limits of offload (TransformerConfig.cpu_offloading),
and the rule that experts with tensor parallelism need sequence parallelism (MoELayer.forward).

A recipe of Megatron-Bridge is in Python. It needs no data either.

Sources: Megatron-Bridge 0.6.2 (the common recipe, GPTModelProvider, MLAModelProvider, CommOverlapConfig).
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsx.config.assumption_set import MUON
from dsx.config.cluster_file import GPU_SOFTWARE
from dsx.config.model_file import ModelSpec
from dsx.launching.hosts import other_placement, script
from dsx.launching.megatron_settings import (
    context_options,
    expert_options,
    fused_options,
    graph_options,
    model_options,
    number_formats,
    overlap_options,
    overlaps_experts,
    refused_by_arguments,
    refused_context,
    refused_model,
)
from dsx.launching.request import (
    GATED,
    GELU,
    SCRIPT,
    Architecture,
    LaunchRun,
    LaunchSettings,
    Option,
    Refused,
    Request,
    Settings,
    WrittenLaunch,
    allocator_variables,
    architecture_of,
    commented,
    exported,
    layout_text,
    lost_lines,
    option,
    options,
    template,
    words_of,
)
from dsx.notation.syntax import REGIONS
from dsx.plans.choices import FULL, NONE, SELECTIVE, VALUES, names_in
from dsx.plans.placement import ORDERS
from dsx.schedules.schedules import SCHEDULES

NAME = "Megatron-LM"

# dsx overlaps the gradient reduction with the backward, and the gathering of weights with the forward.
_OVERLAPPED = (option("ddp.overlap_grad_reduce"), option("ddp.overlap_param_gather"))
_SHARDED = option("ddp.use_distributed_optimizer")
_STRATEGY = "ddp.data_parallel_sharding_strategy"
_FSDP = (_SHARDED, option("ddp.use_megatron_fsdp"), option("checkpoint.ckpt_format", "fsdp_dtensor"))
_ZERO: dict[int, tuple[Option, ...]] = {
    0: _OVERLAPPED[:1],
    1: (_SHARDED, *_OVERLAPPED),
    2: (*_FSDP, option(_STRATEGY, "optim_grads"), *_OVERLAPPED),
    3: (*_FSDP, option(_STRATEGY, "optim_grads_params"), *_OVERLAPPED),
}
# Muon does not go with the distributed optimizer; layer by layer, ranks have whole matrices in place of ZeRO 1.
_MUON = {0: "muon", 1: "dist_muon"}
_SELECTIVE = option("model.recompute_granularity", "selective")
# Only the distributed, precision-aware optimizer can run on the host.
_HOST_UPDATE = options({
    "optimizer.optimizer_cpu_offload": True,
    "optimizer.optimizer_offload_fraction": 1.0,
    "optimizer.use_precision_aware_optimizer": True,
})  # fmt: skip
_SCHEDULES = {schedule.name: schedule.megatron_lm for schedule in SCHEDULES}
_KEPT_LAYERS = 2  # layers of each microbatch whose activations stay on the GPU under offload


def flags_of(run: LaunchRun, spec: ModelSpec | None = None) -> LaunchSettings:
    """Return the Megatron-LM flags of a run, with what Megatron-LM lacks of its model where `spec` states that.

    There are none if Megatron-LM has no such layout of weights: without that choice the remaining flags would start
    another plan. There are none either if Megatron-LM does not run on the device.
    """
    launch = megatron_core(run)
    if launch.none_since:
        return launch
    shape = architecture_of(spec, run.assumptions) if spec else None
    of_model = [*refused_model(shape), *refused_context(shape, run)] if shape else []
    return replace(launch, lost=(*launch.lost, *refused_by_arguments(run), *of_model))


def megatron_core(run: LaunchRun) -> LaunchSettings:
    """Return the settings of a run, without those of its model."""
    device = run.device
    if device.software not in GPU_SOFTWARE:
        lost = f"{device.name}, which is programmed with {device.software}: {NAME} runs on {' and '.join(GPU_SOFTWARE)}"
        return LaunchSettings((), (lost,), f"{NAME} does not run on this device")
    foreign = [lost.format(NAME) for lost in run.foreign]
    if run.unshared_experts:
        foreign.append(f"experts with tp={run['tp']} without sequence parallelism: {NAME} refuses them")
    if foreign:
        return LaunchSettings((), tuple(foreign), "the rest would start another plan")
    has_muon, stage, replicas = run.assumptions.optimizer == MUON, run.number("zero_stage"), run.number("zero_replicas")
    # Ranks that have whole matrices reduce all gradients, as without ZeRO. From stage 2 on Megatron-LM always overlaps.
    zero = _ZERO.get(0 if has_muon else stage)
    if zero and (has_muon or stage < 2) and not run.assumptions.dp_overlap:
        zero = tuple(setting for setting in zero if setting not in _OVERLAPPED)
    schedule = _SCHEDULES.get(str(run["schedule"])) if run.number("pp") > 1 else ()  # one stage has no schedule
    parts = (
        _recomputed(run),
        _offloaded(run),
        _muon(run) if has_muon else ([], []),
        ([], [f"schedule={run['schedule']}"] if schedule is None else []),
        context_options(run),
        expert_options(run),
        number_formats(run),
        overlap_options(run),
        graph_options(run),
    )
    recompute, offload, muon, _, context, experts, formats, overlaps, graphs = (settings for settings, _ in parts)
    batch = options({
        "train.micro_batch_size": run.number("microbatch_size"),
        "train.global_batch_size": run.number("global_batch_size"),
        "model.seq_length": run.number("sequence_length"),
    })  # fmt: skip
    instances = [option("ddp.num_distributed_optimizer_instances", replicas)] if replicas > 1 else []
    settings = [*_degrees(run, context), *experts, *batch, *(zero or ()), *muon, *instances]
    settings += [*recompute, *offload, *formats, *overlaps, *fused_options(run), *graphs]
    sharded_pipeline = (
        f"zero_stage={stage} with pp={run['pp']}: Megatron-FSDP is documented with tensor, context and expert "
        "parallelism, not with pipelines"
    )
    lost = [
        *([f"zero_stage={stage}"] if zero is None else [sharded_pipeline] * (stage > 1 and run.number("pp") > 1)),
        *(part for _, lost in parts for part in lost),
        *other_placement(run.plan),
    ]
    return LaunchSettings(tuple(settings), tuple(lost))


def _degrees(run: LaunchRun, context: list[Option]) -> list[Option]:
    """Return the settings of the degrees and of the pipeline."""
    pp, vpp, virtual = run.number("pp"), run.number("vpp"), "model.virtual_pipeline_model_parallel_size"
    layout = layout_text(run.chunks, run.predictions)
    degrees = [
        option("model.tensor_model_parallel_size", run.number("tp")),
        *([option("model.sequence_parallel")] if run.sequence_parallel else []),
        option("model.context_parallel_size", run.number("cp")),
        *context,
        option("model.pipeline_model_parallel_size", pp),
    ]
    if layout:  # says itself how many chunks a stage has
        degrees.append(option("model.pipeline_model_parallel_layout", layout))
    elif "stage_layers" not in run.plan:
        degrees += counted_ends(run.plan, run.num_layers)
    if pp > 1 and run["order"] == ORDERS[1]:
        # One stage is numbered alike in all orders, and Megatron-FSDP refuses the flag.
        degrees.append(option("dist.use_tp_pp_dp_mapping"))
    if vpp > 1:
        # Megatron-LM takes either a layout or a number; Megatron-Bridge chooses overlaps before it reads the layout.
        degrees.append(Option("", "", virtual, vpp) if layout else option(virtual, vpp))
    return degrees


def counted_ends(plan: Mapping[str, object], num_layers: int) -> list[Option]:
    """Return the settings that count embedding and head as a layer each, where the body alone does not divide."""
    chunks = int(str(plan["pp"])) * int(str(plan["vpp"]))
    if num_layers % chunks == 0 or (num_layers + 2) % chunks:
        return []
    return [option(f"model.account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]


def _muon(run: LaunchRun) -> Settings:
    """Return the settings of Muon, and what they cannot express of it."""
    stage, offload = run.number("zero_stage"), run["offload"]
    if stage not in _MUON or offload in ("optimizer", "both"):
        return [], [f"Muon with zero_stage={stage} and offload={offload}: {NAME} has it without both, or with stage 1"]
    settings = options({
        "optimizer.optimizer": _MUON[stage],
        "optimizer.muon_num_ns_steps": int(run.assumptions.muon_steps),
        "optimizer.muon_tp_mode": "duplicated",
    })  # fmt: skip
    lost = ["Newton-Schulz steps of queries, keys and values as one matrix: it splits them"]
    if stage:
        more = run.assumptions.gradient_bytes - run.assumptions.muon_bytes
        lost.append(
            "a scatter of gradients and a gather of momentum in BF16: dist_muon reduces gradients to all ranks, and "
            "gives each whole matrices, whose weights it gathers after the update: "
            + (f"{more:g} bytes more of each parameter" if more > 0 else "as many bytes in all")
        )
    return settings, lost


def _recomputed(run: LaunchRun) -> Settings:
    """Return the settings of recomputation, and what they cannot express of it."""
    mode, stored = str(run["recompute"]), run.number("stored_layers")
    if mode not in VALUES:
        return [], [f"recompute={mode}"]
    # Megatron-LM refuses some regions that no layer has.
    modules = [region.megatron_lm for region in REGIONS if region.name in names_in(mode) & run.regions]
    regions = [_SELECTIVE, option("model.recompute_modules", modules)] if modules else []
    settings = {NONE: [], SELECTIVE: [_SELECTIVE], FULL: _whole_layers("uniform", 1)}.get(mode, regions)
    if not stored:
        return settings, []
    of_stage = run.num_layers // run.number("pp")
    recomputed, remainder = divmod(of_stage - stored, run.number("vpp"))
    if run.chunks:
        reason = f"uneven stages, which recompute the same share of their layers: {NAME} recomputes the same number"
    elif stored == of_stage:
        return [], []
    elif mode != FULL:
        reason = f"recompute={mode}: {NAME} recomputes regions of all layers, or of none"
    elif remainder:
        reason = f"vpp={run['vpp']}: {NAME} recomputes the same number of layers in each chunk"
    else:
        return _whole_layers("block", recomputed), []
    return settings, [f"stored_layers={stored} with {reason}"]


def _whole_layers(method: str, count: int) -> list[Option]:
    return options({
        "model.recompute_granularity": "full",
        "model.recompute_method": method,
        "model.recompute_num_layers": count,
    })  # fmt: skip


def _offloaded(run: LaunchRun) -> Settings:
    """Return the settings of offload, and what they cannot express of it."""
    settings: list[Option] = []
    lost: list[str] = []
    offload, stage = run["offload"], run.number("zero_stage")
    if offload in ("optimizer", "both") and stage == 1:
        settings += _HOST_UPDATE
    elif offload in ("optimizer", "both"):
        lost.append(
            f"offload of the optimizer with zero_stage={stage}: {NAME} offloads it only with a "
            "distributed optimizer; DeepSpeed has it as zero_optimization.offload_optimizer.device=cpu"
        )
    if offload in ("activations", "both"):
        if run.number("pp") == 1 and run["recompute"] == NONE and run.num_layers > _KEPT_LAYERS:
            settings.append(option("model.cpu_offloading_num_layers", run.num_layers - _KEPT_LAYERS))
            settings.append(Option("", "", "model.cpu_offloading"))  # which Megatron-LM derives from the number
        else:
            lost.append(
                f"offload of activations with pp={run['pp']}, recompute={run['recompute']}: {NAME} offloads "
                "layers only without a pipeline and without recomputation"
            )
    return settings, lost


def refused_by_core(request: Request, title: str = NAME) -> list[Refused]:
    """Return what Megatron Core cannot run of a plan, beyond the columns that its file in data/frameworks limits."""
    launch, nearest = megatron_core(request.run), "tensor parallelism with sequence parallelism over one axis"
    lost = launch.lost if launch.none_since else ()
    return [Refused(part.replace(NAME, title), nearest if "tp" in part else "") for part in lost]


def not_of_core(shape: Architecture, title: str = NAME) -> list[Refused]:
    """Return what Megatron Core's GPT model has not of a model."""
    return [Refused(part.replace(NAME, title), "a recipe of your own") for part in refused_model(shape)]


def settings_with_model(request: Request) -> tuple[list[Option], list[Option], tuple[str, ...]]:
    """Return the settings of the model, those of the plan, and what they do not express."""
    launch = megatron_core(request.run)
    of_model, not_of_model = model_options(request.shape, request.run.number("sequence_length"))
    return of_model, [*launch.options], (*not_of_model, *refused_context(request.shape, request.run), *launch.lost)


def write_script(request: Request, head: list[str]) -> WrittenLaunch:
    """Return the script that starts Megatron-LM."""
    of_model, of_plan, lost = settings_with_model(request)
    lost = (*lost, *refused_by_arguments(request.run))
    arrays = ""
    for name, settings in (("MODEL", of_model), ("PLAN", of_plan)):
        lines = [f"    {shlex.join(words_of((flag, value)))}\n" for flag, value, *_ in settings if flag]
        arrays += f"{name}=(\n{''.join(lines)})\n"
    data = template("megatron_data.txt").format(vocabulary=request.shape.vocabulary or 1)
    text = (
        f"{exported(environment(request))}\n{arrays}{data}\n"
        'torchrun "${HOSTS[@]}" "${MEGATRON_LM:?a checkout of Megatron-LM}/pretrain_gpt.py" \\\n'
        '    "${MODEL[@]}" "${PLAN[@]}" "${DATA[@]}" "${TRAINING[@]}" "$@"\n'
    )
    return WrittenLaunch({SCRIPT: script([*head, *lost_lines(NAME, lost)], request, text)}, lost)


def environment(request: Request) -> dict[str, str]:
    """Return the environment variables that the settings need.

    With one connection, kernels start in the order in which they are issued, which the overlap of tensor and context
    parallel communication relies on; Megatron-FSDP needs several, and so does the overlap of expert parallel
    communication (megatron.training.arguments: 1 or 32, whichever is to be faster; recipes of Megatron-Bridge have 32).
    """
    run = request.run
    variables = allocator_variables(run)
    if overlaps_experts(run):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif run.number("zero_stage") <= 1 and max(run.number("tp"), run.number("cp")) > 1:
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if run["offload"] in ("activations", "both"):
        variables["NVTE_CPU_OFFLOAD_V1"] = "1"
    return variables


BRIDGE = "Megatron-Bridge"
_RECIPE = "recipe.py"


def fields_of_recipe(run: LaunchRun, _: ModelSpec) -> LaunchSettings:
    """Return the settings of a run as fields of a recipe of Megatron-Bridge."""
    launch = megatron_core(run)
    settings = replace(launch, options=(), framework="megatron_bridge", title=f"{BRIDGE} settings")
    lost = tuple(part.replace(NAME, BRIDGE) for part in launch.lost)
    return replace(settings, lost=lost, configuration=_by_section(launch.options))


def _by_section(options: Sequence[Option]) -> dict[str, dict[str, object]]:
    """Return the fields of options by the section of the configuration that has them."""
    sections: dict[str, dict[str, object]] = {}
    for set_option in options:
        section, _, name = set_option.field.partition(".")
        if name:
            sections.setdefault(section, {})[name] = set_option.setting
    return sections


def write_recipe(request: Request, head: list[str]) -> WrittenLaunch:
    """Return the recipe of Megatron-Bridge."""
    of_model, of_plan, lost = settings_with_model(request)
    shape = request.shape
    sections = _by_section([*of_model, *of_plan])
    formats, ddp = sections.pop("mixed_precision", {}), sections.pop("ddp", {})
    # The common recipe shards the optimizer, and Megatron-Bridge shards if either says so.
    sections.setdefault("optimizer", {})["use_distributed_optimizer"] = bool(ddp.get("use_distributed_optimizer"))
    # Those of the data-parallel reduction CommOverlapConfig would choose itself.
    overlaps = {"tp_comm_overlap": False} | sections.pop("comm_overlap", {})
    overlaps |= {name: bool(ddp.get(name)) for name in ("overlap_grad_reduce", "overlap_param_gather")}
    half = next((name for name in _TORCH_TYPES if formats.get(name)), None)
    types = {"fp32": True}
    if half is not None:
        types = {"grad_reduce_in_fp32": True} | dict.fromkeys(("params_dtype", "pipeline_dtype"), _TORCH_TYPES[half])
    # What the providers need beside the settings, or have otherwise by default. Of the fusions that Megatron-LM has by
    # default, TransformerConfig refuses that of activations for squared ReLU, and for GELU without a bias.
    model = sections.pop("model") | {
        "vocab_size": shape.vocabulary or 1,
        "should_pad_vocab": True,
        "apply_rope_fusion": shape.rotary,
        "bias_activation_fusion": shape.activation == GATED or (shape.activation == GELU and shape.bias),
        "bias_dropout_fusion": True,
    }
    model |= {"cross_entropy_loss_fusion": False} if request.run.assumptions.cross_entropy_bytes > 8 else {}
    model |= {"share_embeddings_and_output_weights": True} if shape.tied else {}
    model |= _LATENT_DEFAULTS if shape.latent else {}
    config = [
        *_assigned("cfg.train", sections.pop("train")),
        *_assigned("cfg.ddp", _PLAIN_DDP | ddp),
        *(line for section, values in sections.items() for line in _assigned(f"cfg.{section}", values)),
        f"cfg.dataset.seq_length = {request.run['sequence_length']}",
        "cfg.tokenizer.tokenizer_type = 'NullTokenizer'",
        f"cfg.tokenizer.vocab_size = {shape.vocabulary or 1}",
        f"cfg.env_vars = {environment(request)!r}",
        *_STEPS,
    ]
    text = template("megatron_bridge_recipe.txt").format(
        head=commented([*head, *lost_lines(BRIDGE, tuple(part.replace(NAME, BRIDGE) for part in lost))]),
        home="mla_provider" if shape.latent else "gpt_provider",
        provider="MLAModelProvider" if shape.latent else "GPTModelProvider",
        model=_arguments(model),
        formats=_arguments(types | formats),
        overlaps=_arguments(overlaps),
        config="\n".join(f"    {line}" for line in config),
    )
    start = f'cd "$(dirname "$0")"\ntorchrun "${{HOSTS[@]}}" {_RECIPE} "$@"\n'
    return WrittenLaunch({SCRIPT: script([head[0], request.title], request, start), _RECIPE: text}, lost)


# As many steps as the script of Megatron-LM takes, and nothing beside them: the common recipe evaluates and saves.
_STEPS = (
    'cfg.train.train_iters = int(os.environ.get("TRAIN_ITERS", "50"))',
    "cfg.validation.eval_iters = 0",
    "cfg.checkpoint.save = cfg.checkpoint.load = None",
    "cfg.logger.log_interval = 1",
)
# What the common recipe sets and a plan may not have.
_PLAIN_DDP: dict[str, object] = {
    "use_distributed_optimizer": False,
    "use_megatron_fsdp": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "data_parallel_sharding_strategy": "no_shard",
    "average_in_collective": False,
}
# What MLAModelProvider has otherwise than GPTModelProvider, and than Megatron-LM.
_LATENT_DEFAULTS: dict[str, object] = {
    "rotary_scaling_factor": 1.0,
    "attention_softmax_in_fp32": False,
    "masked_softmax_fusion": True,
    "gradient_accumulation_fusion": "can_enable_gradient_accumulation_fusion()",
    "deallocate_pipeline_outputs": True,
}
_TORCH_TYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_NAMES = {"squared_relu", "silu", "gelu", "can_enable_gradient_accumulation_fusion()"}  # of functions


def _assigned(owner: str, values: dict[str, object]) -> list[str]:
    return [f"{owner}.{name} = {_literal(name, value)}" for name, value in values.items()]


def _arguments(values: dict[str, object]) -> str:
    return "\n".join(f"        {name}={_literal(name, value)}," for name, value in values.items())


def _literal(name: str, value: object) -> str:
    """Return a value as Python, of which names of functions and types are no texts."""
    if name == "attention_backend":
        return f"AttnBackend.{value}"
    if name.endswith("_dtype") and name.startswith("megatron_fsdp"):
        return _TORCH_TYPES.get(str(value), "torch.float32")
    if str(value) in _NAMES or str(value).startswith("torch."):
        return str(value)
    return repr(value)
