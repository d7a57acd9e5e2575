"""What a trace is written of: a plan, its layers with their numbers, its ranks; and its nodes, yet unnumbered.

A weight of two layers that one stage holds once is the embedding table of a stage whose head is tied to it. Its
gradient is one buffer. On a single stage the backward of the last layer adds to it first, in each microbatch, and that
of the first layer last, so a microbatch writes several versions of it. Where the two layers are in two chunks of a
stage, whose passes mix, each chunk has versions of its own, and the update reads the last ones of both.

A node belongs to a pass of a microbatch, and any rank of a stage may run it. It refers to nodes of other passes by the
tensor that they write. Texts have marks in place of the microbatch, so one description serves all microbatches:
`MICROBATCH` is the one of the pass, `PREVIOUS` the one that the chunk had before.

Names of tensors begin with the microbatch and the layer, "m03.L007.n1". Weights have no microbatch. The gradient of a
weight is a buffer that all microbatches add to, and each writes a version of it, "L007.d w1#03"; it is there from the
start of the step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.model_file import ELEMENT_BYTES
from dsx.cost.layer import WeightGroup
from dsx.notation.model import define
from dsx.notation.syntax import AXES
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import NONE_CODE
from dsx.plans.layer_layout import Chain, even_chunks, given_chunks
from dsx.plans.ranks import RankGrid
from dsx.schedules.order import StageChunks, of_pipeline
from dsx.schedules.schedules import SCHEDULES, Schedule
from dsx.traces.codec import COMM_COLL, COMP
from dsx.traces.layer_nodes import Compute, LayerNodes, LayerWeight, layer_nodes

SHARED_SHARD = "gradients of the shared weight"  # shard of the gradient, where the last layer scatters it
_MARK = "t"


class Version(NamedTuple):
    """A version of a buffer that a microbatch writes: the buffer, "L000.d w1", and suffixes behind the microbatch."""

    buffer: str
    suffix: str = ""
    last: str = ""  # of the last version that a microbatch writes in the chunk
    previous: str | None = None  # of the version that the same microbatch has written before


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """The weight of the first layer, and what has it in the last one."""

    weight: LayerWeight  # of the first layer
    number: int  # of its weight group
    group_bytes: int  # of all weights of that group
    names: frozenset[str]  # in the last layer
    versions: Mapping[tuple[int, str], Version]  # by layer and gradient
    apart: tuple[int, str] | None = None  # the last layer, and its last gradient, where it is in a chunk of its own


def _versions(buffer: str, writers: list[tuple[int, str]], last: str = "") -> dict[tuple[int, str], Version]:
    """Return the version that each writer of a buffer leaves, in this order, with the suffix of the last one."""
    suffixes = [*(_MARK * number for number in range(1, len(writers))), last]
    return {
        writer: Version(f"L000.{buffer}", suffix, last, previous)
        for writer, suffix, previous in zip(writers, suffixes, [None, *suffixes], strict=False)
    }


@dataclass(frozen=True)
class TracedPlan:
    """A plan to be traced; `columns` are its choices as codes."""

    layers: tuple[DerivedLayer, ...]  # of the chain of embedding, body and head; equal layers are one object
    chain: Chain
    dimensions: Mapping[str, int]
    sequence_length: int
    columns: Mapping[str, int]
    grid: RankGrid
    assumptions: AssumptionsSpec
    stage_layers: Sequence[int] | None = None  # of each chunk; None: an even cut
    forward_only: bool = False  # a prefill: no backward, no optimizer
    portable: bool = True  # panels as one gather or scatter
    alone: bool = False  # one layer by itself, whose inputs and gradients are there, without an end of the step

    @property
    def schedule(self) -> Schedule:
        """The pipeline schedule."""
        return SCHEDULES[self.columns["schedule"]]

    @cached_property
    def holds(self) -> StageChunks:
        """Which chunks the stages hold."""
        return of_pipeline(self.schedule.holds, self.columns["pp"])

    @cached_property
    def chunks(self) -> tuple[range, ...]:
        """The positions of the layers of each chunk of a chain."""
        if self.stage_layers is not None:
            return given_chunks(self.stage_layers)
        return even_chunks(self.chain, self.columns["pp"], self.columns["vpp"], self.holds)

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """The stage of each chunk; the chunks of a second chain follow those of the first."""
        chains = self.holds.chains(self.columns["pp"], self.columns["vpp"])
        return tuple(stage for chain in chains for stage in chain)

    def layers_of(self, chunk: int) -> range:
        """Return the positions of the layers of a chunk of either chain."""
        return self.chunks[chunk % len(self.chunks)]

    @cached_property
    def distinct(self) -> list[DerivedLayer]:
        """The layers, each once."""
        return [*dict.fromkeys(self.layers)]

    def number(self, layer: DerivedLayer) -> int:
        """Return the place of a layer among the distinct ones."""
        return self.distinct.index(layer)

    @cached_property
    def kinds(self) -> list[str]:
        """The name of each distinct layer."""
        kinds: list[str] = []
        for name in (layer.name.partition("[")[0] for layer in self.distinct):
            number = sum(kind.partition(".")[0] == name for kind in kinds)
            kinds.append(f"{name}.{number + 1}" if number else name)
        return kinds

    @cached_property
    def _values(self) -> list[dict[str, int]]:
        """The values of all names of each distinct layer, as whole numbers."""
        values = {**self.dimensions, **{axis: int(self.columns[axis]) for axis in AXES}}
        values |= {"b": int(self.columns["microbatch_size"]), "s": self.sequence_length}
        values |= {"panels": int(self.columns["panels"])}
        values |= {name: getattr(self.assumptions, name) for name in ELEMENT_BYTES}
        return [define(layer, values) for layer in self.distinct]

    def passes_gradient(self, chunk: int) -> bool:
        """Return whether a gradient goes back from a chunk to the one before: a weight before it is trained."""
        first = self.layers_of(chunk).start
        return first > 0 and bool(self.layers[first - 1].graph.output_gradients)

    def is_body(self, position: int) -> bool:
        """Return whether a layer is neither embedding nor head."""
        return self.chain.first <= position < self.chain.num_layers - self.chain.last

    @cached_property
    def _stored(self) -> frozenset[int]:
        """The layers that save all activations: the last ones of each stage, of its chunks in each chain."""
        stored: set[int] = set()
        for chain in self.holds.chains(self.columns["pp"], self.columns["vpp"]):
            for stage in range(self.columns["pp"]):
                layers = {at for chunk, of in enumerate(chain) if of == stage for at in self.layers_of(chunk)}
                body = sorted(filter(self.is_body, layers))
                stored |= set(body[len(body) - min(self.columns["stored_layers"], len(body)) :])
        return frozenset(stored)

    @cached_property
    def _recomputed(self) -> list[tuple[int, int]]:
        """Of each layer of the chain, its number among the distinct ones and the code of its recomputation."""
        code, at = int(self.columns["recompute"]), range(len(self.layers))
        codes = [code if self.is_body(place) and place not in self._stored else NONE_CODE for place in at]
        return [*zip(map(self.number, self.layers), codes, strict=True)]

    @cached_property
    def distinct_nodes(self) -> dict[tuple[int, int], LayerNodes]:
        """The nodes of each layer that differs from others in its number or its recomputation."""
        nodes: dict[tuple[int, int], LayerNodes] = {}
        for position, (number, code) in enumerate(self._recomputed):
            if (number, code) not in nodes:
                layer, values = self.layers[position], self._values[number]
                built = layer_nodes(layer, self.kinds[number], values, code, self.assumptions)
                # The backward of the head is never split (`dsx.schedules.order`).
                of_head = position >= self.chain.num_layers - self.chain.last
                nodes[number, code] = built.unsplit() if of_head else built
        return nodes

    def nodes(self, position: int) -> LayerNodes:
        """Return the nodes of a layer of the chain under the recomputation of the plan."""
        return self.distinct_nodes[self._recomputed[position]]

    @cached_property
    def ring_axis(self) -> str:
        """The axis along which blocks travel in a ring; empty if none do."""
        moves = [node.move for at in range(len(self.layers)) for node in self.nodes(at).forward if node.move]
        return next((move.axis for move in moves if move.ring), "")

    @cached_property
    def ties_ends(self) -> bool:
        """Whether the gradient of a tied weight is reduced between the first and the last stage."""
        apart = self.columns["pp"] > 1 and self.holds.in_rounds and not self.forward_only
        weights = self.nodes(self.chain.num_layers - 1).weights
        return apart and any(weight.tied and not weight.frozen for weight in weights)

    @cached_property
    def shared(self) -> SharedWeight | None:
        """The weight that a stage holds once for the first and the last layer, as the largest of the first one."""
        if (self.columns["pp"] > 1 and self.holds.in_rounds) or not self.chain.first or self.alone:
            return None
        position, one_chunk, first = self.chain.num_layers - 1, self.columns["pp"] == 1, self.nodes(0)
        tied = [weight for weight in self.nodes(position).weights if weight.tied]
        if not tied or not first.weights:
            return None
        weight = max(first.weights, key=lambda candidate: candidate.bytes)
        number, group = next(entry for entry in enumerate(first.groups.values()) if weight in entry[1])
        gradients = [name for of_last in tied for name in of_last.gradients]
        versions: dict[tuple[int, str], Version] = {}
        buffers = () if weight.frozen else ((weight.gradients[0], gradients), (f"gradients {number}", [SHARED_SHARD]))
        for buffer, of_last in buffers:
            writers = [(position, name) for name in of_last]
            if one_chunk:
                versions |= _versions(buffer, [*writers, (0, buffer)])
            else:
                versions |= _versions(buffer, writers, _MARK * len(writers)) | _versions(buffer, [(0, buffer)])
        names, group_bytes = frozenset(of_last.name for of_last in tied), sum(of_group.bytes for of_group in group)
        apart = None if one_chunk or weight.frozen else (position, gradients[-1])
        return SharedWeight(weight, number, group_bytes, names, versions, apart)

    def version(self, position: int, name: str) -> Version:
        """Return the version of a buffer that a gradient of a layer is."""
        version = None if self.shared is None else self.shared.versions.get((position, name))
        return version or Version(f"L{position:03d}.{name}")

    def stored(self, position: int, name: str) -> str:
        """Return the name of a weight as a stage stores it."""
        if self.shared is not None and position == self.chain.num_layers - 1 and name in self.shared.names:
            return f"L000.{self.shared.weight.name}"
        return f"L{position:03d}.{name}"

    def held(self, position: int, weights: Sequence[LayerWeight]) -> tuple[LayerWeight, ...]:
        """Return the weights that the stage holds for a layer, without one that it holds for the first layer."""
        if self.shared is None or position != self.chain.num_layers - 1:
            return tuple(weights)
        return tuple(weight for weight in weights if not weight.tied)

    def divided(self) -> list[tuple[str, int, int, str]]:
        """Return every divided dimension once: its letter, its size, its ranks, and their axes."""
        divided: dict[tuple[str, int, int, str], None] = {}
        for layer, values in zip(self.distinct, self._values, strict=True):
            for dim in layer.divided:
                if axes := [axis for axis in dim.axes if values[axis] > 1]:
                    ranks = math.prod(values[axis] for axis in axes)
                    divided[dim.letter, values[dim.letter], ranks, " x ".join(axes)] = None
        return list(divided)

    def shard_size(self, ranks: WeightGroup) -> int:
        """Return the ranks over which ZeRO divides the weights of a group."""
        return self.holders(ranks) // self.replicas(ranks)

    def holders(self, ranks: WeightGroup) -> int:
        """Return the ranks that hold the same weights."""
        size = int(self.columns["dp"]) * self.holds.num_chains * math.prod(int(self.columns[at]) for at in ranks.axes)
        return max(size // int(self.columns["ep"]), 1) if ranks.over_ep else size

    def replicas(self, ranks: WeightGroup) -> int:
        """Return the replicas of each shard."""
        most = min(int(self.columns["zero_replicas"]), int(self.columns["dp"]), self.holders(ranks))
        return most if self.columns["zero_stage"] else 1


MICROBATCH, PREVIOUS = "\x01", "\x02"  # repeated for each digit
_VERSION = "#"  # between the name of a buffer and what tells apart the nodes that write it

OWN = ("own",)  # the pass of the node itself
# Names a pass whose nodes others refer to: OWN, or (what it computes, chunk), of the same microbatch. What it computes
# is "forward" or "gradient", "receive forward" or "receive gradient", "gather forward" or "gather gradient". The
# "previous" pass of a purpose and chunk is of the microbatch before, the "last" one of the last one.
BasePass = tuple[object, ...]

Tensors = list[tuple[str, int]]  # names with their bytes

# What passes compute: a whole backward does the work of both its halves, and schedules mix it with halves.
PURPOSES = {kind: (kind,) for kind in ("forward", "inputs", "weights")} | {"backward": ("inputs", "weights")}


def buffer_of(tensor: str) -> str:
    """Return the name of the buffer of a tensor, which may be one of its versions."""
    return tensor.partition(_VERSION)[0]


class NodeReference(NamedTuple):
    """A node of a pass: of the own one by its number, of another one by the tensor that it writes."""

    base: BasePass
    target: int | str


@dataclass(frozen=True, slots=True)
class NodeCommunication:
    """What a communication node sends where."""

    size: int  # bytes
    kind: str = ""  # of a collective; "" for a send or a receive
    axis: str = ""
    group: tuple[object, ...] = ()  # ("axis", axis), ("shards" or "replicas", weight group), ("ends",)
    peer: tuple[object, ...] = ()  # rank at the other end: ("stage", stage), ("ring", axis, places on)
    tag: int = 0  # of a send or a receive within a pass; else its microbatch decides
    panels: int = 1
    routing: tuple[int, ...] = ()  # as that of `dsx.traces.layer_nodes.Move`


@dataclass(slots=True)
class TraceNode:
    """One node."""

    type: int
    name: str
    inputs: Tensors = field(default_factory=list)
    outputs: Tensors = field(default_factory=list)
    data_deps: list[NodeReference] = field(default_factory=list)
    compute: Compute | None = None
    panels: int = 1
    on_host: bool = False  # a computation of the host
    communication: NodeCommunication | None = None
    overlap: float | None = None  # share that may overlap with compute; None: it is a part of the compute stream
    partner: int | None = None  # number of the launch that it overlaps with
    transfer_bytes: int = 0  # of a load or a store
    duration_ns: float | None = None


@dataclass(frozen=True, slots=True)
class PassKey:
    """A kind of pass: what decides its nodes."""

    kind: str  # "forward", "backward", "inputs", "weights"
    chunk: int
    first: tuple[str, ...]  # purposes (`PURPOSES`) of which it is the first pass of its chunk
    last: bool  # whether it is the last of its kind in its chunk, and computes gradients
    paired: bool = False  # runs beside a pass of the other direction
    receives_first: bool = False  # in a ring, as every other rank does


@dataclass(slots=True)
class PassNodes:
    """The nodes of a pass, and which of them writes a tensor."""

    nodes: list[TraceNode] = field(default_factory=list)
    writers: dict[str, int] = field(default_factory=dict)
    num_tags: int = 0  # of sends within the pass
    # Number of the node of a pass before which weights are gathered for the next one: the first of its last layer.
    ahead: int = 0


class NodeBuilder:
    """Builds the nodes of one pass; `sources` has the other pass that writes a tensor."""

    def __init__(self, plan: TracedPlan, key: PassKey, digits: int, sources: Mapping[str, BasePass]) -> None:
        self.plan, self.key = plan, key
        self.microbatch, self.previous = MICROBATCH * digits, PREVIOUS * digits
        self.sources = dict(sources)
        self.built = PassNodes()
        self.zero_stage = int(plan.columns["zero_stage"])

    def own(self, position: int, name: str) -> str:
        """Return the name of a tensor of a microbatch."""
        return f"m{self.microbatch}.L{position:03d}.{name}"

    def version(self, position: int, name: str) -> str:
        """Return the name of a buffer of a layer that all microbatches write, as this microbatch leaves it."""
        version = self.plan.version(position, name)
        return f"{version.buffer}{_VERSION}{self.microbatch}{version.suffix}"

    def previous_version(self, position: int, name: str, size: int, purpose: str) -> tuple[str, int]:
        """Return the version of a buffer that was written before; the first microbatch finds it cleared."""
        version = self.plan.version(position, name)
        if version.previous is not None:
            return f"{version.buffer}{_VERSION}{self.microbatch}{version.previous}", size
        if purpose in self.key.first:
            return f"{version.buffer}{_VERSION}start", size
        text = f"{version.buffer}{_VERSION}{self.previous}{version.last}"
        self.sources[text] = ("previous", purpose, self.key.chunk)
        return text, size

    def add(self, node: TraceNode) -> int:
        """Add a node, with dependencies on what writes its inputs; return its number."""
        number = len(self.built.nodes)
        writers = (self.source(name) for name, _ in node.inputs)
        node.data_deps = [*dict.fromkeys([*node.data_deps, *(writer for writer in writers if writer)])]
        self.built.nodes.append(node)
        self.built.writers |= {name: number for name, _ in node.outputs}
        return number

    def compute(
        self,
        name: str,
        inputs: Tensors,
        outputs: Tensors,
        work: Compute,
        deps: Sequence[NodeReference] = (),
        on_host: bool = False,
    ) -> int:
        """Add a computation, which also waits for `deps`."""
        return self.add(TraceNode(COMP, name, inputs, outputs, [*deps], compute=work, on_host=on_host))

    def collective(
        self, name: str, inputs: Tensors, outputs: Tensors, sent: NodeCommunication, overlap: float | None = None
    ) -> int:
        """Add a collective; its lists of tensors are its own."""
        return self.add(TraceNode(COMM_COLL, name, [*inputs], [*outputs], communication=sent, overlap=overlap))

    def source(self, name: str) -> NodeReference | None:
        """Return the node that writes a tensor; None for one that is there from the start."""
        number = self.built.writers.get(name)
        if number is not None:
            return NodeReference(OWN, number)
        return NodeReference(self.sources[name], name) if name in self.sources else None
