"""A plan as settings of Megatron Core, what they cannot express, and the script that starts Megatron-LM with torchrun.

    launch = flags_of(run_of(plan, model, assumptions, device))  # a plan as columns by name, its strategy's model
    launch.arguments                                             # ["--tensor-model-parallel-size", "8", ...]

The world size is no flag: the launcher starts num_gpus ranks, and Megatron-LM derives dp from tp, cp and pp. The
settings that are no columns of a plan are in `dsx.launching.megatron_settings`. The script needs no data: it trains on
made-up tokens unless it is told otherwise.

Sources: the argument parser of megatron-core 0.19.2 (megatron.training.arguments) for the flags, and its checks; its
order of the ranks (parallel_state.initialize_model_parallel), its limits of offload (TransformerConfig.cpu_offloading),
and the rule that experts with tensor parallelism need sequence parallelism (MoELayer.forward).
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsx.config.assumption_set import MUON, AssumptionsSpec
from dsx.config.cluster_file import GPU_SOFTWARE
from dsx.config.model_file import ModelSpec
from dsx.launching.architecture import Architecture, architecture_of
from dsx.launching.hosts import other_placement, torchrun
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
    SCRIPT,
    LaunchRun,
    LaunchSettings,
    Option,
    Refused,
    Request,
    Settings,
    WrittenLaunch,
    allocator_variables,
    commented,
    exported,
    layout_text,
    lost_lines,
    switch,
    valued,
    words,
    words_of,
)
from dsx.notation.syntax import REGIONS_BY_NAME
from dsx.plans.choices import FULL, JOINED, NONE, SELECTIVE, VALUES
from dsx.plans.placement import ORDERS
from dsx.schedules.schedules import SCHEDULES

NAME = "Megatron-LM"
# The flag for each order that is not the default.
_ORDER_FLAGS = {ORDERS[1]: [switch("--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping")]}

_LAYOUT = "the rest would start another plan"

# dsx overlaps the gradient reduction with the backward, and the gathering of weights with the forward.
_OVERLAPPED = (
    switch("--overlap-grad-reduce", "ddp.overlap_grad_reduce"),
    switch("--overlap-param-gather", "ddp.overlap_param_gather"),
)
_SHARDED = switch("--use-distributed-optimizer", "ddp.use_distributed_optimizer")
_STRATEGY = "--data-parallel-sharding-strategy"
_FSDP = (
    _SHARDED,
    switch("--use-megatron-fsdp", "ddp.use_megatron_fsdp"),
    valued("--ckpt-format", "fsdp_dtensor", "checkpoint.ckpt_format"),
)
_ZERO: dict[int, tuple[Option, ...]] = {
    0: _OVERLAPPED[:1],
    1: (_SHARDED, *_OVERLAPPED),
    2: (*_FSDP, valued(_STRATEGY, "optim_grads", "ddp.data_parallel_sharding_strategy"), *_OVERLAPPED),
    3: (*_FSDP, valued(_STRATEGY, "optim_grads_params", "ddp.data_parallel_sharding_strategy"), *_OVERLAPPED),
}
# Muon does not go with the distributed optimizer; layer by layer, ranks have whole matrices in place of ZeRO 1.
_MUON = {0: "muon", 1: "dist_muon"}
_SELECTIVE = valued("--recompute-granularity", "selective", "model.recompute_granularity")
_FULL = valued("--recompute-granularity", "full", "model.recompute_granularity")
# Only the distributed, precision-aware optimizer can run on the host.
_HOST_UPDATE = (
    switch("--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload"),
    valued("--optimizer-offload-fraction", 1.0, "optimizer.optimizer_offload_fraction"),
    switch("--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer"),
)
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
        return LaunchSettings((), tuple(foreign), _LAYOUT)
    has_muon = run.assumptions.optimizer == MUON
    # Ranks that have whole matrices reduce all gradients, as without ZeRO.
    zero = _zero(0 if has_muon else run.number("zero_stage"), run.assumptions)
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
    recompute, offload, muon, _, context, experts, formats, overlaps, graphs = (options for options, _ in parts)
    options = [
        *_degrees(run, context),
        *experts,
        valued("--micro-batch-size", run.number("microbatch_size"), "train.micro_batch_size"),
        valued("--global-batch-size", run.number("global_batch_size"), "train.global_batch_size"),
        valued("--seq-length", run.number("sequence_length"), "model.seq_length"),
        *(zero or ()),
        *muon,
        *_replicas(run.number("zero_replicas")),
        *recompute,
        *offload,
        *formats,
        *overlaps,
        *fused_options(run),
        *graphs,
    ]
    lost = [
        *([f"zero_stage={run['zero_stage']}"] if zero is None else _sharded_in_pipeline(run)),
        *(part for _, lost in parts for part in lost),
        *other_placement(run.plan),  # pyright: ignore[reportArgumentType]
    ]
    return LaunchSettings(tuple(options), tuple(lost))


def _degrees(run: LaunchRun, context: list[Option]) -> list[Option]:
    """Return the settings of the degrees and of the pipeline."""
    tp, cp, pp, vpp = (run.number(axis) for axis in ("tp", "cp", "pp", "vpp"))
    layout = layout_text(run.chunks, run.predictions)
    options = [
        valued("--tensor-model-parallel-size", tp, "model.tensor_model_parallel_size"),
        *([switch("--sequence-parallel", "model.sequence_parallel")] if run.sequence_parallel else []),
        valued("--context-parallel-size", cp, "model.context_parallel_size"),
        *context,
        valued("--pipeline-model-parallel-size", pp, "model.pipeline_model_parallel_size"),
    ]
    if layout:  # says itself how many chunks a stage has
        options.append(valued("--pipeline-model-parallel-layout", layout, "model.pipeline_model_parallel_layout"))
    elif "stage_layers" not in run.plan:
        options += counted_ends(run.plan, run.num_layers)
    # One stage is numbered alike in all orders, and Megatron-FSDP refuses the flag.
    options += _ORDER_FLAGS.get(str(run["order"]), ()) if pp > 1 else ()
    if vpp > 1:
        # Megatron-LM takes either a layout or a number; Megatron-Bridge chooses overlaps before it reads the layout.
        flag = "" if layout else "--num-virtual-stages-per-pipeline-rank"
        options.append(valued(flag, vpp, "model.virtual_pipeline_model_parallel_size"))
    return options


def counted_ends(plan: Mapping[str, Any], num_layers: int) -> list[Option]:
    """Return the settings that count embedding and head as a layer each, where the body alone does not divide."""
    chunks = int(plan["pp"]) * int(plan["vpp"])
    if num_layers % chunks == 0 or (num_layers + 2) % chunks:
        return []
    return [
        switch("--account-for-embedding-in-pipeline-split", "model.account_for_embedding_in_pipeline_split"),
        switch("--account-for-loss-in-pipeline-split", "model.account_for_loss_in_pipeline_split"),
    ]


def _zero(stage: int, assumptions: AssumptionsSpec) -> tuple[Option, ...] | None:
    """Return the settings of a ZeRO stage; None if it is unknown. From stage 2 on Megatron-LM always overlaps."""
    options = _ZERO.get(stage)
    if options is None or stage > 1 or assumptions.dp_overlap:
        return options
    return tuple(option for option in options if option not in _OVERLAPPED)


def _muon(run: LaunchRun) -> Settings:
    """Return the settings of Muon, and what they cannot express of it."""
    stage, offload = run.number("zero_stage"), run["offload"]
    if stage not in _MUON or offload in ("optimizer", "both"):
        return [], [f"Muon with zero_stage={stage} and offload={offload}: {NAME} has it without both, or with stage 1"]
    options = [
        valued("--optimizer", _MUON[stage], "optimizer.optimizer"),
        valued("--muon-num-ns-steps", int(run.assumptions.muon_steps), "optimizer.muon_num_ns_steps"),
        valued("--muon-tp-mode", "duplicated", "optimizer.muon_tp_mode"),
    ]
    lost = ["Newton-Schulz steps of queries, keys and values as one matrix: it splits them"]
    if stage:
        more = run.assumptions.gradient_bytes - run.assumptions.muon_bytes
        lost.append(
            "a scatter of gradients and a gather of momentum in BF16: dist_muon reduces gradients to all ranks, and "
            "gives each whole matrices, whose weights it gathers after the update: "
            + (f"{more:g} bytes more of each parameter" if more > 0 else "as many bytes in all")
        )
    return options, lost


def _replicas(replicas: int) -> list[Option]:
    if replicas == 1:
        return []
    name = "num_distributed_optimizer_instances"
    return [valued(f"--{name.replace('_', '-')}", replicas, f"ddp.{name}")]


def _sharded_in_pipeline(run: LaunchRun) -> list[str]:
    """Return that Megatron-FSDP, which has ZeRO stages 2 and 3, is not documented to run in a pipeline."""
    if run.number("zero_stage") < 2 or run.number("pp") == 1:
        return []
    return [
        f"zero_stage={run['zero_stage']} with pp={run['pp']}: Megatron-FSDP is documented with tensor, context and "
        "expert parallelism, not with pipelines"
    ]


def _recomputed(run: LaunchRun) -> Settings:
    """Return the settings of recomputation, and what they cannot express of it."""
    mode, stored = str(run["recompute"]), run.number("stored_layers")
    if mode not in VALUES:
        return [], [f"recompute={mode}"]
    options = {NONE: [], SELECTIVE: [_SELECTIVE], FULL: _whole_layers("uniform", 1)}.get(mode) or _regions(
        mode, run.regions
    )
    if not stored:
        return options, []
    if run.chunks:
        reason = f"uneven stages, which recompute the same share of their layers: {NAME} recomputes the same number"
        return options, [f"stored_layers={stored} with {reason}"]
    of_stage = run.num_layers // run.number("pp")
    if stored == of_stage:
        return [], []
    recomputed, remainder = divmod(of_stage - stored, run.number("vpp"))
    if mode != FULL:
        reason = f"recompute={mode}: {NAME} recomputes regions of all layers, or of none"
        return options, [f"stored_layers={stored} with {reason}"]
    if remainder:
        reason = f"vpp={run['vpp']}: {NAME} recomputes the same number of layers in each chunk"
        return options, [f"stored_layers={stored} with {reason}"]
    return _whole_layers("block", recomputed), []


def _whole_layers(method: str, count: int) -> list[Option]:
    return [
        _FULL,
        valued("--recompute-method", method, "model.recompute_method"),
        valued("--recompute-num-layers", count, "model.recompute_num_layers"),
    ]


def _regions(value: str, present: frozenset[str]) -> list[Option]:
    """Return the settings of a set of regions, without those that no layer has: Megatron-LM refuses some of them."""
    modules = [REGIONS_BY_NAME[name].megatron_lm for name in value.split(JOINED) if name in present]
    return [_SELECTIVE, words("--recompute-modules", modules, "model.recompute_modules")] if modules else []


def _offloaded(run: LaunchRun) -> Settings:
    """Return the settings of offload, and what they cannot express of it."""
    options: list[Option] = []
    lost: list[str] = []
    offload, stage = run["offload"], run.number("zero_stage")
    if offload in ("optimizer", "both"):
        if stage == 1:
            options += _HOST_UPDATE
        else:
            lost.append(
                f"offload of the optimizer with zero_stage={stage}: {NAME} offloads it only with a "
                "distributed optimizer; DeepSpeed has it as zero_optimization.offload_optimizer.device=cpu"
            )
    if offload in ("activations", "both"):
        if run.number("pp") == 1 and run["recompute"] == NONE and run.num_layers > _KEPT_LAYERS:
            offloaded = run.num_layers - _KEPT_LAYERS
            options += [
                valued("--cpu-offloading-num-layers", offloaded, "model.cpu_offloading_num_layers"),
                Option("", "", "model.cpu_offloading"),  # which Megatron-LM derives from the number
            ]
        else:
            lost.append(
                f"offload of activations with pp={run['pp']}, recompute={run['recompute']}: {NAME} offloads "
                "layers only without a pipeline and without recomputation"
            )
    return options, lost


def refused_by_core(request: Request, title: str = NAME) -> list[Refused]:
    """Return what Megatron Core cannot run of a plan, beyond the columns that its file in data/frameworks limits."""
    launch = megatron_core(request.run)
    return [
        Refused(
            part.replace(NAME, title),
            "tensor parallelism with sequence parallelism over one axis" if "tp" in part else "",
        )
        for part in (launch.lost if launch.none_since else ())
    ]


def not_of_core(shape: Architecture, title: str = NAME) -> list[Refused]:
    """Return what Megatron Core's GPT model has not of a model."""
    return [Refused(part.replace(NAME, title), "a recipe of your own") for part in refused_model(shape)]


