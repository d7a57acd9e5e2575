"""A model: its dimensions, and its layers as a sequence of (kind, count).

Each layer kind is built from its layer definition and derived once per strategy. The first layer may be the embedding,
the last one the head with the loss.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from dsx.errors import InputError, NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.graph.derived import DerivedLayer, derive
from dsx.graph.expressions import evaluate, names, text
from dsx.graph.former_names import written_now
from dsx.graph.layer import Layer, Tensor, widened
from dsx.graph.library import check_settable, fault_of_settings, load_layer, load_operators
from dsx.graph.match import Distribution
from dsx.graph.model_letters import letters_of
from dsx.graph.notation import AXES, Settings
from dsx.graph.operators import OperatorKind
from dsx.spec.assumed_names import ELEMENT_BYTES
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.model import LayerCheck, LayerCount, LayerKind, ModelSpec

_MOST_RUNS = 4  # a body with more runs of equal layers counts as alternating
_LARGEST_SIZE = 2**53  # of a defined dimension; floats hold integers exactly up to it
# Bytes and FLOPs of a layer and one sequence. A layer of the largest packaged model has 1e16; sweeps hold times in
# float32, which ends at 3e38.
_LARGEST_AMOUNT = 1e30


@dataclass(frozen=True, slots=True)
class Model:
    """A model under one strategy and one assumption set."""

    name: str
    dimensions: dict[str, int]
    layers: tuple[tuple[DerivedLayer, int], ...]  # (layer, count) in pipeline order
    leading: int = 0  # entries of `layers` that only the first pipeline stage has: 1 with an embedding, else 0
    trailing: int = 0  # entries that only the last stage has: 1 with a head, else 0

    @property
    def num_layers(self) -> int:
        """Number of layers, embedding and head included."""
        return sum(count for _, count in self.layers)

    @property
    def body(self) -> tuple[tuple[DerivedLayer, int], ...]:
        """The entries between embedding and head, which a pipeline divides into stages."""
        return self.layers[self.leading : len(self.layers) - self.trailing]

    @property
    def num_body_layers(self) -> int:
        """Number of layers between embedding and head."""
        return sum(count for _, count in self.body)

    @property
    def body_layer(self) -> DerivedLayer:
        """The body layer that stands for all in rules and divided axes: the first of those with most axes."""
        return max((layer for layer, _ in self.body), key=lambda layer: len(layer.axes))

    @property
    def kinds(self) -> tuple[DerivedLayer, ...]:
        """The layer kinds, each once, in the order of their first layers."""
        return tuple({id(layer): layer for layer, _ in self.layers}.values())

    @property
    def first(self) -> tuple[DerivedLayer, ...]:
        """The kinds that only the first stage has: the embedding, or none."""
        return tuple(layer for layer, _ in self.layers[: self.leading])

    @property
    def last(self) -> tuple[DerivedLayer, ...]:
        """The kinds that only the last stage has: the head, or none."""
        return tuple(layer for layer, _ in self.layers[len(self.layers) - self.trailing :])

    @property
    def num_predictions(self) -> int:
        """Number of layers of multi-token prediction, for which the head takes the further tokens as data."""
        return sum(layer.layer.tensors[name].data for layer in self.last for name in layer.layer.inputs)

    @property
    def segments(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The body as segments, each a tuple of (position among `kinds`, count).

        Each run of one kind is a segment. A body of alternating layers, with many short runs, is one segment of several
        kinds.
        """
        where = {id(layer): position for position, layer in enumerate(self.kinds)}
        runs: list[list[int]] = []
        for layer, count in self.body:
            if runs and runs[-1][0] == where[id(layer)]:
                runs[-1][1] += count
            else:
                runs.append([where[id(layer)], count])
        if len(runs) <= _MOST_RUNS:
            return tuple(((kind, count),) for kind, count in runs)
        total: dict[int, int] = {}
        for kind, count in runs:
            total[kind] = total.get(kind, 0) + count
        return (tuple(total.items()),)


def settings_of(values: Mapping[str, str | bool]) -> Settings:
    """Return the settings of an assumption set: option -> true, block parameter -> block."""
    blocks = tuple((name, value) for name, value in values.items() if isinstance(value, str))
    return Settings(frozenset(name for name, value in values.items() if value is True), blocks)


