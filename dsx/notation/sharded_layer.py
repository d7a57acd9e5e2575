"""A layer under a strategy: its tensors, the collectives between them, and the rules of a line.

Matching: the collectives that turn the distribution of a value into the one that its consumer needs.

For each mesh axis, the pair (producer, consumer) decides:

| producer | consumer replicated | consumer divided on d2 | consumer partial |
|---|---|---|---|
| replicated | nothing | local slice | error |
| divided on d1 | all-gather | nothing if d1 = d2, else all-to-all | error |
| partial | all-reduce | reduce-scatter | nothing |

Slices, scatters and all-to-alls come first, since they shrink or keep the tensor; gathers come last. Gathers take the
innermost axis first, scatters the outermost. The volume of a gather is the gathered tensor, that of any other
collective the tensor before it.

Not modelled: permutations of ranks (``s/cp/tp`` to ``s/tp/cp``).

A layer under a strategy: its tensors and operators, each with a known distribution.

`dsx.notation.build` has inlined the blocks and filled in the roles. Other modules of this package derive collectives,
backward, saved tensors and work from it.

The rules of an operator line, and the axes over which its result is partial.

A letter is divided alike in all arguments and results of an operator. Only linear operators take partial sums. A
contracted divided letter makes the result partial over exactly its axes. A view keeps the number of elements, and the
divided factor of a merge or split is the outermost.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dsx.notation.expressions import Name, Operation, divided, evaluate, names, primes_from, product
from dsx.notation.operators import OperatorKind
from dsx.notation.syntax import AXES, FOLLOWS, Dim, Place, RegionPath, Rule, TensorSyntax

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
)
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
    elements: Any


class Unmatchable(Exception):
    """No collective of the table leads from one distribution to the other; the message says why."""


def ordered(axes: "set[str] | frozenset[str]") -> tuple[str, ...]:
    """Return the axes in the order of AXES."""
    return tuple(axis for axis in AXES if axis in axes)


def local_size(dim: Dim) -> Any:
    """Return the local size of a dimension as an expression."""
    return divided(Name(dim.letter), dim.axes)


def elements(dims: tuple[Dim, ...]) -> Any:
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
        kept = [axis for axis in have.axes if axis in want.axes]
        prefix = _common_prefix(have.axes, want.axes)
        if len(kept) > prefix:
            raise Unmatchable(
                f"{have} and {want} order their ranks differently; an axis is kept only in front of axes that change"
            )
    layout = [list(dim.axes) for dim in producer.dims]
    target = [list(dim.axes) for dim in consumer.dims]
    letters = [dim.letter for dim in producer.dims]
    partial = set(producer.partial)
    transfers: list[Transfer] = []

    def size() -> Any:
        return elements(tuple(Dim(a, tuple(x)) for a, x in zip(letters, layout, strict=True)))

    while layout != target or partial - set(consumer.partial):
        if _extend(layout, target, partial, transfers, size):
            continue
        if finished := ordered(partial - set(consumer.partial) - {axis for axes in target for axis in axes}):
            transfers.append(Transfer(ALL_REDUCE, finished[0], size()))
            partial.discard(finished[0])
            continue
        for axes, wanted in zip(layout, target, strict=True):
            if axes != wanted[: len(axes)]:
                axis = axes.pop()
                transfers.append(Transfer(ALL_GATHER, axis, size()))
                break
        else:
            raise Unmatchable(f"no collective leads from {producer} to {consumer}")
    return transfers


def _common_prefix(have: tuple[str, ...], want: tuple[str, ...]) -> int:
    count = 0
    for a, b in zip(have, want, strict=False):
        if a != b:
            break
        count += 1
    return count


def _extend(
    layout: list[list[str]], target: list[list[str]], partial: set[str], transfers: list[Transfer], size: Any
) -> bool:
    """Divide one dimension by its next axis if possible: by a slice, else a scatter, else an all-to-all."""
    holders = {axis: axes for axes in layout for axis in axes}
    ready = [
        (axes, wanted[len(axes)])
        for axes, wanted in zip(layout, target, strict=True)
        if len(axes) < len(wanted) and axes == wanted[: len(axes)]
    ]
    for axes, axis in ready:
        if axis not in partial and axis not in holders:
            axes.append(axis)
            return True
    for axes, axis in ready:
        if axis in partial:
            transfers.append(Transfer(REDUCE_SCATTER, axis, size()))
            partial.discard(axis)
            axes.append(axis)
            return True
    for axes, axis in ready:
        if axis in holders and holders[axis][-1] == axis:
            transfers.append(Transfer(ALL_TO_ALL, axis, size()))
            holders[axis].pop()
            axes.append(axis)
            return True
    return False


PANELS = "panels"
RING = "ring"
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value or a weight, in the distribution in which it is produced."""

    name: str
    distribution: Distribution
    weight: bool = False
    data: bool = False  # comes from outside the model and has no gradient
    tied: bool = False  # a weight that the layer shares with another layer of the model
    wide: bool = False  # a weight whose multiplies run in 16 bits, where others run in fewer


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor in the distribution in which an operator consumes it."""

    tensor: str
    distribution: Distribution
    regathered: bool  # the mark ~: the backward redistributes the tensor once more instead of keeping the copy
    place: Place


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


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer under a strategy: tensors by name, operators in order."""

    name: str
    strategy: str
    definitions: dict[str, Any]
    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rules: tuple[Rule, ...]
    panelled: bool
    options: dict[str, bool]  # option that the layer or one of its blocks declares -> whether it is set
    blocks: dict[str, str]  # block parameter -> block
    single: frozenset[str] = frozenset()  # dimensions of which the model has one, such as a single expert

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the layer's tensors are divided by, in the order of AXES."""
        used = {axis for tensor in self.tensors.values() for axis in tensor.distribution.axes}
        used |= {axis for op in self.operators for arg in op.arguments for axis in arg.distribution.axes}
        return ordered(used)

    def producer(self, tensor: str) -> Operator | None:
        """Return the operator that makes `tensor`; None for an input or a weight."""
        return next((op for op in self.operators if tensor in op.outputs), None)


