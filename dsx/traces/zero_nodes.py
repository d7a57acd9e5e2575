"""What ZeRO adds to the passes of a layer: gathers of weights before they are used, reductions of their gradients.

Where ZeRO divides gradients, a microbatch's own gradients live until they are scattered, and the shard is the buffer
that all microbatches add to. Weights that it divides are gathered a layer ahead. Those of the first layer of a pass are
gathered by the item before it in the program of the stage (`dsx.traces.stage_items`), and so are all weights that are
gathered once a step.
"""

from dsx.cost.layer import WeightGroup
from dsx.graph.match import ALL_GATHER, ALL_REDUCE
from dsx.graph.nodes import BACKWARD
from dsx.graph.step import MICROBATCH, OF_REPLICAS, StepCollective, accompanying, divides
from dsx.traces.layer_nodes import LayerNodes, LayerWeight
from dsx.traces.messages import COMM_COLL
from dsx.traces.node_builder import NodeBuilder, Tensors
from dsx.traces.shared_weight import SHARED
from dsx.traces.trace_nodes import Communication, TraceNode

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
        communication = Communication(whole // members, one.kind, "dp", shards_key(ranks))
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
                communication = Communication(whole // members, OF_REPLICAS.kind, "dp", replicas_key(ranks))
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
        communication = Communication(whole, one.kind, "dp", shards_key(ranks))
        self.add(TraceNode(COMM_COLL, text, inputs, outputs, communication=communication, overlap=self._overlap(one)))

    def reduced(self, position: int, number: int, ranks: WeightGroup, grads: Tensors) -> str:
        """Return the name of the reduced gradients of a group, as the last microbatch leaves them."""
        if self.scatters(ranks):
            return self.version(position, f"gradients {number}")
        return grads[0][0] + "r"
