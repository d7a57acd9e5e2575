"""A model: dimensions, and its layers as a sequence of (kind, count), each kind with its layer text.

A layer kind is derived once per strategy. The first layer may be an embedding, the last one head and loss.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from dsx.errors import InputError, NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.graph.derived import DerivedLayer, derive
from dsx.graph.expressions import evaluate, names, text
from dsx.graph.former import formerly
from dsx.graph.layer import Layer, Tensor
from dsx.graph.library import check_settable, fault_of_settings, load_layer, load_operators
from dsx.graph.match import Distribution
from dsx.graph.notation import AXES, Settings
from dsx.graph.operators import OperatorKind
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.model import LayerCheck, LayerCount, LayerKind, ModelSpec

_RUNS = 4  # more runs of layers than this alternate
_LARGEST_SIZE = 2**53  # of a defined dimension; floats hold integers exactly up to it
# Of elements, bytes and FLOPs of a layer and one sequence. A layer of the largest packaged model has 1e16; a float32,
# which sweeps take times in, ends at 3e38.
_LARGEST_AMOUNT = 1e30


@dataclass(frozen=True, slots=True)
class Model:
    """A model under one strategy and one assumption set."""

    name: str
    dimensions: dict[str, int]
    layers: tuple[tuple[DerivedLayer, int], ...]  # (layer, count) in pipeline order
    leading: int = 0  # entries of `layers` that only the first stage of a pipeline has: an embedding
    trailing: int = 0  # entries that only the last stage has: final norm, head and loss

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return sum(count for _, count in self.layers)

    @property
    def body(self) -> tuple[tuple[DerivedLayer, int], ...]:
        """The entries between the ends: what a pipeline cuts."""
        return self.layers[self.leading : len(self.layers) - self.trailing]

    @property
    def num_body_layers(self) -> int:
        """Layers between the ends."""
        return sum(count for _, count in self.body)

    @property
    def body_layer(self) -> DerivedLayer:
        """A body layer whose rules are those of all, and which says how they are divided: the first with most axes."""
        return max((layer for layer, _ in self.body), key=lambda layer: len(layer.axes))

    @property
    def kinds(self) -> tuple[DerivedLayer, ...]:
        """The layer kinds, each once, in the order in which they appear."""
        return tuple({id(layer): layer for layer, _ in self.layers}.values())

    @property
    def first(self) -> tuple[DerivedLayer, ...]:
        """The kinds that only the first stage has."""
        return tuple(layer for layer, _ in self.layers[: self.leading])

    @property
    def last(self) -> tuple[DerivedLayer, ...]:
        """The kinds that only the last stage has."""
        return tuple(layer for layer, _ in self.layers[len(self.layers) - self.trailing :])

    @property
    def segments(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The body as segments of (position among `kinds`, count).

        Runs of one kind are a segment each; a body of many short runs (layers that alternate) is one segment of
        several kinds.
        """
        where = {id(layer): position for position, layer in enumerate(self.kinds)}
        runs: list[list[int]] = []
        for layer, count in self.body:
            if runs and runs[-1][0] == where[id(layer)]:
                runs[-1][1] += count
            else:
                runs.append([where[id(layer)], count])
        if len(runs) <= _RUNS:
            return tuple(((kind, count),) for kind, count in runs)
        total: dict[int, int] = {}
        for kind, count in runs:
            total[kind] = total.get(kind, 0) + count
        return (tuple(total.items()),)


def settings_of(values: Mapping[str, str | bool]) -> Settings:
    """Return what an assumption set sets: option -> true, block parameter -> block."""
    blocks = tuple((name, value) for name, value in values.items() if isinstance(value, str))
    return Settings(frozenset(name for name, value in values.items() if value is True), blocks)


def layer_check(near: Path | None) -> LayerCheck:
    """Return what looks at the settings of a model's layers while it is read; `near` is the file beside their files."""

    @functools.cache
    def check(layer: LayerKind) -> str:
        return fault_of_settings(layer.kind, Settings(layer.options, layer.blocks), near)

    return check


def definition_of(kind: str, model: str, assumptions: AssumptionsSpec) -> str:
    """Return the layer definition that an assumption set uses for a layer kind of a model.

    Raises SpecError where the set names definitions, but none for this kind.
    """
    if not assumptions.layers:
        return kind
    if kind in assumptions.layers:
        return assumptions.layers[kind]
    if now := formerly(kind):
        raise SpecError(f"model {model!r}: {now}")
    known = ", ".join(assumptions.layers)
    raise SpecError(
        f"assumption set {assumptions.name!r} has no layer definition for the kind {kind!r} of model {model!r}"
        f"{did_you_mean(kind, assumptions.layers)} (it has: {known}); another set may, such as 'default'"
    )


