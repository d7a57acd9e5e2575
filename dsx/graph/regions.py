"""The regions of a layer that recomputation can select, one record each: the vocabulary of ``recompute NAME``.

The names of Megatron-LM, and what each region keeps, are those of its ``--recompute-modules``
(megatron/core/transformer/transformer_config.py, `recompute_modules`). Its attention, feed-forward and expert regions
are checkpoints, which keep their inputs. The others discard their outputs too ("output-discarding checkpointing"):
whoever reads such an output in the backward gets the recomputed one.
"""

from dataclasses import dataclass

# The regions that a kernel is in, outermost first: the name of each, and its number in the layer.
RegionPath = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a layer that is recomputed as a whole."""

    name: str
    megatron_lm: str  # its word in --recompute-modules
    description: str
    discards_output: bool = False
    within: str = ""  # a region that has it as a part


CORE_ATTENTION = "core-attention"
REGIONS: tuple[Region, ...] = (
    Region(CORE_ATTENTION, "core_attn", "scores, softmax and weighted sum, where they are not one fused kernel"),
    Region("norms", "layernorm", "the norms before attention and before the feed-forward network", True),
    Region(
        "latent-up-projection",
        "mla_up_proj",
        "latent attention: norms and up-projections of the latent vectors, and rotary positions",
        True,
    ),
    Region("expert-activation", "moe_act", "the activation between the two multiplies of the experts", True, "experts"),
    Region("shared-experts", "shared_experts", "the experts that all tokens pass", within="experts"),
    Region("feed-forward", "mlp", "the feed-forward network of a layer without experts"),
    Region("experts", "moe", "router, dispatch, experts, shared experts and combination"),
)
BY_NAME = {region.name: region for region in REGIONS}


def outermost(path: RegionPath, chosen: frozenset[str]) -> tuple[str, int] | None:
    """Return the region of a path that is recomputed if `chosen` are: the outermost of them includes the others."""
    return next((region for region in path if region[0] in chosen), None)