def settings_with_model(request: Request) -> tuple[list[Option], list[Option], tuple[str, ...]]:
    """Return the settings of the model, those of the plan, and what they do not express."""
    launch = megatron_core(request.run)
    of_model, not_of_model = model_options(request.shape, request.run.number("sequence_length"))
    refused = refused_context(request.shape, request.run)
    return of_model, [*launch.options], (*not_of_model, *refused, *launch.lost)


def write_script(request: Request, head: list[str]) -> WrittenLaunch:
    """Return the script that starts Megatron-LM."""
    of_model, of_plan, lost = settings_with_model(request)
    lost = (*lost, *refused_by_arguments(request.run))
    lines = [*head, *lost_lines(NAME, lost)]
    arrays = "\n".join(_array(name, options) for name, options in (("MODEL", of_model), ("PLAN", of_plan)))
    text = (
        f"#!/usr/bin/env bash\n{commented(lines)}set -euo pipefail\n\n{torchrun(request)}\n"
        f"{exported(environment(request))}\n{arrays}\n{_DATA.format(vocabulary=request.shape.vocabulary or 1)}\n"
        'torchrun "${HOSTS[@]}" "${MEGATRON_LM:?a checkout of Megatron-LM}/pretrain_gpt.py" \\\n'
        '    "${MODEL[@]}" "${PLAN[@]}" "${DATA[@]}" "${TRAINING[@]}" "$@"\n'
    )
    return WrittenLaunch({SCRIPT: text}, lost)


_DATA = """# Made-up tokens; set DATA_PATH and TOKENIZER for your own. Learning rates are no part of the plan.
if [ -n "${{DATA_PATH:-}}" ]; then
    DATA=(--data-path "$DATA_PATH" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER")
else
    DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size {vocabulary})
fi
TRAINING=(--train-iters "${{TRAIN_ITERS:-50}}" --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --log-interval 1
    --log-throughput --eval-iters 0)
"""


def _array(name: str, options: Sequence[Option]) -> str:
    lines = [f"    {shlex.join(words_of((option.flag, option.value)))}\n" for option in options if option.flag]
    return f"{name}=(\n{''.join(lines)})"


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
