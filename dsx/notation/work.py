"""The cost terms of a layer, symbolically: work, collectives and saved tensors of each kernel.

Work, launches and collectives are summed up from the graph of the layer (`dsx.notation.graph`). Every quantity is an
expression over dimensions, degrees and the element sizes of the assumptions: `activation_bytes`, `weight_bytes` and
`gradient_bytes` (of weights).

The axis ep nests inside the others (ep * etp * edp = tp * cp * dp). The members of an ep group are ranks of tp, cp and
dp, each with its own tokens, so ep adds no ranks and repeats no work. Axes that divide an expert besides ep are etp;
ep does not nest in those. Each part of an expert is replicated on edp ranks.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Generic, TypeVar

from dsx.config.model_file import CLASSES, VOCABULARY
from dsx.notation.backward import Read, Saved, derive_backward, listed_once, reads, tensor_bytes
from dsx.notation.expressions import Expression, Name, Operation, names, names_within, parts, product, total
from dsx.notation.graph import (
    BACKWARD,
    FORWARD,
    Collective,
    Launch,
    LayerGraph,
    Transferred,
    layer_graph,
    transient_bytes,
)
from dsx.notation.kernels import Kernel, Multiply, TokenCopies, Work, forward_work, split_into_kernels
from dsx.notation.operators import NAMES
from dsx.notation.sharded_layer import (
    ALL_GATHER,
    ALL_REDUCE,
    PANELS,
    REDUCE_SCATTER,
    RING,
    Distribution,
    Layer,
    Operator,
    elements,
    local_size,
    ordered,
)
from dsx.notation.syntax import AXES, Dim, RegionPath

EP, DP = "ep", "dp"
S = TypeVar("S")


def expert_axes(layer: Layer) -> tuple[str, ...]:
    """Return the axes that divide experts besides ep (etp): those that occur in one distribution with it."""
    divided = [distribution.axes for distribution in layer.distributions if EP in distribution.axes]
    return ordered({*chain.from_iterable(divided)} - {EP, DP})


def reduced_over(layer: Layer, weight: Distribution, partial: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes, without dp, that a weight's gradient is reduced over; `partial` are those derived for it.

    An expert's slots hold tokens of all ranks that ep nests in, so the gradient of its weight is partial over all
    their axes. Where ep divides the weight, only one member of an ep group has each part of it.
    """
    if EP not in (*partial, *weight.axes):
        return tuple(axis for axis in partial if axis != DP)
    spanned = {*layer.axes} - {*expert_axes(layer)}
    return ordered((spanned | {*partial}) - {EP, DP})


@dataclass(frozen=True, slots=True)
class Matrix(Generic[S]):
    """A weight as matrices of their whole size, which tensor parallel ranks may divide."""

    rows: S  # an expression, or its value
    columns: S
    count: S  # on a rank
    axes: tuple[str, ...]  # that divide each of them


def matrix_of(layer: Layer, weight: str) -> Matrix[Expression] | None:
    """Return the matrices of a weight, which an optimizer may update as a whole; None if it has none.

    A matrix is a weight that an einsum multiplies with. Batch letters, those of experts, are also in the other factor
    and in the result, and count matrices; of the others the einsum contracts the rows, and the columns are in its
    result. The weights of an embedding, which takes data, are no matrices, nor are those with the letter of the
    vocabulary or of classes: Adam updates them, as norms, biases and convolutions (arXiv 2502.16982, section 2.2;
    Megatron Core 0.16.1, megatron/core/optimizer/muon.py).
    """
    dims = layer.tensors[weight].distribution.dims
    letters = {dim.letter for dim in dims}
    if layer.tensors[layer.inputs[0]].data or letters & {VOCABULARY, CLASSES}:
        return None
    for op in layer.operators:
        tensors = [argument.tensor for argument in op.arguments]
        # A contraction of one, three or more arguments has no rows and columns.
        if op.kind.shape != "contract" or len(tensors) != 2 or weight not in tensors:
            continue
        other = op.arguments[1 - tensors.index(weight)]
        result = {dim.letter for dim in layer.tensors[op.name].distribution.dims}
        batch = letters & {dim.letter for dim in other.distribution.dims} & result
        undivided = [Dim(dim.letter) for dim in dims if dim.letter not in batch]
        return Matrix(
            rows=product(local_size(dim) for dim in undivided if dim.letter not in result),
            columns=product(local_size(dim) for dim in undivided if dim.letter in result),
            count=product(local_size(dim) for dim in dims if dim.letter in batch),
            axes=ordered({axis for dim in dims if dim.letter not in batch for axis in dim.axes} - {EP}),
        )
    return None


