"""A shell script that starts Megatron-LM with torchrun, and a recipe of Megatron-Bridge in Python.

Both have the same settings; see `dsx.launching.megatron`. Neither needs data: they train on made-up tokens unless they
are told otherwise.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from dsx.launching.allocator import allocator_variables
from dsx.launching.architecture import GATED, GELU, Architecture
from dsx.launching.hosts import torchrun
from dsx.launching.launch import Launch, words_of
from dsx.launching.megatron import NAME, megatron_core
from dsx.launching.megatron_model import model_options, refused_context, refused_model
from dsx.launching.megatron_options import overlaps_experts, refused_by_arguments
from dsx.launching.option import Option
from dsx.launching.request import SCRIPT, Refused, Request, Written, commented, exported, lost_lines
from dsx.launching.run import Run
from dsx.spec.model import ModelSpec

_RECIPE = "recipe.py"
BRIDGE = "Megatron-Bridge"


def refused_by_core(request: Request) -> list[Refused]:
    """Return what Megatron Core cannot run of a plan, beyond the columns that its file in data/frameworks limits."""
    launch = megatron_core(request.run)
    found = [Refused(part, _nearest(part)) for part in (launch.lost if launch.none_since else ())]
    return found


def not_of_core(shape: Architecture) -> list[Refused]:
    """Return what Megatron Core's GPT model has not of a model."""
    return [Refused(part, "a recipe of your own") for part in refused_model(shape)]


def refused_by_bridge(request: Request) -> list[Refused]:
    """Return what `refused_by_core` does, in the name of Megatron-Bridge."""
    return _of_bridge(refused_by_core(request))


def not_of_bridge(shape: Architecture) -> list[Refused]:
    """Return what `not_of_core` does, in the name of Megatron-Bridge."""
    return _of_bridge(not_of_core(shape))


def _of_bridge(found: list[Refused]) -> list[Refused]:
    return [Refused(*(text.replace(NAME, BRIDGE) for text in one)) for one in found]


def _nearest(part: str) -> str:
    return "tensor parallelism with sequence parallelism over one axis" if "tp" in part else ""


def _settings(request: Request) -> tuple[list[Option], tuple[str, ...]]:
    launch = megatron_core(request.run)
    of_model, not_of_model = model_options(request.shape, request.run.number("sequence_length"))
    refused = refused_context(request.shape, request.run)
    return [*of_model, *launch.options], (*not_of_model, *refused, *launch.lost)


def write_script(request: Request, head: list[str]) -> Written:
    """Return the script that starts Megatron-LM."""
    options, lost = _settings(request)
    lost = (*lost, *refused_by_arguments(request.run))
    lines = [*head, *lost_lines(NAME, lost)]
    groups = (("MODEL", options[: _end_of_model(request)]), ("PLAN", options[_end_of_model(request) :]))
    arrays = "\n".join(_array(name, chosen) for name, chosen in groups)
    text = (
        f"#!/usr/bin/env bash\n{commented(lines)}set -euo pipefail\n\n{torchrun(request)}\n"
        f"{exported(environment(request))}\n{arrays}\n{_DATA.format(vocabulary=request.shape.vocabulary or 1)}\n"
        'torchrun "${HOSTS[@]}" "${MEGATRON_LM:?a checkout of Megatron-LM}/pretrain_gpt.py" \\\n'
        '    "${MODEL[@]}" "${PLAN[@]}" "${DATA[@]}" "${TRAINING[@]}" "$@"\n'
    )
    return Written({SCRIPT: text}, lost)


_DATA = """# Made-up tokens; set DATA_PATH and TOKENIZER for your own. Learning rates are no part of the plan.
if [ -n "${{DATA_PATH:-}}" ]; then
    DATA=(--data-path "$DATA_PATH" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER")
else
    DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size {vocabulary})
fi
TRAINING=(--train-iters "${{TRAIN_ITERS:-50}}" --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --log-interval 1
    --log-throughput --eval-iters 0)
"""


def _end_of_model(request: Request) -> int:
    of_model, _ = model_options(request.shape, request.run.number("sequence_length"))
    return len(of_model)


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
    found = allocator_variables(run)
    if overlaps_experts(run):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif run.number("zero_stage") <= 1 and max(run.number("tp"), run.number("cp")) > 1:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if run["offload"] in ("activations", "both"):
        found["NVTE_CPU_OFFLOAD_V1"] = "1"
    return found


def fields_of_recipe(run: Run, _: ModelSpec) -> Launch:
    """Return the settings of a run as fields of a recipe of Megatron-Bridge."""
    launch = megatron_core(run)
    found = replace(launch, options=(), framework="megatron_bridge", title=f"{BRIDGE} settings")
    lost = tuple(part.replace(NAME, BRIDGE) for part in launch.lost)
    return replace(found, lost=lost, configuration=_by_section(launch.options))


