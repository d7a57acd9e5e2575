"""A layer under a strategy: its tensors, the collectives between them, and the rules of a line.

`dsx.notation.build` has inlined the blocks and filled in the roles, so each tensor has a distribution. Other modules of
this package derive collectives, backward, saved tensors and work from it.

Matching finds the collectives that turn the distribution of a value into the one that its consumer needs. For each mesh
axis, the pair (producer, consumer) decides:

| producer | consumer replicated | consumer divided on d2 | consumer partial |
|---|---|---|---|
| replicated | nothing | local slice | error |
| divided on d1 | all-gather | nothing if d1 = d2, else all-to-all | error |
| partial | all-reduce | reduce-scatter | nothing |

Slices, scatters and all-to-alls come first, since they shrink or keep the tensor; gathers come last. Gathers take the
innermost axis first, scatters the outermost. The volume of a gather is the gathered tensor, that of any other
collective the tensor before it. Not modelled: permutations of ranks (``s/cp/tp`` to ``s/tp/cp``).

A letter is divided alike in all arguments and results of an operator. Only linear operators take partial sums. A
contracted divided letter makes the result partial over exactly its axes. A view keeps the number of elements, and the
divided factor of a merge or split is the outermost.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dsx.notation.expressions import (
    Expression,
    Name,
    divided,
    evaluate,
    names,
    names_within,
    primes_from,
    product,
    resolvable,
)
from dsx.notation.operators import OperatorKind
from dsx.notation.syntax import AXES, FOLLOWS, Dim, Place, RegionPath, Rule, TensorSyntax

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
BROADCAST, REDUCE = "broadcast", "reduce"


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a tensor is divided over the mesh: its dimensions, and the axes over which it is a partial sum."""

    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()  # in the order of AXES

    def __str__(self) -> str:
        marks = "".join(f" @{axis}" for axis in self.partial)
        return f"[{', '.join(map(str, self.dims))}{marks}]"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that divide a dimension."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    def without_partial(self) -> "Distribution":
        """The same distribution with every partial sum completed."""
        return Distribution(self.dims)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective over one axis; `elements` is its volume in elements."""

    kind: str
    axis: str
    elements: Expression


class Unmatchable(Exception):
    """No collective of the table leads from one distribution to the other; the message says why."""


def ordered(axes: "set[str] | frozenset[str]") -> tuple[str, ...]:
    """Return the axes in the order of AXES."""
    return tuple(axis for axis in AXES if axis in axes)


def local_size(dim: Dim) -> Expression:
    """Return the local size of a dimension as an expression."""
    return divided(Name(dim.letter), dim.axes)


def elements(dims: tuple[Dim, ...]) -> Expression:
    """Return the local number of elements of a tensor as an expression."""
    return product(local_size(dim) for dim in dims)


def match(producer: Distribution, consumer: Distribution) -> list[Transfer]:
    """Return the collectives from `producer` to `consumer`, in order.

    Both must have the same letters in the same order. Raises Unmatchable.
    """
    if [dim.letter for dim in producer.dims] != [dim.letter for dim in consumer.dims]:
        raise Unmatchable(f"{producer} and {consumer} have different dimensions")
    invented = set(consumer.partial) - set(producer.partial)
    if invented:
        raise Unmatchable(f"{consumer} is a partial sum over {', '.join(sorted(invented))}, but {producer} is not")
    for have, want in zip(producer.dims, consumer.dims, strict=True):
        num_kept = len({*have.axes} & {*want.axes})
        if have.axes[:num_kept] != want.axes[:num_kept]:
            raise Unmatchable(
                f"{have} and {want} order their ranks differently; an axis is kept only in front of axes that change"
            )
    layout = [list(dim.axes) for dim in producer.dims]
    target = [list(dim.axes) for dim in consumer.dims]
    partial = set(producer.partial)
    transfers: list[Transfer] = []

    def collective(kind: str, axis: str) -> None:
        dims = (Dim(dim.letter, tuple(axes)) for dim, axes in zip(producer.dims, layout, strict=True))
        transfers.append(Transfer(kind, axis, elements(tuple(dims))))

    def divide() -> bool:
        """Divide one dimension by its next axis if possible: by a slice, else a scatter, else an all-to-all."""
        holders = {axis: axes for axes in layout for axis in axes}
        ready = [
            (axes, needed[len(axes)])
            for axes, needed in zip(layout, target, strict=True)
            if len(axes) < len(needed) and axes == needed[: len(axes)]
        ]
        sliced = [(axes, axis, "") for axes, axis in ready if axis not in partial and axis not in holders]
        scattered = [(axes, axis, REDUCE_SCATTER) for axes, axis in ready if axis in partial]
        moved = [(axes, axis, ALL_TO_ALL) for axes, axis in ready if axis in holders and holders[axis][-1] == axis]
        for axes, axis, kind in (*sliced, *scattered, *moved):
            if kind:
                collective(kind, axis)
            if kind == ALL_TO_ALL:
                holders[axis].pop()
            partial.discard(axis)
            axes.append(axis)
            return True
        return False

    while layout != target or partial - set(consumer.partial):
        if divide():
            continue
        if finished := ordered(partial - set(consumer.partial) - {axis for axes in target for axis in axes}):
            collective(ALL_REDUCE, finished[0])
            partial.discard(finished[0])
            continue
        for axes, needed in zip(layout, target, strict=True):
            if axes != needed[: len(axes)]:
                axis = axes.pop()
                collective(ALL_GATHER, axis)
                break
        else:
            raise Unmatchable(f"no collective leads from {producer} to {consumer}")
    return transfers


PANELS = "panels"
RING = "ring"
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value or a weight, in the distribution in which it is produced."""

    name: str
    distribution: Distribution
    weight: bool = False
    data: bool = False  # comes from outside the model
    tied: bool = False  # a weight that the layer shares with another layer of the model
    wide: bool = False  # a weight whose multiplies run in 16 bits, where others run in fewer
    constant: bool = False  # has no gradient, as data, a frozen weight, and what is made of these alone


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor in the distribution in which an operator consumes it."""

    tensor: str
    distribution: Distribution
    regathered: bool  # the mark ~: the backward redistributes the tensor once more instead of keeping the copy
    place: Place

    @property
    def key(self) -> tuple[str, str]:
        """What tells its copies of tensors apart: tensor and distribution."""
        return self.tensor, str(self.distribution)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator, named after its first result."""

    kind: OperatorKind
    modifier: str
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    fuse: tuple[str, int] | None
    panelled: bool
    place: Place
    regions: RegionPath = ()  # the ``recompute`` regions that it is in

    @property
    def name(self) -> str:
        """The name of the first result."""
        return self.outputs[0]

    @property
    def costs_nothing(self) -> bool:
        """Whether it is a view, for which no kernel runs."""
        return self.kind.shape == "view"


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer under a strategy: tensors by name, operators in order."""

    name: str
    strategy: str
    definitions: dict[str, Expression]
    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[str, ...]  # mesh axes that its tensors are divided by, in the order of AXES
    rules: tuple[Rule, ...]
    panelled: bool
    options: dict[str, bool]  # option that the layer or one of its blocks declares -> whether it is set
    blocks: dict[str, str]  # block parameter -> block
    single: frozenset[str] = frozenset()  # dimensions of which the model has one, such as a single expert

    @property
    def distributions(self) -> list[Distribution]:
        """The distributions of all tensors, as they are produced and as they are consumed."""
        produced = [tensor.distribution for tensor in self.tensors.values()]
        return produced + [argument.distribution for op in self.operators for argument in op.arguments]

    def full_name(self, tensor: str) -> str:
        """Return the name of a tensor with that of the layer, without its options, in front."""
        return f"{self.name.partition('[')[0]}.{tensor}"

    def producer(self, tensor: str) -> Operator | None:
        """Return the operator that makes `tensor`; None for an input or a weight."""
        return next((op for op in self.operators if tensor in op.outputs), None)


def widened(layer: Layer, weights: Sequence[str]) -> Layer:
    """Return a layer in which multiplies by some weights run in 16 bits.

    A weight is named as in its definition, with that of its block or layer in front where others have the name too.
    """

    def listed(name: str) -> bool:
        return any(f".{layer.full_name(name)}".endswith(f".{weight}") for weight in weights)

    tensors = {
        name: replace(tensor, wide=True) if tensor.weight and listed(name) else tensor
        for name, tensor in layer.tensors.items()
    }
    return replace(layer, tensors=tensors)


At = tuple[Distribution, Place]  # a distribution, and where the definition states it


def check_operator(
    kind: OperatorKind,
    arguments: list[At],
    outputs: list[tuple[TensorSyntax, Distribution]],
    definitions: dict[str, Expression],
    place: Place,
) -> tuple[str, ...]:
    """Check one operator, and return the axes over which its results are partial.

    Raises NotationError at the faulty argument or result.
    """
    least = sum(not name.endswith("?") for name in kind.arguments)
    if not least <= len(arguments) <= len(kind.arguments):
        takes = ", ".join(kind.arguments)
        raise place.error(f"{kind.name} takes ({takes}), not {len(arguments)} arguments")
    partial = _incoming_partial(kind, arguments)
    if kind.shape == "view":
        _check_view(arguments[0], outputs, definitions)
    else:
        if len(outputs) > 1:
            raise place.error(f"{kind.name} has one result; only a view has several")
        _check_letters(kind, arguments, outputs[0])
        if kind.shape in ("contract", "lookup"):
            letters = {dim.letter for dim in outputs[0][1].dims}
            dims = [dim for distribution, _ in arguments for dim in distribution.dims if dim.letter not in letters]
            summed = {axis for dim in dims for axis in dim.axes}
            if partial & summed:
                axis = ordered(partial & summed)[0]
                raise place.error(
                    f"{kind.name} sums over a dimension divided by {axis!r} and reads a value that is a partial sum "
                    f"over {axis!r}: complete that sum first"
                )
            partial |= summed
    for written, distribution in outputs:
        if FOLLOWS in written.partial or set(distribution.partial) == partial:
            continue
        is_stated, follows = (
            " ".join(f"@{axis}" for axis in axes) for axes in (distribution.partial, ordered(partial))
        )
        if not partial:
            raise written.place.error(
                f"{written.name!r} is stated as a partial sum ({is_stated}), but the operator sums no divided dimension"
            )
        raise written.place.error(
            f"{written.name!r} is a partial sum over {', '.join(ordered(partial))}, since the operator sums over a "
            f"dimension that they divide: write '{follows}' (or '@*'){f', not {is_stated!r}' if is_stated else ''}"
        )
    return ordered(partial)


def check_axes(written: TensorSyntax, distribution: Distribution) -> None:
    """Raise unless every mesh axis is used at most once in a tensor."""
    axes = distribution.axes + distribution.partial
    if twice := [axis for axis in axes if axes.count(axis) > 1]:
        raise written.place.error(f"{written.name!r} uses the axis {twice[0]!r} twice: {distribution}")


def _incoming_partial(kind: OperatorKind, arguments: list[At]) -> set[str]:
    """Return the axes over which the arguments of an operator are partial."""
    partial = [argument for argument in arguments if argument[0].partial]
    if not partial:
        return set()
    distribution, place = partial[0]
    axes = ", ".join(distribution.partial)
    if kind.linear == "none":
        raise place.error(
            f"{kind.name} is not linear and cannot take a partial sum over {axes}: "
            f"state a distribution without '@', such as {distribution.without_partial()}"
        )
    if kind.linear == "one" and len(partial) > 1:
        raise partial[1][1].error(f"{kind.name} takes one partial sum; two of its arguments are partial sums")
    if kind.linear == "each" and any(other.partial != distribution.partial for other, _ in arguments):
        raise place.error(
            f"{kind.name} adds a partial sum over {axes} to a value that is none: "
            "the other value would count once per rank; complete the sum first"
        )
    return set(distribution.partial)


def _check_letters(kind: OperatorKind, arguments: list[At], output: tuple[TensorSyntax, Distribution]) -> None:
    """Check that a letter is divided alike everywhere, and that the result's letters come from the arguments."""
    written, distribution_of_result = output
    seen: dict[str, Dim] = {}
    for distribution, place in [*arguments, (distribution_of_result, written.place)]:
        for dim in distribution.dims:
            if (other := seen.setdefault(dim.letter, dim)) != dim:
                raise place.error(f"{dim.letter!r} is divided differently in one operator: {other} and {dim}")
    if kind.shape == "free":
        return
    of_arguments = {dim.letter for distribution, _ in arguments for dim in distribution.dims}
    letters = [dim.letter for dim in distribution_of_result.dims]
    for letter in letters:
        if letter not in of_arguments:
            raise written.place.error(
                f"dimension {letter!r} of the result {written.name!r} "
                f"is in no argument of {kind.name} (arguments have {', '.join(sorted(of_arguments))})"
            )
    if kind.shape == "same":
        first = [dim.letter for dim in arguments[0][0].dims]
        if letters != first:
            raise written.place.error(
                f"the result {written.name!r} of {kind.name} must have the dimensions of the first argument, "
                f"[{', '.join(first)}], not [{', '.join(letters)}]"
            )
        if missing := of_arguments - set(first):
            raise written.place.error(f"{kind.name}: dimension {sorted(missing)[0]!r} is not in its first argument")


