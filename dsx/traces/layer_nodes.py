"""The nodes of a layer with numbers put in: FLOPs, bytes, and the sizes of collectives and tensors of one microbatch.

Numbers are whole. A dimension or a shard that does not divide is floored, as the notation's division does.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dsx.config.assumption_set import AssumptionsSpec
from dsx.cost.context import BF16
from dsx.cost.layer import COMM_COLUMN, OVERLAP, WeightGroup, weight_groups
from dsx.cost.layer_work import multiply_shape
from dsx.notation.expressions import Expression, evaluate
from dsx.notation.graph import Launch, Node, Transferred, Value
from dsx.notation.recompute import backward_nodes, recomputation
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.notation.work import BACKWARD, FORWARD, DerivedLayer, Matrix
from dsx.plans.choices import regions_of
from dsx.traces.columns import bits_of

CAST = " cast"  # suffix of a tensor as multiplies in 8 bits or fewer keep it


@dataclass(frozen=True, slots=True)
class NodeTensor:
    """A tensor that a node reads or writes."""

    name: str
    bytes: int
    weight: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """The work of a launch, as it is priced."""

    matrix_flops: int = 0
    vector_flops: int = 0
    bytes: int = 0
    unfused_bytes: int = 0
    launches: int = 0
    multiplies: tuple[int, ...] = ()  # the numbers of each (`dsx.traces.columns`)
    op_type: str = ""
    kernel_text: str = ""  # launches with the same text are priced together


@dataclass(frozen=True, slots=True)
class Move:
    """A collective; `volume` is the gathered tensor for an all-gather, else the tensor before it."""

    kind: str
    axis: str
    volume: int  # bytes
    overlap: float  # with the launches of the kernel beside it
    beside: int | None = None  # position of that kernel among those of the layer
    panels: int = 1
    ring: bool = False
    # Of an all-to-all of several copies of each token: their number, and, if limited, groups of experts and of a token.
    routing: tuple[int, ...] = ()

    def size(self, members: int) -> int:
        """Return the bytes of the tensor that a rank puts in."""
        return self.volume // members if self.kind == ALL_GATHER else self.volume


@dataclass(frozen=True, slots=True)
class LayerNode:
    """A launch or a collective of one layer and one microbatch."""

    name: str
    kernel: int  # position among the kernels of the layer
    direction: int
    part: str  # "weights" for what computes or moves gradients of weights alone, else "forward", "inputs", "collective"
    reads: tuple[NodeTensor, ...]
    writes: tuple[NodeTensor, ...]
    compute: Compute | None = None
    move: Move | None = None
    accumulated: int = 0  # bytes of traffic to add gradients of weights to the sum over microbatches


@dataclass(frozen=True, slots=True)
class LayerWeight:
    """A weight: its local bytes, those of its gradient, and the values whose sum that is."""

    name: str
    bytes: int
    gradient_bytes: int
    gradients: tuple[str, ...]
    reduced_over: tuple[str, ...]
    over_ep: bool
    tied: bool
    frozen: bool
    matrix: Matrix[int] | None = None


@dataclass(frozen=True)
class LayerNodes:
    """A layer of one kind under one value of `recompute`; a layer without a trained weight may have no backward."""

    forward: tuple[LayerNode, ...]
    backward: tuple[LayerNode, ...]
    inputs: tuple[str, ...]  # one in a model
    outputs: tuple[NodeTensor, ...]
    output_gradient: str  # what the backward begins with; empty if it has none
    input_gradients: tuple[str, ...]
    boundary_bytes: int  # of the first input
    data: frozenset[str]  # inputs from outside of the model
    weights: tuple[LayerWeight, ...]
    groups: Mapping[WeightGroup, tuple[LayerWeight, ...]]  # weights by the ranks that hold the same
    saved: tuple[NodeTensor, ...]  # what the backward reads of the forward

    @cached_property
    def gradients(self) -> dict[str, WeightGroup]:
        """The weight group of each gradient of a weight."""
        weights = ((ranks, weight) for ranks, of_group in self.groups.items() for weight in of_group)
        return {name: ranks for ranks, weight in weights for name in weight.gradients}

    @property
    def gradients_in(self) -> str:
        """The part of a split backward after which the gradients of all weights are there."""
        return "weights" if any(node.part == "weights" for node in self.backward) else "inputs"

    def unsplit(self) -> "LayerNodes":
        """Return the layer with a backward that is one pass under every schedule."""
        nodes = (replace(node, part="inputs") if node.part == "weights" else node for node in self.backward)
        return replace(self, backward=tuple(nodes))


def kernel_text(kind: str, kernel: str, direction: int) -> str:
    """Return the text that the launches of a kernel share."""
    return f"{kind}/{kernel}/{'backward' if direction == BACKWARD else 'forward'}"


def layer_nodes(
    layer: DerivedLayer, kind: str, values: Mapping[str, int], recompute: int, assumptions: AssumptionsSpec
) -> LayerNodes:
    """Return the nodes of a layer under a value of `recompute`, by its code; `kind` names the layer's kind."""
    chosen = regions_of(recompute) if layer.graph.backward else frozenset[str]()
    recomputed = None if chosen is None else recomputation(layer, chosen)
    backward = backward_nodes(layer, recomputed, chosen or frozenset())
    numbers, graph = _Numbers(layer, kind, values, assumptions), layer.graph
    forward, back = numbers.nodes(graph.forward, FORWARD), numbers.nodes(backward, BACKWARD)
    forward, back = _with_casts(forward, back, numbers.cast_operands(graph.forward))

    def names(values: Iterable[Value]) -> tuple[str, ...]:
        return tuple(value.name for value in numbers.resolved(values))

    weights = tuple(
        LayerWeight(
            weight.name,
            size := numbers.number(weight.bytes),
            size // assumptions.weight_bytes * assumptions.gradient_bytes,
            names(graph.weight_gradients[weight.name]),
            weight.reduced_over,
            weight.over_ep,
            weight.tied,
            weight.frozen,
            (of := weight.matrix) and Matrix(*map(numbers.number, (of.rows, of.columns, of.count)), axes=of.axes),
        )
        for weight in layer.weights
    )
    fields = ("reduced_over", "over_ep", "frozen")
    groups = weight_groups(*([getattr(weight, name) for weight in weights] for name in fields))
    written = {tensor.name for node in forward for tensor in node.writes}
    first = {tensor.name for node in back for tensor in node.writes}
    read = {tensor.name: tensor for node in back for tensor in node.reads if not tensor.weight}
    taken = {value.name for value in graph.inputs}
    return LayerNodes(
        forward=tuple(forward),
        backward=tuple(back),
        inputs=tuple(value.name for value in graph.inputs),
        outputs=numbers.tensors(graph.outputs),
        output_gradient=next((value.name for value in graph.output_gradients), ""),
        input_gradients=names(graph.input_gradients),
        boundary_bytes=numbers.number(layer.boundary_bytes),
        data=frozenset(value.name for value in graph.inputs if layer.tensors[value.name].data),
        weights=weights,
        groups={ranks: tuple(weights[index] for index in members) for ranks, members in groups.items()},
        saved=tuple(t for name, t in read.items() if name not in first and (name in written or name in taken)),
    )


