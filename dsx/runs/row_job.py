"""The job of a row: its model, found by dimensions and never by its name; its machine, network and software.

The columns describe a dense transformer. What they cannot describe (a head dimension other than hidden / heads, latent
attention, shared experts, dense layers before the expert layers) comes from the packaged model with the same
dimensions, if there is one. A row with fewer layers than that model, a proxy that stands for it, has its kinds of
layers in proportion, at least one of each.

Published FLOP/s count the multiplies with weights of layers and head, and attention without a mask. The counts here
come from the layer definitions, so they include shared experts, latent attention, first dense layers, and every expert
that a token visits. They leave out embedding lookups and everything else that is not a multiply.

Cluster files list under `run_tables` the names of their GPU and the GPUs of a node. Nodes with the same GPU are sold
and rented with one NIC or with eight, so a row may state the network of its nodes, which replaces the network of the
cluster file; other links of a topology do not change.

The stack follows from the columns `software` (framework and release), `framework` and `year`. A name of a stack in the
first two is that stack. Otherwise the stacks count whose words the columns contain and that are no later than the
release; the longest word wins, then the last stack. A release is a month that the columns state ("24.07",
"2025-04-30"), else the middle of the year. Software that no stack names has the stack of its date among those without
words, and is reported.
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
from dsx.config.stack import StackSpec, load_stack, months
from dsx.config.topology import changed_network
from dsx.errors import nearest_names
from dsx.notation.expressions import evaluate, product
from dsx.notation.library import strategy_names
from dsx.notation.model import Model, build_model, unsharded
from dsx.notation.work import FORWARD
from dsx.plans.layer_layout import Chain
from dsx.runs.table import NodeNetwork, UnmodelledError
from dsx.units import format_quantity


def known_clusters() -> list[ClusterSpec]:
    """Return the clusters in DSX_PATH and those packaged with dsx."""
    return [load_cluster(name) for name in names("clusters", ".yaml")]


def cluster_of(gpu: str, gpus_per_node: int, clusters: Sequence[ClusterSpec]) -> ClusterSpec:
    """Return the cluster that a row ran on, one of `clusters`; raises UnmodelledError if there is none.

    The full name of a cluster matches first. Otherwise the GPU's name must begin with a prefix that a cluster lists
    under `gpus`, ignoring case and punctuation, and the longest prefix wins. Of its clusters, one whose nodes have
    `gpus_per_node` is taken; if there is none, a cluster with the next larger nodes, its fast domain reduced to
    `gpus_per_node`.
    """
    if by_name := [cluster for cluster in clusters if cluster.name == gpu]:
        return by_name[0]
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
        raise UnmodelledError("no cluster has this gpu", f"{gpu!r}{f', nearest: {near}' if near else ''}")
    longest = max(len(plain(prefix)) for prefix, _, _ in matching)
    by_size = {size: cluster for prefix, size, cluster in reversed(matching) if len(plain(prefix)) == longest}
    if gpus_per_node in by_size:
        return by_size[gpus_per_node]
    larger = [size for size in sorted(by_size) if size > gpus_per_node]
    if not larger:
        raise UnmodelledError("no cluster of this gpu has nodes this large", f"{gpus_per_node} x {gpu}")
    cluster = by_size[larger[0]]
    domain = cluster.network.nvs.model_copy(update={"size": min(gpus_per_node, cluster.network.nvs.size)})
    network = cluster.network.model_copy(update={"nvs": domain})
    return cluster.model_copy(update={"name": f"{cluster.name}, {gpus_per_node} to a node", "network": network})


def with_node_network(cluster: ClusterSpec, network: NodeNetwork, gpus_per_node: int) -> ClusterSpec:
    """Return the cluster with this network for its nodes, shared equally by the GPUs of a node.

    If the NIC bandwidth is not stated, the cluster's own applies, up to the bandwidth of the node. If the NIC bandwidth
    alone is stated, the number of NICs is the cluster's own.
    """
    usual_nic = cluster.network.net.nic_bandwidth or cluster.network.net.bandwidth
    of_node = network.bandwidth
    if of_node is None:
        of_node = gpus_per_node * cluster.network.net.bandwidth * (network.nic_bandwidth or usual_nic) / usual_nic
    share = of_node / gpus_per_node
    nic = network.nic_bandwidth or min(usual_nic, of_node)
    changed = changed_network(cluster.network, {"net.bandwidth": share, "net.nic_bandwidth": max(nic, share)})
    name = f"{cluster.name}, {format_quantity(of_node, 'bytes/s')} to a node"
    return cluster.model_copy(update={"name": name, "network": changed})


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
    return [load_stack(name) for name in names("stacks", ".yaml")]


def software_of(
    software: str | None, framework: str | None, year: int | None, stacks: Sequence[StackSpec]
) -> Software | None:
    """Return the stack of a run, one of `stacks`; None if there are none without words to fall back on.

    A run without a year and a release is taken to be as new as the newest stack.
    """
    texts = [text for text in (software, framework) if text]
    if by_name := [stack for text in texts for stack in stacks if stack.name == text]:
        return Software(by_name[0], None)
    written = " ".join(texts)
    # A word begins where one of the text begins.
    named = [
        (len(word), stack)
        for stack in stacks
        for word in stack.software.words
        if re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}", written.lower())
    ]
    candidates = sorted(
        named or [(0, stack) for stack in stacks if not stack.software.words], key=lambda entry: entry[1].software.since
    )
    if not candidates:
        return None
    # The month of the release, counted from year 0; None if nothing is known.
    release = None if year is None else months(year, _MIDDLE)
    if match := next(filter(None, (pattern.search(written) for pattern in _RELEASES)), None):
        release = months(int(match[1]) % 2000 + 2000, int(match[2]))
    released = [entry for entry in candidates if release is None or entry[1].software.since <= release]
    # If all stacks are later, the first one.
    _, latest = max(released, key=lambda entry: (entry[0], entry[1].software.since)) if released else candidates[0]
    return Software(latest, None if named or not written else written)


def described(unknown: str, stack: StackSpec, stacks: Sequence[StackSpec]) -> str:
    """Return the remark on software that no stack names: the nearest word, and the stack that is assumed."""
    words = sorted({word for listed in stacks for word in listed.software.words})
    near = [name for word in unknown.split() for name in nearest_names(word, words, cutoff=_SIMILAR)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"software {unknown!r} is not known{hint}; the stack {stack.name!r} is assumed"


_ASSUMPTIONS = "default"  # it gives each layer kind its definition: measured FLOP/s must not depend on the set in use
_LETTERS = {"e": "hidden", "h": "heads", "g": "kv_heads"}  # dimensions of the layer notation -> columns

CountedLayer = tuple[LayerKind, int]  # a layer kind, and how many layers of it follow each other


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


def _kind(kind: str, *options: str, **blocks: str) -> LayerKind:
    return LayerKind(kind, frozenset(options), tuple(blocks.items()))


# Embedding, layer and head of a model that is built from the columns alone.
_EXPERTS = (_kind("embedding"), _kind("transformer", "rotary", ffn="experts"), _kind("head"))
_GATED = (_kind("embedding"), _kind("transformer", "rotary", "gated"), _kind("head"))  # as Llama
# Without gates: models with grouped queries have rotary positions and no biases (Nemotron-4), others follow GPT-2, 3.
_GROUPED = _kind("transformer", "layernorm", "rotary", "squared_relu")
_PLAIN_GROUPED = (_kind("embedding"), _GROUPED, _kind("head", "layernorm"))
_BIASES = ("qkv_bias", "out_bias", "ff_bias", "ff_out_bias")
_PLAIN = (
    _kind("embedding", "learned_positions"),
    _kind("transformer", "layernorm", *_BIASES, "dropout", "residual_dropout"),
    _kind("head", "layernorm", "tied"),
)


def known_models() -> list[ModelSpec]:
    """Return the models in DSX_PATH and those packaged with dsx."""
    return [load_model(name) for name in names("models", ".yaml")]


def model_of(sizes: Sizes, sequence_length: int, models: Sequence[ModelSpec]) -> ModelSpec:
    """Return the model with these sizes, one of `models` or made of them; UnmodelledError if there is none."""
    for model in models:
        if _adds_to(model, sizes):
            return _spec(model.dimensions | {"v": sizes.vocab}, _proxy_layers(model, sizes.layers), sequence_length)
    if sizes.head_dim is None and sizes.hidden % sizes.heads:
        detail = f"hidden={sizes.hidden}, heads={sizes.heads}"
        raise UnmodelledError("hidden is not a multiple of heads, and head_dim is blank", detail)
    dimensions = {
        **{letter: getattr(sizes, column) for letter, column in _LETTERS.items()},
        "k": sizes.head_dim or sizes.hidden // sizes.heads,
        "v": sizes.vocab,
    }
    if sizes.experts:
        # Dropless experts: their mean load is the even share.
        dimensions |= {"x": sizes.experts, "fx": sizes.ffn_hidden, "topk": sizes.topk, "capacity_percent": 100}
        embedding, layer, head = _EXPERTS
    else:
        dimensions |= {"f": sizes.ffn_hidden}
        grouped = _PLAIN_GROUPED if sizes.kv_heads < sizes.heads else _PLAIN
        embedding, layer, head = _GATED if sizes.gated_mlp else grouped
    if "learned_positions" in embedding.options:
        dimensions |= {"positions": sequence_length}
    return _spec(dimensions, [(embedding, 1), (layer, sizes.layers), (head, 1)], sequence_length)


def _adds_to(model: ModelSpec, sizes: Sizes) -> bool:
    """Return whether `model` has these sizes, and something that the columns cannot describe."""
    dimensions = model.dimensions
    same = all(dimensions.get(letter) in (None, getattr(sizes, column)) for letter, column in _LETTERS.items())
    if not same or dimensions.get("x", 0) != sizes.experts or sizes.head_dim not in (None, dimensions.get("k")):
        return False
    # The feed-forward width and the experts per token: models use different letters for them.
    further = {size for letter, size in dimensions.items() if letter not in (*_LETTERS, "k", "v", "x")}
    if sizes.ffn_hidden not in further or (sizes.experts and sizes.topk not in further):
        return False
    return bool(sizes.experts) or dimensions.get("h", 0) * dimensions.get("k", 0) != dimensions.get("e")


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
    """Return `layers` layers in a model's order: its kinds in proportion, its first ones, or more of its commonest."""
    entries = [(entry.layer, entry.count) for entry in model.sequence]
    built = model_of_layers(model)
    end = len(entries) - built.trailing
    first, body, last = entries[: built.leading], entries[built.leading : end], entries[end:]
    total = sum(count for _, count in body)
    usual = Counter(layer for layer, count in body for _ in range(count)).most_common(1)[0][0]
    if layers < total and len(body) <= layers:
        body = [(layer, max(layers * count // total, 1)) for layer, count in body]
    kept: list[CountedLayer] = []
    missing = layers
    for layer, count in body:
        kept.append((layer, min(count, missing)))
        missing -= kept[-1][1]
    largest = max(range(len(kept)), key=lambda at: (kept[at][0] == usual, kept[at][1]))
    kept[largest] = (kept[largest][0], kept[largest][1] + missing)
    return [*first, *(entry for entry in kept if entry[1]), *last]


def chain_of(model: ModelSpec) -> Chain:
    """Return the layers of a model that a layer layout divides."""
    built = model_of_layers(model)
    return Chain(built.leading, built.num_body_layers, built.trailing, built.num_predictions)


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """Forward FLOPs of one token."""

    layers: float  # multiplies with weights of all layers but the head
    head: float
    attention: float  # multiplies of two activations, without a mask


def token_flops(spec: ModelSpec, sequence_length: int) -> TokenFlops:
    """Return the forward FLOPs of one token in sequences of `sequence_length` tokens."""
    return _token_flops(*_key(spec), sequence_length)


def model_of_layers(spec: ModelSpec) -> Model:
    """Return the layers of a model under an arbitrary strategy, to read what no strategy changes."""
    return _model(*_key(spec))


_Dimensions = tuple[tuple[str, int], ...]


def _key(spec: ModelSpec) -> tuple[str, tuple[CountedLayer, ...], _Dimensions]:
    """Return what makes the model of a spec."""
    return spec.name, tuple((entry.layer, entry.count) for entry in spec.sequence), tuple(spec.dimensions.items())


@functools.lru_cache(maxsize=256)
def _model(name: str, layers: tuple[CountedLayer, ...], dimensions: _Dimensions) -> Model:
    entries = [layer_count(kind, count) for kind, count in layers]
    spec = ModelSpec.model_construct(name=name, default_sequence_length=1, dimensions=dict(dimensions), layers=entries)
    return build_model(spec, load_assumptions(_ASSUMPTIONS), strategy_names()[0])


@functools.lru_cache(maxsize=1024)
def _token_flops(
    name: str, kinds: tuple[CountedLayer, ...], dimensions: _Dimensions, sequence_length: int
) -> TokenFlops:
    model = _model(name, kinds, dimensions)
    layers = head = attention = 0.0
    for place, (layer, count) in enumerate(model.layers):
        values = unsharded(layer, model.dimensions, sequence_length)
        for multiply in (multiply for kernel in layer.kernels for multiply in kernel.work[FORWARD].multiplies):
            shape = (multiply.rows, multiply.columns, multiply.contracted, multiply.batch)
            flops = 2.0 * count * float(evaluate(product(shape), values)) / sequence_length
            if not multiply.linear:
                attention += flops
            elif place < len(model.layers) - model.trailing:
                layers += flops
            else:
                head += flops
    return TokenFlops(layers, head, attention)