def _check_view(
    argument: At, outputs: list[tuple[TensorSyntax, Distribution]], definitions: dict[str, Expression]
) -> None:
    """Check that a view keeps elements and axes; a view into several tensors splits a sum term by term."""
    source, place = argument
    common = set(source.dims).intersection(*(distribution.dims for _, distribution in outputs))

    def differing(distribution: Distribution, place: Place, where: str) -> tuple[Dim, ...]:
        """Return the dimensions that a view changes; only the outermost may be divided."""
        dims = tuple(dim for dim in distribution.dims if dim not in common)
        for dim in dims[1:]:
            if dim.axes:
                raise place.error(f"view: in {where} only the outermost factor may be divided, not {dim}")
        return dims

    taken = differing(source, place, str(source))
    results: list[tuple[Dim, ...]] = []
    for written, distribution in outputs:
        results.append(differing(distribution, written.place, f"{written.name}{distribution}"))
        if [dim.axes for dim in results[-1][:1] if dim.axes] != [dim.axes for dim in taken[:1] if dim.axes]:
            raise written.place.error(
                f"view: {written.name!r} {distribution} is not divided over the ranks as its source {source} is"
            )
    first = outputs[0][0]
    try:
        same = _same_size(taken, results, definitions)
    except ZeroDivisionError:
        raise first.place.error("view: the definition of a dimension divides by zero") from None
    if not same:
        raise first.place.error(
            f"view: {', '.join(written.name for written, _ in outputs)} and the source {source} differ in size: "
            "a dimension does not match"
        )


