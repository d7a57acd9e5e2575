"""A recipe of Megatron-Bridge in Python, with the settings of Megatron Core that `dsx.launching.megatron` states.

It needs no data: it trains on made-up tokens unless it is told otherwise.

Sources: Megatron-Bridge 0.6.2 (the common recipe, GPTModelProvider, MLAModelProvider, CommOverlapConfig).
"""

from collections.abc import Sequence
from dataclasses import replace

from dsx.config.model_file import ModelSpec
from dsx.launching.architecture import GATED, GELU, Architecture
from dsx.launching.hosts import torchrun
from dsx.launching.megatron import NAME, environment, megatron_core, settings_with_model
from dsx.launching.request import (
    SCRIPT,
    LaunchRun,
    LaunchSettings,
    Option,
    Request,
    WrittenLaunch,
    commented,
    lost_lines,
)

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
    for option in options:
        section, _, name = option.field.partition(".")
        if name:
            sections.setdefault(section, {})[name] = option.setting
    return sections


def write_recipe(request: Request, head: list[str]) -> WrittenLaunch:
    """Return the recipe of Megatron-Bridge."""
    of_model, of_plan, lost = settings_with_model(request)
    by_section = _by_section([*of_model, *of_plan])
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
    return WrittenLaunch({SCRIPT: start, _RECIPE: text}, lost)


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


def _formats(formats: dict[str, object]) -> dict[str, object]:
    half = next((name for name in _TORCH_TYPES if formats.get(name)), None)
    if half is None:
        return {"fp32": True} | formats
    types: dict[str, object] = dict.fromkeys(("params_dtype", "pipeline_dtype"), _TORCH_TYPES[half])
    return {"grad_reduce_in_fp32": True} | types | formats


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
