"""The nodes of weights: what ZeRO gathers and reduces, and the update at the end of a step.

What ZeRO adds to the passes of a layer: gathers of weights before they are used, reductions of their gradients.

Where ZeRO divides gradients, a microbatch's own gradients live until they are scattered, and the shard is the buffer
that all microbatches add to. Weights that it divides are gathered a layer ahead. Those of the first layer of a pass are
gathered by the item before it in the program of the stage (`dsx.traces.stage_items`), and so are all weights that are
gathered once a step.

The nodes before an update of Muon: gathers of the momentum of matrices, and their Newton-Schulz steps.

`dsx.cost.muon` prices the same. A rank has the steps of its share of the matrices of each weight as one launch.

The nodes at the end of a step: reductions that accompany no pass, and the update of the optimizer, layer by layer.

The gradients of weights that tensor parallel ranks hold alike are all-reduced among these (`dsx.notation.model`), and
that of a tied weight between the first and the last stage. An optimizer on the host gets the gradients and sends back
the weights."""

from collections.abc import Iterable, Iterator, Sequence

from dsx.config.assumption_set import MUON
from dsx.cost.layer import WeightGroup, is_data_axis
from dsx.cost.muon import STEP_SHAPE, newton_schulz_flops, step_elements, step_multiplies
from dsx.cost.offload import BOTH, OPTIMIZER
from dsx.notation.graph import BACKWARD
from dsx.notation.model import MICROBATCH, OF_REPLICAS, OF_REPLICATED, OF_TIED, StepCollective, accompanying, divides
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE
from dsx.notation.syntax import AXES
from dsx.plans.choices import CODES
from dsx.traces.codec import COMM_COLL, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.columns import NUMBERS_OF_MULTIPLY, bits_of
from dsx.traces.layer_nodes import SHARED, Compute, LayerMatrix, LayerNodes, LayerWeight, NodeCommunication, TraceNode
from dsx.traces.traced_plan import NodeBuilder, Tensors, TracedPlan

GATHERED, GATHERED_AGAIN = "weights", "weights'"
UNREDUCED = "unreduced"  # before the name of a gradient of one microbatch that is scattered
GATHERED_VERSION = "#gathered"  # of a weight that the first forward of a step gathers


def shards_key(ranks: WeightGroup) -> tuple[object, ...]:
    """Return the key of the groups over which ZeRO divides weights."""
    return ("shards", ranks)


def replicas_key(ranks: WeightGroup) -> tuple[object, ...]:
    """Return the key of the groups that hold the same shard."""
    return ("replicas", ranks)


