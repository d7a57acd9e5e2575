"""Kernels: groups of operators that run as one, their work, their multiplies and their launches.

The shapes of the matrix multiplies of an einsum and of its two gradients.

An einsum of A and B into C is `batch` multiplies of (rows x contracted) by (contracted x columns). Batch letters are in
all three tensors, row letters in A and C, column letters in B and C; the multiply contracts every other letter. The
gradient of A is the einsum of dC and B. With panels, one multiply becomes `panels` multiplies, which share the letters
that the forward contracts.

The work of an operator by its table: FLOPs, bytes and the shapes of its multiplies, as expressions.

The backward of an einsum is an einsum for each of its arguments, so its gradients are apart here; every other operator
has one backward.

Kernels: groups of operators that run as one, and what each keeps for its backward.

A fused kernel keeps the tensors that cross its border and that its backward reads, and what it keeps besides them
(softmax statistics, random state). Its backward recomputes the inner values that it reads.

The tensors of a layer that have several copies of each token: those between dispatch and combine.

An all-to-all of such a tensor need not move each copy over the network, since copies for one fast domain can be made
there. How many it must move depends on how a token chooses its experts, which the operator table states: the number of
choices, and the groups of experts that they are limited to (arXiv 2412.19437, section 2.1.2).

The launches of a kernel: one in the forward; in the backward, the gradients of inputs and those of weights.

An operator alone moves the bytes of its operator table. A fused kernel moves the tensors that cross its border, and in
its backward also what it keeps besides them. The two gradients of a multiply are two launches, since each is a multiply
of its own; so a multiply with a weight that is fused with what follows, such as its bias, has two launches back, which
both read the gradient of its result. A fused kernel without such a multiply (attention) has one launch back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dsx.notation.backward import Regather, Saved, as_produced, element_bytes, stored, tensor_bytes
from dsx.notation.expressions import Name, Operation, combine, product, total
from dsx.notation.operators import Effort, TableFormula
from dsx.notation.sharded_layer import PANELS, Argument, Distribution, Layer, Operator, Tensor, elements, local_size
from dsx.notation.syntax import RegionPath


@dataclass(frozen=True, slots=True)
class Multiply:
    """A multiply of a kernel in one direction; local sizes and FLOPs as expressions."""

    rows: Any
    columns: Any
    contracted: Any
    batch: Any  # number of multiplies of this shape
    flops: Any  # of the whole batch, as the operator table counts them
    linear: bool  # whether its operator has a weight; holds for the forward and both gradients
    of_weight: bool  # whether it computes the gradient of a weight
    wide: bool  # whether that weight keeps it in 16 bits where others run in fewer
    grouped: bool  # whether it is one multiply for each of several weights, those of experts
    operator: str = field(repr=False)  # name in the operator table


def forward_multiply(layer: Layer, op: Operator, flops: Any) -> Multiply:
    """Return the multiply of the forward of an einsum of two arguments."""
    left, right = (argument.distribution for argument in op.arguments)
    operands = (left, right, layer.tensors[op.name].distribution)
    return _multiply(layer, op, operands, flops, of_weight=False, split="contracted")


def gradient_multiply(layer: Layer, op: Operator, index: int, flops: Any) -> Multiply:
    """Return the multiply that computes the gradient of one of an einsum's two arguments."""
    argument, other = op.arguments[index], op.arguments[1 - index]
    operands = (layer.tensors[op.name].distribution, other.distribution, argument.distribution)
    return _multiply(layer, op, operands, flops, of_weight=is_weight(layer, argument), split="columns")


def is_weight(layer: Layer, argument: Argument) -> bool:
    """Return whether an argument is a weight or a view of one."""
    return _source(layer, argument).weight


def _source(layer: Layer, argument: Argument) -> Tensor:
    """Return the tensor that an argument is, or is a view of."""
    producer = layer.producer(argument.tensor)
    if producer is None or not producer.costs_nothing:
        return layer.tensors[argument.tensor]
    return _source(layer, producer.arguments[0])


