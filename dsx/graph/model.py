"""A model: dimensions, and its layers as a sequence of (kind, count), each kind with its layer text.

A layer kind is derived once per strategy. Embedding, head and loss are not described yet.
"""

from dataclasses import dataclass
from pathlib import Path

from dsx.errors import SpecError, UnknownNameError, did_you_mean
from dsx.graph.derived import DerivedLayer, derive
from dsx.graph.expressions import evaluate, names
from dsx.graph.layer import Layer
from dsx.graph.library import load_layer, load_operators
from dsx.graph.notation import AXES
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Model:
    """A model under one strategy and one assumption set."""

    name: str
    dimensions: dict[str, int]
    layers: tuple[tuple[DerivedLayer, int], ...]  # (layer, count) in pipeline order

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return sum(count for _, count in self.layers)


def layer_text(kind: str, model: str, assumptions: AssumptionsSpec) -> str:
    """Return the layer text that an assumption set uses for a layer kind of a model.

    Raises SpecError where the set names texts, but none for this kind.
    """
    if not assumptions.layers:
        return kind
    if kind in assumptions.layers:
        return assumptions.layers[kind]
    known = ", ".join(assumptions.layers)
    raise SpecError(
        f"assumption set {assumptions.name!r} has no layer text for the kind {kind!r} of model {model!r}"
        f"{did_you_mean(kind, assumptions.layers)} (it has: {known}); another set may, such as 'default'"
    )


def build_model(spec: ModelSpec, assumptions: AssumptionsSpec, strategy: str, near: Path | None = None) -> Model:
    """Build and derive every layer kind of a model under `strategy`.

    Raises SpecError if a layer asks for a dimension that the model does not give, UnknownNameError for an
    uncounted operator that no table has.
    """
    table = load_operators(assumptions.operators, near)
    for kind in assumptions.uncounted:
        if kind not in table:
            raise UnknownNameError("operator", kind, table)
    made: dict[str, DerivedLayer] = {}
    for entry in spec.layers:
        if entry.kind in made:
            continue
        layer = load_layer(layer_text(entry.kind, spec.name, assumptions), strategy, table, near)
        check_repeats(layer)
        derived = derive(layer, assumptions.fused_backward_reads, assumptions.uncounted)
        check_dimensions(derived, spec.dimensions, spec.name)
        made[entry.kind] = derived
    return Model(spec.name, dict(spec.dimensions), tuple((made[entry.kind], entry.count) for entry in spec.layers))


def check_repeats(layer: Layer) -> None:
    """Raise SpecError unless the next layer can take this one's result as it lies.

    Otherwise a collective between two layers would belong to neither.
    """
    if len(layer.inputs) != 1 or len(layer.outputs) != 1:
        raise SpecError(
            f"layer {layer.name!r} has the inputs {', '.join(layer.inputs)} and the results "
            f"{', '.join(layer.outputs)}; layers that follow each other in a model have one of each"
        )
    begins = layer.tensors[layer.inputs[0]].distribution
    ends = layer.tensors[layer.outputs[0]].distribution
    if begins != ends:
        raise SpecError(
            f"layer {layer.name!r} begins as {begins} and ends as {ends}: the next layer could not take its result; "
            f"let its last operator be a view, as in output{begins} = view(y{begins})"
        )


def check_dimensions(layer: DerivedLayer, dimensions: dict[str, int], owner: str) -> None:
    """Raise SpecError unless `dimensions` gives every dimension that the layer's texts use."""
    given = {*dimensions, "b", "s"}
    for letter in sorted(layer.letters - given):
        known = ", ".join(f"{name}={size}" for name, size in dimensions.items())
        raise SpecError(
            f"layer {layer.name!r} uses the dimension {letter!r}, which {owner!r} does not give"
            f"{did_you_mean(letter, given)} (it gives {known})"
        )


def unsharded(layer: DerivedLayer, dimensions: dict[str, int], sequence_length: int) -> dict[str, int]:
    """Return the values of all names of a layer on one GPU, one sequence, one byte per element."""
    values = dict(dimensions) | {"b": 1, "s": sequence_length, "panels": 1}
    values |= dict.fromkeys(("activation_bytes", "weight_bytes", "gradient_bytes", *AXES), 1)
    return define(layer, values)


def define(layer: DerivedLayer, values: dict) -> dict:
    """Return `values` with the defined dimensions of the layer added whose parts all have a value."""
    result = dict(values)
    pending = {letter: expr for letter, expr in layer.definitions.items() if letter not in result}
    while ready := [letter for letter, expr in pending.items() if names(expr) <= result.keys()]:
        for letter in ready:
            result[letter] = evaluate(pending.pop(letter), result)
    return result
