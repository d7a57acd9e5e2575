"""The nodes at the end of a step: reductions that accompany no pass, and the update of the optimizer, layer by layer.

The gradients of weights that tensor parallel ranks hold alike are all-reduced among these (`dsx.graph.step`), and that
of a tied weight between the first and the last stage. An optimizer on the host gets the gradients and sends back the
weights.
"""

from collections.abc import Iterable, Sequence

from dsx.cost.layer import is_data_axis
from dsx.cost.offload import BOTH, OPTIMIZER
from dsx.graph.notation import AXES
from dsx.graph.step import OF_REPLICATED, OF_TIED, divides
from dsx.space.choices import CODES
from dsx.spec.assumptions import MUON
from dsx.traces.layer_nodes import Compute, LayerNodes
from dsx.traces.messages import COMM_COLL, COMP, MEM_LOAD, MEM_STORE
from dsx.traces.muon_nodes import matrix_parameters, orthogonal_nodes
from dsx.traces.node_builder import Tensors
from dsx.traces.shared_weight import SHARED
from dsx.traces.trace_nodes import Communication, TraceNode
from dsx.traces.zero_nodes import ZeroBuilder

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

    def _reduce_held(self, position: int, text: str, inputs: Tensors, mark: str, communication: Communication) -> None:
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
            communication = Communication(size, OF_REPLICATED.kind, axis, ("axis", axis))
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
            communication = Communication(size, OF_TIED.kind, "pp", ENDS)
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
