"""Kernels: groups of operators that run as one, with their work, their multiplies and their launches.

A fused kernel keeps the tensors that cross its border and that its backward reads, and what it keeps besides them
(softmax statistics, random state). Its backward recomputes the inner values that it reads.

An operator alone moves the bytes of its operator table. A fused kernel moves the tensors that cross its border, and in
its backward also what it keeps besides them. The backward of an einsum is an einsum for each of its arguments, and each
is a launch; every other operator has one backward. So a multiply with a weight that is fused with what follows, such as
its bias, has two launches back, which both read the gradient of its result. A fused kernel without such a multiply
(attention) has one launch back.

An einsum of A and B into C is `batch` multiplies of (rows x contracted) by (contracted x columns). Batch letters are in
all three tensors, row letters in A and C, column letters in B and C; the multiply contracts every other letter. The
gradient of A is the einsum of dC and B. With panels, one multiply becomes `panels` multiplies, which share the letters
that the forward contracts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dsx.notation.backward import Regather, Saved, as_produced, stored, tensor_bytes
from dsx.notation.expressions import Expression, Name, Operation, combine, product, total
from dsx.notation.operators import NAMES, Effort, TableFormula
from dsx.notation.sharded_layer import PANELS, Argument, Distribution, Layer, Operator, Tensor, elements, local_size
from dsx.notation.syntax import RegionPath


@dataclass(frozen=True, slots=True)
class Multiply:
    """A multiply of a kernel in one direction, with local sizes."""

    rows: Expression
    columns: Expression
    contracted: Expression
    batch: Expression  # number of multiplies of this shape
    flops: Expression  # of the whole batch, as the operator table counts them
    linear: bool  # whether its operator has a weight; holds for the forward and both gradients
    of_weight: bool  # whether it computes the gradient of a weight
    wide: bool  # whether that weight keeps it in 16 bits where others run in fewer
    grouped: bool  # whether it is one multiply for each of several weights, those of experts
    operator: str = field(repr=False)  # name in the operator table


def _source(layer: Layer, argument: Argument) -> Tensor:
    """Return the tensor that an argument is, or is a view of."""
    producer = layer.producer(argument.tensor)
    if producer is None or not producer.costs_nothing:
        return layer.tensors[argument.tensor]
    return _source(layer, producer.arguments[0])


def _multiply(layer: Layer, op: Operator, flops: Expression, argument: Argument | None = None) -> Multiply:
    """Return the multiply of an einsum's forward, or that of the gradient of one of its two arguments."""
    result = layer.tensors[op.name].distribution
    operands = [*(factor.distribution for factor in op.arguments), result]
    if argument is not None:
        (other,) = (factor.distribution for factor in op.arguments if factor is not argument)
        operands = [result, other, argument.distribution]
    dims = {dim.letter: dim for distribution in operands for dim in distribution.dims}
    a, b, c = ({dim.letter for dim in distribution.dims} for distribution in operands)

    def size(letters: Iterable[str]) -> Expression:
        return product(local_size(dims[letter]) for letter in dims if letter in letters)

    sizes = {"rows": size(c - b), "columns": size((c & b) - a), "contracted": size(dims.keys() - c)}
    batch = size(a & b & c)
    if op.panelled:
        # Panels divide the letters that the forward contracts, in the gradients too.
        split = "contracted" if argument is None else "columns"
        sizes[split] = combine("/", sizes[split], Name(PANELS))
        batch = combine("*", batch, Name(PANELS))
    sources = [_source(layer, factor) for factor in op.arguments]
    linear = any(source.weight for source in sources)
    return Multiply(
        **sizes,
        batch=batch,
        flops=flops,
        linear=linear,
        of_weight=argument is not None and _source(layer, argument).weight,
        wide=any(source.wide for source in sources),
        grouped=linear and (bool((a & b & c) - layer.single) or op.panelled),
        operator=op.kind.name,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs on matrix and vector units, bytes of memory traffic, and the shapes of the multiplies.

    `unfused` is the traffic on top of `bytes` where a framework runs an operator as several kernels.
    """

    matrix: Expression = 0
    vector: Expression = 0
    bytes: Expression = 0
    unfused: Expression = 0
    multiplies: tuple[Multiply, ...] = ()  # `matrix` includes their FLOPs

    def __add__(self, other: "Work") -> "Work":
        amounts = {name: combine("+", getattr(self, name), getattr(other, name)) for name in NAMES}
        return replace(self, **amounts, multiplies=self.multiplies + other.multiplies)


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
    work = _work(op, effort, functions(layer, op), summed)
    # A contraction of one, three or more arguments has FLOPs, but no shape of rows and columns.
    return replace(work, multiplies=(_multiply(layer, op, work.matrix),)) if len(op.arguments) == 2 else work


def backward_work(layer: Layer, op: Operator) -> tuple[Gradient, ...]:
    """Return the work of an operator's backward, by gradient for an einsum; none for one that makes a constant."""
    if layer.tensors[op.name].constant:
        return ()
    if op.kind.shape != "contract":
        return (Gradient(_work(op, op.kind.backward, functions(layer, op))),)
    effort = op.kind.panels["gradient"] if op.panelled else op.kind.gradient
    gradients: list[Gradient] = []
    for argument in op.arguments:
        if layer.tensors[argument.tensor].constant:
            continue
        factors = [factor for factor in op.arguments if factor is not argument]
        sources = [factor.distribution for factor in factors] + [layer.tensors[op.name].distribution]
        summed = _contracted(sources, {dim.letter for dim in argument.distribution.dims})
        work = _work(op, effort, functions(layer, op, [argument, *factors], dx=argument), summed)
        if len(op.arguments) == 2:
            work = replace(work, multiplies=(_multiply(layer, op, work.matrix, argument),))
        gradients.append(Gradient(work, argument, _source(layer, argument).weight))
    return tuple(gradients)


def _contracted(distributions: list[Distribution], kept: set[str]) -> Expression:
    """Return the product of the local dimensions that are not among the letters `kept`."""
    dims = {dim.letter: dim for distribution in distributions for dim in distribution.dims}
    return elements(tuple(dim for letter, dim in dims.items() if letter not in kept))


_CONTRACTED = Name("contracted")
Sizes = dict[str, Callable[[str], Expression]]


def _work(op: Operator, effort: Effort, sizes: Sizes, contracted: Expression = 1) -> Work:
    """Return what an operator table says of an operator, with its sizes; a modifier reduces FLOPs, not bytes."""
    numerator, denominator = op.kind.work.get(op.modifier, (1, 1))
    amounts: dict[str, Expression] = {}
    for name in NAMES:
        formula: TableFormula | None = getattr(effort, name)
        if formula is not None:
            amounts[name] = _with_contracted(formula.resolve(sizes), contracted)
            if name in ("matrix", "vector"):
                amounts[name] = combine("/", combine("*", amounts[name], numerator), denominator)
    return replace(Work(), **amounts)


def _with_contracted(expr: Expression, contracted: Expression) -> Expression:
    """Return an expression with the product of the contracted dimensions in place of its name."""
    chain: list[Operation] = []
    while isinstance(expr, Operation):
        chain.append(expr)
        expr = expr.left
    result = contracted if expr is _CONTRACTED else expr
    for operation in reversed(chain):
        result = combine(operation.sign, result, _with_contracted(operation.right, contracted))
    return result


def functions(
    layer: Layer, op: Operator, arguments: Sequence[Argument] | None = None, dx: Argument | None = None
) -> Sizes:
    """Return the size functions that a table's expressions may call, for one operator.

    `arguments` take the table's argument names in this order; `dx` is the argument whose gradient is computed.
    """
    named = zip(op.kind.arguments, op.arguments if arguments is None else arguments, strict=False)
    tensors = {name.rstrip("?"): argument for name, argument in named}
    tensors["y"] = tensors["dy"] = as_produced(layer, op, op.name)
    if dx is not None:
        tensors["dx"] = dx
    return {
        "size": lambda name: elements(tensors[name].distribution.dims),
        "rows": lambda name: elements(tensors[name].distribution.dims[:-1]),
        "last": lambda name: elements(tensors[name].distribution.dims[-1:]),
        "bytes": lambda name: tensor_bytes(layer, tensors[name].tensor, tensors[name].distribution),
    }


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
    leaving: tuple[str, ...]  # results that others consume

    @property
    def regions(self) -> RegionPath:
        """The ``recompute`` regions that it is in, outermost first."""
        return self.operators[0].regions

    @property
    def makes(self) -> tuple[str, ...]:
        """The results of its operators."""
        return tuple(name for op in self.operators for name in op.outputs)

    @property
    def entering(self) -> list[Argument]:
        """The arguments of its operators that come from outside of it."""
        inside = self.makes
        return [arg for op in self.operators for arg in op.arguments if arg.tensor not in inside]


def split_into_kernels(layer: Layer) -> list[Kernel]:
    """Group the layer's operators into kernels, in order."""
    groups: dict[object, list[Operator]] = {}
    for op in layer.operators:
        groups.setdefault(op.fuse or op.name, []).append(op)
    kernels = [_Collector(layer, operators).kernel() for operators in groups.values()]
    # An operand is a tensor that only multiplies with a weight keep.
    kept_for_others = {saved.key for kernel in kernels for saved in kernel.saved if not saved.operand}
    return [
        replace(kernel, saved=tuple(replace(saved, operand=saved.key not in kept_for_others) for saved in kernel.saved))
        for kernel in kernels
    ]


def crossing(layer: Layer, operators: Sequence[Operator]) -> list[str]:
    """Return the results of a group of operators that are consumed outside of it."""
    inside = {op.name for op in operators}
    outside = {arg.tensor for op in layer.operators if op.name not in inside for arg in op.arguments}
    return [name for op in operators for name in op.outputs if name in outside or name in layer.outputs]


class _Collector:
    """Collects what the backward of one kernel reads."""

    def __init__(self, layer: Layer, operators: list[Operator]) -> None:
        self.layer, self.operators, self.fuse = layer, operators, operators[0].fuse
        self.inner = {name: op for op in operators for name in op.outputs} if self.fuse else {}
        self.leaving = tuple(crossing(layer, operators))
        self.saved: dict[tuple[str, str], Saved] = {}
        self.border: dict[tuple[str, str], Argument] = {}
        self.regathers: list[tuple[Operator, Regather]] = []
        self.recomputed: set[str] = set()

    def kernel(self) -> Kernel:
        constants = {name for name, tensor in self.layer.tensors.items() if tensor.constant}
        for op in self.operators:
            if op.name in constants:  # it has no backward
                continue
            inner = op.kind.in_kernel if self.fuse else None
            for index, entry in enumerate(inner.saved if inner else op.kind.saved):
                if isinstance(entry, TableFormula):
                    key = op.name, f"state {index}"
                    self.saved[key] = Saved(key, entry.resolve(functions(self.layer, op)))
                elif entry == "y":
                    self.read(op, as_produced(self.layer, op, op.name))
                else:
                    argument = op.arguments[op.kind.arguments.index(entry)]
                    others = [other.tensor for other in op.arguments if other is not argument]
                    # Of an einsum, only gradients of its other arguments read an argument.
                    if op.kind.shape != "contract" or not others or not {*others} <= constants:
                        self.read(op, argument)
            for name in self.leaving if inner and inner.keeps_output else ():
                self.keep(op, as_produced(self.layer, op, name), panelled=False)
        return Kernel(
            self.fuse[0] if self.fuse else self.operators[0].name,
            self.fuse is not None,
            tuple(self.operators),
            tuple(op for op in self.operators if op.name in self.recomputed),
            tuple(self.saved.values()),
            tuple(self.border.values()),
            tuple(self.regathers),
            self.leaving,
        )

    def read(self, op: Operator, argument: Argument) -> None:
        """Note that the backward of `op` reads an argument: keep it, or recompute it inside the kernel."""
        producer = self.inner.get(argument.tensor)
        if producer is None or (argument.tensor in self.leaving and not producer.costs_nothing):
            self.keep(op, argument, op.panelled)
        elif producer.name not in self.recomputed:
            self.recomputed.add(producer.name)
            for inner in producer.arguments:
                self.read(producer, inner)

    def keep(self, op: Operator, argument: Argument, panelled: bool) -> None:
        saved, regathers = stored(self.layer, argument, panelled)
        if saved:
            factors = [self.layer.tensors[factor.tensor] for factor in op.arguments]
            operand = op.kind.shape == "contract" and any(tensor.weight and not tensor.wide for tensor in factors)
            kept = self.saved.setdefault(saved.key, replace(saved, operand=operand))
            if kept.operand and not operand:
                self.saved[saved.key] = saved
        self.border.setdefault(argument.key, argument)
        for regather in regathers:
            if (op, regather) not in self.regathers:
                self.regathers.append((op, regather))


@dataclass(frozen=True, slots=True)
class TokenCopies:
    """How the copies of a token are chosen, as expressions in dimensions of the model.

    An all-to-all between dispatch and combine need not move each copy over the network, since copies for one fast
    domain can be made there. How many it must move depends on the number of choices, and on the groups of experts that
    they are limited to (arXiv 2412.19437, section 2.1.2).
    """

    choices: Expression  # copies of each token
    groups: Expression | None = None  # of experts, of equal size; None: the choices of a token are not limited
    groups_of_token: Expression | None = None  # groups that the choices of one token may fall in

    @property
    def stated(self) -> tuple[Expression, ...]:
        """The choices and, if they are limited, the groups and those of a token."""
        return tuple(expr for expr in (self.choices, self.groups, self.groups_of_token) if expr is not None)


def token_copies(layer: Layer) -> dict[str, TokenCopies]:
    """Return {tensor: its copies} for the tensors of a layer that have several copies of each token."""
    of_tensor: dict[str, TokenCopies] = {}
    for op in layer.operators:
        if op.kind.copies is not None:
            name, choices = op.kind.copies
            position = None if name == "y" else [arg.rstrip("?") for arg in op.kind.arguments].index(name)
            tensor = op.name if position is None else op.arguments[position].tensor
            of_tensor[tensor] = TokenCopies(choices, *op.kind.groups.get(op.modifier, ()))
    return of_tensor


Part = Literal["forward", "inputs", "weights"]  # "inputs" has the gradients of weights too, unless a launch has them


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """What one launch does, and the arguments that it computes gradients of and reads for them."""

    part: Part
    work: Work
    gradients_of: tuple[Argument, ...] = ()
    reads: tuple[Argument, ...] = ()  # of the tensors from outside the kernel, for a backward
    keeps: bool = True  # whether it reads the state that the kernel keeps besides tensors


def forward_launch(layer: Layer, kernel: Kernel, uncounted: frozenset[str]) -> Work:
    """Return the work of a kernel's forward; operators of the kinds in `uncounted` do nothing."""
    work = sum((forward_work(layer, op) for op in kernel.operators if op.kind.name not in uncounted), Work())
    if not kernel.fused:
        return work
    entering = {arg.key: tensor_bytes(layer, arg.tensor, arg.distribution) for arg in kernel.entering}
    leaving = [tensor_bytes(layer, name) for name in kernel.leaving]
    writes = [
        op.kind.in_kernel.writes.resolve(functions(layer, op))
        for op in kernel.operators
        if op.kind.in_kernel and op.kind.in_kernel.writes
    ]
    return replace(work, bytes=total([*entering.values(), *leaving, *writes]), unfused=0)


def backward_launches(
    layer: Layer, kernel: Kernel, fused_backward_reads: str, uncounted: frozenset[str]
) -> tuple[LaunchWork, ...]:
    """Return the launches of a kernel's backward, inputs first; none where it does no work."""
    counted = [op for op in kernel.operators if op.kind.name not in uncounted]
    gradients = [(op, gradient) for op in counted for gradient in backward_work(layer, op)]
    if not gradients:
        return ()
    if kernel.fused:
        recomputed = sum((forward_work(layer, op) for op in counted if op in kernel.recomputed), Work())
        return _fused(layer, kernel, gradients, recomputed, fused_backward_reads)
    ((op, first), *further) = gradients
    if first.work == Work() and not further:
        return ()
    if not first.work.multiplies:
        work = sum((gradient.work for _, gradient in further), first.work)
        outer = tuple(argument for argument in op.arguments if not layer.tensors[argument.tensor].constant)
        return (LaunchWork("inputs", work, outer, tuple(kernel.border)),)
    launches = [
        LaunchWork(
            "weights" if gradient.of_weight else "inputs",
            gradient.work,
            (gradient.argument,) if gradient.argument else (),
            tuple(argument for argument in op.arguments if argument is not gradient.argument),
        )
        for op, gradient in gradients
    ]
    return tuple(sorted(launches, key=lambda launch: launch.part))


def _fused(
    layer: Layer, kernel: Kernel, gradients: list[tuple[Operator, Gradient]], recomputed: Work, backward_reads: str
) -> tuple[LaunchWork, ...]:
    """Return one launch, or two where the kernel has a multiply with a weight."""
    entering = {arg.key: arg for arg in kernel.entering}
    outer = [arg for arg in entering.values() if not layer.tensors[arg.tensor].constant]
    leaving = total(tensor_bytes(layer, name) for name in kernel.leaving)
    as_stored = backward_reads == "stored"
    saved = [(kept.key[0], kept.bytes) for kept in kernel.saved if as_stored or kept.key[1].startswith("state ")]
    border = [arg for arg in kernel.border if layer.tensors[arg.tensor].weight or not as_stored]
    consumed = [(arg.tensor, tensor_bytes(layer, arg.tensor, arg.distribution)) for arg in border]
    of_weights = [(op, gradient) for op, gradient in gradients if gradient.of_weight]
    weights = {key for key, arg in entering.items() if layer.tensors[arg.tensor].weight} if of_weights else set()
    # The gradient of a weight takes the other factor of its multiply; the gradient of the input the weight.
    factors = {arg.tensor for op, gradient in of_weights for arg in op.arguments if arg is not gradient.argument}
    launches: list[LaunchWork] = []
    for of_weight in (False, True) if of_weights else (False,):
        work = sum(
            (gradient.work for _, gradient in gradients if gradient.of_weight == of_weight),
            Work() if of_weight else recomputed,
        )
        moved = [
            size
            for tensor, size in (saved + consumed if as_stored else consumed + saved)
            if (tensor in factors) == of_weight
        ]
        moved.append(leaving)
        moved += [
            tensor_bytes(layer, arg.tensor, arg.distribution)
            for key, arg in entering.items()
            if (key in weights) == of_weight
        ]
        launches.append(
            LaunchWork(
                "weights" if of_weight else "inputs",
                replace(work, bytes=total(moved), unfused=0),
                tuple(arg for arg in outer if (arg.key in weights) == of_weight),
                tuple(arg for arg in kernel.border if (arg.tensor in factors) == of_weight),
                keeps=not of_weight,
            )
        )
    return tuple(launches)
