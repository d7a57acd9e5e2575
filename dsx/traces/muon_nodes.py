"""The nodes before an update of Muon: gathers of the momentum of matrices, and their Newton-Schulz steps.

`dsx.cost.muon` prices the same. A rank has the steps of its share of the matrices of each weight as one launch.
"""

from collections.abc import Iterator

from dsx.cost.layer import WeightGroup
from dsx.cost.muon import STEP_SHAPE, newton_schulz_flops, step_elements, step_multiplies
from dsx.graph.match import ALL_GATHER
from dsx.graph.step import divides
from dsx.traces.layer_nodes import Compute, LayerMatrix, LayerNodes
from dsx.traces.messages import COMM_COLL, COMP
from dsx.traces.multiply_numbers import NUMBERS_OF_MULTIPLY, bits_of
from dsx.traces.node_builder import Tensors
from dsx.traces.trace_nodes import Communication, TraceNode
from dsx.traces.traced_plan import TracedPlan
from dsx.traces.zero_nodes import shards_key


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
            communication = Communication(size // members, ALL_GATHER, "dp", shards_key(ranks))
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
            communication = Communication(int(volume) // members, ALL_GATHER, axis, ("axis", axis))
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
