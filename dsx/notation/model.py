"""A model: its dimensions, its layers as a sequence of (kind, count), and what a step runs outside of layers.

Each layer kind is built from its layer definition and derived once per strategy. The first layer may be the embedding,
the last one the head with the loss.

Ranks that hold the same parameters reduce their gradients. ZeRO divides state among them: the optimizer's from stage 1
on, gradients from stage 2 on, weights in stage 3 (Rajbhandari et al., 2020, section 7). Each layer has these
collectives of its own, one for each of its weight groups (`dsx.cost.layer.WeightGroup`); experts are a group whose
ranks ep divides. The cost model prices these records, and a trace has a node for each.

With replicas of shards, the gradients of a shard are all-reduced among its replicas once a step, during the last
microbatch (Zhang et al., MiCS, 2022, section 3.4). Gradients of parameters that are replicated over a tensor parallel
axis are all-reduced over it after the last backward. So is the gradient of a tied weight, between the first and the
last stage (Narayanan et al., SC21; Megatron-LM, `finalize_model_grads`).
"""

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Literal

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.model_file import ELEMENT_BYTES, LayerCheck, LayerCount, LayerKind, ModelSpec
from dsx.config.search_path import names as names_of
from dsx.errors import InputError, NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.notation.expressions import Expression, V, evaluate, names, resolvable, text
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.library import (
    block_definition,
    check_settable,
    fault_of_settings,
    load_definition,
    load_layer,
    load_operators,
    strategy_definitions,
    written_now,
)
from dsx.notation.operators import NAMES, OperatorKind
from dsx.notation.phases import Phase, has_gradient, weight_names, with_constants
from dsx.notation.sharded_layer import (
    ALL_GATHER,
    ALL_REDUCE,
    PANELS,
    REDUCE_SCATTER,
    Distribution,
    Layer,
    Tensor,
    widened,
)
from dsx.notation.syntax import (
    AXES,
    FOLLOWS,
    DimSyntax,
    LayerDefinition,
    OperatorSyntax,
    Role,
    Settings,
    StrategyDefinition,
    UseSyntax,
    tensors_of,
)
from dsx.notation.work import DerivedLayer, derive

State = Literal["optimizer", "gradient", "weight"]

# The first ZeRO stage that divides a state.
_DIVIDED_FROM: dict[State, int] = {"optimizer": 1, "gradient": 2, "weight": 3}
NUM_STAGES = 4
MICROBATCH = "microbatch"
Every = Literal["microbatch", "step"]


@dataclass(frozen=True, slots=True)
class StepCollective:
    """A collective of the weights of a layer, or of their gradients."""

    kind: str
    of: Literal["weights", "gradients"]
    ranks: Literal["shards", "replicas", "tensor", "ends"]  # of a shard; that hold the same shard; of a tp axis; stages
    direction: int  # of the pass that it accompanies
    every: Every  # a step: the first forward, or the last backward


def divides(zero_stage: int, state: State) -> bool:
    """Return whether a ZeRO stage divides a state among the ranks that hold the same parameters."""
    return zero_stage >= _DIVIDED_FROM[state]


def _of_shards(kind: str, of: Literal["weights", "gradients"], direction: int, every: Every = "step") -> StepCollective:
    return StepCollective(kind, of, "shards", direction, every)


# By ZeRO stage, over the ranks that hold the same parameters.
OF_STAGE: tuple[tuple[StepCollective, ...], ...] = (
    (_of_shards(ALL_REDUCE, "gradients", BACKWARD),),
    (_of_shards(ALL_GATHER, "weights", FORWARD), _of_shards(REDUCE_SCATTER, "gradients", BACKWARD)),
    (_of_shards(ALL_GATHER, "weights", FORWARD), _of_shards(REDUCE_SCATTER, "gradients", BACKWARD, MICROBATCH)),
    (
        _of_shards(ALL_GATHER, "weights", FORWARD, MICROBATCH),
        _of_shards(ALL_GATHER, "weights", BACKWARD, MICROBATCH),
        _of_shards(REDUCE_SCATTER, "gradients", BACKWARD, MICROBATCH),
    ),
)
OF_REPLICAS = StepCollective(ALL_REDUCE, "gradients", "replicas", BACKWARD, "step")
OF_REPLICATED = StepCollective(ALL_REDUCE, "gradients", "tensor", BACKWARD, "step")
OF_TIED = StepCollective(ALL_REDUCE, "gradients", "ends", BACKWARD, "step")


