"""The model of a row, by its dimensions: never by its name.

The columns say what a dense transformer needs. What they do not say (a head dimension of its own, latent attention,
shared experts, dense layers before those with experts) is taken from the packaged model with the same dimensions, where
there is one; of a row with fewer layers, as in truncated proxies, its first layers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dsx.measured.reasons import Reason
from dsx.spec.locate import names
from dsx.spec.model import LayerCount, ModelSpec, load_model

EMBEDDING, HEAD = "embedding", "head"
LETTERS = {"e": "hidden", "h": "heads", "g": "kv_heads"}
EXPERTS, GATED, PLAIN = "moe-transformer", "gated-transformer", "biased-transformer"


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
        return _spec(known.dimensions | {"v": sizes.vocab}, _first_layers(known, sizes.layers), sequence_length)
    if sizes.head_dim is None and sizes.hidden % sizes.heads:
        detail = f"hidden={sizes.hidden}, heads={sizes.heads}"
        return Reason("hidden is no multiple of heads, and head_dim is blank", detail)
    dimensions = {
        **{letter: getattr(sizes, column) for letter, column in LETTERS.items()},
        "k": sizes.head_dim or sizes.hidden // sizes.heads,
        "f": sizes.ffn_hidden,
        "v": sizes.vocab,
    }
    if sizes.experts:
        dimensions |= {"x": sizes.experts, "topk": sizes.topk}
    kind = EXPERTS if sizes.experts else GATED if sizes.gated_mlp else PLAIN
    return _spec(dimensions, [kind] * sizes.layers, sequence_length)


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


def _spec(dimensions: dict[str, int], body: list[str], seq: int) -> ModelSpec:
    """Return a model of embedding, `body` and head."""
    runs: list[tuple[str, int]] = []
    for kind in (EMBEDDING, *body, HEAD):
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + 1)
        else:
            runs.append((kind, 1))
    sizes = " ".join(f"{letter}={size}" for letter, size in sorted(dimensions.items()))
    return ModelSpec(
        name=f"{sizes} {'+'.join(f'{count}x{kind}' for kind, count in runs)}",
        source="a row of a run table",
        default_sequence_length=seq,
        dimensions=dimensions,
        layers=[LayerCount(kind=kind, count=count) for kind, count in runs],
    )


def _first_layers(model: ModelSpec, layers: int) -> list[str]:
    """Return the kinds of the first `layers` layers of a model; of more than it has, the rest are its commonest."""
    body = [entry.kind for entry in model.layers for _ in range(entry.count)]
    body = [kind for kind in body if not kind.startswith((EMBEDDING, HEAD))]
    commonest = Counter(body).most_common(1)[0][0]
    return [*body[:layers], *[commonest] * (layers - len(body))]