def counted(spec: ModelSpec, assumptions: AssumptionsSpec) -> list[LayerCount]:
    """Return the layers of a model that an assumption set counts, in order; raises SpecError if there are none."""
    found = [entry for entry in spec.sequence if entry.kind not in assumptions.uncounted_layers]
    if not found:
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in spec.sequence))
        raise SpecError(f"assumption set {assumptions.name!r} counts no layer of model {spec.name!r} (it has: {kinds})")
    return found


def build_model(spec: ModelSpec, assumptions: AssumptionsSpec, strategy: str, near: Path | None = None) -> Model:
    """Build and derive every layer kind of a model under `strategy`.

    A first layer that takes data (an embedding) and a last one that ends otherwise than it begins (a head) are the
    ends; what lies between is the body. Raises SpecError where a layer cannot take the result of the one before it
    or asks for a dimension that the model does not give, UnknownNameError for an uncounted operator that no table has.
    """
    table = load_operators(assumptions.operators, near)
    for kind in assumptions.uncounted:
        if kind not in table:
            raise UnknownNameError("operator", kind, table)
    entries = counted(spec, assumptions)
    built: dict[LayerKind, Layer] = {}
    derived: dict[LayerKind, DerivedLayer] = {}
    for kind in dict.fromkeys(entry.layer for entry in entries):
        built[kind] = layer = layer_of(kind, spec.name, assumptions, strategy, table, near)
        derived[kind] = derive(layer, assumptions.fused_backward_reads, assumptions.uncounted)
        check_dimensions(derived[kind], spec.dimensions, spec.name)
        _check_amounts(derived[kind], spec)
    leading, trailing = check_chain(spec.name, [(built[entry.layer], entry.count) for entry in entries])
    layers = tuple((derived[entry.layer], entry.count) for entry in entries)
    return Model(spec.name, dict(spec.dimensions), layers, leading, trailing)


def layer_of(
    kind: LayerKind,
    model: str,
    assumptions: AssumptionsSpec,
    strategy: str,
    table: dict[str, OperatorKind],
    near: Path | None,
) -> Layer:
    """Build a layer of a model as an assumption set has it; raises InputError, which names the model."""
    inherited = settings_of(assumptions.set)
    check_settable(inherited, f"assumption set {assumptions.name!r}")
    definition = definition_of(kind.kind, model, assumptions)
    try:
        return load_layer(definition, strategy, table, near, Settings(kind.options, kind.blocks), inherited)
    except NotationError:  # which has a place
        raise
    except InputError as error:
        by = f"; assumption set {assumptions.name!r} has it as {definition!r}" if definition != kind.kind else ""
        raise SpecError(f"layer {str(kind)!r} of model {model!r}: {error}{by}") from None


def parameters(model: Model) -> int:
    """Return the parameters of the layers of a model: the elements of their weights, each once where it is tied."""
    total = 0
    for layer, count in model.layers:
        values = unsharded(layer, model.dimensions, 1)
        total += count * sum(evaluate(weight.bytes, values) for weight in layer.weights if not weight.tied)
    return total


def check_chain(model: str, layers: Sequence[tuple[Layer, int]]) -> tuple[int, int]:
    """Check that each layer begins as the one before it ends; return how many lead and trail the body: 0 or 1 each.

    Otherwise a collective between two layers would belong to neither. Raises SpecError.
    """
    first, last = layers[0][0], layers[-1][0]
    _check_ends(first)
    leading = int(_begins(first).data)
    trailing = int(len(layers) > 1 and _begins(last).distribution != _ends(last))
    if len(layers) == leading + trailing:
        names_of = ", ".join(layer.name for layer, _ in layers)
        raise SpecError(f"model {model!r} has no layer between its ends ({names_of})")
    for position, (layer, count) in enumerate(layers):
        is_end = (position < leading) or (position >= len(layers) - trailing)
        if is_end and count > 1:
            raise SpecError(f"model {model!r}: {layer.name!r} stands {count} times at an end; an end is one layer")
        if position > 0 and _begins(layer).data:
            raise SpecError(f"model {model!r}: layer {layer.name!r} takes data, so it can only be the first one")
        if not is_end:
            check_repeats(layer)
        before = layers[max(position - 1, 0)][0]
        if position > 0 and _begins(layer).distribution != _ends(before):
            raise SpecError(
                f"model {model!r}: layer {before.name!r} ends as {_ends(before)} and {layer.name!r} behind it begins "
                f"as {_begins(layer).distribution}; each layer begins as the one before it ends"
            )
    return leading, trailing


