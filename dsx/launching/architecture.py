"""The model of a launch: its sizes and options, read from the layers that the model file lists.

    shape = architecture_of(spec, assumptions)
    shape.hidden, shape.heads, shape.unusual

Layers of one model differ in two things that frameworks take per layer: experts, and windows of attention. What else
differs, or is no field here, is `unusual`, in words. Not covered: constants that change no size, such as the base of
rotary positions and the epsilon of norms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.model_file import HEADS, KV_HEADS, PREDICTION, LayerKind, ModelSpec
from dsx.notation.model import counted

GATED, GELU, SQUARED_RELU = "gated", "gelu", "squared_relu"
_BODY = "transformer"  # the layer definition that frameworks know
_LATENT, _EXPERTS = "latent-attention", "experts"  # blocks of it
_PLAIN_QUERIES, _UNGATED = "plain_queries", "ungated"  # options of these
_SINKS = "sinks"  # option of the core of attention
_BLOCKS = {_LATENT, _EXPERTS, "self-attention", "feed-forward"}
# Options of its layers that have a field; of the embedding and the head.
_OF_LAYERS = {"layernorm", "rotary", "qk_norm", "qkv_bias", "out_bias", "ff_bias", "ff_out_bias", "expert_bias"}
_OF_LAYERS |= {GATED, SQUARED_RELU, "dropout", "residual_dropout", "window", "full", "corrected", "limited", "shared"}
_OF_LAYERS |= {_PLAIN_QUERIES, _UNGATED, _SINKS}
_ENDS = ("embedding", "head")  # kinds of layers
_OF_ENDS = {"layernorm", "learned_positions", "tied", PREDICTION}


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: widths in elements."""

    query_rank: int | None  # None: queries are projected at once
    kv_rank: int
    nope: int  # head dimension without positions
    rope: int  # head dimension with positions
    value: int


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts of a model: widths in elements."""

    num: int
    chosen: int
    width: int
    shared: int  # width of all shared experts; 0 for none
    balanced: bool  # whether a bias per expert balances the loads
    biased: bool  # whether their multiplies have biases
    groups: int | None  # of experts
    chosen_groups: int | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and options of a model; the lists have an entry for each layer between embedding and head."""

    name: str
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int | None  # of the feed-forward network; None if all layers have experts
    vocabulary: int | None  # None: the set counts no embedding
    positions: int | None  # learned ones; None for none
    layernorm: bool  # else RMS norms
    activation: str  # GATED, GELU or SQUARED_RELU
    rotary: bool
    qk_norm: bool
    qkv_bias: bool
    sinks: bool  # a learned score of each head beside those of the keys
    bias: bool  # of the other multiplies
    dropout: bool  # of attention probabilities
    residual_dropout: bool
    tied: bool
    predictions: int  # layers of multi-token prediction, each as the last one
    causal: bool
    window: int | None  # positions
    windowed: tuple[bool, ...]
    with_experts: tuple[bool, ...]
    latent: Latent | None
    experts: ExpertSizes | None
    unusual: tuple[str, ...]


def architecture_of(spec: ModelSpec, assumptions: AssumptionsSpec) -> Architecture:
    """Return the architecture of a model; `assumptions` may leave out layers, such as embedding and head."""
    entries = counted(spec, assumptions)
    ends = {option for entry in entries if entry.layer.kind in _ENDS for option in entry.options}
    layers = [entry.layer for entry in entries if entry.layer.kind not in _ENDS for _ in range(entry.count)]
    kinds = list(dict.fromkeys(layers))
    has = {option for kind in kinds for option in kind.options}
    sizes = spec.dimensions
    with_latent = any(_LATENT in dict(kind.blocks).values() for kind in kinds)
    with_experts = tuple(_has_experts(kind) for kind in layers)
    latent, experts = None, None
    if with_latent:
        rank = None if _PLAIN_QUERIES in has else sizes["rq"]
        latent = Latent(rank, *(sizes[name] for name in ("rkv", "nope", "rope", "kv")))
    if any(with_experts):
        groups = (sizes["ng"], sizes["tg"]) if "limited" in has else (None, None)
        shared = sizes["fs"] if "shared" in has else 0
        widths = sizes["x"], sizes["topk"], sizes["fx"], shared
        experts = ExpertSizes(*widths, "corrected" in has, "expert_bias" in has, *groups)
    return Architecture(
        name=spec.name,
        num_layers=len(layers),
        hidden=sizes["e"],
        heads=sizes.get(HEADS, 1),
        kv_heads=sizes.get(KV_HEADS, sizes.get(HEADS, 1)),
        head_dim=sizes.get("k", sizes.get("nope", 0) + sizes.get("rope", 0)),
        width=None if all(with_experts) else sizes.get("f"),
        vocabulary=sizes.get("v"),
        positions=sizes.get("positions") if "learned_positions" in ends else None,
        **{name: name in has for name in ("layernorm", "qkv_bias", "dropout", "residual_dropout")},
        activation=SQUARED_RELU if SQUARED_RELU in has else GATED if any(map(_is_gated, kinds)) else GELU,
        rotary="rotary" in has or with_latent,
        qk_norm="qk_norm" in has or with_latent,
        sinks=_SINKS in has,
        bias="out_bias" in has,
        tied="tied" in ends,
        predictions=int(PREDICTION in ends),
        causal="full" not in has,
        window=sizes.get("window") if "window" in has else None,
        windowed=tuple("window" in kind.options for kind in layers),
        with_experts=with_experts,
        latent=latent,
        experts=experts,
        unusual=tuple(_unusual(kinds, ends - layers[-1].options if PREDICTION in ends else ends)),
    )


def _has_experts(kind: LayerKind) -> bool:
    return _EXPERTS in dict(kind.blocks).values()


def _is_gated(kind: LayerKind) -> bool:
    # Experts are gated unless an option says otherwise.
    return not kind.options & {SQUARED_RELU, _UNGATED} if _has_experts(kind) else GATED in kind.options


def _unusual(kinds: Sequence[LayerKind], ends: set[str]) -> list[str]:
    """Return what no field says."""
    options = {option for kind in kinds for option in kind.options} - _OF_LAYERS
    blocks = {block for kind in kinds for _, block in kind.blocks} - _BLOCKS
    parts = [
        *(f"layers of the kind {kind}" for kind in dict.fromkeys(kind.kind for kind in kinds) if kind != _BODY),
        *(f"the option {option} of its layers" for option in sorted(options)),
        *(f"the option {option} of its embedding or head" for option in sorted(ends - _OF_ENDS)),
        *(f"the block {block}" for block in sorted(blocks)),
    ]
    body = [kind for kind in kinds if kind.kind == _BODY]
    if len({(_is_gated(kind), SQUARED_RELU in kind.options) for kind in body}) > 1:
        parts.append("another activation in some of its layers than in others")
    for option in sorted({"layernorm", "rotary", "qk_norm", "qkv_bias", "out_bias", _PLAIN_QUERIES, _SINKS}):
        if len({option in kind.options for kind in body}) > 1:
            parts.append(f"the option {option} of some of its layers, and not of others")
    return parts