# Numbers and names in all work of a layer. Packaged layers have up to 1,753; each evaluation visits all of them.
_MOST_PARTS = 30_000


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Work, collectives and memory of one kernel in the forward and the backward of one microbatch."""

    name: str
    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    fused: bool  # a `fuse ... end`
    runs: bool  # False for views and for operators that the assumptions do not count
    work: tuple[Work, ...]  # in the forward and in the backward
    launches: tuple[int, ...]  # likewise
    collectives: tuple[tuple[Collective, ...], ...]
    saved: tuple[Saved, ...]  # for its backward, without what an earlier kernel saves
    replicated: tuple[str, ...]  # axes whose members all do the same work
    regions: RegionPath  # the ``recompute`` regions that it is in, outermost first
    makes: tuple[str, ...]
    reads: tuple[Read, ...]
    saves: tuple[Saved, ...]  # everything that its backward reads
    transient_bytes: Expression  # of tensors, besides the saved ones, that its backward needs
    # Of its input: elements without the last dimension, last dimension.
    extent: tuple[Expression, Expression] = field(repr=False)
    # By the model: for each multiply of the forward, one as large for each operand that has a gradient.
    gradient_flops: Expression = field(repr=False)

    @property
    def title(self) -> str:
        """The name for people: that of its ``fuse`` block or of its operator."""
        return self.name.rpartition(".")[2] if self.fused else self.kinds[0]

    @property
    def saved_bytes(self) -> Expression:
        """Local bytes kept for the backward."""
        return total(saved.bytes for saved in self.saved)


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight: local bytes, and the axes (without dp) over which its gradient is reduced once a step.

    Where ep divides the weight, only 1/ep of the ranks along these axes and dp hold the same part of it.
    """

    name: str
    bytes: Expression
    reduced_over: tuple[str, ...]
    over_dp: bool  # False where the weight itself is divided over dp
    over_ep: bool = False  # True where the weight is divided over ep
    tied: bool = False  # shared with another layer of the model
    matrix: Matrix[Expression] | None = None  # None if it is no matrix of the body, or is frozen
    frozen: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, weakref_slot=True)
class DerivedLayer(Layer):
    """A layer with everything that the cost model needs to know about it."""

    expert_axes: tuple[str, ...]  # axes that divide experts besides ep; ep nests in the other axes and dp
    kernels: tuple[KernelCosts, ...]
    weights: tuple[Weight, ...]
    boundary_bytes: Expression
    input_bytes: Expression  # what full recomputation keeps
    letters: frozenset[str]  # dimensions whose size a model must give
    divided: tuple[Dim, ...]  # every divided dimension
    graph: LayerGraph = field(repr=False)  # of which the costs are sums

    def collectives(self, direction: int) -> list[Collective]:
        """All collectives of one direction, in the order of the kernels."""
        return [collective for kernel in self.kernels for collective in kernel.collectives[direction]]

    def exchanges(self, axis: str) -> tuple[tuple[str, str], ...]:
        """Return (kind, tensor) of each collective of the forward over an axis; in a ring the kind is RING."""
        over = [moved for moved in self.collectives(FORWARD) if moved.axis == axis]
        return tuple((RING if moved.ring else moved.kind, moved.tensor) for moved in over)

    def beside(self, collective: Collective) -> int | None:
        """Return the position of the kernel that a plain collective may hide behind; None if it is exposed.

        Gathers and scatters hide behind a multiply by a weight, which kernels run block by block. Attention waits for
        its keys and values, unless they go round in a ring, and the multiplies of experts for all of their tokens. The
        next kernel needs all of the result of an all-reduce.
        """
        at = collective.beside
        if at is None or collective.kind == ALL_REDUCE:
            return None
        multiplies = self.kernels[at].work[FORWARD].multiplies
        in_blocks = any(multiply.linear and not multiply.grouped for multiply in multiplies)  # by one weight
        return None if collective.kind in (ALL_GATHER, REDUCE_SCATTER) and not in_blocks else at

    @property
    def region_names(self) -> tuple[str, ...]:
        """The names of the regions that can be recomputed, in the order of the layer."""
        return tuple(dict.fromkeys(name for kernel in self.kernels for name, _ in kernel.regions))

    @property
    def priced_kernels(self) -> tuple[KernelCosts, ...]:
        """The kernels that run or communicate."""
        return tuple(kernel for kernel in self.kernels if kernel.runs or any(kernel.collectives))