def widened(layer: Layer, weights: Sequence[str]) -> Layer:
    """Return a layer in which multiplies by some weights run in 16 bits.

    A weight is named as in its definition, with that of its block or layer in front where others have the name too.
    """

    def listed(name: str) -> bool:
        whole = f".{layer.name.partition('[')[0]}.{name}"  # without the options of the layer
        return any(whole.endswith(f".{weight}") for weight in weights)

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
    definitions: dict[str, Any],
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
            summed = _contracted(arguments, outputs[0])
            if partial & summed:
                axis = ordered(partial & summed)[0]
                raise place.error(
                    f"{kind.name} sums over a dimension divided by {axis!r} and reads a value that is a partial sum "
                    f"over {axis!r}: complete that sum first"
                )
            partial |= summed
    for written, stated in outputs:
        if FOLLOWS not in written.partial and set(stated.partial) != partial:
            raise written.place.error(_partial_message(written.name, stated, partial))
    return ordered(partial)


def check_axes(written: TensorSyntax, distribution: Distribution) -> None:
    """Raise unless every mesh axis is used at most once in a tensor."""
    axes = distribution.axes + distribution.partial
    for axis in axes:
        if axes.count(axis) > 1:
            raise written.place.error(f"{written.name!r} uses the axis {axis!r} twice: {distribution}")


def _partial_message(name: str, stated: Distribution, partial: set[str]) -> str:
    follows = " ".join(f"@{axis}" for axis in ordered(partial))
    is_stated = " ".join(f"@{axis}" for axis in stated.partial)
    if not partial:
        return f"{name!r} is stated as a partial sum ({is_stated}), but the operator sums no divided dimension"
    return (
        f"{name!r} is a partial sum over {', '.join(ordered(partial))}, since the operator sums over a dimension that "
        f"they divide: write '{follows}' (or '@*'){f', not {is_stated!r}' if is_stated else ''}"
    )


def _incoming_partial(kind: OperatorKind, arguments: list[At]) -> set[str]:
    partial = [arg for arg in arguments if arg[0].partial]
    if not partial:
        return set()
    distribution, place = partial[0]
    axes = ", ".join(distribution.partial)
    if kind.linear == "none":
        whole = distribution.without_partial()
        raise place.error(
            f"{kind.name} is not linear and cannot take a partial sum over {axes}: "
            f"state a distribution without '@', such as {whole}"
        )
    if kind.linear == "one" and len(partial) > 1:
        raise partial[1][1].error(f"{kind.name} takes one partial sum; two of its arguments are partial sums")
    if kind.linear == "each":
        other = next((arg for arg in arguments if arg[0].partial != distribution.partial), None)
        if other:
            raise place.error(
                f"{kind.name} adds a partial sum over {axes} to a value that is none: "
                "the other value would count once per rank; complete the sum first"
            )
    return set(distribution.partial)


def _check_letters(kind: OperatorKind, arguments: list[At], output: tuple[TensorSyntax, Distribution]) -> None:
    """Check that a letter is divided alike everywhere, and that the result's letters come from the arguments."""
    written, stated = output
    seen: dict[str, Dim] = {}
    for distribution, place in [*arguments, (stated, written.place)]:
        for dim in distribution.dims:
            other = seen.setdefault(dim.letter, dim)
            if other != dim:
                raise place.error(f"{dim.letter!r} is divided differently in one operator: {other} and {dim}")
    given = {dim.letter for distribution, _ in arguments for dim in distribution.dims}
    letters = [dim.letter for dim in stated.dims]
    if kind.shape == "free":
        return
    for letter in letters:
        if letter not in given:
            known = ", ".join(sorted(given))
            raise written.place.error(
                f"dimension {letter!r} of the result {written.name!r} "
                f"is in no argument of {kind.name} (arguments have {known})"
            )
    if kind.shape == "same":
        first = [dim.letter for dim in arguments[0][0].dims]
        if letters != first:
            raise written.place.error(
                f"the result {written.name!r} of {kind.name} must have the dimensions of the first argument, "
                f"[{', '.join(first)}], not [{', '.join(letters)}]"
            )
        missing = given - set(first)
        if missing:
            raise written.place.error(f"{kind.name}: dimension {sorted(missing)[0]!r} is not in its first argument")


