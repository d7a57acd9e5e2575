"""The nodes of a pass: one microbatch through one chunk of layers, with what ZeRO, recomputation and offload add.

In ring attention blocks are sent on from rank to rank, beside the parts of the kernel that works on them. With n ranks
a kernel has n parts. Part i works on the block of the rank that is i places before, which arrives while part i - 1
runs. The gradients of a block travel on likewise: what part i - 1 adds to them leaves while part i runs (arXiv
2310.01889, section 3). A rank reuses a buffer once it is sent, so it waits for its own send too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dsx.cost.offload import ACTIVATIONS, BOTH
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import divides
from dsx.notation.sharded_layer import ALL_GATHER, REDUCE_SCATTER
from dsx.plans.choices import CODES
from dsx.traces.codec import ACCUMULATION, COMM_RECV, COMM_SEND, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.columns import NUMBERS_OF_MULTIPLY
from dsx.traces.layer_nodes import Compute, LayerNode, LayerNodes, Move, NodeTensor
from dsx.traces.traced_plan import OWN, PURPOSES, NodeCommunication, NodeReference, Tensors, TraceNode, buffer_of
from dsx.traces.weight_nodes import GATHERED_VERSION, ZeroBuilder

LOADED = "^"  # after the name of a tensor that is back from the host
_FLOPS = 4  # place of the FLOPs among the numbers of a multiply


class _Layer(NamedTuple):
    """A layer in a pass."""

    position: int
    nodes: LayerNodes
    outside: Mapping[str, Tensors]  # the tensors that stand for what comes from outside of it
    gathered: Tensors  # what all its weights are read from, if ZeRO divides them


class _Ring(NamedTuple):
    """A collective whose blocks travel around a ring beside a launch: a gather for it, or a scatter of its results."""

    name: str
    move: Move
    inputs: Tensors
    outputs: Tensors


class PassBuilder(ZeroBuilder):
    """Builds the nodes of one pass: layer by layer, with what ZeRO and offload add."""

    def forward(self, begins: Tensors) -> None:
        """Add the forward of all layers of the chunk, which reads `begins`."""
        positions, tensors = self.plan.layers_of(self.key.chunk), begins
        stores: list[int | None] = [None]  # of the layers so far
        for index, position in enumerate(positions):
            layer = self._layer(position, self._outside(position, tensors))
            if index + 1 < len(positions) and divides(self.zero_stage, "weight"):
                self.gather(positions[index + 1], FORWARD)
            begin = self.built.ahead = len(self.built.nodes)
            self._run(layer, layer.nodes.forward)
            self._wait_for_store(begin, stores[:-1])
            stores.append(self._store(layer) if self._is_offloaded(position) else None)
            tensors = self._results(position)
        launches = [number for number, node in enumerate(self.built.nodes) if node.type == COMP]
        self._wait_for_store(launches[-1] if launches else 0, stores[:-1])

    def backward(self, begins: Tensors, inputs: Tensors) -> None:
        """Add the backward of all layers, or the part of it that the pass is.

        `begins` are the gradients of the chunk's result; `inputs` what the chunk read in its forward.
        """
        positions, gradients = self.plan.layers_of(self.key.chunk)[::-1], begins
        last = self.plan.chain.num_layers - 1
        for index, position in enumerate(positions):
            nodes = self.plan.nodes(position)
            outside = self._outside(position, inputs if position == positions[-1] else self._results(position - 1))
            if not self.plan.alone:
                outside[nodes.output_gradient] = [] if position == last else gradients
            if index + 1 < len(positions) and self.key.kind != "weights":
                self.gather(positions[index + 1], BACKWARD)
                self._load(positions[index + 1])
            self.built.ahead = len(self.built.nodes)
            part = [
                node
                for node in nodes.backward
                if self.key.kind == "backward" or (node.part == "weights") == (self.key.kind == "weights")
            ]
            self._run(self._layer(position, outside), part)
            if nodes.gradients_in in PURPOSES[self.key.kind]:
                self.reduce(position, nodes)
            gradients = [
                tensor
                for name in nodes.input_gradients
                for tensor in outside.get(name, [(self.own(position, name), nodes.boundary_bytes)])
            ]
        # Recomputation and transfers are issued with the backward of their layer, so the first computation and the
        # first load wait for the gradient that the pass begins with.
        waits = [NodeReference(self.sources[name], name) for name, _ in begins if name in self.sources]
        for kind in (COMP, MEM_LOAD):
            first = next((node for node in self.built.nodes if node.type == kind), None)
            if first is not None:
                first.data_deps = [*dict.fromkeys([*first.data_deps, *waits])]

    def _layer(self, position: int, outside: Mapping[str, Tensors]) -> _Layer:
        nodes = self.plan.nodes(position)
        return _Layer(position, nodes, outside, self.gathered(position, nodes))

    def _outside(self, position: int, tensors: Tensors) -> dict[str, Tensors]:
        """Return what the inputs of a layer stand for; data from outside of the model are no tensors."""
        nodes = self.plan.nodes(position)
        return {} if self.plan.alone else {name: [] if name in nodes.data else tensors for name in nodes.inputs}

    def _results(self, position: int) -> Tensors:
        return [(self.own(position, result.name), result.bytes) for result in self.plan.nodes(position).outputs]

    def _run(self, layer: _Layer, nodes: Sequence[LayerNode]) -> None:
        """Add some nodes of a layer."""
        pending: dict[tuple[int, int], list[int]] = {}  # collectives that still lack a launch beside them, by kernel
        launched: dict[tuple[int, int], int] = {}
        around: dict[tuple[int, int], list[LayerNode]] = {}  # collectives that are rings, by the kernel between them
        for node in nodes:
            if node.move is not None and node.move.ring:
                around.setdefault((node.kernel, node.direction), []).append(node)
        for node in nodes:
            kernel = (node.kernel, node.direction)
            if node.move is None:
                number = self._launch(layer, node, around.pop(kernel, ()))
                for collective in pending.pop(kernel, ()):
                    self._belongs(collective, number)
                launched[kernel] = number
            elif not node.move.ring:  # the launch sends the blocks of a ring
                if node.move.beside is not None and node.move.panels == 1:
                    kernel = (node.move.beside, node.direction)
                hidden = self._hides(node.move)
                for number in self._move(layer, node, node.move):
                    if hidden:
                        continue
                    if kernel in launched:
                        self._belongs(number, launched[kernel])
                    else:
                        pending.setdefault(kernel, []).append(number)
        for number in (number for numbers in pending.values() for number in numbers):
            self.built.nodes[number].overlap = None  # the kernel beside it has no launch in this pass

    def _belongs(self, collective: int, launch: int) -> None:
        """Note that a collective runs beside a launch, with which it may overlap."""
        moved, launched = self.built.nodes[collective], self.built.nodes[launch]
        moved.partner = launch if moved.overlap else None
        if moved.communication is not None:
            launched.panels = max(launched.panels, moved.communication.panels)

    def _hides(self, move: Move) -> bool:
        """Return whether a collective hides behind the other pass of a pair."""
        overlap = self.plan.schedule.overlap
        return bool(self.key.paired and overlap and move.axis in overlap.axes)

    def _tensors(self, layer: _Layer, node: LayerNode) -> tuple[Tensors, Tensors]:
        """Return what a node reads and writes, by the names of the trace."""
        inputs = [tensor for read in node.reads for tensor in self._read(layer, read)]
        outputs: Tensors = []
        for write in node.writes:
            ranks = layer.nodes.gradients.get(write.name)
            if ranks is None:
                outputs.append((self.own(layer.position, write.name), write.bytes))
                continue
            outputs.append((self.gradient(layer.position, write.name, ranks), write.bytes))
            if not self.scatters(ranks):
                purpose = "weights" if node.part == "weights" else "inputs"
                inputs.append(self.previous_version(layer.position, write.name, write.bytes, purpose))
        return [*dict.fromkeys(inputs)], outputs

    def _read(self, layer: _Layer, read: NodeTensor) -> Tensors:
        loaded = self.own(layer.position, read.name + LOADED)
        if self.source(loaded):
            return [(loaded, read.bytes)]
        if read.name in layer.outside:
            return layer.outside[read.name]
        if not read.weight:
            return [(self.own(layer.position, read.name), read.bytes)]
        name = self.plan.stored(layer.position, read.name)
        fresh = name + GATHERED_VERSION
        return layer.gathered or [(fresh if fresh in self.sources else name, read.bytes)]

    def _launch(self, layer: _Layer, node: LayerNode, around: Sequence[LayerNode]) -> int:
        """Add a launch, with the rings around it, and return its number."""
        inputs, outputs = self._tensors(layer, node)
        rings = [_Ring(ring.name, ring.move, *self._tensors(layer, ring)) for ring in around if ring.move]
        if rings:
            number = self._ring(layer.position, node, inputs, outputs, rings)
        else:
            number = self.compute(self.own(layer.position, node.name), inputs, outputs, node.compute or Compute())
        if node.accumulated:
            # The traffic that adds gradients of weights to their sum is a node after the launch: it is no launch of its
            # own, but no compute of the multiply hides it.
            multiply = self.built.nodes[number]
            outputs, multiply.outputs = multiply.outputs, []
            buffers = {buffer_of(tensor) for tensor, _ in outputs}
            sums = [tensor for tensor in multiply.inputs if buffer_of(tensor[0]) in buffers]
            multiply.inputs = [tensor for tensor in multiply.inputs if tensor not in sums]
            text = multiply.compute.kernel_text if multiply.compute else ""
            work = Compute(bytes=node.accumulated, op_type=ACCUMULATION, kernel_text=text)
            name = self.own(layer.position, f"{node.name} {ACCUMULATION}")
            self.compute(name, sums, outputs, work, [NodeReference(OWN, number)])
        return number

    def _move(self, layer: _Layer, node: LayerNode, move: Move) -> list[int]:
        """Add a collective, in as many nodes as it has panels; return their numbers."""
        inputs, outputs = self._tensors(layer, node)
        kind, count = move.kind, move.panels
        if self.plan.portable and count > 1:
            kind, count = {"broadcast": ALL_GATHER, "reduce": REDUCE_SCATTER}[kind], 1
        size, group = replace(move, kind=kind).size(int(self.plan.columns[move.axis])) // count, ("axis", move.axis)
        sent = NodeCommunication(size, kind, move.axis, group, panels=count, routing=move.routing)
        overlap = 1.0 if self._hides(move) else move.overlap or None
        name = self.own(layer.position, node.name.replace(move.kind, kind))
        names = [f"{name} {panel + 1}" for panel in range(count)] if count > 1 else [name]
        return [self.collective(text, inputs, outputs if text == names[-1] else [], sent, overlap) for text in names]

    def _ring(self, position: int, node: LayerNode, inputs: Tensors, outputs: Tensors, rings: Sequence[_Ring]) -> int:
        """Add a launch in parts with the sends and receives of its blocks; return the number of the last part.

        A part waits for all that was passed on beside the part before.
        """
        size = int(self.plan.columns[rings[0].move.axis])
        gathers = [ring for ring in rings if ring.move.kind == ALL_GATHER]
        scatters = [ring for ring in rings if ring.move.kind != ALL_GATHER]
        gathered = {name for ring in gathers for name, _ in ring.outputs}
        partial = {name for ring in scatters for name, _ in ring.inputs}
        base = [tensor for tensor in inputs if tensor[0] not in gathered]
        blocks = {ring.name: ring.inputs for ring in gathers}
        sums: dict[str, Tensors] = {ring.name: [] for ring in scatters}
        beside: list[NodeReference] = []  # what a part runs beside
        number = -1

        def sum_of(ring: _Ring, part: int) -> tuple[str, int]:
            return f"{ring.outputs[0][0]} part {part}", ring.move.volume // size

        for part in range(size):
            last, deps = part == size - 1, beside
            beside, arriving = [], {}
            for ring in scatters if part else ():
                block = [sum_of(ring, part - 1), *sums[ring.name]]
                sums[ring.name] = self._pass_on(ring, part - 1, block, beside)
            for ring in gathers if not last else ():
                arriving[ring.name] = self._pass_on(ring, part, blocks[ring.name], beside)
            written = [tensor for tensor in outputs if tensor[0] not in partial] if last else []
            read = [*dict.fromkeys([*base, *(tensor for block in blocks.values() for tensor in block)])]
            written += [sum_of(ring, part) for ring in scatters]
            name, work = self.own(position, f"{node.name} part {part}"), _part(node.compute, part, size)
            number = self.compute(name, read, written, work, deps)
            blocks |= arriving
        if scatters:
            # The kernel has added its last part to the sums, which arrived beside it.
            parts = [sum_of(ring, size - 1) for ring in scatters]
            parts += [tensor for ring in scatters for tensor in sums[ring.name]]
            written = [tensor for ring in scatters for tensor in ring.outputs]
            name = self.own(position, f"{node.name} sums")
            self.compute(name, parts, written, Compute(), beside)
        return number

    def _pass_on(self, ring: _Ring, part: int, block: Tensors, beside: list[NodeReference]) -> Tensors:
        """Add the send of a block to the next rank, and the receive of one from the rank before; return what arrives.

        Every other rank of the ring receives first, so that no rank waits for itself if one communication runs at a
        time. `beside` gets both nodes.
        """
        tensor, axis = ring.outputs[0][0], ring.move.axis
        num_bytes, tag = ring.move.volume // int(self.plan.columns[axis]), self.built.num_tags
        self.built.num_tags += 1  # the receive of the next rank has the same tag
        arrived = [(f"{tensor} block {part + 1}", num_bytes)]
        for sends in (False, True) if self.key.receives_first else (True, False):
            sent = NodeCommunication(num_bytes, peer=("ring", axis, 1 if sends else -1), tag=tag)
            if sends:
                node = TraceNode(COMM_SEND, f"{tensor} send {part + 1}", block, communication=sent, overlap=1.0)
            else:
                node = TraceNode(COMM_RECV, f"{tensor} receive {part + 1}", outputs=arrived, communication=sent)
            beside.append(NodeReference(OWN, self.add(node)))
        return arrived

    def _is_offloaded(self, position: int) -> bool:
        offload = CODES["offload"][self.plan.columns["offload"]]
        if offload not in (ACTIVATIONS, BOTH) or not self.plan.is_body(position) or self.plan.forward_only:
            return False
        # The last body layer of a chunk stays: its backward comes first.
        if not self.plan.nodes(position).saved:
            return False
        return any(self.plan.is_body(later) for later in self.plan.layers_of(self.key.chunk) if later > position)

    def _store(self, layer: _Layer) -> int:
        stash = [
            tensor
            for saved in layer.nodes.saved
            for tensor in layer.outside.get(saved.name, [(self.own(layer.position, saved.name), saved.bytes)])
        ]
        size = sum(size for _, size in stash)
        stored, name = [(self.own(layer.position, "stash@host"), size)], self.own(layer.position, "store")
        return self.add(TraceNode(MEM_STORE, name, stash, stored, transfer_bytes=max(size, 1), overlap=1.0))

    def _wait_for_store(self, number: int, stores: Sequence[int | None]) -> None:
        """Let a node wait until the last of some layers is stored: a layer ends when the one before it is stored.

        So the activations of two layers are on the GPU: those that are written, and those in transfer.
        """
        if (store := stores[-1] if stores else None) is not None and number < len(self.built.nodes):
            self.built.nodes[number].data_deps.append(NodeReference(OWN, store))

    def _load(self, position: int) -> None:
        saved = self.plan.nodes(position).saved
        size = sum(tensor.bytes for tensor in saved)
        if size and self._is_offloaded(position):
            loaded = [(self.own(position, tensor.name + LOADED), tensor.bytes) for tensor in saved]
            stored, name = [(self.own(position, "stash@host"), size)], self.own(position, "load")
            self.add(TraceNode(MEM_LOAD, name, stored, loaded, transfer_bytes=size, overlap=1.0))


def _part(work: Compute | None, part: int, size: int) -> Compute:
    """Return one of `size` parts of a launch; the last one has what a division leaves."""
    work, last = work or Compute(), part == size - 1

    def share(amount: int) -> int:
        return amount // size + (amount % size if last else 0)

    numbers = ("matrix_flops", "vector_flops", "bytes", "unfused_bytes")
    multiplies = tuple(
        share(number) if place % NUMBERS_OF_MULTIPLY == _FLOPS else number
        for place, number in enumerate(work.multiplies)
    )
    return replace(
        work,
        **{name: share(getattr(work, name)) for name in numbers},
        launches=work.launches if part == 0 else 0,
        multiplies=multiplies,
        kernel_text=f"{work.kernel_text}/part {2 if last else min(part, 1)}",
    )
