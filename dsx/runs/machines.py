"""The cluster, the model and the software of a row, found by what the row states of them.

Matrix-multiply FLOPs of one token, from the layer definitions of a model.

Published FLOP/s count the multiplies with weights of layers and head, and attention without a mask. The layer
definitions include shared experts, latent attention and first dense layers, so these counts do too. They count every
expert that a token visits. They leave out embedding lookups and everything else that is not a multiply.

Find the cluster of a row from its `gpu` and `gpus_per_node`: cluster files list theirs under `run_tables`.

Find the stack of a run from its software: the columns `software` (framework and release), `framework` and `year`.

A name of a stack in either column is that stack. Otherwise the stacks count whose words the columns contain and that
are no later than the release, of them those of the longest word, and of them the last one. A release is a month that
the columns state ("24.07", "2025-04-30"), else the middle of the year. Software that no stack names has the stack of
its date among those without words, and is reported.

Find the model of a row by its dimensions, never by its name.

The columns describe a dense transformer. What they cannot describe (a head dimension other than hidden / heads, latent
attention, shared experts, dense layers before the expert layers) comes from the packaged model with the same
dimensions, if there is one. A row with fewer layers than that model, a proxy that stands for it, has its kinds of
layers in proportion, at least one of each.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import ClusterSpec, begins_with, load_cluster, plain
from dsx.config.model_file import LayerKind, ModelSpec, layer_count, load_model
from dsx.config.search_path import names
from dsx.config.stack import StackSpec, load_stack, months, stack_names
from dsx.errors import nearest_names
from dsx.notation.expressions import evaluate, product
from dsx.notation.kernels import Multiply
from dsx.notation.library import strategy_names
from dsx.notation.model import Model, build_model, unsharded
from dsx.notation.work import FORWARD, DerivedLayer
from dsx.plans.layer_layout import Chain
from dsx.runs.table import UnmodelledReason

_ASSUMPTIONS = "default"  # it gives each layer kind its definition: measured FLOP/s must not depend on the set in use


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """Forward FLOPs of one token."""

    layers: float  # multiplies with weights of all layers but the head
    head: float
    attention: float  # multiplies of two activations, without a mask


def token_flops(spec: ModelSpec, sequence_length: int) -> TokenFlops:
    """Return the forward FLOPs of one token in sequences of `sequence_length` tokens."""
    return _token_flops(*_key(spec), sequence_length)


@functools.lru_cache(maxsize=1024)
def _token_flops(
    name: str, kinds: tuple[tuple[LayerKind, int], ...], dimensions: tuple[tuple[str, int], ...], sequence_length: int
) -> TokenFlops:
    model = _model(name, kinds, dimensions)
    layers = head = attention = 0.0
    for place, (layer, count) in enumerate(model.layers):
        values = unsharded(layer, model.dimensions, sequence_length)
        for multiply in _forward(layer):
            shape = (multiply.rows, multiply.columns, multiply.contracted, multiply.batch)
            flops = 2.0 * count * float(evaluate(product(shape), values)) / sequence_length
            if not multiply.linear:
                attention += flops
            elif place < len(model.layers) - model.trailing:
                layers += flops
            else:
                head += flops
    return TokenFlops(layers, head, attention)


def model_of_layers(spec: ModelSpec) -> Model:
    """Return the layers of a model under an arbitrary strategy, to read what no strategy changes."""
    return _model(*_key(spec))


def _key(spec: ModelSpec) -> tuple[str, tuple[tuple[LayerKind, int], ...], tuple[tuple[str, int], ...]]:
    """Return what makes the model of a spec."""
    return spec.name, tuple((entry.layer, entry.count) for entry in spec.sequence), tuple(spec.dimensions.items())


@functools.lru_cache(maxsize=256)
def _model(name: str, layers: tuple[tuple[LayerKind, int], ...], dimensions: tuple[tuple[str, int], ...]) -> Model:
    entries = [layer_count(kind, count) for kind, count in layers]
    spec = ModelSpec.model_construct(name=name, default_sequence_length=1, dimensions=dict(dimensions), layers=entries)
    return build_model(spec, load_assumptions(_ASSUMPTIONS), strategy_names()[0])


def _forward(layer: DerivedLayer) -> list[Multiply]:
    return [multiply for kernel in layer.kernels for multiply in kernel.work[FORWARD].multiplies]


def known_clusters() -> list[ClusterSpec]:
    """Return the clusters in DSX_PATH and those packaged with dsx."""
    return [load_cluster(name) for name in names("clusters", ".yaml")]


def cluster_of(gpu: str, gpus_per_node: int, clusters: Sequence[ClusterSpec]) -> ClusterSpec | UnmodelledReason:
    """Return the cluster that a row ran on, one of `clusters`, or the reason why there is none.

    The full name of a cluster matches first. Otherwise the GPU's name must begin with a prefix that a cluster lists
    under `gpus`, ignoring case and punctuation, and the longest prefix wins. Of its clusters the one whose nodes have
    `gpus_per_node` is taken; if there is none, the one with the next larger nodes, its fast domain reduced to
    `gpus_per_node`.
    """
    for cluster in clusters:
        if cluster.name == gpu:
            return cluster
    listed = [
        (prefix, size, cluster)
        for cluster in clusters
        if cluster.run_tables
        for prefix in cluster.run_tables.gpus
        for size in cluster.run_tables.gpus_per_node
    ]
    matching = [entry for entry in listed if begins_with(gpu, entry[0])]
    if not matching:
        written = {plain(prefix): prefix for prefix, _, _ in listed}
        near = ", ".join(written[name] for name in nearest_names(plain(gpu), written, cutoff=0.6, most=3))
        return UnmodelledReason("no cluster has this gpu", f"{gpu!r}{f', nearest: {near}' if near else ''}")
    longest = max(len(plain(prefix)) for prefix, _, _ in matching)
    sizes = {size: cluster for prefix, size, cluster in reversed(matching) if len(plain(prefix)) == longest}
    if gpus_per_node in sizes:
        return sizes[gpus_per_node]
    larger = [size for size in sorted(sizes) if size > gpus_per_node]
    if not larger:
        return UnmodelledReason("no cluster of this gpu has nodes this large", f"{gpus_per_node} x {gpu}")
    return _with_smaller_nodes(sizes[larger[0]], gpus_per_node)


def _with_smaller_nodes(cluster: ClusterSpec, size: int) -> ClusterSpec:
    domain = cluster.network.nvs.model_copy(update={"size": min(size, cluster.network.nvs.size)})
    network = cluster.network.model_copy(update={"nvs": domain})
    return cluster.model_copy(update={"name": f"{cluster.name}, {size} to a node", "network": network})


_RELEASES = (
    re.compile(r"(?<![0-9.])(20[0-9]{2})-(0[1-9]|1[0-2])(?![0-9])"),  # 2024-07, 2024-07-15
    re.compile(r"(?<![0-9.])(2[0-9])\.(0[1-9]|1[0-2])(?![0-9])"),  # 24.07, 24.07.01
)
_MIDDLE = 6  # of a year, a month
_SIMILAR = 0.7  # of 1, a name from which on a word may have been meant


@dataclass(frozen=True, slots=True)
class Software:
    """The stack of a run."""

    stack: StackSpec
    unknown: str | None  # the software as written, if no stack names it


def known_stacks() -> list[StackSpec]:
    """Return the stacks in DSX_PATH and those packaged with dsx."""
    return [load_stack(name) for name in stack_names()]


def software_of(
    software: str | None, framework: str | None, year: int | None, stacks: Sequence[StackSpec]
) -> Software | None:
    """Return the stack of a run, one of `stacks`; None if there are none without words to fall back on.

    A run without a year and a release is taken to be as new as the newest stack.
    """
    texts = [text for text in (software, framework) if text]
    for text in texts:
        for stack in stacks:
            if stack.name == text:
                return Software(stack, None)
    written = " ".join(texts)
    released = _released(written, year)
    named = [(len(word), stack) for stack in stacks for word in stack.software.words if _names(written, word)]
    found = named or [(0, stack) for stack in stacks if not stack.software.words]
    if not found:
        return None
    return Software(_latest(found, released), None if named or not written else written)


def described(unknown: str, stack: StackSpec, stacks: Sequence[StackSpec]) -> str:
    """Return the remark on software that no stack names: the nearest word, and the stack that is assumed."""
    words = sorted({word for known in stacks for word in known.software.words})
    near = [name for word in unknown.split() for name in nearest_names(word, words, cutoff=_SIMILAR)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"software {unknown!r} is not known{hint}; the stack {stack.name!r} is assumed"


def _names(written: str, word: str) -> bool:
    """Return whether a text contains a word, from the beginning of one of its words on."""
    written, word = written.lower(), word.lower()
    return word in written and re.search(rf"(?<![a-z0-9]){re.escape(word)}", written) is not None


def _released(written: str, year: int | None) -> int | None:
    """Return the month of a release, counted from year 0; None if nothing is known."""
    for pattern in _RELEASES:
        if match := pattern.search(written):
            return months(int(match[1]) % 2000 + 2000, int(match[2]))
    return None if year is None else months(year, _MIDDLE)


def _latest(found: Sequence[tuple[int, StackSpec]], released: int | None) -> StackSpec:
    """Return the stack of the longest word, and of those the last, that is no later than a release.

    `found` has the length of a word with each stack. If all stacks are later, the first one is returned.
    """
    in_order = sorted(found, key=lambda one: one[1].software.since)
    known = [one for one in in_order if released is None or one[1].software.since <= released]
    return max(known, key=lambda one: (one[0], one[1].software.since))[1] if known else in_order[0][1]


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


def model_of(sizes: Sizes, sequence_length: int, models: Sequence[ModelSpec]) -> ModelSpec | UnmodelledReason:
    """Return the model with these sizes, including embedding and head, or the reason why there is none.

    `models` are the known models. Models of the same architecture get the same name.
    """
    known = next((model for model in models if _adds_to(model, sizes)), None)
    if known is not None:
        dimensions = known.dimensions | {"v": sizes.vocab}
        return _spec(dimensions, _proxy_layers(known, sizes.layers), sequence_length)
    if sizes.head_dim is None and sizes.hidden % sizes.heads:
        detail = f"hidden={sizes.hidden}, heads={sizes.heads}"
        return UnmodelledReason("hidden is not a multiple of heads, and head_dim is blank", detail)
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