def layer_check(near: Path | None, assumptions: AssumptionsSpec) -> LayerCheck:
    """Return the check of layers for `load_model`; layer definitions are searched in the folder of `near`."""
    inherited = settings_of(assumptions.set) | settings_of(assumptions.unfused_attention)

    @functools.cache
    def fault(layer: LayerKind) -> str:
        return fault_of_settings(layer.kind, Settings(layer.options, layer.blocks), near)

    def letters(layer: LayerKind) -> frozenset[str] | None:
        # A set may map a kind to another definition, and need not count all kinds of a model.
        definitions = {layer.kind, assumptions.layers.get(layer.kind, layer.kind)}
        chosen = Settings(layer.options, layer.blocks)
        found = [letters_of(definition, chosen, inherited, near) for definition in definitions]
        known = [letters for letters in found if letters is not None]
        return frozenset[str]().union(*known) if known else None

    return LayerCheck(fault, letters)


def definition_of(kind: str, model: str, assumptions: AssumptionsSpec) -> str:
    """Return the name of the layer definition that an assumption set uses for a layer kind of a model.

    Raises SpecError where the set maps kinds to definitions, but not this one.
    """
    if not assumptions.layers:
        return kind
    if kind in assumptions.layers:
        return assumptions.layers[kind]
    if now := written_now(kind):
        raise SpecError(f"model {model!r}: {now}")
    known = ", ".join(assumptions.layers)
    raise SpecError(
        f"assumption set {assumptions.name!r} has no layer definition for the kind {kind!r} of model {model!r}"
        f"{did_you_mean(kind, assumptions.layers)} (it has: {known}); another set may, such as 'default'"
    )


def counted(spec: ModelSpec, assumptions: AssumptionsSpec) -> list[LayerCount]:
    """Return the layers of a model that an assumption set counts, in order; raises SpecError if it counts none."""
    found = [entry for entry in spec.sequence if entry.kind not in assumptions.uncounted_layers]
    if not found:
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in spec.sequence))
        raise SpecError(f"assumption set {assumptions.name!r} counts no layer of model {spec.name!r} (it has: {kinds})")
    return found


def build_model(spec: ModelSpec, assumptions: AssumptionsSpec, strategy: str, near: Path | None = None) -> Model:
    """Build and derive every layer kind of a model under `strategy`.

    A first layer that takes data is the embedding; a last layer whose output has another distribution than its input
    is the head. The layers between them are the body. Raises SpecError where a layer cannot take the output of the
    previous one or uses a dimension that the model does not give, UnknownNameError for an uncounted operator that no
    table has.
    """
    table = load_operators(assumptions.operators, near)
    for kind in assumptions.uncounted:
        if kind not in table:
            raise UnknownNameError("operator", kind, table)
    entries = counted(spec, assumptions)
    built: dict[LayerKind, Layer] = {}
    derived: dict[LayerKind, DerivedLayer] = {}
    for kind in dict.fromkeys(entry.layer for entry in entries):
        single = frozenset(name for name, size in spec.dimensions.items() if size == 1)
        layer = replace(layer_of(kind, spec.name, assumptions, strategy, table, near), single=single)
        built[kind] = layer
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
    """Build a layer of a model under an assumption set; raises InputError, which names the model."""
    inherited = settings_of(assumptions.set)
    check_settable(inherited, f"assumption set {assumptions.name!r}")
    definition = definition_of(kind.kind, model, assumptions)
    try:
        built = load_layer(definition, strategy, table, near, Settings(kind.options, kind.blocks), inherited)
        return widened(built, assumptions.sixteen_bit_weights)
    except NotationError:  # its message has a place
        raise
    except InputError as error:
        by = f"; assumption set {assumptions.name!r} maps it to {definition!r}" if definition != kind.kind else ""
        raise SpecError(f"layer {str(kind)!r} of model {model!r}: {error}{by}") from None


def parameters(model: Model) -> int:
    """Return the number of parameters of a model; a tied weight counts once."""
    total = 0
    for layer, count in model.layers:
        values = unsharded(layer, model.dimensions, 1)
        total += count * sum(evaluate(weight.bytes, values) for weight in layer.weights if not weight.tied)
    return total


