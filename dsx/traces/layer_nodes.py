"""The nodes of a layer with numbers put in, before they are numbered.

The nodes of a layer with numbers put in: FLOPs, bytes, and the sizes of collectives and tensors of one microbatch.

Numbers are whole. A dimension or a shard that does not divide is floored, as the notation's division does.

A weight of two layers that one stage holds once: the embedding table of a stage whose head is tied to it.

The gradient is one buffer. On a single stage the backward of the last layer adds to it first, in each microbatch, and
that of the first layer last, so a microbatch writes several versions of it. Where the two layers are in two chunks of a
stage, whose passes mix, each chunk has versions of its own, and the update reads the last ones of both.

The nodes of a trace before they are numbered: what one pass of a microbatch runs on any rank of a stage.

A node refers to others by the pass that has them. Its texts have marks in place of the microbatch, so one description
serves all microbatches: `MICROBATCH` is the one of the pass, `PREVIOUS` the one that the chunk had before.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.model_file import ELEMENT_BYTES
from dsx.cost.context import BF16
from dsx.cost.layer import COMM_COLUMN, OVERLAP, WeightGroup, weight_groups
from dsx.cost.layer_work import multiply_shape
from dsx.notation.expressions import evaluate
from dsx.notation.graph import Launch, Node, Transferred, Value
from dsx.notation.kernels import Multiply
from dsx.notation.model import define
from dsx.notation.recompute import backward_nodes, recomputation
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.notation.work import BACKWARD, FORWARD, DerivedLayer, KernelCosts, Matrix
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

    matrix_flops: int
    vector_flops: int
    bytes: int
    unfused_bytes: int
    launches: int
    multiplies: tuple[int, ...]  # the numbers of each (`dsx.traces.columns`)


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
    kernel_text: str  # launches with the same text are priced together
    part: str  # "weights" for what computes or moves gradients of weights alone, else "forward", "inputs", "collective"
    op_type: str
    reads: tuple[NodeTensor, ...]
    writes: tuple[NodeTensor, ...]
    compute: Compute | None = None
    move: Move | None = None
    accumulated: int = 0  # bytes of traffic to add gradients of weights to the sum over microbatches


@dataclass(frozen=True, slots=True)
class LayerMatrix:
    """A weight as `count` matrices of their whole size, which `axes` divide."""

    rows: int
    columns: int
    count: int
    axes: tuple[str, ...]


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
    matrix: LayerMatrix | None = None


@dataclass(frozen=True, slots=True)
class LayerNodes:
    """A layer of one kind under one value of `recompute`."""

    kind: str
    forward: tuple[LayerNode, ...]
    backward: tuple[LayerNode, ...]
    inputs: tuple[str, ...]  # one in a model
    outputs: tuple[NodeTensor, ...]
    output_gradient: str  # what the backward begins with
    input_gradients: tuple[str, ...]
    boundary_bytes: int  # of the first input
    data: frozenset[str]  # inputs from outside of the model
    weights: tuple[LayerWeight, ...]
    groups: Mapping[WeightGroup, tuple[LayerWeight, ...]]  # weights by the ranks that hold the same
    saved: tuple[NodeTensor, ...]  # what the backward reads of the forward

    @property
    def gradients_in(self) -> str:
        """The part of a split backward after which the gradients of all weights are there."""
        return "weights" if any(node.part == "weights" for node in self.backward) else "inputs"

    def unsplit(self) -> "LayerNodes":
        """Return the layer with a backward that is one pass under every schedule."""
        whole = (replace(node, part="inputs") if node.part == "weights" else node for node in self.backward)
        return replace(self, backward=tuple(whole))


def kernel_text(kind: str, kernel: str, direction: int) -> str:
    """Return the text that the launches of a kernel share."""
    return f"{kind}/{kernel}/{'backward' if direction == BACKWARD else 'forward'}"


def layer_values(
    layer: DerivedLayer, dimensions: Mapping[str, int], sizes: Mapping[str, int], assumptions: AssumptionsSpec
) -> dict[str, int]:
    """Return the values of all names of a layer, as whole numbers; `sizes` are b, s, panels and the degrees."""
    element = {name: getattr(assumptions, name) for name in ELEMENT_BYTES}
    return define(layer, {**dimensions, **sizes, **element})


def layer_nodes(
    layer: DerivedLayer, kind: str, values: Mapping[str, int], recompute: int, assumptions: AssumptionsSpec
) -> LayerNodes:
    """Return the nodes of a layer under a value of `recompute`, by its code; `kind` names the layer's kind."""
    chosen = regions_of(recompute)
    recomputed = None if chosen is None else recomputation(layer, chosen)
    backward = backward_nodes(layer, recomputed, chosen or frozenset())
    numbers = _Numbers(layer, kind, values, assumptions)
    graph = layer.graph
    forward, back = numbers.nodes(graph.forward, FORWARD), numbers.nodes(backward, BACKWARD)
    forward, back = _with_casts(forward, back, numbers.cast_operands(graph.forward))
    weights = tuple(
        LayerWeight(
            weight.name,
            size := numbers.number(weight.bytes),
            size // assumptions.weight_bytes * assumptions.gradient_bytes,
            numbers.names(graph.weight_gradients[weight.name]),
            weight.reduced_over,
            weight.over_ep,
            weight.tied,
            weight.matrix and numbers.of_matrix(weight.matrix),
        )
        for weight in layer.weights
    )
    groups = weight_groups([weight.reduced_over for weight in weights], [weight.over_ep for weight in weights])
    made = {tensor.name for node in forward for tensor in node.writes}
    first = {tensor.name for node in back for tensor in node.writes}
    read = {tensor.name: tensor for node in back for tensor in node.reads if not tensor.weight}
    taken = {value.name for value in graph.inputs}
    return LayerNodes(
        kind=kind,
        forward=tuple(forward),
        backward=tuple(back),
        inputs=tuple(value.name for value in graph.inputs),
        outputs=numbers.tensors(graph.outputs),
        output_gradient=graph.output_gradients[0].name,
        input_gradients=numbers.names(graph.input_gradients),
        boundary_bytes=numbers.number(layer.boundary_bytes),
        data=frozenset(value.name for value in graph.inputs if layer.layer.tensors[value.name].data),
        weights=weights,
        groups={ranks: tuple(weights[index] for index in members) for ranks, members in groups.items()},
        saved=tuple(t for name, t in read.items() if name not in first and (name in made or name in taken)),
    )


