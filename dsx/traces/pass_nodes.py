"""The nodes of a pass: one microbatch through one chunk of layers, ring attention included.

Ring attention as nodes: blocks sent on from rank to rank, beside the parts of the kernel that works on them.

With n ranks, a kernel has n parts. Part i works on the block of the rank that is i places before, which arrives while
part i - 1 runs. The gradients of a block travel on likewise: what part i - 1 adds to them leaves while part i runs
(arXiv 2310.01889, section 3). A rank reuses a buffer once it is sent, so it waits for its own send too.

The nodes of a pass: one microbatch through one chunk of layers, with what ZeRO, recomputation and offload add.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsx.cost.offload import ACTIVATIONS, BOTH
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import divides
from dsx.notation.sharded_layer import ALL_GATHER, REDUCE_SCATTER
from dsx.plans.choices import CODES
from dsx.traces.codec import ACCUMULATION, COMM_COLL, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.layer_nodes import (
    OWN,
    Compute,
    LayerNode,
    LayerNodes,
    Move,
    NodeCommunication,
    NodeReference,
    NodeTensor,
    TraceNode,
    buffer_of,
)
from dsx.traces.traced_plan import PURPOSES, Tensors
from dsx.traces.weight_nodes import GATHERED_VERSION, ZeroBuilder

if TYPE_CHECKING:
    from dsx.traces.traced_plan import NodeBuilder, Tensors


_SIZES = 6  # numbers of a multiply, of which the fifth is its FLOPs
_FLOPS = 4
_NO_WORK = Compute(0, 0, 0, 0, 0, ())


def add_ring(
    builder: "NodeBuilder",
    position: int,
    node: LayerNode,
    inputs: "Tensors",
    outputs: "Tensors",
    around: Sequence[tuple[LayerNode, "Tensors", "Tensors"]],
) -> int:
    """Add a launch in parts with the sends and receives of its blocks; return the number of the last part.

    `around` are the rings, with what each reads and writes: gathers for the kernel, and scatters of its results. A part
    waits for all that was passed on beside the part before.
    """
    moves = [ring.move for ring, _, _ in around if ring.move]
    size = int(builder.plan.columns[moves[0].axis])
    gathers = [(ring, taken, made) for ring, taken, made in around if ring.move and ring.move.kind == ALL_GATHER]
    scatters = [(ring, taken, made) for ring, taken, made in around if ring.move and ring.move.kind != ALL_GATHER]
    gathered = {name for _, _, made in gathers for name, _ in made}
    partial = {name for _, taken, _ in scatters for name, _ in taken}
    base = [tensor for tensor in inputs if tensor[0] not in gathered]
    blocks = {ring.name: list(taken) for ring, taken, _ in gathers}
    sums: dict[str, Tensors] = {ring.name: [] for ring, _, _ in scatters}
    beside: list[NodeReference] = []  # what a part runs beside
    number = -1
    for part in range(size):
        last, before = part == size - 1, beside
        beside, arriving = [], {}
        for ring, _, ends in scatters if part else ():
            taken = [*_own_sum(ring, ends, part - 1, size), *sums[ring.name]]
            sums[ring.name] = _pass_on(builder, ring.move, ends[0][0], part - 1, taken, size, beside)
        for ring, _, ends in gathers if not last else ():
            arriving[ring.name] = _pass_on(builder, ring.move, ends[0][0], part, blocks[ring.name], size, beside)
        made = [tensor for tensor in outputs if tensor[0] not in partial] if last else []
        made += [tensor for ring, _, ends in scatters for tensor in _own_sum(ring, ends, part, size)]
        work = _part(node.compute, part, size) if node.compute else None
        number = builder.add(
            TraceNode(
                COMP,
                builder.own(position, f"{node.name} part {part}"),
                [*dict.fromkeys([*base, *(tensor for block in blocks.values() for tensor in block)])],
                made,
                data_deps=before,
                compute=work,
                kernel_text=f"{node.kernel_text}/part {min(part, 1) if not last else 2}",
                op_type=node.op_type,
            )
        )
        blocks |= arriving
    if scatters:
        # The kernel has added its last part to the sums, which arrived beside it.
        taken = [tensor for ring, _, ends in scatters for tensor in _own_sum(ring, ends, size - 1, size)]
        taken += [tensor for ring, _, _ in scatters for tensor in sums[ring.name]]
        made = [tensor for _, _, ends in scatters for tensor in ends]
        name = builder.own(position, f"{node.name} sums")
        builder.add(TraceNode(COMP, name, taken, made, data_deps=beside, compute=_NO_WORK))
    return number


def _own_sum(ring: LayerNode, ends: "Tensors", part: int, size: int) -> "Tensors":
    return [(f"{ends[0][0]} part {part}", _block(ring.move, size))]


def _pass_on(
    builder: "NodeBuilder",
    move: Move | None,
    tensor: str,
    part: int,
    block: "Tensors",
    size: int,
    beside: list[NodeReference],
) -> "Tensors":
    """Add the send of a block to the next rank, and the receive of one from the rank before; return what arrives.

    Every other rank of the ring receives first, so that no rank waits for itself if one communication runs at a time.
    `beside` gets both nodes.
    """
    axis, num_bytes = (move.axis if move else ""), _block(move, size)
    tag = builder.next_tag()
    arrived = [(f"{tensor} block {part + 1}", num_bytes)]
    ends = [(COMM_SEND, "send", 1), (COMM_RECV, "receive", -1)]
    for kind, verb, way in ends[::-1] if builder.receives_first else ends:
        communication = NodeCommunication(num_bytes, peer=("ring", axis, way), tag=tag)
        node = TraceNode(kind, f"{tensor} {verb} {part + 1}", communication=communication)
        node.inputs, node.outputs = (list(block), []) if kind == COMM_SEND else ([], list(arrived))
        node.overlap = 1.0 if kind == COMM_SEND else None
        beside.append(NodeReference(OWN, builder.add(node)))
    return arrived


def _block(move: Move | None, size: int) -> int:
    return move.volume // size if move else 0


def _part(work: Compute, part: int, size: int) -> Compute:
    """Return one of `size` parts of a launch; the last one has what a division leaves."""

    def share(amount: int) -> int:
        return amount // size + (amount % size if part == size - 1 else 0)

    multiplies = tuple(
        share(number) if index % _SIZES == _FLOPS else number for index, number in enumerate(work.multiplies)
    )
    return replace(
        work,
        matrix_flops=share(work.matrix_flops),
        vector_flops=share(work.vector_flops),
        bytes=share(work.bytes),
        unfused_bytes=share(work.unfused_bytes),
        launches=work.launches if part == 0 else 0,
        multiplies=multiplies,
    )


LOADED = "^"  # after the name of a tensor that is back from the host


class PassBuilder(ZeroBuilder):
    """Builds the nodes of one pass: layer by layer, with what ZeRO and offload add."""

    @property
    def offloads(self) -> bool:
        """Whether activations are offloaded."""
        return CODES["offload"][self.plan.columns["offload"]] in (ACTIVATIONS, BOTH)

    # Passes

    def forward(self, begins: Tensors) -> Tensors:
        """Add the forward of all layers of the chunk; return what the last one makes."""
        positions = self.plan.layers_of(self.key.chunk)
        carried = begins
        stores: list[int | None] = [None]  # of the layers so far
        for index, position in enumerate(positions):
            nodes = self.plan.nodes(position)
            names = self._outside(nodes, carried)
            if index + 1 < len(positions) and divides(self.zero_stage, "weight"):
                self.gather(positions[index + 1], FORWARD)
            begin = self.found.ahead = len(self.found.nodes)
            self._run(position, nodes, nodes.forward, names)
            self._wait_for_store(begin, stores[:-1])
            stores.append(self._store(position, nodes, names) if self._is_offloaded(position) else None)
            carried = self._results(position)
        launches = [number for number, node in enumerate(self.found.nodes) if node.type == COMP]
        self._wait_for_store(launches[-1] if launches else 0, stores[:-1])
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
            taken = inputs if position == positions[-1] else self._results(position - 1)
            names = self._outside(nodes, taken)
            if not self.plan.alone:
                names[nodes.output_gradient] = [] if position == last else carried
            if index + 1 < len(positions) and self.key.kind != "weights":
                self.gather(positions[index + 1], BACKWARD)
                self._load(positions[index + 1])
            self.found.ahead = len(self.found.nodes)
            self._run(position, nodes, [node for node in nodes.backward if self._in_part(node)], names)
            if nodes.gradients_in in PURPOSES[self.key.kind]:
                self.reduce(position, nodes)
            carried = [
                tensor
                for name in nodes.input_gradients
                for tensor in names.get(name, [(self.own(position, name), nodes.boundary_bytes)])
            ]
        self._wait_for_gradient(begins)
        return carried

    def _wait_for_gradient(self, begins: Tensors) -> None:
        """Let the first computation wait for the gradient that the pass begins with, and the first load.

        Recomputation and transfers are issued with the backward of their layer, not before.
        """
        needed = [NodeReference(self.sources[name], name) for name, _ in begins if name in self.sources]
        for kind in (COMP, MEM_LOAD):
            first = next((node for node in self.found.nodes if node.type == kind), None)
            if first is not None:
                first.data_deps = [*dict.fromkeys([*first.data_deps, *needed])]

    def _outside(self, nodes: LayerNodes, taken: Tensors) -> dict[str, Tensors]:
        """Return what the inputs of a layer stand for; data from outside of the model are no tensors."""
        return {} if self.plan.alone else {name: [] if name in nodes.data else taken for name in nodes.inputs}

    def _in_part(self, node: LayerNode) -> bool:
        if self.key.kind == "backward":
            return True
        return (node.part == "weights") == (self.key.kind == "weights")

    def _results(self, position: int) -> Tensors:
        return [(self.own(position, result.name), result.bytes) for result in self.plan.nodes(position).outputs]

    # Layers

    def _run(
        self,
        position: int,
        nodes: LayerNodes,
        each: Sequence[LayerNode],
        names: Mapping[str, Tensors],
    ) -> None:
        """Add some nodes of a layer; `names` has the tensors that stand for what comes from outside of it."""
        gathered = self.gathered(position, nodes)
        pending: dict[tuple[int, int], list[int]] = {}  # collectives that still lack a launch beside them, by kernel
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
                self._accumulate(position, node, number)
                for collective in pending.pop(kernel, ()):
                    self._belongs(collective, number)
                launched[kernel] = number
                continue
            if node.move is not None and node.move.beside is not None and node.move.panels == 1:
                kernel = (node.move.beside, node.direction)
            for number in self._move(position, node, inputs, outputs):
                if self._beside(node):
                    continue
                if kernel in launched:
                    self._belongs(number, launched[kernel])
                else:
                    pending.setdefault(kernel, []).append(number)
        for number in (number for numbers in pending.values() for number in numbers):
            self.found.nodes[number].overlap = None  # the kernel beside it has no launch in this pass

    def _belongs(self, collective: int, launch: int) -> None:
        """Note that a collective runs beside a launch, with which it may overlap."""
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
        gradients = {
            name: ranks for ranks, weights in nodes.groups.items() for weight in weights for name in weight.gradients
        }
        inputs = [tensor for read in node.reads for tensor in self._read(position, read, names, gathered)]
        outputs: Tensors = []
        for write in node.writes:
            if write.name not in gradients:
                outputs.append((self.own(position, write.name), write.bytes))
                continue
            ranks = gradients[write.name]
            outputs.append((self.gradient(position, write.name, ranks), write.bytes))
            if not self.scatters(ranks):
                purpose = "weights" if node.part == "weights" else "inputs"
                inputs.append(self.previous_version(position, write.name, write.bytes, purpose))
        return [*dict.fromkeys(inputs)], outputs

    def _beside(self, node: LayerNode) -> bool:
        """Return whether a collective hides behind the other pass of a pair."""
        overlap = self.plan.schedule.overlap
        return bool(self.key.paired and overlap and node.move and node.move.axis in overlap.axes)

    def _read(self, position: int, read: NodeTensor, names: Mapping[str, Tensors], gathered: Tensors) -> Tensors:
        if self.source(back := self.own(position, read.name + LOADED)):
            return [(back, read.bytes)]
        if read.name in names:
            return names[read.name]
        if read.weight:
            name = self.stored(position, read.name)
            fresh = name + GATHERED_VERSION
            return gathered or [(fresh if fresh in self.sources else name, read.bytes)]
        return [(self.own(position, read.name), read.bytes)]

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

    def _accumulate(self, position: int, node: LayerNode, launch: int) -> None:
        """Add the traffic with which a launch adds gradients of weights to their sum, as a node after it.

        It is no launch of its own, but no compute of the multiply hides it.
        """
        if not node.accumulated:
            return
        multiply = self.found.nodes[launch]
        work = Compute(0, 0, node.accumulated, 0, 0, ())
        name = self.own(position, f"{node.name} {ACCUMULATION}")
        made, multiply.outputs = multiply.outputs, []
        buffers = {buffer_of(tensor) for tensor, _ in made}
        sums = [tensor for tensor in multiply.inputs if buffer_of(tensor[0]) in buffers]
        multiply.inputs = [tensor for tensor in multiply.inputs if tensor not in sums]
        after = TraceNode(COMP, name, sums, made, compute=work, kernel_text=multiply.kernel_text, op_type=ACCUMULATION)
        after.data_deps = [NodeReference(OWN, launch)]
        self.add(after)

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
            name = self.own(position, node.name.replace(move.kind, kind)) + (f" {panel + 1}" if count > 1 else "")
            communication = NodeCommunication(
                size, kind, move.axis, ("axis", move.axis), panels=count, routing=move.routing
            )
            overlap = 1.0 if self._beside(node) else move.overlap or None
            found.append(
                self.add(
                    TraceNode(COMM_COLL, name, list(inputs), list(made), communication=communication, overlap=overlap)
                )
            )
        return found

    # Offload

    def _is_offloaded(self, position: int) -> bool:
        if not self.offloads or not self.plan.is_body(position) or self.plan.forward_only:
            return False
        # The last body layer of a chunk stays: its backward comes first.
        return any(self.plan.is_body(later) for later in self.plan.layers_of(self.key.chunk) if later > position)

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

    def _wait_for_store(self, number: int, stores: Sequence[int | None]) -> None:
        """Let a node wait until the last of some layers is stored: a layer ends when the one before it is stored.

        So the activations of two layers are on the GPU: those that are written, and those in transfer.
        """
        if (store := stores[-1] if stores else None) is not None and number < len(self.found.nodes):
            self.found.nodes[number].data_deps.append(NodeReference(OWN, store))

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
