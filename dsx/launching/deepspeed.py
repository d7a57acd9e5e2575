"""What DeepSpeed's configuration expresses of a plan: ds_config.json.

Models, pipelines and the layers that divide weights are code of the user there, so most degrees have no key. The head
lists them; JSON has no comments, so it is the value of the first key, which DeepSpeed ignores.

Sources: DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py, and the check
of data types of runtime/engine.py).
"""

import json
from dataclasses import replace

from dsx.config.model_file import ModelSpec
from dsx.launching.architecture import Architecture, architecture_of
from dsx.launching.hosts import other_placement, torchrun
from dsx.launching.megatron_settings import ungraphed
from dsx.launching.request import (
    SCRIPT,
    LaunchRun,
    LaunchSettings,
    Refused,
    Request,
    WrittenLaunch,
    allocator_variables,
    commented,
    exported,
    lost_lines,
)
from dsx.notation.sharded_layer import ALL_TO_ALL

NAME = "DeepSpeed"
NEEDS = ("PROGRAM=train.py",)
_CONFIG = "ds_config.json"


def refused(request: Request) -> list[Refused]:
    """Return what DeepSpeed cannot run of a plan, beyond the columns that its file in data/frameworks limits."""
    run = request.run
    parts = [Refused(part.format(NAME), "tensor parallelism over one axis") for part in run.foreign]
    if run.number("cp") > 1 and not _exchanges_heads(run):
        parts.append(Refused(f"cp={run['cp']} by gathers: {NAME} exchanges heads for positions by all-to-alls", "cp=1"))
    return parts


def _exchanges_heads(run: LaunchRun) -> bool:
    return {kind for kind, _ in run.exchanges} == {ALL_TO_ALL}


def settings(run: LaunchRun, spec: ModelSpec) -> LaunchSettings:
    """Return the settings of a run as its configuration."""
    shape = architecture_of(spec, run.assumptions)
    words = LaunchSettings((), (), framework="deepspeed", title=f"{NAME} configuration")
    if refusals := refused(Request(run, shape, "", run.number("num_gpus"))):
        return replace(words, lost=tuple(part for part, _ in refusals), none_since=f"{NAME} cannot run it")
    return replace(words, left=tuple(_left(run, shape)), lost=tuple(_lost(run)), configuration=config_of(run))


def config_of(run: LaunchRun) -> dict[str, object]:
    """Return the configuration of a run as plain data."""
    assumptions, stage = run.assumptions, run.number("zero_stage")
    gradients = _types(run).get(_gradient_bytes(run), "fp32")
    overlap = stage > 0 and bool(assumptions.dp_overlap if stage < 3 else assumptions.fsdp_overlap)
    zero: dict[str, object] = {"stage": stage, "overlap_comm": overlap, "contiguous_gradients": True}
    if run["offload"] == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    configuration: dict[str, object] = {
        "train_batch_size": run.number("global_batch_size"),
        "train_micro_batch_size_per_gpu": run.number("microbatch_size"),
        "gradient_accumulation_steps": run.number("num_microbatches"),
        run.device.half_format: {"enabled": assumptions.weight_bytes == 2},
        "data_types": {"grad_accum_dtype": gradients},
        "communication_data_type": gradients,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
    }
    if run.number("tp") > 1 and run.number("pp") == 1:
        configuration["tensor_parallel"] = {"autotp_size": run.number("tp")}
    if run.number("cp") > 1:
        configuration["sequence_parallel_size"] = run.number("cp")
    if run.number("pp") > 1:
        configuration["pipeline"] = {
            "stages": run.number("pp"),
            "activation_checkpoint_interval": 1 if run["recompute"] == "full" else 0,
        }
    return configuration


def _types(run: LaunchRun) -> dict[int, str]:
    """Return the types of gradients by their bytes."""
    return {2: run.device.half_format, 4: "fp32"}


def _gradient_bytes(run: LaunchRun) -> int:
    """Return the bytes of a gradient element: without ZeRO the engine refuses any but those of the weights."""
    assumptions = run.assumptions
    return assumptions.gradient_bytes if run.number("zero_stage") else assumptions.weight_bytes