def _with_casts(
    forward: list[LayerNode], back: list[LayerNode], casts: Mapping[str, NodeTensor]
) -> tuple[list[LayerNode], list[LayerNode]]:
    """Return the nodes of both directions where the backward reads a cast tensor in place of the one that is cast.

    The node that makes the tensor makes the cast one too, or, for an input of the layer, the first that reads it.
    """
    missing = dict(casts)

    def casting(node: LayerNode, tensors: Iterable[NodeTensor]) -> LayerNode:
        made = tuple(missing.pop(tensor.name) for tensor in tensors if tensor.name in missing)
        return replace(node, writes=node.writes + made) if made else node

    def cast(tensors: tuple[NodeTensor, ...]) -> tuple[NodeTensor, ...]:
        return tuple(casts.get(tensor.name, tensor) for tensor in tensors)

    forward = [casting(node, node.writes) for node in forward]
    forward = [casting(node, node.reads) for node in forward]
    return forward, [replace(node, reads=cast(node.reads), writes=cast(node.writes)) for node in back]


class _Numbers:
    """Puts numbers into the nodes of a layer."""

    def __init__(self, layer: DerivedLayer, kind: str, values: Mapping[str, int], assumptions: AssumptionsSpec) -> None:
        self.layer, self.kind, self.values, self.assumptions = layer, kind, values, assumptions
        self.alike: dict[str, tuple[Value, ...]] = {}
        self.memo: dict[int, Any] = {}
        self.alive: list[Any] = []  # expressions in the memo, kept so that no other expression gets their id

    def number(self, expr: Any) -> int:
        """Return the value of an expression."""
        self.alive.append(expr)
        return int(evaluate(expr, self.values, self.memo))

    def of_matrix(self, matrix: Matrix) -> LayerMatrix:
        """Return the matrices of a weight with their numbers."""
        rows, columns, count = map(self.number, (matrix.rows, matrix.columns, matrix.count))
        return LayerMatrix(rows, columns, count, matrix.axes)

    def nodes(self, nodes: Iterable[Node], direction: int) -> list[LayerNode]:
        """Return nodes with their numbers, without collectives over one rank."""
        found: list[LayerNode] = []
        counted: set[int] = set()
        by_operator = self.assumptions.launches == "operators"
        for node in nodes:
            if isinstance(node, Transferred):
                if self.values[node.collective.axis] > 1:
                    found.append(self._collective(node))
                else:
                    self.alike |= {value.name: self.resolved(node.reads) for value in node.writes}
                continue
            launches = int(node.kernel not in counted or node.direction != direction) if by_operator else 1
            counted |= {node.kernel} if node.direction == direction else set()
            found.append(self._launch(node, launches))
        if by_operator and direction == BACKWARD:
            # The set prices a launch for the backward of every operator, even if it has no work.
            for index, kernel in enumerate(self.layer.kernels):
                if kernel.runs and index not in counted:
                    empty = Compute(0, 0, 0, 0, 1, ())
                    text = kernel_text(self.kind, kernel.name, BACKWARD)
                    name = f"{kernel.name} inputs"
                    node = LayerNode(name, index, BACKWARD, text, "inputs", "+".join(kernel.kinds), (), (), empty)
                    found.insert(self._place(found, index), node)
        return found

    @staticmethod
    def _place(found: list[LayerNode], kernel: int) -> int:
        """Return where a kernel's backward belongs: before that of the kernels before it."""
        places = (at for at, node in enumerate(found) if node.direction == BACKWARD and node.kernel < kernel)
        return next(places, len(found))

    def cast_operands(self, nodes: Iterable[Node]) -> dict[str, NodeTensor]:
        """Return the saved tensors that only multiplies in 8 bits or fewer keep, cast, by the name of what is cast."""
        kept, whole = self.assumptions.fp8_saved_bytes, self.assumptions.activation_bytes
        if self.assumptions.linear_dtype == BF16 or kept == whole:
            return {}
        saved = [tensor for kernel in self.layer.kernels for tensor in kernel.saved]
        operands = {tensor.key: tensor.operand for tensor in saved}
        by_use: dict[bool, dict[str, NodeTensor]] = {True: {}, False: {}}
        for value in (value for node in nodes for value in (*node.reads, *node.writes)):
            if value.saved_as is None or value.saved_as not in operands:
                continue
            for own in self.resolved([value]):
                size = self.number(own.bytes) // whole * kept
                by_use[operands[value.saved_as]][own.name] = NodeTensor(own.name + CAST, size)
        return {name: tensor for name, tensor in by_use[True].items() if name not in by_use[False]}

    def resolved(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return values with those that a collective over one rank would have written replaced by what it reads."""
        found = [own for value in values for own in self.alike.get(value.name, (value,))]
        return tuple(dict.fromkeys(found))

    def names(self, values: Iterable[Value]) -> tuple[str, ...]:
        """Return the names of values, resolved."""
        return tuple(value.name for value in self.resolved(values))

    def tensors(self, values: Iterable[Value]) -> tuple[NodeTensor, ...]:
        """Return values with their bytes, resolved."""
        return tuple(self._tensor(value) for value in self.resolved(values))

    def _tensor(self, value: Value) -> NodeTensor:
        return NodeTensor(value.name, self.number(value.bytes), value.weight)

    def _launch(self, node: Launch, launches: int) -> LayerNode:
        kernel, work = self.layer.kernels[node.kernel], node.work
        multiplies = tuple(size for multiply in work.multiplies for size in self._multiply(multiply, kernel, node))
        compute = Compute(
            self.number(work.matrix),
            self.number(work.vector),
            self.number(work.bytes),
            self.number(work.unfused),
            launches,
            multiplies,
        )
        per_parameter = self.assumptions.accumulation_traffic_per_parameter
        sizes = [map(self.number, (m.batch, m.rows, m.columns)) for m in work.multiplies if m.of_weight]
        accumulated = round(per_parameter * sum(map(math.prod, sizes)))
        kinds = "+".join(kernel.kinds)
        return self._node(node, kernel, node.part, kinds, compute=compute, accumulated=accumulated)

    def _multiply(self, multiply: Multiply, kernel: KernelCosts, node: Launch) -> tuple[int, ...]:
        shape = multiply_shape(multiply, 0, node.direction, kernel.fused)
        sizes = (multiply.rows, multiply.columns, multiply.contracted, multiply.batch, multiply.flops)
        return *map(self.number, sizes), bits_of(shape)

    def _collective(self, node: Transferred) -> LayerNode:
        collective, kernel = node.collective, self.layer.kernels[node.kernel]
        beside = self.layer.beside(collective)
        share = getattr(self.assumptions, OVERLAP[COMM_COLUMN[collective.axis]])
        move = Move(
            collective.kind,
            collective.axis,
            self.number(collective.bytes),
            0.0 if beside is None else share,
            beside,
            self.values["panels"] if collective.panelled else 1,
            collective.ring,
            () if collective.copies is None else tuple(map(self.number, collective.copies.stated)),
        )
        of_weight = any(collective.tensor == f"d {weight.name}" for weight in self.layer.weights)
        return self._node(node, kernel, "weights" if of_weight else "collective", collective.kind, move=move)

    def _node(self, node: Node, kernel: KernelCosts, part: str, op_type: str, **more: Any) -> LayerNode:
        return LayerNode(
            node.name,
            node.kernel,
            node.direction,
            kernel_text(self.kind, kernel.name, node.direction),
            part,
            op_type,
            self.tensors(node.reads),
            tuple(self._tensor(value) for value in node.writes),
            **more,
        )


SHARED = "gradients of the shared weight"  # shard of the gradient, where the last layer scatters it
_MARK = "t"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a buffer that a microbatch writes: the layer that has the buffer, its name, and a suffix."""

    position: int
    buffer: str
    suffix: str
    last: str = ""  # suffix of the last version that a microbatch writes in the chunk


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """The weight of the first layer, and what has it in the last one."""

    weight: LayerWeight  # of the first layer
    number: int  # of its weight group
    group_bytes: int  # of all weights of that group
    names: frozenset[str]  # in the last layer
    versions: Mapping[tuple[int, str], tuple[Version, ...]]  # (layer, gradient) -> what a microbatch has written there
    apart: tuple[int, str] | None = None  # the last layer, and its last gradient, where it is in a chunk of its own

    def version(self, position: int, name: str) -> Version:
        """Return the version of a buffer that a gradient of a layer is."""
        written = self.versions.get((position, name))
        return written[-1] if written else Version(position, name, "")

    def before(self, position: int, name: str) -> Version | None:
        """Return the version that the same microbatch has written before; None for its first one."""
        written = self.versions.get((position, name), ())
        return written[-2] if len(written) > 1 else None


def shared_weight(first: LayerNodes, last: LayerNodes, position: int, one_chunk: bool) -> SharedWeight | None:
    """Return the weight that the first and the last layer share, the latter at a position; None if there is none.

    The first layer has it as its largest one. `one_chunk` says that the two layers are in one chunk.
    """
    tied = [weight for weight in last.weights if weight.tied]
    if not tied or not first.weights:
        return None
    weight = max(first.weights, key=lambda one: one.bytes)
    groups = list(first.groups.values())
    number = next(number for number, weights in enumerate(groups) if weight in weights)
    gradients = [name for one in tied for name in one.gradients]
    (own, *_) = weight.gradients
    of_group, versions = f"gradients {number}", dict[tuple[int, str], tuple[Version, ...]]()
    for buffer, of_last, of_first in ((own, gradients, own), (of_group, [SHARED], of_group)):
        later = [(position, name) for name in of_last]
        if one_chunk:
            versions |= _written([*later, (0, of_first)], buffer)
        else:
            versions |= _written(later, buffer, _MARK * len(later)) | _written([(0, of_first)], buffer)
    group_bytes = sum(one.bytes for one in groups[number])
    apart = None if one_chunk else (position, gradients[-1])
    return SharedWeight(weight, number, group_bytes, frozenset(one.name for one in tied), versions, apart)


def _written(order: list[tuple[int, str]], buffer: str, last: str = "") -> dict[tuple[int, str], tuple[Version, ...]]:
    """Return the versions of a buffer up to each of those that write it in this order, with the suffix of the last."""
    suffixes = [*(_MARK * number for number in range(1, len(order))), last]
    every = [Version(0, buffer, suffix, last) for suffix in suffixes]
    return {key: tuple(every[: number + 1]) for number, key in enumerate(order)}


MICROBATCH, PREVIOUS = "\x01", "\x02"  # repeated for each digit
_VERSION = "#"  # between the name of a buffer and what tells apart the nodes that write it

OWN = ("own",)  # the pass of the node itself
# Names a pass whose nodes others refer to: OWN, or (what it computes, chunk), of the same microbatch. What it computes
# is "forward" or "gradient", "receive forward" or "receive gradient", "gather forward" or "gather gradient". The
# "previous" pass of a purpose and chunk is of the microbatch before, the "last" one of the last one.
BasePass = tuple[object, ...]


def buffer_of(tensor: str) -> str:
    """Return the name of the buffer of a tensor, which may be one of its versions."""
    return tensor.partition(_VERSION)[0]


class NodeReference(NamedTuple):
    """A node of a pass: of the own one by its number, of another one by the tensor that it writes."""

    base: BasePass
    target: int | str


@dataclass(frozen=True, slots=True)
class NodeCommunication:
    """What a communication node sends where."""

    size: int  # bytes
    kind: str = ""  # of a collective; "" for a send or a receive
    axis: str = ""
    group: tuple[object, ...] = ()  # key of the groups of ranks (`dsx.traces.durations`)
    peer: tuple[object, ...] = ()  # key of the rank at the other end
    tag: int = 0  # of a send or a receive within a pass; else its microbatch decides
    panels: int = 1
    routing: tuple[int, ...] = ()  # as that of `dsx.traces.layer_nodes.Move`


@dataclass(slots=True)
class TraceNode:
    """One node."""

    type: int
    name: str
    inputs: list[tuple[str, int]] = field(default_factory=list)  # tensors with their bytes
    outputs: list[tuple[str, int]] = field(default_factory=list)
    data_deps: list[NodeReference] = field(default_factory=list)
    compute: Compute | None = None
    kernel_text: str = ""
    op_type: str = ""
    panels: int = 1
    on_host: bool = False  # a computation of the host
    communication: NodeCommunication | None = None
    overlap: float | None = None  # share that may overlap with compute; None: it is a part of the compute stream
    partner: int | None = None  # number of the launch that it overlaps with
    transfer_bytes: int = 0  # of a load or a store
    duration_ns: float | None = None