# Records in a hash of layers: the word of each record, then its fields. Hashes on disk were made with these words, so a
# class that gets another name keeps its word. What is not listed, `extent` and `gradient_flops` of a kernel and
# `operator` of a multiply, follows from the definition of the layer; frozen weights are named beside it.
_HASHED: dict[type, tuple[str, ...]] = {
    Name: ("Name", "name"),
    Dim: ("Dim", "letter", "axes"),
    Saved: ("Saved", "key", "bytes", "operand", "source", "axes"),
    Read: ("Read", "tensor", "copy", "produced"),
    Multiply: (
        *("Multiply", "rows", "columns", "contracted", "batch", "flops"),
        *("linear", "of_weight", "wide", "grouped"),
    ),
    Work: ("Work", "matrix", "vector", "bytes", "unfused", "multiplies"),
    TokenCopies: ("TokenCopies", "choices", "groups", "groups_of_token"),
    Collective: ("Collective", "kind", "axis", "bytes", "tensor", "panelled", "ring", "copies", "beside"),
    KernelCosts: (
        *("KernelCosts", "name", "operators", "kinds", "fused", "runs", "work", "launches", "collectives"),
        *("saved", "replicated", "regions", "makes", "reads", "saves", "transient_bytes"),
    ),
    Matrix: ("Matrix", "rows", "columns", "count", "axes"),
    Weight: ("Weight", "name", "bytes", "reduced_over", "over_dp", "over_ep", "tied", "matrix"),
}


def layers_hash(layers: Sequence[DerivedLayer]) -> str:
    """Return a hash of everything that is derived from some layer definitions, without their places in files.

    Result sets and traces have it on disk: if it changes for the same layers, nothing goes on with them.
    """
    contents: list[tuple[object, ...]] = []
    for layer in layers:
        rules = [(rule.left, rule.relation, rule.right, rule.reason) for rule in layer.rules]
        sizes = layer.boundary_bytes, layer.divided
        frozen = [weight.name for weight in layer.weights if weight.frozen]
        contents.append((layer.definitions, layer.kernels, layer.weights, *sizes, rules, *frozen))
    return hashlib.sha256(_hashed_text(contents, {}).encode()).hexdigest()


def _hashed_text(content: object, texts: dict[Operation, str]) -> str:
    """Return a record, or records in tuples, lists and mappings, as text; `texts` has the operations written so far."""
    if isinstance(content, Operation):
        # A sum over a layer has hundreds of left operands.
        chain: list[Operation] = []
        while isinstance(content, Operation) and content not in texts:
            chain.append(content)
            content = content.left
        text = texts[content] if isinstance(content, Operation) else _hashed_text(content, texts)
        for operation in reversed(chain):
            right = _hashed_text(operation.right, texts)
            text = texts[operation] = f"Operation(sign={operation.sign!r}, left={text}, right={right})"
        return text
    if type(content) in _HASHED:
        word, *names = _HASHED[type(content)]
        return f"{word}({', '.join([f'{name}={_hashed_text(getattr(content, name), texts)}' for name in names])})"
    if isinstance(content, Mapping):
        return f"{{{', '.join([f'{name!r}: {_hashed_text(part, texts)}' for name, part in content.items()])}}}"
    if isinstance(content, list | tuple):
        parts_text = ", ".join([_hashed_text(part, texts) for part in content])
        return f"[{parts_text}]" if isinstance(content, list) else f"({parts_text}{',' * (len(content) == 1)})"
    if isinstance(content, str | int | None):  # whose texts Python does not change
        return repr(content)
    raise TypeError(f"{type(content).__name__} has no word in a hash of layers")