def _multiply(
    layer: Layer,
    op: Operator,
    operands: tuple[Distribution, Distribution, Distribution],
    flops: Any,
    of_weight: bool,
    split: str,
) -> Multiply:
    """Return the multiply of `op` whose `operands` are the two factors and the result; panels divide `split`."""
    dims = {dim.letter: dim for distribution in operands for dim in distribution.dims}
    a, b, c = ({dim.letter for dim in distribution.dims} for distribution in operands)

    def size(letters: Iterable[str]) -> Any:
        return product(local_size(dims[letter]) for letter in dims if letter in set(letters))

    sizes = {"rows": size(c - b), "columns": size((c & b) - a), "contracted": size(dims.keys() - c)}
    batch = size(a & b & c)
    if op.panelled:
        # Panels divide the letters that the forward contracts, in the gradients too.
        sizes[split] = combine("/", sizes[split], Name(PANELS))
        batch = combine("*", batch, Name(PANELS))
    sources = [_source(layer, argument) for argument in op.arguments]
    linear = any(source.weight for source in sources)
    several = bool((a & b & c) - layer.single) or op.panelled
    return Multiply(
        **sizes,
        batch=batch,
        flops=flops,
        linear=linear,
        of_weight=of_weight,
        wide=any(source.wide for source in sources),
        grouped=linear and several,
        operator=op.kind.name,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs on matrix and vector units and bytes of memory traffic, as expressions, and the shapes of the multiplies.

    `unfused` is the traffic on top of `bytes` where a framework runs an operator as several kernels.
    """

    matrix: Any = 0
    vector: Any = 0
    bytes: Any = 0
    unfused: Any = 0
    multiplies: tuple[Multiply, ...] = ()  # `matrix` includes their FLOPs

    def __add__(self, other: "Work") -> "Work":
        return Work(
            combine("+", self.matrix, other.matrix),
            combine("+", self.vector, other.vector),
            combine("+", self.bytes, other.bytes),
            combine("+", self.unfused, other.unfused),
            self.multiplies + other.multiplies,
        )


@dataclass(frozen=True, slots=True)
class Gradient:
    """The work of one kernel of an operator's backward."""

    work: Work
    argument: Argument | None = None  # whose gradient it is; None: all of them
    of_weight: bool = False


def forward_work(layer: Layer, op: Operator) -> Work:
    """Return the work of an operator's forward."""
    if op.kind.shape != "contract":
        return _work(op, op.kind.forward, functions(layer, op))
    effort = op.kind.panels["forward"] if op.panelled else op.kind.forward
    letters = {dim.letter for name in op.outputs for dim in layer.tensors[name].distribution.dims}
    summed = _contracted([argument.distribution for argument in op.arguments], letters)
    found = _work(op, effort, functions(layer, op), summed)
    # A contraction of one, three or more arguments has FLOPs, but no shape of rows and columns.
    return replace(found, multiplies=(forward_multiply(layer, op, found.matrix),)) if len(op.arguments) == 2 else found


def backward_work(layer: Layer, op: Operator) -> tuple[Gradient, ...]:
    """Return the work of an operator's backward, by gradient for an einsum."""
    if op.kind.shape != "contract":
        return (Gradient(_work(op, op.kind.backward, functions(layer, op))),)
    effort = op.kind.panels["gradient"] if op.panelled else op.kind.gradient
    found: list[Gradient] = []
    for index, argument in enumerate(op.arguments):
        if layer.tensors[argument.tensor].data:
            continue
        others = [other for other in op.arguments if other is not argument]
        exchanged = functions(layer, op, [argument, *others], dx=argument)
        own = {dim.letter for dim in argument.distribution.dims}
        sources = [other.distribution for other in others] + [layer.tensors[op.name].distribution]
        work = _work(op, effort, exchanged, _contracted(sources, own))
        if len(op.arguments) == 2:
            work = replace(work, multiplies=(gradient_multiply(layer, op, index, work.matrix),))
        found.append(Gradient(work, argument, is_weight(layer, argument)))
    return tuple(found)


def _contracted(distributions: list[Distribution], kept: set[str]) -> Any:
    """Return the product of the local dimensions that are not among the letters `kept`."""
    dims = {dim.letter: dim for distribution in distributions for dim in distribution.dims}
    return elements(tuple(dim for letter, dim in dims.items() if letter not in kept))


def _work(op: Operator, effort: Effort, sizes: dict[str, Any], contracted: Any = 1) -> Work:
    """Return what an operator table says of an operator, with its sizes; a modifier reduces FLOPs, not bytes."""
    numerator, denominator = op.kind.work.get(op.modifier, (1, 1))

    def value(formula: TableFormula | None, share: bool) -> Any:
        if formula is None:
            return 0
        expr = _substituted(formula.resolve(sizes), {"contracted": contracted})
        return combine("/", combine("*", expr, numerator), denominator) if share else expr

    return Work(
        value(effort.matrix, True), value(effort.vector, True), value(effort.bytes, False), value(effort.unfused, False)
    )


def _substituted(expr: Any, values: dict[str, Any]) -> Any:
    """Return an expression with names replaced by other expressions."""
    chain: list[Operation] = []
    while isinstance(expr, Operation):
        chain.append(expr)
        expr = expr.left
    result = values.get(expr.name, expr) if isinstance(expr, Name) else expr
    for operation in reversed(chain):
        result = combine(operation.sign, result, _substituted(operation.right, values))
    return result


def functions(
    layer: Layer, op: Operator, arguments: list[Argument] | None = None, dx: Argument | None = None
) -> dict[str, Any]:
    """Return the size functions that a table's expressions may call, for one operator.

    `arguments` take the table's argument names in this order; `dx` is the argument whose gradient is computed.
    """
    taken = list(op.arguments) if arguments is None else arguments
    tensors: dict[str, tuple[str, Distribution]] = {
        name.rstrip("?"): (argument.tensor, argument.distribution)
        for name, argument in zip(op.kind.arguments, taken, strict=False)
    }
    tensors["y"] = tensors["dy"] = (op.name, layer.tensors[op.name].distribution)
    if dx is not None:
        tensors["dx"] = (dx.tensor, dx.distribution)

    def size(name: str) -> Any:
        return elements(tensors[name][1].dims)

    def rows(name: str) -> Any:
        return elements(tensors[name][1].dims[:-1])

    def last(name: str) -> Any:
        return elements(tensors[name][1].dims[-1:])

    def bytes_of(name: str) -> Any:
        return product((element_bytes(layer, tensors[name][0]), size(name)))

    return {"size": size, "rows": rows, "last": last, "bytes": bytes_of}


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operators that run as one kernel, and what they keep for the backward."""

    name: str
    fused: bool
    operators: tuple[Operator, ...]
    recomputed: tuple[Operator, ...]  # inner operators whose forward the backward repeats
    saved: tuple[Saved, ...]
    border: tuple[Argument, ...]  # tensors from outside a fused kernel that its backward reads
    regathers: tuple[tuple[Operator, Regather], ...]

    @property
    def regions(self) -> RegionPath:
        """The ``recompute`` regions that it is in, outermost first."""
        return self.operators[0].regions


def split_into_kernels(layer: Layer) -> list[Kernel]:
    """Group the layer's operators into kernels, in order."""
    groups: dict[Any, list[Operator]] = {}
    for op in layer.operators:
        groups.setdefault(op.fuse or op.name, []).append(op)
    return _with_operands([_kernel(layer, key, operators) for key, operators in groups.items()])


def _with_operands(kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with the tensors marked as operands that only multiplies with a weight keep."""
    others = {saved.key for kernel in kernels for saved in kernel.saved if not saved.operand}

    def marked(kernel: Kernel) -> Kernel:
        return replace(kernel, saved=tuple(replace(one, operand=one.key not in others) for one in kernel.saved))

    return [marked(kernel) for kernel in kernels]


def _kernel(layer: Layer, key: Any, operators: list[Operator]) -> Kernel:
    fused = isinstance(key, tuple)
    collector = _Collector(layer, operators, fused)
    for op in operators:
        collector.visit(op)
    return Kernel(
        key[0] if fused else key,
        fused,
        tuple(operators),
        tuple(op for op in operators if op.name in collector.recomputed),
        tuple(collector.saved.values()),
        tuple(collector.border.values()),
        tuple(collector.regathers),
    )


class _Collector:
    """Collects what the backward of one kernel reads."""

    def __init__(self, layer: Layer, operators: list[Operator], fused: bool) -> None:
        self.layer, self.fused = layer, fused
        self.inner = {name: op for op in operators for name in op.outputs} if fused else {}
        self.crossing = crossing(layer, operators)
        self.saved: dict[tuple[str, str], Saved] = {}
        self.border: dict[tuple[str, str], Argument] = {}
        self.regathers: list[tuple[Operator, Regather]] = []
        self.recomputed: set[str] = set()

    def visit(self, op: Operator) -> None:
        """Collect what the backward of `op` reads."""
        inner = op.kind.in_kernel if self.fused else None
        for index, entry in enumerate(inner.saved if inner else op.kind.saved):
            if isinstance(entry, TableFormula):
                size = entry.resolve(functions(self.layer, op))
                self.saved[(op.name, f"state {index}")] = Saved((op.name, f"state {index}"), size)
            elif entry == "y":
                self.read(op, as_produced(self.layer, op, op.name), op.panelled)
            else:
                self.read(op, op.arguments[op.kind.arguments.index(entry)], op.panelled)
        if inner and inner.keeps_output:
            for name in self.crossing:
                self.keep(op, as_produced(self.layer, op, name), False)

    def read(self, op: Operator, argument: Argument, panelled: bool) -> None:
        """Note that the backward reads `argument`: keep it, or recompute it inside the kernel."""
        producer = self.inner.get(argument.tensor)
        if producer is None or (argument.tensor in self.crossing and not producer.costs_nothing):
            self.keep(op, argument, panelled)
        elif producer.name not in self.recomputed:
            self.recomputed.add(producer.name)
            for inner in producer.arguments:
                self.read(producer, inner, producer.panelled)

    def keep(self, op: Operator, argument: Argument, panelled: bool) -> None:
        saved, regathers = stored(self.layer, argument, panelled)
        if saved:
            taken = [self.layer.tensors[argument.tensor] for argument in op.arguments]
            operand = op.kind.shape == "contract" and any(tensor.weight and not tensor.wide for tensor in taken)
            kept = self.saved.setdefault(saved.key, replace(saved, operand=operand))
            if kept.operand and not operand:
                self.saved[saved.key] = saved
        self.border.setdefault((argument.tensor, str(argument.distribution)), argument)
        for regather in regathers:
            if (op, regather) not in self.regathers:
                self.regathers.append((op, regather))


def crossing(layer: Layer, operators: Sequence[Operator]) -> list[str]:
    """Return the results of a group of operators that are consumed outside of it."""
    inside = {op.name for op in operators}
    outside = {arg.tensor for op in layer.operators if op.name not in inside for arg in op.arguments}
    return [name for op in operators for name in op.outputs if name in outside or name in layer.outputs]


@dataclass(frozen=True, slots=True)
class TokenCopies:
    """How the copies of a token are chosen, as expressions in dimensions of the model."""

    choices: Any  # copies of each token
    groups: Any | None = None  # of experts, of equal size; None: the choices of a token are not limited
    groups_of_token: Any | None = None  # groups that the choices of one token may fall in

    @property
    def stated(self) -> tuple[Any, ...]:
        """The choices and, if they are limited, the groups and those of a token."""
        limits = () if self.groups is None else (self.groups, self.groups_of_token)
        return (self.choices, *limits)


def token_copies(layer: Layer) -> dict[str, TokenCopies]:
    """Return {tensor: its copies} for the tensors of a layer that have several copies of each token."""
    found: dict[str, TokenCopies] = {}
    for op in layer.operators:
        if op.kind.copies is None:
            continue
        name, choices = op.kind.copies
        tensors = [argument.tensor for argument in op.arguments]
        tensor = op.name if name == "y" else tensors[[one.rstrip("?") for one in op.kind.arguments].index(name)]
        found[tensor] = TokenCopies(choices, *op.kind.groups.get(op.modifier, ()))
    return found


Part = Literal["forward", "inputs", "weights"]  # "inputs" has the gradients of weights too, unless a launch has them


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """What one launch does, and the arguments that it computes gradients of and reads for them."""

    part: Part
    work: Work
    gradients_of: tuple[Argument, ...] = ()
    reads: tuple[Argument, ...] = ()  # of the tensors from outside the kernel, for a backward
    keeps: bool = True  # whether it reads the state that the kernel keeps besides tensors


def forward_launch(layer: Layer, kernel: Kernel, uncounted: frozenset[str]) -> LaunchWork:
    """Return the forward of a kernel; operators of the kinds in `uncounted` do nothing."""
    counted = [op for op in kernel.operators if op.kind.name not in uncounted]
    work = sum((forward_work(layer, op) for op in counted), Work())
    if kernel.fused:
        work = replace(work, bytes=_forward_bytes(layer, kernel), unfused=0)
    return LaunchWork("forward", work)


def backward_launches(
    layer: Layer, kernel: Kernel, fused_backward_reads: str, uncounted: frozenset[str]
) -> tuple[LaunchWork, ...]:
    """Return the launches of a kernel's backward, inputs first; none where it does no work."""
    counted = [op for op in kernel.operators if op.kind.name not in uncounted]
    gradients = [(op, gradient) for op in counted for gradient in backward_work(layer, op)]
    if kernel.fused:
        recomputed = sum((forward_work(layer, op) for op in counted if op in kernel.recomputed), Work())
        return _fused(layer, kernel, gradients, recomputed, fused_backward_reads)
    ((op, first), *others) = gradients or [(kernel.operators[0], Gradient(Work()))]
    if first.work == Work() and not others:
        return ()
    if not first.work.multiplies:
        work = sum((gradient.work for _, gradient in others), first.work)
        outer = tuple(argument for argument in op.arguments if not layer.tensors[argument.tensor].data)
        return (LaunchWork("inputs", work, outer, tuple(kernel.border)),)
    found = [_of_multiply(op, gradient) for op, gradient in gradients]
    return tuple(sorted(found, key=lambda launch: launch.part))


def _of_multiply(op: Operator, gradient: Gradient) -> LaunchWork:
    others = tuple(argument for argument in op.arguments if argument is not gradient.argument)
    own = (gradient.argument,) if gradient.argument else ()
    return LaunchWork("weights" if gradient.of_weight else "inputs", gradient.work, own, others)


def _fused(
    layer: Layer, kernel: Kernel, gradients: list[tuple[Operator, Gradient]], recomputed: Work, backward_reads: str
) -> tuple[LaunchWork, ...]:
    """Return one launch, or two where the kernel has a multiply with a weight."""
    entering = {(arg.tensor, str(arg.distribution)): arg for arg in entering_arguments(kernel)}
    of_weights = [(op, gradient) for op, gradient in gradients if gradient.of_weight]
    rest = sum((gradient.work for _, gradient in gradients if not gradient.of_weight), recomputed)
    outer = tuple(arg for arg in entering.values() if not layer.tensors[arg.tensor].data)
    leaving = total(
        tensor_bytes(layer, name, layer.tensors[name].distribution) for name in crossing(layer, kernel.operators)
    )
    reads = _backward_reads(layer, kernel, backward_reads)
    written = {key: tensor_bytes(layer, arg.tensor, arg.distribution) for key, arg in entering.items()}
    if not of_weights:
        moved = total([*(size for _, size in reads), leaving, *written.values()])
        return (LaunchWork("inputs", replace(rest, bytes=moved, unfused=0), outer, kernel.border),)
    weights = {key for key, arg in entering.items() if layer.tensors[arg.tensor].weight}
    # The gradient of a weight takes the other factor of its multiply; the gradient of the input the weight.
    factors = {arg.tensor for op, gradient in of_weights for arg in op.arguments if arg is not gradient.argument}
    parts: list[LaunchWork] = []
    for of_part, work in ((False, rest), (True, sum((gradient.work for _, gradient in of_weights), Work()))):
        taken = [size for tensor, size in reads if (tensor in factors) == of_part]
        made = [size for key, size in written.items() if (key in weights) == of_part]
        parts.append(
            LaunchWork(
                "weights" if of_part else "inputs",
                replace(work, bytes=total([*taken, leaving, *made]), unfused=0),
                tuple(arg for arg in outer if ((arg.tensor, str(arg.distribution)) in weights) == of_part),
                tuple(arg for arg in kernel.border if (arg.tensor in factors) == of_part),
                keeps=not of_part,
            )
        )
    return tuple(parts)


def entering_arguments(kernel: Kernel) -> list[Argument]:
    """Return the arguments of a kernel's operators that come from outside of it."""
    inside = {name for op in kernel.operators for name in op.outputs}
    return [arg for op in kernel.operators for arg in op.arguments if arg.tensor not in inside]


def _forward_bytes(layer: Layer, kernel: Kernel) -> Any:
    """Return the bytes that the forward of a fused kernel reads and writes."""
    entering = {
        (arg.tensor, str(arg.distribution)): tensor_bytes(layer, arg.tensor, arg.distribution)
        for arg in entering_arguments(kernel)
    }
    writes = [
        op.kind.in_kernel.writes.resolve(functions(layer, op))
        for op in kernel.operators
        if op.kind.in_kernel and op.kind.in_kernel.writes
    ]
    return total([*entering.values(), *_leaving(layer, kernel), *writes])


def _leaving(layer: Layer, kernel: Kernel) -> list[Any]:
    """Return the bytes of the results of a kernel that others consume."""
    return [tensor_bytes(layer, name, layer.tensors[name].distribution) for name in crossing(layer, kernel.operators)]


def _backward_reads(layer: Layer, kernel: Kernel, backward_reads: str) -> list[tuple[str, Any]]:
    """Return what the backward of a fused kernel reads besides gradients: tensors with their bytes."""
    if backward_reads == "stored":
        stored = [(saved.key[0], saved.bytes) for saved in kernel.saved]
        weights = [arg for arg in kernel.border if layer.tensors[arg.tensor].weight]
        return stored + [(arg.tensor, tensor_bytes(layer, arg.tensor, arg.distribution)) for arg in weights]
    consumed = [(arg.tensor, tensor_bytes(layer, arg.tensor, arg.distribution)) for arg in kernel.border]
    return consumed + [(saved.key[0], saved.bytes) for saved in kernel.saved if saved.key[1].startswith("state ")]