def check_repeats(layer: Layer) -> None:
    """Raise SpecError unless a layer can follow itself: unless it ends as it begins."""
    _check_ends(layer)
    begins, ends = _begins(layer).distribution, _ends(layer)
    if begins != ends:
        raise SpecError(
            f"layer {layer.name!r} begins as {begins} and ends as {ends}: the next layer could not take its result; "
            f"let its last operator be a view, as in output{begins} = view(y{begins})"
        )


def _check_ends(layer: Layer) -> None:
    if len(layer.inputs) != 1 or len(layer.outputs) != 1:
        raise SpecError(
            f"layer {layer.name!r} has the inputs {', '.join(layer.inputs)} and the results "
            f"{', '.join(layer.outputs)}; layers that follow each other in a model have one of each"
        )


def _begins(layer: Layer) -> Tensor:
    return layer.tensors[layer.inputs[0]]


def _ends(layer: Layer) -> Distribution:
    return layer.tensors[layer.outputs[0]].distribution


def check_dimensions(layer: DerivedLayer, dimensions: dict[str, int], owner: str) -> None:
    """Raise SpecError unless `dimensions` gives every dimension that the layer's texts use."""
    given = {*dimensions, "b", "s"}
    for letter in sorted(layer.letters - given):
        known = ", ".join(f"{name}={size}" for name, size in dimensions.items())
        raise SpecError(
            f"layer {layer.name!r} uses the dimension {letter!r}, which {owner!r} does not give"
            f"{did_you_mean(letter, given)} (it gives {known})"
        )


def _check_amounts(layer: DerivedLayer, spec: ModelSpec) -> None:
    """Raise SpecError unless the work and the memory of a layer are amounts that can be reckoned with."""
    values = unsharded(layer, spec.dimensions, spec.default_sequence_length)
    work = [work for kernel in layer.kernels for work in kernel.work]
    amounts = [getattr(of, name) for of in work for name in ("matrix", "vector", "bytes", "unfused")]
    amounts += [kernel.saved_bytes for kernel in layer.kernels] + [weight.bytes for weight in layer.weights]
    try:
        for expr in amounts:
            amount(expr, values)
    except SpecError as error:
        raise SpecError(f"layer {layer.name!r} of model {spec.name!r}: {error}") from None


def amount(expr: Any, values: Mapping[str, Any]) -> Any:
    """Return what an expression is for plain numbers; raises SpecError where that is nothing, or too much."""
    try:
        found = evaluate(expr, values)
    except ZeroDivisionError:
        raise SpecError(f"{text(expr)} divides by zero where {_given(expr, values)}") from None
    if abs(found) > _LARGEST_AMOUNT:
        raise SpecError(
            f"{text(expr)} is {Decimal(found):.3g} where {_given(expr, values)}: more than {_LARGEST_AMOUNT:g}"
        )
    return found


def _given(expr: Any, values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in sorted(names(expr)))


def unsharded(layer: DerivedLayer, dimensions: Mapping[str, Any], sequence_length: Any) -> dict[str, Any]:
    """Return the values of all names of a layer on one GPU, one sequence, one byte per element."""
    values = dict(dimensions) | {"b": 1, "s": sequence_length, "panels": 1}
    values |= dict.fromkeys(("activation_bytes", "weight_bytes", "gradient_bytes", *AXES), 1)
    return define(layer, values)


def define(layer: DerivedLayer, values: dict) -> dict:
    """Return `values` with the defined dimensions of the layer added whose parts all have a value.

    Raises SpecError for plain numbers that make a size too large, or none.
    """
    result = dict(values)
    pending = {letter: expr for letter, expr in layer.definitions.items() if letter not in result}
    while ready := [letter for letter, expr in pending.items() if names(expr) <= result.keys()]:
        for letter in ready:
            expr = pending.pop(letter)
            try:
                result[letter] = evaluate(expr, result)
            except ZeroDivisionError:
                raise SpecError(
                    f"layer {layer.name!r}: dimension {letter!r} = {text(expr)} divides by zero where "
                    f"{_given(expr, result)}"
                ) from None
            if isinstance(result[letter], int) and result[letter] > _LARGEST_SIZE:
                raise SpecError(
                    f"layer {layer.name!r}: dimension {letter!r} = {text(expr)} is {Decimal(result[letter]):.3g} where "
                    f"{_given(expr, result)}; a size is at most {_LARGEST_SIZE:,}"
                )
    return result
