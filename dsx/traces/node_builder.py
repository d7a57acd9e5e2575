"""What every builder of nodes shares: names of tensors, and dependencies on what writes them.

Names of tensors begin with the microbatch and the layer, "m03.L007.n1". Weights have no microbatch. The gradient of a
weight is a buffer that all microbatches add to, and each writes a version of it, "L007.d w1#03"; it is there from the
start of the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsx.traces.shared_weight import Version
from dsx.traces.trace_nodes import MICROBATCH, OWN, PREVIOUS, BasePass, Reference, TraceNode, buffer_of
from dsx.traces.traced_plan import TracedPlan

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

    def source(self, name: str) -> Reference | None:
        """Return the node that writes a tensor; None for one that is there from the start."""
        number = self.found.made.get(name)
        if number is not None:
            return Reference(OWN, number)
        return Reference(self.sources[name], name) if name in self.sources else None

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
