"""The nodes of weights: what ZeRO gathers and reduces, and the reductions and updates at the end of a step.

Where ZeRO divides gradients, a microbatch's own gradients live until they are scattered, and the shard is the buffer
that all microbatches add to. Weights that it divides are gathered a layer ahead. Those of the first layer of a pass are
gathered by the item before it in the program of the stage (`dsx.traces.stage_items`), and so are all weights that are
gathered once a step.

At the end of a step stand the reductions that accompany no pass, and the update of the optimizer, layer by layer. The
gradients of weights that tensor parallel ranks hold alike are all-reduced there (`dsx.notation.model`), and that of a
tied weight between the first and the last stage. An optimizer on the host gets the gradients and sends back the
weights. Before an update of Muon the momentum of matrices is gathered, and its Newton-Schulz steps run, those of a
rank's share of the matrices of a weight as one launch; `dsx.cost.muon` prices the same.
"""

from collections.abc import Iterable, Sequence

from dsx.config.assumption_set import MUON
from dsx.cost.layer import WeightGroup, is_data_axis
from dsx.cost.muon import STEP_SHAPE, newton_schulz_flops, step_elements, step_multiplies
from dsx.cost.offload import BOTH, OPTIMIZER
from dsx.notation.graph import BACKWARD
from dsx.notation.model import MICROBATCH, OF_REPLICAS, OF_REPLICATED, OF_TIED, StepCollective, accompanying, divides
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE
from dsx.notation.syntax import AXES
from dsx.notation.work import Matrix
from dsx.plans.choices import CODES
from dsx.traces.codec import MEM_LOAD, MEM_STORE
from dsx.traces.columns import NUMBERS_OF_MULTIPLY, bits_of
from dsx.traces.layer_nodes import Compute, LayerNodes, LayerWeight
from dsx.traces.traced_plan import SHARED_SHARD, NodeBuilder, NodeCommunication, Tensors, TraceNode

GATHERED, GATHERED_AGAIN = "weights", "weights'"
UNREDUCED = "unreduced"  # before the name of a gradient of one microbatch that is scattered
GATHERED_VERSION = "#gathered"  # of a weight that the first forward of a step gathers

Weights = Sequence[LayerWeight]