def write(request: Request, head: list[str]) -> WrittenLaunch:
    """Return the configuration, and a script that starts a program of the user with it."""
    for_program, lost = tuple(_left(request.run, request.shape)), tuple(_lost(request.run))
    lines = [*head, "Left to your program:", *(f"  - {part}" for part in for_program), "", *lost_lines(NAME, lost)]
    text = json.dumps({"_head": lines} | config_of(request.run), indent=2) + "\n"
    start = (
        f"#!/usr/bin/env bash\n{commented(lines)}set -euo pipefail\n\n{torchrun(request)}\n"
        f"{exported(allocator_variables(request.run))}"
        'PROGRAM=$(realpath -e "${PROGRAM:?the program that builds your model and calls deepspeed.initialize}")\n'
        f'cd "$(dirname "$0")"\ntorchrun "${{HOSTS[@]}}" "$PROGRAM" --deepspeed_config {_CONFIG} "$@"\n'
    )
    return WrittenLaunch({SCRIPT: start, _CONFIG: text}, lost, for_program)


def _left(run: LaunchRun, shape: Architecture) -> list[str]:
    """Return what the program does, which the configuration has no key for."""
    assumptions = run.assumptions
    tasks = [f"the model {shape.name}, {_sizes(shape)}"]
    if run.number("tp") > 1:
        how = "autotp_size divides models of Hugging Face alone" if run.number("pp") == 1 else "layers of your program"
        tasks.append(f"tp={run['tp']}: {how}")
    if run.number("pp") > 1:
        layers = ",".join(map(str, run.chunk_layers))
        tasks.append(
            f"pp={run['pp']} with {layers} layers a stage: build a deepspeed.pipe.PipelineModule of so many stages"
        )
    if run.number("ep") > 1:
        tasks.append(f"ep={run['ep']}: give deepspeed.moe.layer.MoE(ep_size={run['ep']})")
    if run["recompute"] == "full" and run.number("pp") == 1:
        tasks.append("recompute=full: call deepspeed.checkpointing.checkpoint around each layer")
    if assumptions.linear_dtype != "bf16":
        tasks.append(f"multiplies in {assumptions.linear_dtype}")
    return [*tasks, f"a loss that keeps {assumptions.cross_entropy_bytes} bytes per logit (cross_entropy_bytes)"]


def _lost(run: LaunchRun) -> list[str]:
    """Return what was priced, and neither the configuration has a key for nor a program can do."""
    assumptions, parts = run.assumptions, list[str]()
    if assumptions.gradient_bytes not in _types(run):
        parts.append(f"gradients of {assumptions.gradient_bytes} bytes per element")
    elif _gradient_bytes(run) != assumptions.gradient_bytes:
        parts.append(
            f"gradients of {assumptions.gradient_bytes} bytes per element with zero_stage=0: without ZeRO they have "
            "the type of the weights"
        )
    if assumptions.weight_bytes not in (2, 4) or assumptions.weight_bytes != assumptions.activation_bytes:
        parts.append(
            f"weights of {assumptions.weight_bytes} and activations of {assumptions.activation_bytes} bytes per element"
        )
    if assumptions.optimizer_bytes_per_parameter != 12:
        parts.append(f"optimizer state of {assumptions.optimizer_bytes_per_parameter:g} bytes per parameter: it is 12")
    if run["zero_stage"] == 0 and run.number("dp") > 1 and assumptions.dp_overlap:
        parts.append(
            f"gradients reduced during the backward (dp_overlap={assumptions.dp_overlap:g}): overlap_comm is of ZeRO 1 "
            "to 3, and without ZeRO they are reduced after it"
        )
    parts += other_placement(run.plan)  # pyright: ignore[reportArgumentType]
    parts += ungraphed(run, "DeepSpeed issues each operator")
    for axis in ("tp", "cp", "ep"):
        if run.number(axis) > 1 and (share := getattr(assumptions, f"{axis}_overlap")):
            parts.append(f"communication over {axis} beside compute ({axis}_overlap={share:g})")
    return parts


def _sizes(shape: Architecture) -> str:
    return f"{shape.num_layers} layers of {shape.hidden}, {shape.heads} heads, vocabulary {shape.vocabulary}"