def _by_section(options: Sequence[Option]) -> dict[str, dict[str, object]]:
    """Return the fields of options by the section of the configuration that has them."""
    found: dict[str, dict[str, object]] = {}
    for option in options:
        section, _, name = option.field.partition(".")
        if name:
            found.setdefault(section, {})[name] = option.setting
    return found


def write_recipe(request: Request, head: list[str]) -> Written:
    """Return the recipe of Megatron-Bridge."""
    options, lost = _settings(request)
    by_section = _by_section(options)
    model = by_section.pop("model") | _model_defaults(request)
    provider = "MLAModelProvider" if request.shape.latent else "GPTModelProvider"
    home = "mla_provider" if request.shape.latent else "gpt_provider"
    formats = by_section.pop("mixed_precision", {})
    ddp = by_section.pop("ddp", {})
    # The common recipe shards the optimizer, and Megatron-Bridge shards if either says so.
    by_section.setdefault("optimizer", {})["use_distributed_optimizer"] = bool(ddp.get("use_distributed_optimizer"))
    overlaps = {"tp_comm_overlap": False} | by_section.pop("comm_overlap", {}) | _grad_overlaps(ddp)
    lines = [*head, *lost_lines(BRIDGE, tuple(part.replace(NAME, BRIDGE) for part in lost))]
    config = [
        *_assigned("cfg.train", by_section.pop("train")),
        *_assigned("cfg.ddp", _PLAIN_DDP | ddp),
        *(line for section, values in by_section.items() for line in _assigned(f"cfg.{section}", values)),
        f"cfg.dataset.seq_length = {request.run['sequence_length']}",
        "cfg.tokenizer.tokenizer_type = 'NullTokenizer'",
        f"cfg.tokenizer.vocab_size = {request.shape.vocabulary or 1}",
        f"cfg.env_vars = {environment(request)!r}",
        *_STEPS,
    ]
    text = _RECIPE_TEXT.format(
        head=commented(lines),
        home=home,
        provider=provider,
        model=_arguments(model),
        formats=_arguments(_formats(formats)),
        overlaps=_arguments(overlaps),
        config="\n".join(f"    {line}" for line in config),
        functions=_FUNCTIONS,
    )
    start = (
        f"#!/usr/bin/env bash\n{commented([head[0], request.title])}set -euo pipefail\n\n{torchrun(request)}\n"
        f'cd "$(dirname "$0")"\ntorchrun "${{HOSTS[@]}}" {_RECIPE} "$@"\n'
    )
    return Written({SCRIPT: start, _RECIPE: text}, lost)


_FUNCTIONS = """from megatron.core.activations import squared_relu
from torch.nn.functional import gelu, silu"""

_RECIPE_TEXT = """{head}
import os

import torch
{functions}
from megatron.core.transformer.enums import AttnBackend
from megatron.bridge.models.{home} import {provider}
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.utils.fusions import can_enable_gradient_accumulation_fusion


def recipe() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = {provider}(
{model}
    )
    cfg.mixed_precision = MixedPrecisionConfig(
{formats}
    )
    cfg.comm_overlap = CommOverlapConfig(
{overlaps}
    )
{config}
    return cfg


if __name__ == "__main__":
    pretrain(config=recipe(), forward_step_func=forward_step)
"""

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


def _model_defaults(request: Request) -> dict[str, object]:
    """Return what the providers need beside the settings, or have otherwise by default."""
    chosen: dict[str, object] = {"vocab_size": request.shape.vocabulary or 1, "should_pad_vocab": True}
    chosen |= _fusions(request.shape)
    if request.run.assumptions.cross_entropy_bytes > 8:
        chosen["cross_entropy_loss_fusion"] = False
    if request.shape.tied:
        chosen["share_embeddings_and_output_weights"] = True
    return chosen | (_LATENT_DEFAULTS if request.shape.latent else {})


def _fusions(shape: Architecture) -> dict[str, object]:
    """Return the fusions that the arguments of Megatron-LM have by default, and the providers have not.

    TransformerConfig refuses that of activations for squared ReLU, and for GELU without a bias.
    """
    return {
        "apply_rope_fusion": shape.rotary,
        "bias_activation_fusion": shape.activation == GATED or (shape.activation == GELU and shape.bias),
        "bias_dropout_fusion": True,
    }


def _grad_overlaps(ddp: dict[str, object]) -> dict[str, object]:
    """Return the overlaps of the data-parallel reduction, which CommOverlapConfig would choose itself."""
    return {name: bool(ddp.get(name)) for name in ("overlap_grad_reduce", "overlap_param_gather")}


def _formats(stated: dict[str, object]) -> dict[str, object]:
    half = next((name for name in _TORCH_TYPES if stated.get(name)), None)
    if half is None:
        return {"fp32": True} | stated
    types: dict[str, object] = dict.fromkeys(("params_dtype", "pipeline_dtype"), _TORCH_TYPES[half])
    return {"grad_reduce_in_fp32": True} | types | stated


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