class ZeroBuilder(NodeBuilder):
    """Builds the nodes of one pass; this part of it those of ZeRO."""

    def scatters(self, ranks: WeightGroup) -> bool:
        """Return whether ZeRO scatters the gradients of a group with every microbatch."""
        return divides(self.zero_stage, "gradient") and self.plan.shard_size(ranks) > 1

    def gradient(self, position: int, name: str, ranks: WeightGroup) -> str:
        """Return the name of the gradient of a group's weight: a version of the buffer, or the microbatch's own."""
        scattered = self.scatters(ranks)
        return self.own(position, f"{UNREDUCED} {name}") if scattered else self.version(position, name)

    def reduced(self, position: int, number: int, ranks: WeightGroup, grads: Tensors) -> str:
        """Return the name of the reduced gradients of a group, as the last microbatch leaves them."""
        return self.version(position, f"gradients {number}") if self.scatters(ranks) else grads[0][0] + "r"

    def weights(self, position: int, number: int, ranks: WeightGroup, weights: Weights) -> Tensors:
        """Return the weights of a group as a rank stores them: each, or their shard."""
        if not divides(self.zero_stage, "weight"):
            return [(self.plan.stored(position, weight.name), weight.bytes) for weight in weights]
        held, members = self.plan.held(position, weights), self.plan.shard_size(ranks)
        shards = [(f"L{position:03d}.shard {number}", sum(weight.bytes for weight in held) // members)] if held else []
        if (shared := self.plan.shared) is not None and len(held) < len(weights):
            shards.append((f"L000.shard {shared.number}", shared.group_bytes // members))
        return shards

    def gathered(self, position: int, nodes: LayerNodes) -> Tensors:
        """Return what all weights of a layer are read from, if ZeRO divides them."""
        if not divides(self.zero_stage, "weight"):
            return []
        text = GATHERED_AGAIN if self.key.kind in ("backward", "inputs") else GATHERED
        tensors: Tensors = []
        for number, (ranks, weights) in enumerate(nodes.groups.items()):
            if self.plan.shard_size(ranks) == 1:
                tensors += self.weights(position, number, ranks, weights)
            elif weights:
                tensors.append((self.own(position, f"{text} {number}"), sum(weight.bytes for weight in weights)))
        return tensors

    def gather(self, position: int, direction: int) -> None:
        """Add the gathers of a layer's weights that its pass needs; a layer may have no backward."""
        if direction == BACKWARD and not self.plan.nodes(position).backward:
            return
        for step in accompanying(self.zero_stage, direction):
            if step.kind != ALL_GATHER or (step.every == "step" and "forward" not in self.key.first):
                continue
            for number, (ranks, weights) in enumerate(self.plan.nodes(position).groups.items()):
                gathered = self.plan.held(position, weights) if step.every == "step" else weights
                members, size = self.plan.shard_size(ranks), sum(weight.bytes for weight in gathered)
                if not size or members == 1 or (ranks.frozen and step.every == "step"):
                    continue
                inputs = self.weights(position, number, ranks, gathered)
                outputs = [(name + GATHERED_VERSION, stored) for name, stored in inputs]
                if divides(self.zero_stage, "weight"):
                    text = GATHERED_AGAIN if direction == BACKWARD else GATHERED
                    outputs = [(self.own(position, f"{text} {number}"), size)]
                sent = NodeCommunication(size // members, step.kind, "dp", ("shards", ranks))
                name = self.own(position, f"{step.kind} weights {number}")
                self.collective(name, inputs, outputs, sent, self._overlap(step))

    def _overlap(self, step: StepCollective) -> float:
        """Return the overlap of a collective of data parallel ranks; what every microbatch repeats is issued ahead."""
        assumptions = self.plan.assumptions
        return assumptions.fsdp_overlap if step.every == MICROBATCH else assumptions.dp_overlap

    def reduce(self, position: int, nodes: LayerNodes) -> None:
        """Add what reduces the gradients of a layer's weights."""
        for number, (ranks, weights) in enumerate(nodes.groups.items()):
            held, members = self.plan.held(position, weights), self.plan.shard_size(ranks)
            grads, size = self._gradients_of(position, ranks, held)
            for step in accompanying(self.zero_stage, BACKWARD):
                if step.of != "gradients" or members == 1 or (step.every == "step" and not self.key.last):
                    continue
                inputs, of_step = self._gradients_of(position, ranks, held if step.every == "step" else weights)
                if not of_step:
                    continue
                outputs = [(self.reduced(position, number, ranks, inputs), inputs[0][1])]
                if self.scatters(ranks):
                    shards = [(f"gradients {number}", size // members)] if size else []
                    if size < of_step and self.plan.shared is not None:
                        shards.append((SHARED_SHARD, self._shared_gradient_bytes(ranks)))
                    outputs = [(self.version(position, name), of_shard) for name, of_shard in shards]
                    inputs += [self.previous_version(position, *shard, nodes.gradients_in) for shard in shards]
                sent = NodeCommunication(of_step, step.kind, "dp", ("shards", ranks))
                name = self.own(position, f"{step.kind} gradients {number}")
                self.collective(name, inputs, outputs, sent, self._overlap(step))
            if size and self.plan.replicas(ranks) > 1 and self.key.last:
                name = self.reduced(position, number, ranks, grads)
                of_rank = size // members if self.scatters(ranks) else grads[0][1]
                text = self.own(position, f"{ALL_REDUCE} gradients {number} among replicas")
                sent = NodeCommunication(size // members, OF_REPLICAS.kind, "dp", ("replicas", ranks))
                self.collective(text, [(name, of_rank)], [(name + "r", of_rank)], sent, self._overlap(OF_REPLICAS))

    def _gradients_of(self, position: int, ranks: WeightGroup, weights: Weights) -> tuple[Tensors, int]:
        """Return the gradients of some weights of a group as a pass leaves them, and their bytes; none for none."""
        grads = [
            (self.gradient(position, name, ranks), weight.gradient_bytes)
            for weight in weights
            for name in weight.gradients
        ]
        return grads, sum(weight.gradient_bytes for weight in weights) if grads else 0

    def _shared_gradient_bytes(self, ranks: WeightGroup) -> int:
        """Return the bytes of the shard of the gradient of a weight that the first and the last layer share."""
        group_bytes = 0 if self.plan.shared is None else self.plan.shared.group_bytes
        parameters = group_bytes // self.plan.assumptions.weight_bytes
        return parameters * self.plan.assumptions.gradient_bytes // self.plan.shard_size(ranks)


class EndBuilder(ZeroBuilder):
    """Builds the nodes after the last pass; its microbatch is that of the last pass."""

    def end(self, positions: Sequence[int]) -> None:
        """Add the nodes for the layers of a stage, the last one first; those of a layer by itself have no update."""
        self.reduced_at_end: dict[int, Tensors] = {}  # by layer
        for position in positions if self.plan.assumptions.charge_replicated_gradients else ():
            nodes = self.plan.nodes(position)
            for axis in (axis for axis in AXES if int(self.plan.columns[axis]) > 1):
                trained = (weight for weight in nodes.weights if not (weight.over_ep or weight.frozen))
                over_axis = (weight for weight in trained if axis in weight.reduced_over)
                if weights := [weight for weight in over_axis if not is_data_axis(axis)]:
                    size = sum(weight.gradient_bytes for weight in weights)
                    inputs = self._gradients(position, nodes, weights)
                    sent = NodeCommunication(size, OF_REPLICATED.kind, axis, ("axis", axis))
                    self._reduce_held(position, f"gradients {axis}", inputs, axis, sent)
        last = self.plan.chain.num_layers - 1
        head = self.plan.nodes(last)
        tied = [weight for weight in head.weights if weight.tied and not weight.frozen]
        for position in positions if self.plan.ties_ends and tied else ():
            if position not in (0, last):
                continue
            nodes = self.plan.nodes(position)
            # The first stage has the weight as the largest one of its first layer.
            weights = tied if position == last else [max(nodes.weights, key=lambda weight: weight.bytes)]
            size = sum(weight.gradient_bytes for weight in tied)
            if divides(self.zero_stage, "gradient"):
                ranks = next(ranks for ranks, of_group in head.groups.items() if tied[0] in of_group)
                size //= self.plan.shard_size(ranks)
            sent = NodeCommunication(size, OF_TIED.kind, "pp", ("ends",))
            self._reduce_held(position, "tied gradient", self._gradients(position, nodes, weights), "t", sent)
        for position in () if self.plan.alone else positions:
            self._update(position, self.plan.nodes(position))

    def _reduce_held(self, position: int, text: str, inputs: Tensors, mark: str, sent: NodeCommunication) -> None:
        """Add an all-reduce of gradients that ranks hold alike, which the update waits for."""
        outputs = [(f"{inputs[0][0]}{mark}", inputs[0][1])] if inputs else []
        self.collective(f"L{position:03d}.{sent.kind} {text}", inputs, outputs, sent)
        self.reduced_at_end.setdefault(position, []).extend(outputs)

    def _gradients(self, position: int, nodes: LayerNodes, weights: Iterable[LayerWeight]) -> Tensors:
        """Return the gradients of some weights as the passes leave them, each tensor once."""
        names, sizes = {weight.name for weight in weights}, dict[str, int]()
        for number, (ranks, of_group) in enumerate(nodes.groups.items()):
            held = self.plan.held(position, of_group)
            chosen = [weight for weight in held if weight.name in names and weight.gradients]
            grads, num_bytes = self._gradients_of(position, ranks, held)
            if not chosen or not grads:
                continue
            reduced, scattered = self.reduced(position, number, ranks, grads), self.scatters(ranks)
            size = num_bytes // self.plan.shard_size(ranks) if scattered else grads[0][1]
            if scattered:
                sizes[reduced] = size
            else:
                sizes |= {self.version(position, weight.gradients[0]): weight.gradient_bytes for weight in chosen}
            sizes |= {later: size for later in (reduced, reduced + "r") if later in self.sources}
        return list(sizes.items())

    def _of_last_layer(self) -> Tensors:
        """Return the gradient of a shared weight as the last layer leaves it, where that is in a chunk of its own."""
        if (shared := self.plan.shared) is None or shared.apart is None:
            return []
        last, name = shared.apart
        ranks = list(self.plan.nodes(0).groups)[shared.number]
        if not self.scatters(ranks):
            return [(self.version(last, name), shared.weight.gradient_bytes)]
        return [(self.version(last, SHARED_SHARD), self._shared_gradient_bytes(ranks))]

    def _divisor(self, ranks: WeightGroup) -> int:
        """Return the ranks among which the weights of a group are divided for the update."""
        return self.plan.shard_size(ranks) if divides(self.zero_stage, "optimizer") else 1

    def _update(self, position: int, nodes: LayerNodes) -> None:
        """Add the update of a layer's weights, which reads and writes the state of the optimizer."""
        assumed = self.plan.assumptions
        on_host = CODES["offload"][self.plan.columns["offload"]] in (OPTIMIZER, BOTH)
        inputs = self._gradients(position, nodes, nodes.weights)
        inputs += [*self.reduced_at_end.get(position, []), *(self._of_last_layer() if position == 0 else ())]
        stored: Tensors = []
        parameters = matrix_bytes = 0
        for number, (ranks, of_group) in enumerate(nodes.groups.items()):
            if ranks.frozen:
                continue
            weights = self.plan.held(position, of_group)
            stored += self.weights(position, number, ranks, weights) if weights else []
            parameters += sum(weight.bytes for weight in weights) // self._divisor(ranks) // assumed.weight_bytes
            matrix_bytes += sum(weight.bytes for weight in of_group if weight.matrix) // self._divisor(ranks)
        if not parameters:
            return
        inputs += stored
        outputs: Tensors = [(f"{name}#1", size) for name, size in stored]
        name, state = f"L{position:03d}.optimizer", f"L{position:03d}.optimizer state"
        matrices = matrix_bytes // int(assumed.weight_bytes) if assumed.optimizer == MUON else 0
        vectors = parameters - matrices
        size = int(vectors * assumed.optimizer_bytes_per_parameter + matrices * assumed.muon_bytes_per_parameter)
        traffic = int(vectors * assumed.optimizer_traffic_per_parameter + matrices * assumed.muon_traffic_per_parameter)
        work = Compute(bytes=max(traffic, 1), op_type="optimizer")
        if matrices:
            momentum = int(matrices * assumed.muon_bytes)
            if on_host:
                loaded: Tensors = [(f"{name} momentum", momentum)]
                self.add(TraceNode(MEM_LOAD, loaded[0][0], inputs, loaded, transfer_bytes=momentum))
                inputs = [*inputs, *loaded]
            inputs = self._orthogonalised(name, nodes, inputs)
            if on_host:
                orthogonal = [(f"{name} orthogonal@host", momentum)]
                self.add(TraceNode(MEM_STORE, f"{name} orthogonal", inputs, orthogonal, transfer_bytes=momentum))
        if not on_host:
            self.compute(name, [*inputs, (state, size)], [*outputs, (f"{state}#1", size)], work)
            return
        gradients, weights = (parameters * of for of in (assumed.gradient_bytes, assumed.weight_bytes))
        sent, updated = [(f"{name} gradients@host", gradients)], [(f"{name} weights@host", weights)]
        self.add(TraceNode(MEM_STORE, f"{name} gradients", inputs, sent, transfer_bytes=gradients))
        self.compute(name, sent, updated, work, on_host=True)
        self.add(TraceNode(MEM_LOAD, f"{name} weights", [*updated, *stored], outputs, transfer_bytes=weights))

    def _orthogonalised(self, name: str, nodes: LayerNodes, inputs: Tensors) -> Tensors:
        """Add the nodes before a layer's update, each of which waits for the one before; return what they leave."""
        assumptions = self.plan.assumptions
        begin, momentum = len(self.built.nodes), inputs
        for number, (ranks, weights) in enumerate(nodes.groups.items()):
            matrices = {weight.name: weight.matrix for weight in weights if weight.matrix}
            parameters = sum(weight.bytes for weight in weights if weight.matrix) // int(assumptions.weight_bytes)
            members = self._divisor(ranks)
            if matrices and members > 1:
                size = int(parameters * assumptions.muon_bytes)
                sent = NodeCommunication(size // members, ALL_GATHER, "dp", ("shards", ranks))
                gathered = [(f"{name} momentum {number}", size)]
                self.collective(f"{name} {ALL_GATHER} momentum {number}", momentum, gathered, sent)
                momentum = gathered
            for weight, matrix in matrices.items():
                momentum = self._newton_schulz(f"{name} {weight}", matrix, self._share(ranks), momentum)
        return [*inputs, *(tensor for node in self.built.nodes[begin:] for tensor in node.outputs)]

    def _newton_schulz(self, name: str, matrix: Matrix[int], share: float, momentum: Tensors) -> Tensors:
        assumptions = self.plan.assumptions
        small, large = sorted((matrix.rows, matrix.columns))
        count = matrix.count * share
        volume = count * small * large * assumptions.muon_tp_bytes
        for axis in matrix.axes:
            members = int(self.plan.columns[axis])
            if members > 1:
                gathered = [(f"{name} momentum {axis}", int(volume))]
                sent = NodeCommunication(int(volume) // members, ALL_GATHER, axis, ("axis", axis))
                self.collective(f"{name} {ALL_GATHER} {axis}", momentum, gathered, sent)
                momentum, volume = gathered, volume / members
        steps = assumptions.muon_steps * count
        multiplies: list[int] = []
        for rows, columns, contracted in step_multiplies(small, large):
            flops = int(2 * steps * rows * columns * contracted)
            multiplies += [rows, columns, contracted, 1, flops, bits_of(STEP_SHAPE)]
        traffic = int(steps * assumptions.muon_bytes * step_elements(small, large))
        flops = int(count * newton_schulz_flops(small, large, assumptions.muon_steps))
        launches = max(round(steps * len(multiplies) / NUMBERS_OF_MULTIPLY), 1)
        outputs = [(f"{name} orthogonal", int(count * small * large * assumptions.muon_bytes))]
        work = Compute(flops, 0, traffic, 0, launches, tuple(multiplies), "optimizer")
        self.compute(f"{name} newton-schulz", momentum, outputs, work)
        return outputs

    def _share(self, ranks: WeightGroup) -> float:
        """Return the share of the matrices of a group that a rank orthogonalises."""
        members = self._divisor(ranks)
        if members == 1:
            return 1.0
        total, largest = 0.0, 1.0
        for position in range(len(self.plan.layers)):
            for weight in self.plan.nodes(position).weights:
                if weight.matrix:
                    small, large = sorted((weight.matrix.rows, weight.matrix.columns))
                    flops = newton_schulz_flops(small, large, self.plan.assumptions.muon_steps)
                    total, largest = total + weight.matrix.count * flops, max(largest, flops)
        num_matrices = max(total / int(self.plan.columns["pp"]) / largest, 1.0)
        return max(1.0 / members, 1.0 / num_matrices)