def _contracted(arguments: list[At], output: tuple[TensorSyntax, Distribution]) -> set[str]:
    letters = {dim.letter for dim in output[1].dims}
    return {
        axis
        for distribution, _ in arguments
        for dim in distribution.dims
        if dim.letter not in letters
        for axis in dim.axes
    }


def _check_view(argument: At, outputs: list[tuple[TensorSyntax, Distribution]], definitions: dict[str, Any]) -> None:
    """Check that a view keeps elements and axes; a view into several tensors splits a sum term by term."""
    source, place = argument
    common = set(source.dims)
    for _, stated in outputs:
        common &= set(stated.dims)
    rest = tuple(dim for dim in source.dims if dim not in common)
    axes = _leading_axes(rest, place, str(source))
    sizes = []
    for written, stated in outputs:
        made = tuple(dim for dim in stated.dims if dim not in common)
        if _leading_axes(made, written.place, f"{written.name}{stated}") != axes:
            raise written.place.error(
                f"view: {written.name!r} {stated} is not divided over the ranks as its source {source} is"
            )
        sizes.append(made)
    letters = {dim.letter for dims in (rest, *sizes) for dim in dims}
    first = outputs[0][0]
    try:
        same = _same_size(rest, sizes, letters, definitions)
    except ZeroDivisionError:
        raise first.place.error("view: the definition of a dimension divides by zero") from None
    if not same:
        raise first.place.error(
            f"view: {', '.join(written.name for written, _ in outputs)} and the source {source} differ in size: "
            "a dimension does not match"
        )


def _leading_axes(dims: tuple[Dim, ...], place: Place, where: str) -> tuple[str, ...]:
    """Return the axes of the outermost of `dims`; only that one may be divided."""
    for dim in dims[1:]:
        if dim.axes:
            raise place.error(f"view: in {where} only the outermost factor may be divided, not {dim}")
    return dims[0].axes if dims else ()


def _same_size(
    rest: tuple[Dim, ...], sizes: list[tuple[Dim, ...]], letters: set[str], definitions: dict[str, Any]
) -> bool:
    """Return whether element counts are identical, tested at prime sizes that no coincidence makes equal."""
    free = sorted(_base_letters(letters, definitions))
    for start in (101, 1009):
        values: dict[str, Any] = {
            name: Fraction(prime) for name, prime in zip(free, primes_from(start, len(free)), strict=True)
        }
        for letter in letters:
            _exact_size(letter, values, definitions)
        sums = sum(_product(values, dims) for dims in sizes)
        if _product(values, rest) != sums:
            return False
    return True


def _product(values: dict[str, Any], dims: tuple[Dim, ...]) -> Any:
    result: Any = Fraction(1)
    for dim in dims:
        result *= values[dim.letter]
    return result


def _base_letters(letters: set[str], definitions: dict[str, Any]) -> set[str]:
    """Return the undefined letters that the sizes of `letters` are made of."""
    seen: set[str] = set()
    pending = set(letters)
    while pending:
        seen |= pending
        pending = {name for letter in pending & definitions.keys() for name in names(definitions[letter])} - seen
    return seen - definitions.keys()


def _exact_size(letter: str, values: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """Return the size of a letter, and add it to `values`."""
    if letter not in values:
        for name in names(definitions[letter]):
            _exact_size(name, values, definitions)
        values[letter] = evaluate(definitions[letter], values, floor_divide=operator.truediv)
    return values[letter]


def expanded_parts(definitions: dict[str, Any]) -> dict[str, int]:
    """Return the number of integers and names in the size of each letter, with all definitions substituted.

    No letter may be defined through itself.
    """
    found: dict[str, int] = {}

    def count(expr: Any) -> int:
        total = 0
        while isinstance(expr, Operation):
            total += count(expr.right)
            expr = expr.left
        return total + (of_letter(expr.name) if isinstance(expr, Name) else 1)

    def of_letter(letter: str) -> int:
        if letter not in found:
            found[letter] = count(definitions[letter]) if letter in definitions else 1
        return found[letter]

    return {letter: of_letter(letter) for letter in definitions}


def defined_through_itself(definitions: dict[str, Any]) -> tuple[str, ...]:
    """Return a cycle of letters, its first letter repeated at the end; empty if there is none."""
    done: set[str] = set()  # letters that lead to no cycle

    def follow(letter: str, above: tuple[str, ...]) -> tuple[str, ...]:
        chain = (*above, letter)
        if letter in above:
            return chain[above.index(letter) :]
        inner = names(definitions[letter]) - done if letter in definitions else set[str]()
        found = next((found for name in sorted(inner) if (found := follow(name, chain))), ())
        if not found:
            done.add(letter)
        return found

    return next((found for letter in definitions if (found := follow(letter, ()))), ())
