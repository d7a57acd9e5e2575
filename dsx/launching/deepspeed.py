"""What DeepSpeed's configuration expresses of a plan: ds_config.json.

Models, pipelines and the layers that divide weights are code of the user there, so most degrees have no key. The head
lists them; JSON has no comments, so it is the value of the first key, which DeepSpeed ignores.

Sources: DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py, and the check
of data types of runtime/engine.py).
"""

import json
from dataclasses import replace

from dsx.config.model_file import ModelSpec
from dsx.launching.hosts import other_placement, script
from dsx.launching.megatron_settings import ungraphed
from dsx.launching.request import (
    SCRIPT,
    Architecture,
    LaunchRun,
    LaunchSettings,
    Refused,
    Request,
    WrittenLaunch,
    allocator_variables,
    architecture_of,
    exported,
    lost_lines,
    uneven_weights,
)
from dsx.notation.sharded_layer import ALL_TO_ALL

NAME = "DeepSpeed"
NEEDS = ("PROGRAM=train.py",)
_CONFIG = "ds_config.json"


def refused(request: Request) -> list[Refused]:
    """Return what DeepSpeed cannot run of a plan, beyond the columns that its file in data/frameworks limits."""
    run = request.run
    parts = [Refused(part.format(NAME), "tensor parallelism over one axis") for part in run.foreign]
    if run.number("cp") > 1 and {kind for kind, _ in run.exchanges} != {ALL_TO_ALL}:
        parts.append(Refused(f"cp={run['cp']} by gathers: {NAME} exchanges heads for positions by all-to-alls", "cp=1"))
    return parts


def settings(run: LaunchRun, spec: ModelSpec) -> LaunchSettings:
    """Return the settings of a run as its configuration."""
    shape = architecture_of(spec, run.assumptions)
    words = LaunchSettings((), (), framework="deepspeed", title=f"{NAME} configuration")
    if refusals := refused(Request(run, shape, "", run.number("num_gpus"))):
        return replace(words, lost=tuple(part for part, _ in refusals), none_since=f"{NAME} cannot run it")
    return replace(words, left=tuple(_left(run, shape)), lost=tuple(_lost(run)), configuration=config_of(run))


def config_of(run: LaunchRun) -> dict[str, object]:
    """Return the configuration of a run as plain data."""
    assumptions, stage, tp, cp, pp = run.assumptions, *(run.number(name) for name in ("zero_stage", "tp", "cp", "pp"))
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
    if tp > 1 and pp == 1:
        configuration["tensor_parallel"] = {"autotp_size": tp}
    if cp > 1:
        configuration["sequence_parallel_size"] = cp
    if pp > 1:
        interval = 1 if run["recompute"] == "full" else 0
        configuration["pipeline"] = {"stages": pp, "activation_checkpoint_interval": interval}
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
        f"{exported(allocator_variables(request.run))}"
        'PROGRAM=$(realpath -e "${PROGRAM:?the program that builds your model and calls deepspeed.initialize}")\n'
        f'cd "$(dirname "$0")"\ntorchrun "${{HOSTS[@]}}" "$PROGRAM" --deepspeed_config {_CONFIG} "$@"\n'
    )
    return WrittenLaunch({SCRIPT: script(lines, request, start), _CONFIG: text}, lost, for_program)


def _left(run: LaunchRun, shape: Architecture) -> list[str]:
    """Return what the program does, which the configuration has no key for."""
    assumptions, tp, pp, ep = run.assumptions, *(run.number(axis) for axis in ("tp", "pp", "ep"))
    how = "autotp_size divides models of Hugging Face alone" if pp == 1 else "layers of your program"
    layers = ",".join(map(str, run.chunk_layers))
    tasks = {
        f"the model {shape.name}, {shape.num_layers} layers of {shape.hidden}, {shape.heads} heads, "
        f"vocabulary {shape.vocabulary}": True,
        f"{shape.frozen}: requires_grad=False": bool(shape.frozen),
        f"tp={tp}: {how}": tp > 1,
        f"pp={pp} with {layers} layers a stage: build a deepspeed.pipe.PipelineModule of so many stages": pp > 1,
        f"ep={ep}: give deepspeed.moe.layer.MoE(ep_size={ep})": ep > 1,
        "recompute=full: call deepspeed.checkpointing.checkpoint around each layer": (
            run["recompute"] == "full" and pp == 1
        ),
        f"multiplies in {assumptions.linear_dtype}": assumptions.linear_dtype != "bf16",
        f"a loss that keeps {assumptions.cross_entropy_bytes} bytes per logit (cross_entropy_bytes)": True,
    }
    return [task for task, is_left in tasks.items() if is_left]


def _lost(run: LaunchRun) -> list[str]:
    """Return what was priced, and neither the configuration has a key for nor a program can do."""
    assumptions = run.assumptions
    gradients = f"gradients of {assumptions.gradient_bytes} bytes per element"
    unknown = assumptions.gradient_bytes not in _types(run)
    parts = {
        gradients: unknown,
        f"{gradients} with zero_stage=0: without ZeRO they have the type of the weights": (
            not unknown and _gradient_bytes(run) != assumptions.gradient_bytes
        ),
        **uneven_weights(run),
        f"optimizer state of {assumptions.optimizer_bytes_per_parameter:g} bytes per parameter: it is 12": (
            assumptions.optimizer_bytes_per_parameter != 12
        ),
        f"gradients reduced during the backward (dp_overlap={assumptions.dp_overlap:g}): overlap_comm is of ZeRO 1 "
        "to 3, and without ZeRO they are reduced after it": (
            run["zero_stage"] == 0 and run.number("dp") > 1 and assumptions.dp_overlap
        ),
    }
    lost = [part for part, is_lost in parts.items() if is_lost]
    lost += [*other_placement(run.plan), *ungraphed(run, "DeepSpeed issues each operator")]
    for axis in ("tp", "cp", "ep"):
        if run.number(axis) > 1 and (share := getattr(assumptions, f"{axis}_overlap")):
            lost.append(f"communication over {axis} beside compute ({axis}_overlap={share:g})")
    return lost
