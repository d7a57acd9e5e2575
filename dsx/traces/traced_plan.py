"""What a trace is written of: a plan, its layers, its ranks; and what every builder of nodes shares.

What a trace is written of: a plan, the layers of its model with their numbers, and the ranks that run it.

What every builder of nodes shares: names of tensors, and dependencies on what writes them.

Names of tensors begin with the microbatch and the layer, "m03.L007.n1". Weights have no microbatch. The gradient of a
weight is a buffer that all microbatches add to, and each writes a version of it, "L007.d w1#03"; it is there from the
start of the step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dsx.config.assumption_set import AssumptionsSpec
from dsx.cost.layer import WeightGroup
from dsx.notation.syntax import AXES
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import NONE_CODE
from dsx.plans.layer_layout import Chain, even_chunks, given_chunks
from dsx.plans.ranks import RankGrid
from dsx.schedules.order import StageChunks, of_pipeline
from dsx.schedules.schedules import SCHEDULES, Schedule
from dsx.traces.layer_nodes import (
    MICROBATCH,
    OWN,
    PREVIOUS,
    BasePass,
    LayerNodes,
    LayerWeight,
    NodeReference,
    SharedWeight,
    TraceNode,
    Version,
    buffer_of,
    layer_nodes,
    layer_values,
    shared_weight,
)

DP = "dp"


@dataclass(frozen=True)
class TracedPlan:
    """A plan to be traced; `columns` are its choices as codes."""

    layers: tuple[DerivedLayer, ...]  # of the chain of embedding, body and head; equal layers are one object
    chain: Chain
    dimensions: Mapping[str, int]
    sequence_length: int
    columns: Mapping[str, Any]
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
    def sizes(self) -> dict[str, int]:
        """The degrees and sizes that the expressions of layers name."""
        degrees = {axis: int(self.columns[axis]) for axis in AXES}
        return degrees | {
            "b": int(self.columns["microbatch_size"]),
            "s": self.sequence_length,
            "panels": int(self.columns["panels"]),
        }

    @cached_property
    def kinds(self) -> dict[int, str]:
        """The name of each distinct layer, by its id."""
        found: dict[int, str] = {}
        for layer in self.layers:
            if id(layer) not in found:
                name = layer.name.partition("[")[0]
                number = sum(1 for other in found.values() if other.partition(".")[0] == name)
                found[id(layer)] = f"{name}.{number + 1}" if number else name
        return found

    def is_body(self, position: int) -> bool:
        """Return whether a layer is neither embedding nor head."""
        return self.chain.first <= position < self.chain.num_layers - self.chain.last

    @cached_property
    def _stored(self) -> frozenset[int]:
        """The layers that save all activations: the last ones of each stage, of its chunks in each chain."""
        found: set[int] = set()
        for chain in self.holds.chains(self.columns["pp"], self.columns["vpp"]):
            for stage in range(self.columns["pp"]):
                own = [at for chunk, of in enumerate(chain) if of == stage for at in self.layers_of(chunk)]
                body = sorted({at for at in own if self.is_body(at)})
                found |= set(body[len(body) - min(self.columns["stored_layers"], len(body)) :])
        return frozenset(found)

    @cached_property
    def _nodes(self) -> dict[tuple[int, int], LayerNodes]:
        return {}

    def nodes(self, position: int) -> LayerNodes:
        """Return the nodes of a layer of the chain under the recomputation of the plan."""
        layer = self.layers[position]
        recomputed = self.is_body(position) and position not in self._stored
        code = int(self.columns["recompute"]) if recomputed else NONE_CODE
        if (id(layer), code) not in self._nodes:
            values = layer_values(layer, self.dimensions, self.sizes, self.assumptions)
            nodes = layer_nodes(layer, self.kinds[id(layer)], values, code, self.assumptions)
            # The backward of the head is never split (`dsx.schedules.order`).
            of_head = position >= self.chain.num_layers - self.chain.last
            self._nodes[id(layer), code] = nodes.unsplit() if of_head else nodes
        return self._nodes[id(layer), code]

    @cached_property
    def ring_axis(self) -> str:
        """The axis along which blocks travel in a ring; empty if none do."""
        moves = [node.move for at in range(len(self.layers)) for node in self.nodes(at).forward if node.move]
        return next((move.axis for move in moves if move.ring), "")

    @cached_property
    def ties_ends(self) -> bool:
        """Whether the gradient of a tied weight is reduced between the first and the last stage."""
        apart = self.columns["pp"] > 1 and self.holds.in_rounds and not self.forward_only
        return apart and any(weight.tied for weight in self.nodes(self.chain.num_layers - 1).weights)

    @cached_property
    def shared(self) -> SharedWeight | None:
        """The weight that a stage holds once for the first and the last layer; None if there is none."""
        last = self.chain.num_layers - 1
        if (self.columns["pp"] > 1 and self.holds.in_rounds) or not self.chain.first or self.alone:
            return None
        return shared_weight(self.nodes(0), self.nodes(last), last, one_chunk=self.columns["pp"] == 1)

    def held(self, position: int, weights: Sequence[LayerWeight]) -> tuple[LayerWeight, ...]:
        """Return the weights that the stage holds for a layer, without one that it holds for the first layer."""
        if self.shared is None or position != self.chain.num_layers - 1:
            return tuple(weights)
        return tuple(weight for weight in weights if not weight.tied)

    def distinct_nodes(self) -> list[LayerNodes]:
        """Return the nodes of each layer that differs from others in its kind or its recomputation."""
        return [*{id(nodes): nodes for nodes in map(self.nodes, range(len(self.layers)))}.values()]

    def divided(self) -> list[tuple[str, int, int, str]]:
        """Return every divided dimension once: its letter, its size, its ranks, and their axes."""
        found: dict[tuple[str, int, int, str], None] = {}
        for layer in {id(layer): layer for layer in self.layers}.values():
            values = layer_values(layer, self.dimensions, self.sizes, self.assumptions)
            for dim in layer.divided:
                axes = [axis for axis in dim.axes if values[axis] > 1]
                if axes:
                    ranks = math.prod(values[axis] for axis in axes)
                    found[dim.letter, values[dim.letter], ranks, " x ".join(axes)] = None
        return list(found)

    def shard_size(self, ranks: WeightGroup) -> int:
        """Return the ranks over which ZeRO divides the weights of a group."""
        return self.holders(ranks) // self.replicas(ranks)

    def holders(self, ranks: WeightGroup) -> int:
        """Return the ranks that hold the same weights."""
        size = int(self.columns[DP]) * self.holds.num_chains
        for axis in ranks.axes:
            size *= int(self.columns[axis])
        return max(size // int(self.columns["ep"]), 1) if ranks.over_ep else size

    def replicas(self, ranks: WeightGroup) -> int:
        """Return the replicas of each shard."""
        if not self.columns["zero_stage"]:
            return 1
        return min(int(self.columns["zero_replicas"]), int(self.columns[DP]), self.holders(ranks))


Tensors = list[tuple[str, int]]  # names with their bytes


# What passes compute: a whole backward does the work of both its halves, and schedules mix it with halves.
PURPOSES = {
    "forward": ("forward",),
    "backward": ("inputs", "weights"),
    "inputs": ("inputs",),
    "weights": ("weights",),
}


@dataclass(frozen=True, slots=True)
class PassKey:
    """A kind of pass: what decides its nodes."""

    kind: str  # "forward", "backward", "inputs", "weights"
    chunk: int
    first: tuple[str, ...]  # purposes (`PURPOSES`) of which it is the first pass of its chunk
    last: bool  # whether it is the last of its kind in its chunk, and computes gradients
    paired: bool = False  # runs beside a pass of the other direction


@dataclass(slots=True)
class PassNodes:
    """The nodes of a pass, and which of them writes a tensor."""

    nodes: list[TraceNode] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)
    num_tags: int = 0  # of sends within the pass
    # Number of the node of a pass before which weights are gathered for the next one: the first of its last layer.
    ahead: int = 0


class NodeBuilder:
    """Builds the nodes of one pass."""

    def __init__(
        self,
        plan: TracedPlan,
        key: PassKey,
        digits: int,
        sources: Mapping[str, BasePass],
        receives_first: bool = False,
    ) -> None:
        self.plan, self.key, self.receives_first = plan, key, receives_first
        self.microbatch, self.previous = MICROBATCH * digits, PREVIOUS * digits
        self.sources = dict(sources)  # tensor -> the other pass that writes it
        self.found = PassNodes()
        self.tags = 0  # of sends within the pass
        self.zero_stage = int(plan.columns["zero_stage"])

    # Names

    def own(self, position: int, name: str) -> str:
        """Return the name of a tensor of a microbatch."""
        return f"m{self.microbatch}.L{position:03d}.{name}"

    def version(self, position: int, name: str, previous: bool = False) -> str:
        """Return the name of a buffer of a layer that all microbatches write; `previous`: as the one before left it."""
        shared = self.plan.shared
        made = Version(position, name, "") if shared is None else shared.version(position, name)
        written = f"{self.previous}{made.last}" if previous else f"{self.microbatch}{made.suffix}"
        return f"L{made.position:03d}.{made.buffer}#{written}"

    def stored(self, position: int, name: str) -> str:
        """Return the name of a weight as a stage stores it."""
        shared = self.plan.shared
        if shared is not None and position == self.plan.chain.num_layers - 1 and name in shared.names:
            return f"L000.{shared.weight.name}"
        return f"L{position:03d}.{name}"

    # Nodes

    def next_tag(self) -> int:
        """Return a tag for a send within the pass, which the receive of the next rank has too."""
        self.tags += 1
        self.found.num_tags = self.tags
        return self.tags - 1

    def add(self, node: TraceNode) -> int:
        """Add a node, with dependencies on what writes its inputs; return its number."""
        number = len(self.found.nodes)
        needed = (self.source(name) for name, _ in node.inputs)
        node.data_deps = [*dict.fromkeys([*node.data_deps, *(source for source in needed if source)])]
        self.found.nodes.append(node)
        self.found.made |= {name: number for name, _ in node.outputs}
        return number

    def source(self, name: str) -> NodeReference | None:
        """Return the node that writes a tensor; None for one that is there from the start."""
        number = self.found.made.get(name)
        if number is not None:
            return NodeReference(OWN, number)
        return NodeReference(self.sources[name], name) if name in self.sources else None

    def previous_version(self, position: int, name: str, size: int, purpose: str) -> tuple[str, int]:
        """Return the version of a buffer that was written before; the first microbatch finds it cleared."""
        shared = self.plan.shared
        if shared is not None and (before := shared.before(position, name)) is not None:
            return f"L{before.position:03d}.{before.buffer}#{self.microbatch}{before.suffix}", size
        if purpose in self.key.first:
            return f"{buffer_of(self.version(position, name))}#start", size
        version = self.version(position, name, previous=True)
        self.sources[version] = ("previous", purpose, self.key.chunk)
        return version, size
