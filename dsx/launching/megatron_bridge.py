"""A recipe of Megatron-Bridge in Python, with the settings of Megatron Core that `dsx.launching.megatron` states.

It needs no data: it trains on made-up tokens unless it is told otherwise.

Sources: Megatron-Bridge 0.6.2 (the common recipe, GPTModelProvider, MLAModelProvider, CommOverlapConfig).
"""

from collections.abc import Sequence
from dataclasses import replace

from dsx.config.model_file import ModelSpec
from dsx.launching.architecture import GATED, GELU
from dsx.launching.hosts import script
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
    template,
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
