"""The nodes of a trace before they are numbered, and what builds those of a pass: names of tensors, dependencies.

A node belongs to a pass of a microbatch, and any rank of a stage may run it. It refers to nodes of other passes by the
tensor that they write. Texts have marks in place of the microbatch, so one description serves all microbatches:
`MICROBATCH` is the one of the pass, `PREVIOUS` the one that the chunk had before.

Names of tensors begin with the microbatch and the layer, "m03.L007.n1". Weights have no microbatch. The gradient of a
weight is a buffer that all microbatches add to, and each writes a version of it, "L007.d w1#03"; it is there from the
start of the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dsx.traces.codec import COMM_COLL, COMP
from dsx.traces.layer_nodes import Compute
from dsx.traces.traced_plan import TracedPlan

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