class ZeroBuilder(NodeBuilder):
    """Builds the nodes of one pass; this part of it those of ZeRO."""

    def scatters(self, ranks: WeightGroup) -> bool:
        """Return whether ZeRO scatters the gradients of a group with every microbatch."""
        return divides(self.zero_stage, "gradient") and self.plan.shard_size(ranks) > 1

    def gradient(self, position: int, name: str, ranks: WeightGroup) -> str:
        """Return the name of the gradient of a group's weight: a version of the buffer, or the microbatch's own."""
        own = self.scatters(ranks)
        return self.own(position, f"{UNREDUCED} {name}") if own else self.version(position, name)

    def gathered(self, position: int, nodes: LayerNodes) -> Tensors:
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
            if one.kind != ALL_GATHER or (one.every == "step" and "forward" not in self.key.first):
                continue
            for number, (ranks, weights) in enumerate(nodes.groups.items()):
                gathered = self.plan.held(position, weights) if one.every == "step" else weights
                self._gather(position, number, ranks, gathered, one, direction)

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
        communication = NodeCommunication(whole // members, one.kind, "dp", shards_key(ranks))
        text = self.own(position, f"{one.kind} weights {number}")
        self.add(TraceNode(COMM_COLL, text, inputs, outputs, communication=communication, overlap=self._overlap(one)))

    def _overlap(self, one: StepCollective) -> float:
        """Return the fraction of a collective that overlaps: what every microbatch repeats is issued ahead."""
        assumptions = self.plan.assumptions
        return assumptions.fsdp_overlap if one.every == MICROBATCH else assumptions.dp_overlap

    def weights(self, position: int, number: int, ranks: WeightGroup, weights: tuple[LayerWeight, ...]) -> Tensors:
        """Return the weights of a group as a rank stores them: each, or their shard."""
        if not divides(self.zero_stage, "weight"):
            return [(self.stored(position, weight.name), weight.bytes) for weight in weights]
        held, members = self.plan.held(position, weights), self.plan.shard_size(ranks)
        found = [(f"L{position:03d}.shard {number}", sum(weight.bytes for weight in held) // members)] if held else []
        if (shared := self.plan.shared) is not None and len(held) < len(weights):
            found.append((f"L000.shard {shared.number}", shared.group_bytes // members))
        return found

    def reduce(self, position: int, nodes: LayerNodes) -> None:
        """Add what reduces the gradients of a layer's weights."""
        for number, (ranks, weights) in enumerate(nodes.groups.items()):
            held = self.plan.held(position, weights)
            for one in accompanying(self.zero_stage, BACKWARD):
                if one.of != "gradients" or (one.every == "step" and not self.key.last):
                    continue
                self._reduce_group(position, number, ranks, one, held if one.every == "step" else weights)
            grads, whole = self._gradients_of(position, ranks, held)
            members, replicas = self.plan.shard_size(ranks), self.plan.replicas(ranks)
            if whole and replicas > 1 and self.key.last:
                size = whole // members if self.scatters(ranks) else grads[0][1]
                held = [(self.reduced(position, number, ranks, grads), size)]
                made = [(self.reduced(position, number, ranks, grads) + "r", size)]
                text = self.own(position, f"{ALL_REDUCE} gradients {number} among replicas")
                communication = NodeCommunication(whole // members, OF_REPLICAS.kind, "dp", replicas_key(ranks))
                overlap = self._overlap(OF_REPLICAS)
                self.add(TraceNode(COMM_COLL, text, held, made, communication=communication, overlap=overlap))

    def _gradients_of(self, position: int, ranks: WeightGroup, weights: tuple[LayerWeight, ...]) -> tuple[Tensors, int]:
        """Return the gradients of some weights of a group as a pass leaves them, and their bytes; none for none."""
        grads = [
            (self.gradient(position, name, ranks), weight.gradient_bytes)
            for weight in weights
            for name in weight.gradients
        ]
        return grads, sum(weight.gradient_bytes for weight in weights) if grads else 0

    def _reduce_group(
        self,
        position: int,
        number: int,
        ranks: WeightGroup,
        one: StepCollective,
        weights: tuple[LayerWeight, ...],
    ) -> None:
        members = self.plan.shard_size(ranks)
        grads, whole = self._gradients_of(position, ranks, weights)
        if members == 1 or not whole:
            return
        outputs = [(self.reduced(position, number, ranks, grads), grads[0][1])]
        inputs = list(grads)
        if self.scatters(ranks):
            _, own = self._gradients_of(position, ranks, self.plan.held(position, weights))
            shards = [(f"gradients {number}", own // members)] if own else []
            if (shared := self.plan.shared) is not None and own < whole:
                of_group = shared.group_bytes // self.plan.assumptions.weight_bytes
                shards.append((SHARED, of_group * self.plan.assumptions.gradient_bytes // members))
            outputs = [(self.version(position, name), size) for name, size in shards]
            purpose = self.plan.nodes(position).gradients_in
            inputs += [self.previous_version(position, name, size, purpose) for name, size in shards]
        text = self.own(position, f"{one.kind} gradients {number}")
        communication = NodeCommunication(whole, one.kind, "dp", shards_key(ranks))
        self.add(TraceNode(COMM_COLL, text, inputs, outputs, communication=communication, overlap=self._overlap(one)))

    def reduced(self, position: int, number: int, ranks: WeightGroup, grads: Tensors) -> str:
        """Return the name of the reduced gradients of a group, as the last microbatch leaves them."""
        if self.scatters(ranks):
            return self.version(position, f"gradients {number}")
        return grads[0][0] + "r"


def matrix_parameters(nodes: LayerNodes, plan: TracedPlan) -> int:
    """Return the parameters of matrices of a layer that a rank updates."""
    return sum(
        sum(weight.bytes for weight in weights if weight.matrix) // _divisor(plan, ranks)
        for ranks, weights in nodes.groups.items()
    ) // int(plan.assumptions.weight_bytes)


def orthogonal_nodes(plan: TracedPlan, name: str, nodes: LayerNodes, momentum: Tensors) -> Iterator[TraceNode]:
    """Yield the nodes of a layer, each of which waits for the one before; `momentum` is what they begin with."""
    taken = momentum
    for number, (ranks, weights) in enumerate(nodes.groups.items()):
        matrices = {weight.name: weight.matrix for weight in weights if weight.matrix}
        parameters = sum(weight.bytes for weight in weights if weight.matrix) // int(plan.assumptions.weight_bytes)
        members = _divisor(plan, ranks)
        if matrices and members > 1:
            size = int(parameters * plan.assumptions.muon_bytes)
            made: Tensors = [(f"{name} momentum {number}", size)]
            communication = NodeCommunication(size // members, ALL_GATHER, "dp", shards_key(ranks))
            text = f"{name} {ALL_GATHER} momentum {number}"
            yield TraceNode(COMM_COLL, text, taken, made, communication=communication)
            taken = made
        for weight, matrix in matrices.items():
            for node in _of_weight(plan, f"{name} {weight}", matrix, _share(plan, ranks), taken):
                yield node
                taken = node.outputs


def _of_weight(plan: TracedPlan, name: str, matrix: LayerMatrix, share: float, taken: Tensors) -> Iterator[TraceNode]:
    assumptions = plan.assumptions
    small, large = sorted((matrix.rows, matrix.columns))
    count = matrix.count * share
    volume = count * small * large * assumptions.muon_tp_bytes
    for axis in matrix.axes:
        members = int(plan.columns[axis])
        if members > 1:
            made = [(f"{name} momentum {axis}", int(volume))]
            communication = NodeCommunication(int(volume) // members, ALL_GATHER, axis, ("axis", axis))
            yield TraceNode(COMM_COLL, f"{name} {ALL_GATHER} {axis}", taken, made, communication=communication)
            taken, volume = made, volume / members
    steps = assumptions.muon_steps * count
    multiplies: list[int] = []
    for sizes in step_multiplies(small, large):
        rows, columns, contracted = sizes
        flops = int(2 * steps * rows * columns * contracted)
        multiplies += [rows, columns, contracted, 1, flops, bits_of(STEP_SHAPE)]
    traffic = int(steps * assumptions.muon_bytes * step_elements(small, large))
    flops = int(count * newton_schulz_flops(small, large, assumptions.muon_steps))
    launches = max(round(steps * len(multiplies) / NUMBERS_OF_MULTIPLY), 1)
    compute = Compute(flops, 0, traffic, 0, launches, tuple(multiplies))
    made = [(f"{name} orthogonal", int(count * small * large * assumptions.muon_bytes))]
    yield TraceNode(COMP, f"{name} newton-schulz", taken, made, compute=compute, op_type="optimizer")


def _divisor(plan: TracedPlan, ranks: WeightGroup) -> int:
    """Return the ranks among which the weights of a group are divided for the update."""
    return plan.shard_size(ranks) if divides(int(plan.columns["zero_stage"]), "optimizer") else 1


def _share(plan: TracedPlan, ranks: WeightGroup) -> float:
    """Return the share of the matrices of a group that a rank orthogonalises."""
    members = _divisor(plan, ranks)
    if members == 1:
        return 1.0
    flops, largest = 0.0, 1.0
    for position in range(len(plan.layers)):
        for weight in plan.nodes(position).weights:
            if weight.matrix:
                small, large = sorted((weight.matrix.rows, weight.matrix.columns))
                own = newton_schulz_flops(small, large, plan.assumptions.muon_steps)
                flops, largest = flops + weight.matrix.count * own, max(largest, own)
    num_matrices = max(flops / int(plan.columns["pp"]) / largest, 1.0)
    return max(1.0 / members, 1.0 / num_matrices)


ENDS = ("ends",)  # key of the group of the first and the last stage


class EndBuilder(ZeroBuilder):
    """Builds the nodes after the last pass; its microbatch is that of the last pass."""

    def end(self, positions: Sequence[int]) -> None:
        """Add the nodes for the layers of a stage, the last one first; those of a layer by itself have no update."""
        self.reduced_at_end: dict[int, Tensors] = {}  # by layer
        for position in positions:
            self._replicated(position, self.plan.nodes(position))
        if self.plan.ties_ends:
            self._tied(positions)
        for position in () if self.plan.alone else positions:
            self._update(position, self.plan.nodes(position))

    def _reduce_held(
        self, position: int, text: str, inputs: Tensors, mark: str, communication: NodeCommunication
    ) -> None:
        """Add an all-reduce of gradients that ranks hold alike, which the update waits for."""
        outputs = [(f"{inputs[0][0]}{mark}", inputs[0][1])] if inputs else []
        name = f"L{position:03d}.{communication.kind} {text}"
        self.add(TraceNode(COMM_COLL, name, inputs, outputs, communication=communication))
        self.reduced_at_end.setdefault(position, []).extend(outputs)

    def _replicated(self, position: int, nodes: LayerNodes) -> None:
        """Add the all-reduces of gradients of parameters that are replicated over tensor parallel ranks."""
        if not self.plan.assumptions.charge_replicated_gradients:
            return
        for axis in AXES:
            shared = [
                weight
                for weight in nodes.weights
                if not weight.over_ep and axis in weight.reduced_over and not is_data_axis(axis)
            ]
            if not shared or int(self.plan.columns[axis]) == 1:
                continue
            size = sum(weight.gradient_bytes for weight in shared)
            inputs = list(self._gradients(position, nodes, {weight.name for weight in shared}))
            communication = NodeCommunication(size, OF_REPLICATED.kind, axis, ("axis", axis))
            self._reduce_held(position, f"gradients {axis}", inputs, axis, communication)

    def _gradients(self, position: int, nodes: LayerNodes, names: Iterable[str]) -> Iterable[tuple[str, int]]:
        """Return the gradients of some weights as the passes leave them, each tensor once."""
        wanted, found = set(names), dict[str, int]()
        for number, (ranks, of_group) in enumerate(nodes.groups.items()):
            weights = self.plan.held(position, of_group)
            chosen = [weight for weight in weights if weight.name in wanted and weight.gradients]
            grads = [(self.gradient(position, name, ranks), w.gradient_bytes) for w in weights for name in w.gradients]
            if not chosen or not grads:
                continue
            reduced = self.reduced(position, number, ranks, grads)
            size = sum(weight.gradient_bytes for weight in weights) // self.plan.shard_size(ranks)
            of_shard = self.scatters(ranks)
            each = (
                [(reduced, size)]
                if of_shard
                else [(self.version(position, w.gradients[0]), w.gradient_bytes) for w in chosen]
            )
            found |= dict(each)
            for later in (reduced, reduced + "r"):
                if later in self.sources:
                    found[later] = size if of_shard else grads[0][1]
        return found.items()

    def _tied(self, positions: Iterable[int]) -> None:
        """Add the all-reduce of the gradient of a tied weight, or of the weight that it is tied to."""
        last = self.plan.chain.num_layers - 1
        head = self.plan.nodes(last)
        tied = [weight for weight in head.weights if weight.tied]
        for position in positions:
            if not tied or position not in (0, last):
                continue
            nodes = self.plan.nodes(position)
            # The first stage has the weight as the largest one of its first layer.
            own = tied if position == last else [max(nodes.weights, key=lambda weight: weight.bytes)]
            size = sum(weight.gradient_bytes for weight in tied)
            if divides(self.zero_stage, "gradient"):
                ranks = next(ranks for ranks, weights in head.groups.items() if tied[0] in weights)
                size //= self.plan.shard_size(ranks)
            inputs = list(self._gradients(position, nodes, {weight.name for weight in own}))
            communication = NodeCommunication(size, OF_TIED.kind, "pp", ENDS)
            self._reduce_held(position, "tied gradient", inputs, "t", communication)

    def _of_last_layer(self) -> Tensors:
        """Return the gradient of a shared weight as the last layer leaves it, where that is in a chunk of its own."""
        if (shared := self.plan.shared) is None or shared.apart is None:
            return []
        last, name = shared.apart
        ranks = list(self.plan.nodes(0).groups)[shared.number]
        if not self.scatters(ranks):
            return [(self.version(last, name), shared.weight.gradient_bytes)]
        of_group = shared.group_bytes // self.plan.assumptions.weight_bytes * self.plan.assumptions.gradient_bytes
        return [(self.version(last, SHARED), of_group // self.plan.shard_size(ranks))]

    def _update(self, position: int, nodes: LayerNodes) -> None:
        """Add the update of a layer's weights, which reads and writes the state of the optimizer."""
        assumptions = self.plan.assumptions
        on_host = CODES["offload"][self.plan.columns["offload"]] in (OPTIMIZER, BOTH)
        inputs: Tensors = list(self._gradients(position, nodes, {w.name for w in nodes.weights}))
        inputs += [*self.reduced_at_end.get(position, []), *(self._of_last_layer() if position == 0 else ())]
        stored: Tensors = []
        parameters = 0
        for number, (ranks, of_group) in enumerate(nodes.groups.items()):
            weights = self.plan.held(position, of_group)
            stored += self.weights(position, number, ranks, weights) if weights else []
            whole = sum(weight.bytes for weight in weights)
            sharded = divides(self.zero_stage, "optimizer")
            parameters += whole // (self.plan.shard_size(ranks) if sharded else 1) // assumptions.weight_bytes
        if not parameters:
            return
        inputs += stored
        outputs: Tensors = [(f"{name}#1", size) for name, size in stored]
        name, state = f"L{position:03d}.optimizer", f"L{position:03d}.optimizer state"
        matrices = matrix_parameters(nodes, self.plan) if assumptions.optimizer == MUON else 0
        others = parameters - matrices
        size = int(others * assumptions.optimizer_bytes_per_parameter + matrices * assumptions.muon_bytes_per_parameter)
        traffic = int(
            others * assumptions.optimizer_traffic_per_parameter + matrices * assumptions.muon_traffic_per_parameter
        )
        compute = Compute(0, 0, max(traffic, 1), 0, 0, ())
        if matrices:
            momentum = int(matrices * assumptions.muon_bytes)
            if on_host:
                loaded: Tensors = [(f"{name} momentum", momentum)]
                self.add(TraceNode(MEM_LOAD, loaded[0][0], inputs, loaded, transfer_bytes=momentum))
                inputs = [*inputs, *loaded]
            for node in orthogonal_nodes(self.plan, name, nodes, inputs):
                self.add(node)
                inputs = [*inputs, *node.outputs]
            if on_host:
                kept: Tensors = [(f"{name} orthogonal@host", momentum)]
                self.add(TraceNode(MEM_STORE, f"{name} orthogonal", inputs, kept, transfer_bytes=momentum))
        if not on_host:
            inputs, outputs = [*inputs, (state, size)], [*outputs, (f"{state}#1", size)]
            self.add(TraceNode(COMP, name, inputs, outputs, compute=compute, op_type="optimizer"))
            return
        gradients, weights = (parameters * of for of in (assumptions.gradient_bytes, assumptions.weight_bytes))
        sent, updated = [(f"{name} gradients@host", gradients)], [(f"{name} weights@host", weights)]
        self.add(TraceNode(MEM_STORE, f"{name} gradients", inputs, sent, transfer_bytes=gradients))
        on_it = TraceNode(COMP, name, sent, updated, compute=compute, op_type="optimizer", on_host=True)
        self.add(on_it)
        new = [*updated, *stored]
        self.add(TraceNode(MEM_LOAD, f"{name} weights", new, outputs, transfer_bytes=weights))
