"""What follows from a layer: per kernel the work, the collectives and the saved tensors, symbolically.

A kernel is one operator or one ``fuse ... end``. Its FLOPs are those of its operators; the bytes of a
fused one are those of the tensors that cross its border. Every quantity is an expression over
dimensions, degrees and the element sizes of the assumptions: `activation_bytes`, `weight_bytes` and
`gradient_bytes` (of weights).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dsx.graph.again import input_bytes, kept, transient_bytes
from dsx.graph.backward import derive_backward
from dsx.graph.experts import EP, expert_axes, reduced_over
from dsx.graph.expressions import names, parts, product, total
from dsx.graph.kernels import Kernel, Work, split_into_kernels, work_of
from dsx.graph.layer import PANELS, RING, Layer, Operator
from dsx.graph.match import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    Distribution,
    Move,
    elements,
    match,
)
from dsx.graph.notation import AXES, Dim, Rule
from dsx.graph.saved import GRADIENT_BYTES, Regather, Saved, element_bytes, tensor_bytes

FORWARD, BACKWARD = 0, 1
_ByOperator = dict[str, tuple[list["Collective"], list["Collective"]]]  # forward and backward
# Of the work of a layer: in packaged ones up to 1,753, each of which is walked through for every set of sizes.
_MOST_PARTS = 30_000
_IN_PANELS = {ALL_GATHER: BROADCAST, REDUCE_SCATTER: REDUCE}


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one microbatch: `bytes` is its volume on one GPU."""

    kind: str
    axis: str
    bytes: Any
    tensor: str
    panelled: bool
    ring: bool = False  # block by block, while the kernel works on the block before


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """What one kernel does in the forward and the backward of one microbatch."""

    name: str
    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    fused: bool  # a `fuse ... end` of the text
    runs: bool  # False for views and operators that the assumptions do not count
    work: tuple[Work, Work]
    collectives: tuple[tuple[Collective, ...], tuple[Collective, ...]]
    saved: tuple[Saved, ...]
    replicated: tuple[str, ...]  # axes whose members all do the same work
    again: tuple[str, int] | None  # the region of selective recomputation that it is in
    kept: tuple[Saved, ...]  # what is saved then
    transient_bytes: Any  # beside what is saved, while its backward runs
    extent: tuple[Any, Any] = field(repr=False)  # of what it works on: elements but for the last dimension, and that

    @property
    def title(self) -> str:
        """What people call it: the name of its ``fuse`` block or of its operator."""
        return self.name.rpartition(".")[2] if self.fused else self.kinds[0]

    @property
    def saved_bytes(self) -> Any:
        """Local bytes kept for the backward."""
        return total(saved.bytes for saved in self.saved)


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight: local bytes, and the axes (without dp) over which its gradient is reduced once a step.

    Where ep divides it, of those ranks and dp one in ep has the same part of it.
    """

    name: str
    bytes: Any
    reduced_over: tuple[str, ...]
    over_dp: bool  # False where the weight itself is divided over dp
    over_ep: bool = False  # True where the weight is divided over ep
    tied: bool = False  # another layer of the model has it too


@dataclass(frozen=True, slots=True)
class DerivedLayer:
    """Everything the cost model needs of a layer."""

    name: str
    strategy: str
    definitions: dict[str, Any]
    axes: tuple[str, ...]
    expert_axes: tuple[str, ...]  # those that divide experts beside ep, which nests in the others and dp
    kernels: tuple[KernelCosts, ...]
    weights: tuple[Weight, ...]
    boundary_bytes: Any
    input_bytes: Any  # what full recomputation keeps
    rules: tuple[Rule, ...]
    panelled: bool
    letters: frozenset[str]  # dimensions that must have a size
    divided: tuple[Dim, ...]  # every way in which a dimension is divided

    def collectives(self, direction: int) -> list[Collective]:
        """All collectives of one direction, in the order of the kernels."""
        return [collective for kernel in self.kernels for collective in kernel.collectives[direction]]

    @property
    def priced_kernels(self) -> tuple[KernelCosts, ...]:
        """The kernels that run or communicate: what is priced."""
        return tuple(kernel for kernel in self.kernels if kernel.runs or any(kernel.collectives))


def derive(layer: Layer, fused_backward_reads: str = "consumed", uncounted: Iterable[str] = ()) -> DerivedLayer:
    """Derive everything from `layer`.

    `fused_backward_reads` says whether the backward of a fused kernel reads its saved tensors as they are
    "stored" or as they were "consumed"; `uncounted` names operators that cost nothing.
    """
    uncounted = frozenset(uncounted)
    kernels = split_into_kernels(layer)
    # By operator, since two kernels of a layer may have the same name; those of a kernel share their lists.
    into: _ByOperator = {}
    for kernel in kernels:
        into |= dict.fromkeys((op.name for op in kernel.operators), ([], []))
    _forward_moves(layer, kernels, into)
    _repeated_moves(layer, kernels, into)
    for gradient in derive_backward(layer).moves:
        booked = gradient.operator or kernels[-1].operators[0]
        # The gradients of weights are added up, and so moved, in an element size of their own.
        size = GRADIENT_BYTES if layer.tensors[gradient.tensor].weight else element_bytes(layer, gradient.tensor)
        into[booked.name][BACKWARD].extend(
            _collective(move, size, f"d {gradient.tensor}", gradient.operator) for move in gradient.moves
        )
    saved = _fresh(kernel.saved for kernel in kernels)
    held = _fresh(kept(layer, kernels))
    made: list[KernelCosts] = []
    num_parts = 0
    for index, kernel in enumerate(kernels):
        counted = [op for op in kernel.operators if op.kind.name not in uncounted and not op.costs_nothing]
        ahead, back = into[kernel.operators[0].name]
        work = work_of(layer, kernel, fused_backward_reads, uncounted) if counted else (Work(), Work())
        num_parts += sum(parts(amount) for of in work for amount in (of.matrix, of.vector, of.bytes, of.unfused))
        if num_parts > _MOST_PARTS:
            raise kernel.operators[0].place.error(
                f"the work of the layer is made of more than {_MOST_PARTS:,} numbers and dimensions, with those of its "
                "tensors put into the formulas of its operators"
            )
        made.append(
            KernelCosts(
                name=kernel.name,
                operators=tuple(op.name for op in kernel.operators),
                kinds=tuple(op.kind.name for op in kernel.operators),
                fused=kernel.fused,
                runs=bool(counted),
                work=work,
                collectives=(tuple(ahead), tuple(back)),
                saved=saved[index],
                replicated=_replicated(layer, kernel),
                again=kernel.again,
                kept=held[index],
                transient_bytes=transient_bytes(layer, kernel),
                extent=_extent(layer, kernel),
            )
        )
    first = layer.inputs[0]
    return DerivedLayer(
        name=layer.name,
        strategy=layer.strategy,
        definitions=layer.definitions,
        axes=layer.axes,
        expert_axes=expert_axes(layer),
        kernels=tuple(made),
        weights=_weights(layer),
        boundary_bytes=tensor_bytes(layer, first, layer.tensors[first].distribution),
        input_bytes=input_bytes(layer),
        rules=layer.rules,
        panelled=layer.panelled,
        letters=_letters(layer),
        divided=_divided(layer),
    )


def _fresh(lists: Iterable[tuple[Saved, ...]]) -> list[tuple[Saved, ...]]:
    """Return the tensors that each kernel is the first one to list."""
    seen: set[tuple[str, str]] = set()
    result: list[tuple[Saved, ...]] = []
    for listed in lists:
        result.append(tuple(saved for saved in listed if saved.key not in seen))
        seen |= {saved.key for saved in listed}
    return result


def _collective(move: Move, size: Any, tensor: str, operator: Operator | None) -> Collective:
    panelled = operator is not None and operator.panelled
    kind = _IN_PANELS.get(move.kind, move.kind) if panelled else move.kind
    in_panels = panelled and kind in (BROADCAST, REDUCE)
    ring = operator is not None and operator.modifier == RING and kind in (ALL_GATHER, REDUCE_SCATTER)
    return Collective(kind, move.axis, product((size, move.elements)), tensor, in_panels, ring)


def _forward_moves(layer: Layer, kernels: list[Kernel], into: "_ByOperator") -> None:
    """Match arguments; a tensor gathered once serves all that ask for the same distribution."""
    done: set[tuple[str, str]] = set()
    for kernel in kernels:
        for op in kernel.operators:
            for argument in op.arguments:
                key = (argument.tensor, str(argument.distribution))
                if key in done and not op.panelled:
                    continue
                done.add(key)
                moves = match(layer.tensors[argument.tensor].distribution, argument.distribution)
                size = element_bytes(layer, argument.tensor)
                into[op.name][FORWARD].extend(_collective(move, size, argument.tensor, op) for move in moves)
            for direction in (FORWARD, BACKWARD):
                into[op.name][direction].extend(_statistics(layer, op))


def _repeated_moves(layer: Layer, kernels: list[Kernel], into: "_ByOperator") -> None:
    """Gather again in the backward what the forward did not keep."""
    done: set[Regather] = set()
    for kernel in reversed(kernels):
        for op, regather in kernel.regathers:
            if regather in done and not op.panelled:
                continue
            done.add(regather)
            moves = match(layer.tensors[regather.tensor].distribution, regather.wanted)
            size = element_bytes(layer, regather.tensor)
            into[op.name][BACKWARD].extend(_collective(move, size, regather.tensor, op) for move in moves)


def _statistics(layer: Layer, op: Operator) -> list[Collective]:
    """Return the all-reduces of row statistics, where the normalised dimension is divided."""
    if not op.kind.statistics:
        return []
    taken = op.arguments[0]
    *rows, last = taken.distribution.dims
    size = product((tensor_bytes(layer, taken.tensor, Distribution(tuple(rows))), op.kind.statistics))
    return [Collective(ALL_REDUCE, axis, size, f"statistics of {op.name}", False) for axis in last.axes]


def _extent(layer: Layer, kernel: Kernel) -> tuple[Any, Any]:
    """Return local elements but for the last dimension, and that one, of what the first operator takes.

    Of a lookup it is the result: its indices do not say how long a row is.
    """
    first = next((op for op in kernel.operators if not op.costs_nothing), kernel.operators[0])
    if first.kind.shape == "lookup":
        taken = layer.tensors[first.name].distribution
    else:
        taken = first.arguments[0].distribution
    return elements(taken.dims[:-1]), elements(taken.dims[-1:])


def _replicated(layer: Layer, kernel: Kernel) -> tuple[str, ...]:
    """Return the layer's axes that divide nothing in the kernel, neither a dimension nor what one is defined as.

    ep is none of them: its members are ranks of the other axes.
    """
    used: set[str] = {EP}
    letters: set[str] = set()
    for op in kernel.operators:
        made = [layer.tensors[name].distribution for name in op.outputs]
        for distribution in (*made, *(argument.distribution for argument in op.arguments)):
            used |= {*distribution.axes}
            letters |= {dim.letter for dim in distribution.dims}
    used |= _parts(layer, letters)
    return tuple(axis for axis in layer.axes if axis not in used)


def _parts(layer: Layer, letters: Iterable[str]) -> set[str]:
    """Return all names that some dimensions are defined by, themselves included."""
    found: set[str] = set()
    pending = set(letters)
    while pending:
        letter = pending.pop()
        found.add(letter)
        pending |= names(layer.definitions.get(letter, 1)) - found
    return found


def _weights(layer: Layer) -> tuple[Weight, ...]:
    axes = derive_backward(layer).weight_axes
    return tuple(
        Weight(
            name,
            tensor_bytes(layer, name, tensor.distribution),
            reduced_over(layer, tensor.distribution, axes[name]),
            "dp" not in tensor.distribution.axes,
            EP in tensor.distribution.axes,
            tensor.tied,
        )
        for name, tensor in layer.tensors.items()
        if tensor.weight
    )


def _divided(layer: Layer) -> tuple[Dim, ...]:
    used = [tensor.distribution for tensor in layer.tensors.values()]
    used += [argument.distribution for op in layer.operators for argument in op.arguments]
    return tuple(dict.fromkeys(dim for distribution in used for dim in distribution.dims if dim.axes))


def _letters(layer: Layer) -> frozenset[str]:
    """Return the dimensions that a model must give: those used and not defined."""
    used = {dim.letter for tensor in layer.tensors.values() for dim in tensor.distribution.dims}
    used |= {name for op in layer.operators for share in op.kind.work.get(op.modifier, ()) for name in names(share)}
    return frozenset(_parts(layer, used) - layer.definitions.keys() - {PANELS, *AXES})