def accompanying(zero_stage: int, direction: int) -> tuple[StepCollective, ...]:
    """Return the collectives of a ZeRO stage that accompany the passes of a direction."""
    return tuple(moved for moved in OF_STAGE[zero_stage] if moved.direction == direction)


def in_every_pass(zero_stage: int, direction: int) -> bool:
    """Return whether every pass of a direction has collectives of its weights, and not one of the step alone."""
    return any(moved.every == MICROBATCH for moved in accompanying(zero_stage, direction))


def letters_of(kind: str, chosen: Settings, inherited: Settings, near: Path | None = None) -> frozenset[str] | None:
    """Return the dimensions that a layer may use, `s` and `b` among them, so that a model can be refused others.

    All lines of the layer and of its blocks count, whatever their conditions, and every strategy of the search path may
    give a role its letter, since assumption sets and strategies set further options.

    `chosen` and `inherited` are settings as `build_layer` takes them; `near` is the file that mentions the layer. None
    if the dimensions cannot be known here: a definition is elsewhere or invalid, or the role of a tensor or the
    modifier of an operator is that of a strategy or a table outside of the search path.
    """
    try:
        definitions = _used(kind, chosen, inherited, near)
        of_roles = _letters_of_roles(strategy_definitions())
        tables = load_operators(names_of("operators", ".yaml"))
    except InputError:  # building the layer raises it, with its place
        return None
    shares: dict[str, set[str]] = {"": set(), FOLLOWS: set(), PANELS: set()}  # names that each modifier of a table has
    for table_kind in tables.values():
        for modifier, pair in (*table_kind.work.items(), *table_kind.groups.items()):
            shares.setdefault(modifier, set()).update(*map(names, pair))
    lines = [line for definition in definitions for line, _ in definition.lines]
    tensors = [tensor for line in lines for tensor in tensors_of(line)]
    items = [item for tensor in tensors for item in tensor.dims or ()]
    sizes = {line.letter: names(line.size) for line in lines if isinstance(line, DimSyntax)}
    roles = {item.name for item in items if isinstance(item, Role) and not item.letter}
    roles.update(*(definition.roles.values() for definition in definitions))
    declared = {name for definition in definitions for name in definition.roles}
    modifiers = {line.modifier for line in lines if isinstance(line, OperatorSyntax | UseSyntax)}
    if not (roles - declared <= of_roles.keys() and modifiers <= shares.keys()):
        return None
    letters = {item.letter for item in items}.union(sizes, *sizes.values())
    letters = letters.union(*(of_roles.get(role, ()) for role in roles), *(shares[name] for name in modifiers))
    return frozenset(letters - {""})


def _used(kind: str, chosen: Settings, inherited: Settings, near: Path | None) -> list[LayerDefinition]:
    """Return the definition of a layer, and those of all blocks that it may use."""
    definitions = {kind: load_definition(kind, near)}
    pending = [definitions[kind]]
    while pending:
        definition = pending.pop()
        of_parameters = definition.parameters | dict(chosen.blocks)
        for use in (line for line, _ in definition.lines if isinstance(line, UseSyntax)):
            blocks = {use.block} if not use.parameter else {of_parameters.get(use.parameter, use.block)}
            blocks |= {block for name, block in inherited.blocks if name == use.parameter}
            for block in blocks - definitions.keys():
                definitions[block] = block_definition(block, use.place)
                pending.append(definitions[block])
    return [*definitions.values()]