def check_chain(model: str, layers: Sequence[tuple[Layer, int]]) -> tuple[int, int]:
    """Check that each layer takes the output of the previous one; return the number of leading and trailing layers.

    Either is 0 or 1: the embedding and the head. Distributions must agree, since a collective between two layers would
    belong to neither. Raises SpecError.
    """
    first, last = layers[0][0], layers[-1][0]
    _check_one_input_and_output(first)
    leading = int(_input(first).data)
    trailing = int(len(layers) > 1 and _input(last).distribution != _output(last))
    if len(layers) == leading + trailing:
        names_of = ", ".join(layer.name for layer, _ in layers)
        raise SpecError(f"model {model!r} has no layer between embedding and head ({names_of})")
    for position, (layer, count) in enumerate(layers):
        in_body = leading <= position < len(layers) - trailing
        if not in_body and count > 1:
            role = "embedding" if position < leading else "head"
            raise SpecError(f"model {model!r}: the {role} {layer.name!r} has count {count}; it is one layer")
        if position > 0 and _input(layer).data:
            raise SpecError(f"model {model!r}: layer {layer.name!r} takes data, so it can only be the first one")
        if in_body:
            check_repeats(layer)
        previous = layers[max(position - 1, 0)][0]
        if position > 0 and _input(layer).distribution != _output(previous):
            raise SpecError(
                f"model {model!r}: the output of layer {previous.name!r} is {_output(previous)}, and the input of the "
                f"next layer, {layer.name!r}, is {_input(layer).distribution}; their distributions must be equal"
            )
    return leading, trailing


def check_repeats(layer: Layer) -> None:
    """Raise SpecError unless a layer can follow itself: its output has the distribution of its input."""
    _check_one_input_and_output(layer)
    taken, made = _input(layer).distribution, _output(layer)
    if taken != made:
        raise SpecError(
            f"layer {layer.name!r} has the input {taken} and the output {made}: the next layer could not take its "
            f"output; end it with a view, as in output{taken} = view(y{taken})"
        )


def _check_one_input_and_output(layer: Layer) -> None:
    taken = [name for name in layer.inputs[1:] if not layer.tensors[name].data]
    if not layer.inputs or taken or len(layer.outputs) != 1:
        raise SpecError(
            f"layer {layer.name!r} has the inputs {', '.join(layer.inputs)} and the outputs "
            f"{', '.join(layer.outputs)}; a layer of a model has one of each"
        )


def _input(layer: Layer) -> Tensor:
    return layer.tensors[layer.inputs[0]]


def _output(layer: Layer) -> Distribution:
    return layer.tensors[layer.outputs[0]].distribution


def check_dimensions(layer: DerivedLayer, dimensions: dict[str, int], owner: str) -> None:
    """Raise SpecError unless `dimensions` gives every dimension that the layer uses."""
    given = {*dimensions, "b", "s"}
    for letter in sorted(layer.letters - given):
        known = ", ".join(f"{name}={size}" for name, size in dimensions.items())
        raise SpecError(
            f"layer {layer.name!r} uses the dimension {letter!r}, which {owner!r} does not give"
            f"{did_you_mean(letter, given)} (it gives {known})"
        )


def _check_amounts(layer: DerivedLayer, spec: ModelSpec) -> None:
    """Raise SpecError if the work or the memory of a layer is too large, or divides by zero."""
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
    """Return the value of an expression for plain numbers; raises SpecError if it divides by zero or is too large."""
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
    """Return the values of all names of a layer on one GPU, with one sequence and one byte per element."""
    values = dict(dimensions) | {"b": 1, "s": sequence_length, "panels": 1}
    values |= dict.fromkeys((*ELEMENT_BYTES, *AXES), 1)
    return define(layer, values)


def define(layer: DerivedLayer, values: dict) -> dict:
    """Return `values` with each defined dimension of the layer whose parts all have a value, in place of a given one.

    Raises SpecError where plain numbers make a size negative or too large, or divide by zero.
    """
    result = {letter: value for letter, value in values.items() if letter not in layer.definitions}
    pending = dict(layer.definitions)
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
            if isinstance(result[letter], int) and result[letter] < 0:
                raise SpecError(
                    f"layer {layer.name!r}: dimension {letter!r} = {text(expr)} is {result[letter]} where "
                    f"{_given(expr, result)}; a size cannot be negative"
                )
            if isinstance(result[letter], int) and result[letter] > _LARGEST_SIZE:
                raise SpecError(
                    f"layer {layer.name!r}: dimension {letter!r} = {text(expr)} is {Decimal(result[letter]):.3g} where "
                    f"{_given(expr, result)}; a size is at most {_LARGEST_SIZE:,}"
                )
    return {**values, **result}
