"""The nodes of a pass: one microbatch through one chunk of layers, with what ZeRO, recomputation and offload add.

Names of tensors begin with the microbatch and the layer, "m03.L007.n1". Weights have no microbatch. The gradient of a
weight is a buffer that all microbatches add to, and each writes a version of it, "L007.d w1#03"; it is there from the
start of the step. Where ZeRO divides
gradients, a microbatch's own gradients live until they are scattered, and the shard is the buffer.

Weights that ZeRO has divided are gathered a layer ahead. Those of the first layer of a pass are gathered by the item
before it in the program of the stage (`dsx.traces.stage_items`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dsx.cost.layer import WeightGroup
from dsx.cost.offload import ACTIVATIONS, BOTH
from dsx.graph.match import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from dsx.graph.nodes import BACKWARD, FORWARD
from dsx.graph.step import OF_REPLICAS, StepCollective, accompanying, divides
from dsx.space.choices import CODES
from dsx.traces.layer_nodes import Compute, LayerNode, LayerNodes, LayerWeight, Tensor
from dsx.traces.messages import COMM_COLL, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.ring_nodes import add_ring
from dsx.traces.trace_nodes import MICROBATCH, OWN, PREVIOUS, BasePass, Communication, Reference, TraceNode
from dsx.traces.traced_plan import TracedPlan

Tensors = list[tuple[str, int]]  # names with their bytes

GATHERED_VERSION = "#gathered"  # of a weight that the first forward of a step gathers
LOADED = "^"  # after the name of a tensor that is back from the host
GATHERED, GATHERED_AGAIN = "weights", "weights'"


@dataclass(frozen=True, slots=True)
class PassKey:
    """A kind of pass: what decides its nodes."""

    kind: str  # "forward", "backward", "inputs", "weights"
    chunk: int
    first: bool  # of its chunk and kind in the step
    last: bool
    paired: bool = False  # runs beside a pass of the other direction


@dataclass(slots=True)
class PassNodes:
    """The nodes of a pass, and which of them writes a tensor."""

    nodes: list[TraceNode] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)
    num_tags: int = 0  # of sends within the pass


def shards_key(ranks: WeightGroup) -> tuple[object, ...]:
    """Return the key of the groups over which ZeRO divides weights."""
    return ("shards", ranks)


def replicas_key(ranks: WeightGroup) -> tuple[object, ...]:
    """Return the key of the groups that hold the same shard."""
    return ("replicas", ranks)


class PassBuilder:
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
        self.offloads = CODES["offload"][plan.columns["offload"]] in (ACTIVATIONS, BOTH)

    # Names

    def own(self, position: int, name: str) -> str:
        """Return the name of a tensor of a microbatch."""
        return f"m{self.microbatch}.L{position:03d}.{name}"

    def version(self, position: int, name: str, previous: bool = False) -> str:
        """Return the name of a buffer of a layer that all microbatches write."""
        return f"L{position:03d}.{name}#{self.previous if previous else self.microbatch}"

    # Nodes

    def next_tag(self) -> int:
        """Return a tag for a send within the pass, which the receive of the next rank has too."""
        self.tags += 1
        self.found.num_tags = self.tags
        return self.tags - 1

    def add(self, node: TraceNode) -> int:
        """Add a node, with dependencies on what writes its inputs; return its number."""
        number = len(self.found.nodes)
        needed = (self._source(name) for name, _ in node.inputs)
        node.data_deps = [*dict.fromkeys([*node.data_deps, *(source for source in needed if source)])]
        self.found.nodes.append(node)
        self.found.made |= {name: number for name, _ in node.outputs}
        return number

    def _source(self, name: str) -> Reference | None:
        number = self.found.made.get(name)
        if number is not None:
            return Reference(OWN, number)
        return Reference(self.sources[name], name) if name in self.sources else None

    # Passes

    def forward(self, begins: Tensors) -> Tensors:
        """Add the forward of all layers of the chunk; return what the last one makes."""
        positions = self.plan.layers_of(self.key.chunk)
        carried = begins
        stores: list[int] = []
        for index, position in enumerate(positions):
            nodes = self.plan.nodes(position)
            names = self._outside(nodes, carried)
            if index + 1 < len(positions) and divides(self.zero_stage, "weight"):
                self.gather(positions[index + 1], FORWARD)
            begin = len(self.found.nodes)
            self._run(position, nodes, nodes.forward, names)
            if self._is_offloaded(position):
                self._wait_for_store(begin, stores)
                stores.append(self._store(position, nodes, names))
            carried = self._boundary(position, nodes, nodes.outputs)
        return carried

    def backward(self, begins: Tensors, inputs: Tensors) -> Tensors:
        """Add the backward of all layers, or the part of it that the pass is; return the gradient of the input.

        `begins` are the gradients of the chunk's result; `inputs` what the chunk read in its forward.
        """
        positions = self.plan.layers_of(self.key.chunk)[::-1]
        carried = begins
        last = self.plan.chain.num_layers - 1
        for index, position in enumerate(positions):
            nodes = self.plan.nodes(position)
            taken = inputs if position == positions[-1] else self._boundary(position - 1, self.plan.nodes(position - 1))
            names = self._outside(nodes, taken)
            if not self.plan.alone:
                names[nodes.output_gradient] = [] if position == last else carried
            if index + 1 < len(positions) and self.key.kind != "weights":
                self.gather(positions[index + 1], BACKWARD)
                self._load(positions[index + 1])
            if index == 0 and self.key.kind != "weights":
                self._load(position)
            self._run(position, nodes, [node for node in nodes.backward if self._in_part(node)], names)
            if self.key.kind != "inputs":
                self._reduce(position, nodes)
            carried = [
                tensor
                for name in nodes.input_gradients
                for tensor in names.get(name, [(self.own(position, name), nodes.boundary_bytes)])
            ]
        self._wait_for_gradient(begins)
        return carried

    def _wait_for_gradient(self, begins: Tensors) -> None:
        """Let the first computation wait for the gradient that the pass begins with: it calls for recomputation too."""
        first = next((node for node in self.found.nodes if node.type == COMP), None)
        if first is not None:
            needed = [Reference(self.sources[name], name) for name, _ in begins if name in self.sources]
            first.data_deps = [*dict.fromkeys([*first.data_deps, *needed])]

    def _outside(self, nodes: LayerNodes, taken: Tensors) -> dict[str, Tensors]:
        """Return what the inputs of a layer stand for; data from outside of the model are no tensors."""
        return {} if self.plan.alone else dict.fromkeys(nodes.inputs, taken if nodes.has_input else [])

    def _in_part(self, node: LayerNode) -> bool:
        if self.key.kind == "backward":
            return True
        return (node.part == "weights") == (self.key.kind == "weights")

    def _boundary(self, position: int, nodes: LayerNodes, names: Iterable[str] = ()) -> Tensors:
        return [(self.own(position, name), nodes.boundary_bytes) for name in names or nodes.outputs]

    # Layers

    def _run(
        self,
        position: int,
        nodes: LayerNodes,
        each: Sequence[LayerNode],
        names: Mapping[str, Tensors],
    ) -> None:
        """Add some nodes of a layer; `names` has the tensors that stand for what comes from outside of it."""
        gathered = self._gathered(position, nodes)
        pending: dict[tuple[int, int], list[int]] = {}  # collectives that still lack their launch, by kernel
        launched: dict[tuple[int, int], int] = {}
        rings = _rings(each)
        for node in each:
            kernel = (node.kernel, node.direction)
            if node.move is not None and node.move.ring:
                continue  # the launch sends the blocks
            inputs, outputs = self._tensors(position, nodes, node, names, gathered)
            if node.compute is not None:
                around = [
                    (ring, *self._tensors(position, nodes, ring, names, gathered)) for ring in rings.pop(kernel, [])
                ]
                if around:
                    number = add_ring(self, position, node, inputs, outputs, around)
                else:
                    number = self._launch(position, node, node.compute, inputs, outputs)
                for collective in pending.pop(kernel, ()):
                    self._belongs(collective, number)
                launched[kernel] = number
                continue
            for number in self._move(position, node, inputs, outputs):
                if self._beside(node):
                    continue
                if kernel in launched:
                    self._belongs(number, launched[kernel])
                else:
                    pending.setdefault(kernel, []).append(number)
        for number in (number for numbers in pending.values() for number in numbers):
            self.found.nodes[number].overlap = None  # its kernel has no launch in this pass

    def _belongs(self, collective: int, launch: int) -> None:
        """Note that a collective belongs to a launch, with which it may overlap."""
        moved, launched = self.found.nodes[collective], self.found.nodes[launch]
        moved.partner = launch if moved.overlap else None
        if moved.communication is not None:
            launched.panels = max(launched.panels, moved.communication.panels)

    def _tensors(
        self,
        position: int,
        nodes: LayerNodes,
        node: LayerNode,
        names: Mapping[str, Tensors],
        gathered: Tensors,
    ) -> tuple[Tensors, Tensors]:
        """Return what a node reads and writes, by the names of the trace."""
        gradients = {name for weight in nodes.weights for name in weight.gradients}
        inputs = [tensor for read in node.reads for tensor in self._read(position, read, names, gathered)]
        outputs: Tensors = []
        for write in node.writes:
            if write.name not in gradients:
                outputs.append((self.own(position, write.name), write.bytes))
                continue
            outputs.append((self._gradient(position, write.name), write.bytes))
            if not divides(self.zero_stage, "gradient"):
                inputs.append(self._previous(position, write.name, write.bytes))
        return [*dict.fromkeys(inputs)], outputs

    def _beside(self, node: LayerNode) -> bool:
        """Return whether a collective hides behind the other pass of a pair."""
        overlap = self.plan.schedule.overlap
        return bool(self.key.paired and overlap and node.move and node.move.axis in overlap.axes)

    def _read(self, position: int, read: Tensor, names: Mapping[str, Tensors], gathered: Tensors) -> Tensors:
        if read.name in names:
            return names[read.name]
        if read.weight:
            name = f"L{position:03d}.{read.name}"
            fresh = name + GATHERED_VERSION
            return gathered or [(fresh if fresh in self.sources else name, read.bytes)]
        back = self.own(position, read.name + LOADED)
        return [(back if self._source(back) else self.own(position, read.name), read.bytes)]

    def _gradient(self, position: int, name: str) -> str:
        """Return the name of a weight's gradient: a version of the buffer, or the microbatch's own."""
        return self.own(position, name) if divides(self.zero_stage, "gradient") else self.version(position, name)

    def _previous(self, position: int, name: str, size: int) -> tuple[str, int]:
        """Return the version of a buffer that the microbatch before has written; the first one finds it cleared."""
        if self.key.first:
            return f"L{position:03d}.{name}#start", size
        version = self.version(position, name, previous=True)
        self.sources[version] = ("previous", self.key.kind, self.key.chunk)
        return version, size

    def _launch(
        self,
        position: int,
        node: LayerNode,
        compute: Compute,
        inputs: Tensors,
        outputs: Tensors,
    ) -> int:
        return self.add(
            TraceNode(
                COMP,
                self.own(position, node.name),
                inputs,
                outputs,
                compute=compute,
                kernel_text=node.kernel_text,
                op_type=node.op_type,
            )
        )

    def _move(self, position: int, node: LayerNode, inputs: Tensors, outputs: Tensors) -> list[int]:
        move = node.move
        if move is None:
            return []
        kind, count = move.kind, move.panels
        if self.plan.portable and count > 1:
            kind, count = {"broadcast": ALL_GATHER, "reduce": REDUCE_SCATTER}[kind], 1
        members = int(self.plan.columns[move.axis])
        size = replace(move, kind=kind).size(members) // count
        found: list[int] = []
        for panel in range(count):
            made = outputs if panel == count - 1 else []
            name = self.own(position, node.name) + (f" {panel + 1}" if count > 1 else "")
            communication = Communication(size, kind, move.axis, ("axis", move.axis), panels=count)
            overlap = 1.0 if self._beside(node) else move.overlap or None
            found.append(
                self.add(
                    TraceNode(COMM_COLL, name, list(inputs), list(made), communication=communication, overlap=overlap)
                )
            )
        return found

    # ZeRO

    def _gathered(self, position: int, nodes: LayerNodes) -> Tensors:
        """Return what all weights of a layer are read from, if ZeRO divides them."""
        if not divides(self.zero_stage, "weight"):
            return []
        again = GATHERED_AGAIN if self.key.kind in ("backward", "inputs") else GATHERED
        found: Tensors = []
        for number, (ranks, weights) in enumerate(nodes.groups.items()):
            if self.plan.shard_size(ranks) == 1:
                found += self.weights(position, number, ranks, weights)
            elif weights:
                found.append((self.own(position, f"{again} {number}"), sum(weight.bytes for weight in weights)))
        return found

    def gather(self, position: int, direction: int) -> None:
        """Add the gathers of a layer's weights that its pass needs."""
        nodes = self.plan.nodes(position)
        for one in accompanying(self.zero_stage, direction):
            if one.kind != ALL_GATHER or (one.every == "step" and not self.key.first):
                continue
            for number, (ranks, weights) in enumerate(nodes.groups.items()):
                self._gather(position, number, ranks, weights, one, direction)

    def _gather(
        self,
        position: int,
        number: int,
        ranks: WeightGroup,
        weights: tuple[LayerWeight, ...],
        one: StepCollective,
        direction: int,
    ) -> None:
        members, whole = self.plan.shard_size(ranks), sum(weight.bytes for weight in weights)
        if not whole or members == 1:
            return
        inputs = self.weights(position, number, ranks, weights)
        outputs = [(name + GATHERED_VERSION, size) for name, size in inputs]
        if divides(self.zero_stage, "weight"):
            again = GATHERED_AGAIN if direction == BACKWARD else GATHERED
            outputs = [(self.own(position, f"{again} {number}"), whole)]
        communication = Communication(whole // members, one.kind, "dp", shards_key(ranks))
        text = self.own(position, f"{one.kind} weights {number}")
        self.add(TraceNode(COMM_COLL, text, inputs, outputs, communication=communication, overlap=self._overlap()))

    def _overlap(self) -> float:
        assumptions = self.plan.assumptions
        return assumptions.fsdp_overlap if divides(self.zero_stage, "weight") else assumptions.dp_overlap

    def weights(self, position: int, number: int, ranks: WeightGroup, weights: tuple[LayerWeight, ...]) -> Tensors:
        """Return the weights of a group as a rank stores them: each, or their shard."""
        if not divides(self.zero_stage, "weight"):
            return [(f"L{position:03d}.{weight.name}", weight.bytes) for weight in weights]
        whole = sum(weight.bytes for weight in weights)
        return [(f"L{position:03d}.shard {number}", whole // self.plan.shard_size(ranks))]

    def _reduce(self, position: int, nodes: LayerNodes) -> None:
        """Add what reduces the gradients of a layer's weights."""
        for number, (ranks, weights) in enumerate(nodes.groups.items()):
            grads = [
                (self._gradient(position, name), weight.gradient_bytes)
                for weight in weights
                for name in weight.gradients
            ]
            whole = sum(weight.gradient_bytes for weight in weights)
            if not grads or not whole:
                continue
            members = self.plan.shard_size(ranks)
            for one in accompanying(self.zero_stage, BACKWARD):
                if one.of != "gradients" or (one.every == "step" and not self.key.last):
                    continue
                self._reduce_group(position, number, ranks, one, grads, whole, members)
            replicas = self.plan.replicas(ranks)
            if replicas > 1 and self.key.last:
                size = whole // members if divides(self.zero_stage, "gradient") else grads[0][1]
                held = [(self.reduced(position, number, grads), size)]
                made = [(self.reduced(position, number, grads) + "r", size)]
                text = self.own(position, f"{ALL_REDUCE} gradients {number} among replicas")
                communication = Communication(whole // members, OF_REPLICAS.kind, "dp", replicas_key(ranks))
                self.add(TraceNode(COMM_COLL, text, held, made, communication=communication, overlap=self._overlap()))

    def _reduce_group(
        self,
        position: int,
        number: int,
        ranks: WeightGroup,
        one: StepCollective,
        grads: Tensors,
        whole: int,
        members: int,
    ) -> None:
        if members == 1 and not divides(self.zero_stage, "gradient"):
            return
        outputs = [(self.reduced(position, number, grads), grads[0][1])]
        inputs = list(grads)
        if divides(self.zero_stage, "gradient"):
            outputs = [(self.version(position, f"gradients {number}"), whole // members)]
            inputs.append(self._previous(position, f"gradients {number}", whole // members))
        text = self.own(position, f"{one.kind} gradients {number}")
        communication = Communication(whole, one.kind, "dp", shards_key(ranks))
        node = TraceNode(COMM_COLL, text, inputs, outputs, communication=communication, overlap=self._overlap())
        if members == 1:
            node = TraceNode(COMP, text, inputs, outputs, compute=Compute(0, 0, 0, 0, 0, ()), op_type="add")
        self.add(node)

    def reduced(self, position: int, number: int, grads: Tensors) -> str:
        """Return the name of the reduced gradients of a group, as the last microbatch leaves them."""
        if divides(self.zero_stage, "gradient"):
            return self.version(position, f"gradients {number}")
        return grads[0][0] + "r"

    # Offload

    def _is_offloaded(self, position: int) -> bool:
        return self.offloads and self.plan.is_body(position) and not self.plan.forward_only

    def _stash(self, position: int, nodes: LayerNodes, names: Mapping[str, Tensors]) -> Tensors:
        return [
            tensor
            for saved in nodes.saved
            for tensor in names.get(saved.name, [(self.own(position, saved.name), saved.bytes)])
        ]

    def _store(self, position: int, nodes: LayerNodes, names: Mapping[str, Tensors]) -> int:
        stash = self._stash(position, nodes, names)
        size = sum(size for _, size in stash)
        made = [(self.own(position, "stash@host"), size)]
        return self.add(
            TraceNode(MEM_STORE, self.own(position, "store"), stash, made, transfer_bytes=max(size, 1), overlap=1.0)
        )

    def _wait_for_store(self, begin: int, stores: Sequence[int]) -> None:
        """Let a layer, whose nodes begin at `begin`, wait until the one before the last layer is stored.

        So the activations of two layers are on the GPU: those that are written, and those in transfer.
        """
        if len(stores) > 1 and begin < len(self.found.nodes):
            self.found.nodes[begin].data_deps.append(Reference(OWN, stores[-2]))

    def _load(self, position: int) -> None:
        if not self._is_offloaded(position):
            return
        nodes = self.plan.nodes(position)
        size = sum(saved.bytes for saved in nodes.saved)
        if size:
            made = [(self.own(position, saved.name + LOADED), saved.bytes) for saved in nodes.saved]
            taken = [(self.own(position, "stash@host"), size)]
            self.add(TraceNode(MEM_LOAD, self.own(position, "load"), taken, made, transfer_bytes=size, overlap=1.0))


def _rings(each: Iterable[LayerNode]) -> dict[tuple[int, int], list[LayerNode]]:
    """Return the collectives that are rings, by the kernel whose parts they feed or empty."""
    found: dict[tuple[int, int], list[LayerNode]] = {}
    for node in each:
        if node.move is not None and node.move.ring:
            found.setdefault((node.kernel, node.direction), []).append(node)
    return found