def derive(layer: Layer, fused_backward_reads: str = "consumed", uncounted: Iterable[str] = ()) -> DerivedLayer:
    """Derive everything from `layer`.

    `fused_backward_reads` says whether the backward of a fused kernel reads its saved tensors as they are
    "stored" or as they were "consumed"; `uncounted` names operators that cost nothing.
    """
    uncounted = frozenset(uncounted)
    kernels = split_into_kernels(layer)
    backward = derive_backward(layer)
    graph = layer_graph(layer, kernels, backward, fused_backward_reads, uncounted)
    saved = listed_once(kernel.saved for kernel in kernels)
    kernel_costs: list[KernelCosts] = []
    num_parts = 0
    for index, kernel in enumerate(kernels):
        of_kernel = [[node for node in graph.nodes(way) if node.kernel == index] for way in (FORWARD, BACKWARD)]
        launches = [[node for node in nodes if isinstance(node, Launch)] for nodes in of_kernel]
        work = tuple(sum((launch.work for launch in of_direction), Work()) for of_direction in launches)
        num_parts += sum(parts(getattr(of_direction, name)) for of_direction in work for name in NAMES)
        if num_parts > _MOST_PARTS:
            raise kernel.operators[0].place.error(
                f"the work of the layer has more than {_MOST_PARTS:,} numbers and dimensions, with the sizes of its "
                "tensors substituted into the formulas of its operators"
            )
        kernel_costs.append(
            KernelCosts(
                name=kernel.name,
                operators=tuple(op.name for op in kernel.operators),
                kinds=tuple(op.kind.name for op in kernel.operators),
                fused=kernel.fused,
                runs=any(op.kind.name not in uncounted and not op.costs_nothing for op in kernel.operators),
                work=work,
                launches=tuple(map(len, launches)),
                collectives=tuple(
                    tuple(node.collective for node in nodes if isinstance(node, Transferred)) for nodes in of_kernel
                ),
                saved=saved[index],
                replicated=_replicated(layer, kernel),
                regions=kernel.regions,
                makes=kernel.makes,
                reads=reads(layer, kernel.operators),
                saves=kernel.saved,
                transient_bytes=transient_bytes(layer, graph, index, kernel),
                extent=_extent(layer, kernel),
                gradient_flops=_gradient_flops(layer, kernel, uncounted),
            )
        )
    divided = [dim for distribution in layer.distributions for dim in distribution.dims if dim.axes]
    return DerivedLayer(
        **{content.name: getattr(layer, content.name) for content in fields(Layer)},
        expert_axes=expert_axes(layer),
        kernels=tuple(kernel_costs),
        weights=tuple(
            Weight(
                name,
                tensor_bytes(layer, name),
                reduced_over(layer, tensor.distribution, backward.weight_axes[name]),
                DP not in tensor.distribution.axes,
                EP in tensor.distribution.axes,
                tensor.tied,
                None if tensor.constant else matrix_of(layer, name),
                tensor.constant,
            )
            for name, tensor in layer.tensors.items()
            if tensor.weight
        ),
        boundary_bytes=tensor_bytes(layer, layer.inputs[0]),
        input_bytes=total(tensor_bytes(layer, name) for name in layer.inputs),
        letters=_letters(layer),
        divided=tuple(dict.fromkeys(divided)),
        graph=graph,
    )


def _extent(layer: Layer, kernel: Kernel) -> tuple[Expression, Expression]:
    """Return (local elements without the last dimension, last dimension) of the first operator's input.

    A lookup counts by its result, since its indices do not say how long a row is.
    """
    first = next((op for op in kernel.operators if not op.costs_nothing), kernel.operators[0])
    counts = layer.tensors[first.name] if first.kind.shape == "lookup" else first.arguments[0]
    dims = counts.distribution.dims
    return elements(dims[:-1]), elements(dims[-1:])


def _gradient_flops(layer: Layer, kernel: Kernel, uncounted: frozenset[str]) -> Expression:
    """Return the matrix FLOPs of the gradients of a kernel's operands, without what is computed once more.

    Each is a multiply as large as that of the forward. An operand that is data counts too, since MFU takes three
    forwards for a step of any model (arXiv 2204.02311, appendix B). Other operators have two operands.
    """

    def num_gradients(op: Operator) -> int:
        if layer.tensors[op.name].constant:
            return 0
        if op.kind.shape != "contract":
            return 2
        operands = [layer.tensors[argument.tensor] for argument in op.arguments]
        return sum(tensor.data or not tensor.constant for tensor in operands)

    counted = [op for op in kernel.operators if op.kind.name not in uncounted]
    return total(product((num_gradients(op), forward_work(layer, op).matrix)) for op in counted)


def _replicated(layer: Layer, kernel: Kernel) -> tuple[str, ...]:
    """Return the layer's axes that neither divide a dimension of the kernel nor occur in the definition of one.

    ep is not among them, since its members are ranks of the other axes.
    """
    distributions = [layer.tensors[name].distribution for name in kernel.makes]
    distributions += [argument.distribution for op in kernel.operators for argument in op.arguments]
    used = {EP, *(axis for distribution in distributions for axis in distribution.axes)}
    letters = {dim.letter for distribution in distributions for dim in distribution.dims}
    used |= names_within(letters, layer.definitions)
    return tuple(axis for axis in layer.axes if axis not in used)


def _letters(layer: Layer) -> frozenset[str]:
    """Return the dimensions that a model must give: those that the layer uses and does not define."""
    used = {dim.letter for tensor in layer.tensors.values() for dim in tensor.distribution.dims}
    for op in layer.operators:
        formulas = (*op.kind.work.get(op.modifier, ()), *op.kind.groups.get(op.modifier, ()))
        used |= {name for part in (*formulas, *(op.kind.copies or ())[1:]) for name in names(part)}
    return frozenset(names_within(used, layer.definitions) - layer.definitions.keys() - {PANELS, *AXES})