def _letters_of_roles(strategies: Iterable[StrategyDefinition]) -> dict[str, set[str]]:
    """Return the letters that strategies give each role; a role that is given as another one has all of its letters."""
    items = [(role, item) for strategy in strategies for role, item in strategy.roles.items()]
    letters: dict[str, set[str]] = {role: set() for role, _ in items}
    for role, item in items:
        letters[role] |= {item.letter} - {""}
    same = [(role, item.name) for role, item in items if isinstance(item, Role)]
    for _ in same:
        for role, other in same:
            letters[role] |= letters.get(other, set())
    return letters


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
        return tuple(dict.fromkeys(layer for layer, _ in self.layers))

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
        return sum(layer.tensors[name].data for layer in self.last for name in layer.inputs)

    @property
    def segments(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The body as segments, each a tuple of (position among `kinds`, count).

        Each run of one kind is a segment. A body of alternating layers, with many short runs, is one segment of several
        kinds.
        """
        kinds = [(self.kinds.index(layer), count) for layer, count in self.body]
        runs = [
            (kind, sum(count for _, count in run)) for kind, run in itertools.groupby(kinds, operator.itemgetter(0))
        ]
        if len(runs) <= _MOST_RUNS:
            return tuple((run,) for run in runs)
        total: Counter[int] = Counter()
        for kind, count in runs:
            total[kind] += count
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
        every = [letters_of(definition, chosen, inherited, near) for definition in definitions]
        listed = [letters for letters in every if letters is not None]
        return frozenset[str]().union(*listed) if listed else None

    return LayerCheck(fault, letters)


def counted(spec: ModelSpec, assumptions: AssumptionsSpec) -> list[LayerCount]:
    """Return the layers of a model that an assumption set counts, in order; raises SpecError if it counts none."""
    entries = [entry for entry in spec.sequence if entry.kind not in assumptions.uncounted_layers]
    if not entries:
        kinds = ", ".join(dict.fromkeys(entry.kind for entry in spec.sequence))
        raise SpecError(f"assumption set {assumptions.name!r} counts no layer of model {spec.name!r} (it has: {kinds})")
    return entries


def build_model(spec: ModelSpec, assumptions: AssumptionsSpec, strategy: str, near: Path | None = None) -> Model:
    """Build and derive every layer kind of a model under `strategy`, as it runs in a step.

    A first layer that takes data is the embedding; a last layer whose output has another distribution than its input
    is the head. The layers between them are the body. Of layers of one kind with trained weights, the first is another
    kind if no weight before it is trained: it alone computes no gradient of its input. Raises SpecError where a layer
    cannot take the output of the previous one or uses a dimension that the model does not give, and for a trained
    weight that no layer has; UnknownNameError for an uncounted operator that no table has.
    """
    table = load_operators(assumptions.operators, near)
    for kind in assumptions.uncounted:
        if kind not in table:
            raise UnknownNameError("operator", kind, table)
    entries = counted(spec, assumptions)
    single = frozenset(name for name, size in spec.dimensions.items() if size == 1)
    built = {
        kind: replace(layer_of(kind, spec.name, assumptions, strategy, table, near), single=single)
        for kind in dict.fromkeys(entry.layer for entry in entries)
    }
    leading, trailing = check_chain(spec.name, [(built[entry.layer], entry.count) for entry in entries])
    first = built[entries[0].layer]
    tables = [weight_names(first, name) for name, tensor in first.tensors.items() if tensor.weight and leading]
    phase = Phase(tuple(spec.trained), next(iter(tables), ()))
    phase.check(spec.name, built.values())

    @functools.cache
    def derived(kind: LayerKind, constant_input: bool) -> DerivedLayer:
        layer = with_constants(built[kind], phase, constant_input)
        result = derive(layer, assumptions.fused_backward_reads, assumptions.uncounted)
        _check_amounts(spec, result)
        return result

    # A model without an embedding is part of a larger one.
    layers: list[tuple[DerivedLayer, int]] = []
    constant_input = not phase.trained
    for entry in entries:
        layer = derived(entry.layer, constant_input)
        num_alike = 1 if constant_input and has_gradient(layer) else entry.count
        layers.append((layer, num_alike))
        constant_input = not has_gradient(layer)
        if entry.count > num_alike:
            layers.append((derived(entry.layer, constant_input), entry.count - num_alike))
    return Model(spec.name, dict(spec.dimensions), tuple(layers), leading, trailing)


def _check_amounts(spec: ModelSpec, layer: DerivedLayer) -> None:
    """Raise SpecError for a layer that uses a dimension that the model does not give, or has too much of anything."""
    letters = {*spec.dimensions, "b", "s"}
    for letter in sorted(layer.letters - letters):
        sizes = ", ".join(f"{name}={size}" for name, size in spec.dimensions.items())
        raise SpecError(
            f"layer {layer.name!r} uses the dimension {letter!r}, which {spec.name!r} does not give"
            f"{did_you_mean(letter, letters)} (it gives {sizes})"
        )
    values = unsharded(layer, spec.dimensions, spec.default_sequence_length)
    amounts = [getattr(work, name) for kernel in layer.kernels for work in kernel.work for name in NAMES]
    amounts += [kernel.saved_bytes for kernel in layer.kernels] + [weight.bytes for weight in layer.weights]
    try:
        for expr in amounts:
            amount(expr, values)
    except SpecError as error:
        raise SpecError(f"layer {layer.name!r} of model {spec.name!r}: {error}") from None


def layer_of(
    kind: LayerKind,
    model: str,
    assumptions: AssumptionsSpec,
    strategy: str,
    table: dict[str, OperatorKind],
    near: Path | None,
) -> Layer:
    """Build a layer of a model under an assumption set, which may map its kind to another layer definition.

    Raises InputError, which names the model; also where the set maps kinds to definitions, but not this one.
    """
    inherited = settings_of(assumptions.set)
    check_settable(inherited, f"assumption set {assumptions.name!r}")
    definition = assumptions.layers.get(kind.kind) if assumptions.layers else kind.kind
    if definition is None:
        if now := written_now(kind.kind):
            raise SpecError(f"model {model!r}: {now}")
        kinds = ", ".join(assumptions.layers)
        raise SpecError(
            f"assumption set {assumptions.name!r} has no layer definition for the kind {kind.kind!r} of model {model!r}"
            f"{did_you_mean(kind.kind, assumptions.layers)} (it has: {kinds}); another set may, such as 'default'"
        )
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
    start, end = _input(layer).distribution, _output(layer)
    if start != end:
        raise SpecError(
            f"layer {layer.name!r} has the input {start} and the output {end}: the next layer could not take its "
            f"output; end it with a view, as in output{start} = view(y{start})"
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


def amount(expr: Expression, values: Mapping[str, float]) -> float:
    """Return the value of an expression for plain numbers; raises SpecError if it divides by zero or is too large."""
    try:
        value = evaluate(expr, values)
    except ZeroDivisionError:
        raise SpecError(f"{text(expr)} divides by zero where {_values_in(expr, values)}") from None
    if abs(value) > _LARGEST_AMOUNT:
        raise SpecError(
            f"{text(expr)} is {Decimal(value):.3g} where {_values_in(expr, values)}: more than {_LARGEST_AMOUNT:g}"
        )
    return value


def _values_in(expr: Expression, values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in sorted(names(expr)))


def unsharded(layer: DerivedLayer, dimensions: Mapping[str, V], sequence_length: V) -> dict[str, V | int]:
    """Return the values of all names of a layer on one GPU, with one sequence and one byte per element."""
    ones = dict.fromkeys(("b", "panels", *ELEMENT_BYTES, *AXES), 1)
    return define(layer, {**dimensions, **ones, "s": sequence_length})


def define(layer: DerivedLayer, values: Mapping[str, V]) -> dict[str, V]:
    """Return `values` with each defined dimension of the layer whose parts all have a value, in place of a given one.

    Raises SpecError where plain numbers make a size negative or too large, or divide by zero.
    """
    result = {letter: value for letter, value in values.items() if letter not in layer.definitions}

    def fault(letter: str, what: str, remark: str = "") -> SpecError:
        size = layer.definitions[letter]
        where = f"{what} where {_values_in(size, result)}{remark}"
        return SpecError(f"layer {layer.name!r}: dimension {letter!r} = {text(size)} {where}")

    for letter, expr in resolvable(layer.definitions, result):
        try:
            size = result[letter] = evaluate(expr, result)
        except ZeroDivisionError:
            raise fault(letter, "divides by zero") from None
        if isinstance(size, int) and size < 0:
            raise fault(letter, f"is {size}", "; a size cannot be negative")
        if isinstance(size, int) and size > _LARGEST_SIZE:
            raise fault(letter, f"is {Decimal(size):.3g}", f"; a size is at most {_LARGEST_SIZE:,}")
    return {**values, **result}
