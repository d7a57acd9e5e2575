"""The model of a row, by its dimensions: never by its name.

The columns say what a dense transformer needs. What they do not say (a head dimension of its own, latent attention,
shared experts, dense layers before those with experts) is taken from the packaged model with the same dimensions, where
there is one; of a row with fewer layers, as in truncated proxies, its first layers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dsx.runs.reasons import Reason
from dsx.runs.token_flops import model_of_layers
from dsx.spec.locate import names
from dsx.spec.model import LayerKind, ModelSpec, layer_count, load_model

LETTERS = {"e": "hidden", "h": "heads", "g": "kv_heads"}  # of the layer notation, with their columns
CAPACITY_PERCENT = 100  # dropless experts, whose mean load is their even share

Run = tuple[LayerKind, int]  # layers of one kind that follow each other


@dataclass(frozen=True, slots=True)
class Kinds:
    """The layer kinds of a model that no packaged one stands for."""

    embedding: LayerKind
    layer: LayerKind
    head: LayerKind

    @property
    def has_positions(self) -> bool:
        """Whether the embedding adds learned positions, of which the model then has a number."""
        return "learned_positions" in self.embedding.options


def _kind(kind: str, *options: str, **blocks: str) -> LayerKind:
    return LayerKind(kind, frozenset(options), tuple(blocks.items()))


EXPERTS = Kinds(_kind("embedding"), _kind("transformer", "rotary", ffn="experts"), _kind("head"))
GATED = Kinds(_kind("embedding"), _kind("transformer", "rotary", "gated"), _kind("head"))  # as Llama
# Without gates: grouped queries came with rotary positions and without biases (Nemotron-4), others are as GPT-2 and 3.
PLAIN_GROUPED = Kinds(
    _kind("embedding"), _kind("transformer", "layernorm", "rotary", "squared_relu"), _kind("head", "layernorm")
)
_BIASES = ("qkv_bias", "out_bias", "ff_bias", "ff_out_bias")
PLAIN = Kinds(
    _kind("embedding", "learned_positions"),
    _kind("transformer", "layernorm", *_BIASES, "dropout", "residual_dropout"),
    _kind("head", "layernorm", "tied"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions of a row's model as its columns state them, blanks filled."""

    layers: int  # without embedding and head
    hidden: int
    ffn_hidden: int  # of one expert where there are experts
    heads: int
    kv_heads: int
    head_dim: int | None  # None = not printed
    vocab: int
    experts: int  # 0 = dense
    topk: int  # experts per token; 1 if dense
    gated_mlp: bool


def known_models() -> list[ModelSpec]:
    """Return the models of DSX_PATH and of dsx itself."""
    return [load_model(name) for name in names("models", ".yaml")]


def model_of(sizes: Sizes, sequence_length: int, models: Sequence[ModelSpec]) -> ModelSpec | Reason:
    """Return the model with these sizes, with embedding and head, or why it has none; `models` are those known.

    Models of one architecture have one name.
    """
    known = next((model for model in models if _is_the_only_one_to_know(model, sizes)), None)
    if known is not None:
        dimensions = known.dimensions | {"v": sizes.vocab}
        return _spec(dimensions, _first_layers(known, sizes.layers), sequence_length)
    if sizes.head_dim is None and sizes.hidden % sizes.heads:
        detail = f"hidden={sizes.hidden}, heads={sizes.heads}"
        return Reason("hidden is no multiple of heads, and head_dim is blank", detail)
    dimensions = {
        **{letter: getattr(sizes, column) for letter, column in LETTERS.items()},
        "k": sizes.head_dim or sizes.hidden // sizes.heads,
        "v": sizes.vocab,
    }
    if sizes.experts:
        dimensions |= {"x": sizes.experts, "fx": sizes.ffn_hidden, "topk": sizes.topk}
        dimensions |= {"capacity_percent": CAPACITY_PERCENT}
    else:
        dimensions |= {"f": sizes.ffn_hidden}
    kinds = _kinds(sizes)
    if kinds.has_positions:
        dimensions |= {"positions": sequence_length}
    return _spec(dimensions, [(kinds.embedding, 1), (kinds.layer, sizes.layers), (kinds.head, 1)], sequence_length)


def _kinds(sizes: Sizes) -> Kinds:
    if sizes.experts:
        return EXPERTS
    if sizes.gated_mlp:
        return GATED
    return PLAIN_GROUPED if sizes.kv_heads < sizes.heads else PLAIN


def _is_the_only_one_to_know(model: ModelSpec, sizes: Sizes) -> bool:
    """Return whether `model` has these sizes, and something that they do not say."""
    given = model.dimensions
    same = all(given.get(letter) in (None, getattr(sizes, column)) for letter, column in LETTERS.items())
    if not same or given.get("x", 0) != sizes.experts or sizes.head_dim not in (None, given.get("k")):
        return False
    # The width of the feed-forward and the experts per token, whatever letters the model's layers use.
    others = {size for letter, size in given.items() if letter not in (*LETTERS, "k", "v", "x")}
    if sizes.ffn_hidden not in others or (sizes.experts and sizes.topk not in others):
        return False
    return bool(sizes.experts) or given.get("h", 0) * given.get("k", 0) != given.get("e")


def _spec(dimensions: dict[str, int], layers: Sequence[Run], sequence_length: int) -> ModelSpec:
    """Return a model with these layers, first to last."""
    runs = [(layer, sum(count for _, count in same)) for layer, same in groupby(layers, key=lambda run: run[0])]
    sizes = " ".join(f"{letter}={size}" for letter, size in sorted(dimensions.items()))
    return ModelSpec(
        name=f"{sizes} {'+'.join(f'{count}x{layer}' for layer, count in runs)}",
        source="a row of a run table",
        default_sequence_length=sequence_length,
        dimensions=dimensions,
        layers=[layer_count(layer, count) for layer, count in runs],
    )


def _first_layers(model: ModelSpec, layers: int) -> list[Run]:
    """Return the layers of a model cut to `layers` layers; of more than it has, the rest are its commonest."""
    runs = [(entry.layer, entry.count) for entry in model.sequence]
    built = model_of_layers(model)
    end = len(runs) - built.trailing
    first, body, last = runs[: built.leading], runs[built.leading : end], runs[end:]
    numbers = Counter[LayerKind]()
    kept: list[Run] = []
    left = layers
    for layer, count in body:
        numbers[layer] += count
        kept.append((layer, min(count, left)))
        left -= kept[-1][1]
    kept.append((numbers.most_common(1)[0][0], left))
    return [*first, *(run for run in kept if run[1]), *last]