def _with_casts(
    forward: list[LayerNode], back: list[LayerNode], casts: Mapping[str, NodeTensor]
) -> tuple[list[LayerNode], list[LayerNode]]:
    """Return the nodes of both directions where the backward reads a cast tensor in place of the one that is cast.

    The node that makes the tensor makes the cast one too, or, for an input of the layer, the first that reads it.
    """
    missing = dict(casts)
    for field in ("writes", "reads"):
        for at, node in enumerate(forward):
            cast = tuple(missing.pop(tensor.name) for tensor in getattr(node, field) if tensor.name in missing)
            forward[at] = replace(node, writes=node.writes + cast)

    def as_cast(tensors: tuple[NodeTensor, ...]) -> tuple[NodeTensor, ...]:
        return tuple(casts.get(tensor.name, tensor) for tensor in tensors)

    return forward, [replace(node, reads=as_cast(node.reads), writes=as_cast(node.writes)) for node in back]


class _Numbers:
    """Puts numbers into the nodes of a layer."""

    def __init__(self, layer: DerivedLayer, kind: str, values: Mapping[str, int], assumptions: AssumptionsSpec) -> None:
        self.layer, self.kind, self.values, self.assumptions = layer, kind, values, assumptions
        self.sources: dict[str, tuple[Value, ...]] = {}  # what collectives over one rank read, by what they write

    def number(self, expr: Expression) -> int:
        """Return the value of an expression."""
        return int(evaluate(expr, self.values))

    def nodes(self, nodes: Iterable[Node], direction: int) -> list[LayerNode]:
        """Return nodes with their numbers, without collectives over one rank."""
        numbered: list[LayerNode] = []
        counted: set[int] = set()
        by_operator = self.assumptions.launches == "operators"
        for node in nodes:
            if isinstance(node, Launch):
                launches = int(node.kernel not in counted or node.direction != direction) if by_operator else 1
                counted |= {node.kernel} if node.direction == direction else set()
                numbered.append(self._launch(node, launches))
            elif self.values[node.collective.axis] > 1:
                numbered.append(self._collective(node))
            else:
                self.sources |= {value.name: self.resolved(node.reads) for value in node.writes}
        if by_operator and direction == BACKWARD:
            # The set prices a launch for the backward of every operator, even if it has no work.
            for index, kernel in enumerate(self.layer.kernels):
                if kernel.runs and index not in counted:
                    work = Compute(launches=1, op_type="+".join(kernel.kinds), kernel_text=self._text(index, BACKWARD))
                    node = LayerNode(f"{kernel.name} inputs", index, BACKWARD, "inputs", (), (), work)
                    # The backward of a kernel stands before that of the kernels before it.
                    earlier = (at for at, n in enumerate(numbered) if n.direction == BACKWARD and n.kernel < index)
                    numbered.insert(next(earlier, len(numbered)), node)
        return numbered

    def cast_operands(self, nodes: Iterable[Node]) -> dict[str, NodeTensor]:
        """Return the saved tensors that only multiplies in 8 bits or fewer keep, cast, by the name of what is cast."""
        cast_bytes, uncast_bytes = self.assumptions.fp8_saved_bytes, self.assumptions.activation_bytes
        if self.assumptions.linear_dtype == BF16 or cast_bytes == uncast_bytes:
            return {}
        operands = {tensor.key: tensor.operand for kernel in self.layer.kernels for tensor in kernel.saved}
        by_use: dict[bool, dict[str, NodeTensor]] = {True: {}, False: {}}
        for value in (value for node in nodes for value in (*node.reads, *node.writes)):
            if value.saved_as is not None and value.saved_as in operands:
                for tensor in self.tensors([value]):
                    cast = NodeTensor(tensor.name + CAST, tensor.bytes // uncast_bytes * cast_bytes)
                    by_use[operands[value.saved_as]][tensor.name] = cast
        return {name: tensor for name, tensor in by_use[True].items() if name not in by_use[False]}

    def resolved(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return values with those that a collective over one rank would have written replaced by what it reads."""
        return tuple(dict.fromkeys(source for value in values for source in self.sources.get(value.name, (value,))))

    def tensors(self, values: Iterable[Value]) -> tuple[NodeTensor, ...]:
        """Return values with their bytes, resolved."""
        return tuple(map(self._tensor, self.resolved(values)))

    def _tensor(self, value: Value) -> NodeTensor:
        return NodeTensor(value.name, self.number(value.bytes), value.weight)

    def _text(self, kernel: int, direction: int) -> str:
        return kernel_text(self.kind, self.layer.kernels[kernel].name, direction)

    def _launch(self, node: Launch, launches: int) -> LayerNode:
        kernel, work = self.layer.kernels[node.kernel], node.work
        multiplies: list[int] = []
        for m in work.multiplies:
            sizes = map(self.number, (m.rows, m.columns, m.contracted, m.batch, m.flops))
            multiplies += [*sizes, bits_of(multiply_shape(m, 0, node.direction, kernel.fused))]
        compute = Compute(
            *map(self.number, (work.matrix, work.vector, work.bytes, work.unfused)),
            launches=launches,
            multiplies=tuple(multiplies),
            op_type="+".join(kernel.kinds),
            kernel_text=self._text(node.kernel, node.direction),
        )
        weights = [map(self.number, (m.batch, m.rows, m.columns)) for m in work.multiplies if m.of_weight]
        accumulated = round(self.assumptions.accumulation_traffic_per_parameter * sum(map(math.prod, weights)))
        return replace(self._node(node, node.part), compute=compute, accumulated=accumulated)

    def _collective(self, node: Transferred) -> LayerNode:
        collective = node.collective
        beside = self.layer.beside(collective)
        move = Move(
            collective.kind,
            collective.axis,
            self.number(collective.bytes),
            0.0 if beside is None else getattr(self.assumptions, OVERLAP[COMM_COLUMN[collective.axis]]),
            beside,
            self.values["panels"] if collective.panelled else 1,
            collective.ring,
            () if collective.copies is None else tuple(map(self.number, collective.copies.stated)),
        )
        of_weight = any(collective.tensor == f"d {weight.name}" for weight in self.layer.weights)
        return replace(self._node(node, "weights" if of_weight else "collective"), move=move)

    def _node(self, node: Node, part: str) -> LayerNode:
        writes = tuple(map(self._tensor, node.writes))
        return LayerNode(node.name, node.kernel, node.direction, part, self.tensors(node.reads), writes)
