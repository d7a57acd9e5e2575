"""Find the model of a row by its dimensions, never by its name.

The columns describe a dense transformer. What they cannot describe (a head dimension other than hidden / heads, latent
attention, shared experts, dense layers before the expert layers) comes from the packaged model with the same
dimensions, if there is one. A row with fewer layers than that model, a proxy that stands for it, has its kinds of
layers in proportion, at least one of each.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dsx.runs.reasons import Reason
from dsx.runs.token_flops import model_of_layers
from dsx.space.layer_layout import Chain
from dsx.spec.locate import names
from dsx.spec.model import LayerKind, ModelSpec, layer_count, load_model

LETTERS = {"e": "hidden", "h": "heads", "g": "kv_heads"}  # dimensions of the layer notation -> columns
CAPACITY_PERCENT = 100  # dropless experts: their mean load is the even share

CountedLayer = tuple[LayerKind, int]  # a layer kind, and how many layers of it follow each other


@dataclass(frozen=True, slots=True)
class Kinds:
    """The layer kinds of a model that is built from the columns alone."""

    embedding: LayerKind
    layer: LayerKind
    head: LayerKind

    @property
    def has_positions(self) -> bool:
        """Whether the embedding adds learned positions; the model then needs their number."""
        return "learned_positions" in self.embedding.options


def _kind(kind: str, *options: str, **blocks: str) -> LayerKind:
    return LayerKind(kind, frozenset(options), tuple(blocks.items()))


EXPERTS = Kinds(_kind("embedding"), _kind("transformer", "rotary", ffn="experts"), _kind("head"))
GATED = Kinds(_kind("embedding"), _kind("transformer", "rotary", "gated"), _kind("head"))  # as Llama
# Without gates: models with grouped queries have rotary positions and no biases (Nemotron-4), others follow GPT-2, 3.
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
    """The dimensions of a row's model from its columns, missing values filled."""

    layers: int  # without embedding and head
    hidden: int
    ffn_hidden: int  # of one expert where there are experts
    heads: int
    kv_heads: int
    head_dim: int | None  # None = not stated
    vocab: int
    experts: int  # 0 = dense
    topk: int  # experts per token; 1 if dense
    gated_mlp: bool


def known_models() -> list[ModelSpec]:
    """Return the models in DSX_PATH and those packaged with dsx."""
    return [load_model(name) for name in names("models", ".yaml")]


def model_of(sizes: Sizes, sequence_length: int, models: Sequence[ModelSpec]) -> ModelSpec | Reason:
    """Return the model with these sizes, including embedding and head, or the reason why there is none.

    `models` are the known models. Models of the same architecture get the same name.
    """
    known = next((model for model in models if _adds_to(model, sizes)), None)
    if known is not None:
        dimensions = known.dimensions | {"v": sizes.vocab}
        return _spec(dimensions, _proxy_layers(known, sizes.layers), sequence_length)
    if sizes.head_dim is None and sizes.hidden % sizes.heads:
        detail = f"hidden={sizes.hidden}, heads={sizes.heads}"
        return Reason("hidden is not a multiple of heads, and head_dim is blank", detail)
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


def chain_of(model: ModelSpec) -> Chain:
    """Return the layers of a model that a layer layout divides."""
    built = model_of_layers(model)
    return Chain(built.leading, built.num_body_layers, built.trailing, built.num_predictions)


def _kinds(sizes: Sizes) -> Kinds:
    if sizes.experts:
        return EXPERTS
    if sizes.gated_mlp:
        return GATED
    return PLAIN_GROUPED if sizes.kv_heads < sizes.heads else PLAIN


def _adds_to(model: ModelSpec, sizes: Sizes) -> bool:
    """Return whether `model` has these sizes, and something that the columns cannot describe."""
    given = model.dimensions
    same = all(given.get(letter) in (None, getattr(sizes, column)) for letter, column in LETTERS.items())
    if not same or given.get("x", 0) != sizes.experts or sizes.head_dim not in (None, given.get("k")):
        return False
    # The feed-forward width and the experts per token: models use different letters for them.
    others = {size for letter, size in given.items() if letter not in (*LETTERS, "k", "v", "x")}
    if sizes.ffn_hidden not in others or (sizes.experts and sizes.topk not in others):
        return False
    return bool(sizes.experts) or given.get("h", 0) * given.get("k", 0) != given.get("e")


def _spec(dimensions: dict[str, int], layers: Sequence[CountedLayer], sequence_length: int) -> ModelSpec:
    """Return a model with these layers, in order."""
    merged = [(layer, sum(count for _, count in same)) for layer, same in groupby(layers, key=lambda entry: entry[0])]
    sizes = " ".join(f"{letter}={size}" for letter, size in sorted(dimensions.items()))
    return ModelSpec(
        name=f"{sizes} {'+'.join(f'{count}x{layer}' for layer, count in merged)}",
        source="a row of a run table",
        default_sequence_length=sequence_length,
        dimensions=dimensions,
        layers=[layer_count(layer, count) for layer, count in merged],
    )


def _proxy_layers(model: ModelSpec, layers: int) -> list[CountedLayer]:
    """Return `layers` layers in the order of a model, its kinds in proportion; if it has fewer, its commonest fills up.

    A model with more stretches of layers than `layers`, whose kinds alternate, gives its first layers.
    """
    entries = [(entry.layer, entry.count) for entry in model.sequence]
    built = model_of_layers(model)
    end = len(entries) - built.trailing
    first, body, last = entries[: built.leading], entries[built.leading : end], entries[end:]
    whole = sum(count for _, count in body)
    commonest = Counter[LayerKind]()
    for layer, count in body:
        commonest[layer] += count
    usual = commonest.most_common(1)[0][0]
    if layers < whole and len(body) <= layers:
        body = [(layer, max(layers * count // whole, 1)) for layer, count in body]
    kept: list[CountedLayer] = []
    left = layers
    for layer, count in body:
        kept.append((layer, min(count, left)))
        left -= kept[-1][1]
    largest = max(range(len(kept)), key=lambda at: (kept[at][0] == usual, kept[at][1]))
    kept[largest] = (kept[largest][0], kept[largest][1] + left)
    return [*first, *(entry for entry in kept if entry[1]), *last]