def _same_size(taken: tuple[Dim, ...], results: list[tuple[Dim, ...]], definitions: dict[str, Expression]) -> bool:
    """Return whether element counts are identical, tested at prime sizes that no coincidence makes equal."""
    letters = names_within({dim.letter for dims in (taken, *results) for dim in dims}, definitions)
    free = sorted(letters - definitions.keys())
    needed = {letter: expr for letter, expr in definitions.items() if letter in letters}
    for start in (101, 1009):
        values = dict(zip(free, map(Fraction, primes_from(start, len(free))), strict=True))
        for letter, expr in resolvable(needed, free):
            values[letter] = evaluate(expr, values, floor_divide=operator.truediv)
        sizes = [math.prod(values[dim.letter] for dim in dims) for dims in (taken, *results)]
        if sizes[0] != sum(sizes[1:]):
            return False
    return True


def defined_through_itself(definitions: dict[str, Expression]) -> tuple[str, ...]:
    """Return a cycle of letters, its first letter repeated at the end; empty if there is none."""
    done: set[str] = set()  # letters that lead to no cycle

    def follow(letter: str, above: tuple[str, ...]) -> tuple[str, ...]:
        chain = (*above, letter)
        if letter in above:
            return chain[above.index(letter) :]
        for name in sorted(names(definitions[letter]) - done if letter in definitions else ()):
            if cycle := follow(name, chain):
                return cycle
        done.add(letter)
        return ()

    return next((cycle for letter in definitions if (cycle := follow(letter, ()))), ())
