"""What the readers of Megatron Core replace where there is no GPU: the device, and the names of fused kernels.

The checks look for Transformer Engine, which needs a GPU, by its names alone. Also a configuration as texts.
"""

import dataclasses
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402

HOPPER = type("Hopper", (), {"major": 9, "minor": 0, "multi_processor_count": 132, "name": "NVIDIA H100"})
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: HOPPER

import megatron.core.models.common.embeddings.rope_utils as rope  # noqa: E402
import megatron.core.transformer.moe.moe_utils as moe  # noqa: E402
import megatron.core.transformer.transformer_config as transformer_config  # noqa: E402

rope.fused_apply_rotary_pos_emb = object()
for name in ("permute", "permute_with_probs", "sort_chunks_by_index", "sort_chunks_by_index_with_probs", "unpermute"):
    setattr(moe, f"fused_{name}", object())


def has_every_version(*modules) -> None:
    """Let the checks of some modules find a Transformer Engine that is new enough."""
    for module in (transformer_config, *modules):
        module.is_te_min_version = lambda *_, **__: True


def fields(**owners) -> dict:
    """All fields of configurations, as texts; functions by name."""
    return {
        f"{owner}.{field.name}": getattr(value, "__name__", str(value))
        for owner, config in owners.items()
        for field in dataclasses.fields(config)
        for value in [getattr(config, field.name)]
    }
