"""Converts a config to a model: dimensions, the sequence of layers, and the published number of parameters."""

import reprlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from dsx.errors import SpecError
from dsx.spec.document import Document
from dsx.spec.hf.config import NUM_LAYERS, Config, evaluate_at, place, stated_layers
from dsx.spec.hf.family import LAYER, LayersSpec, PublishedSpec
from dsx.spec.hf.formula import Formula
from dsx.spec.model import LayerCount, LayerKind, ModelSpec, RepeatedLayers, layer_count
from dsx.spec.validated import validate

_ORIGIN = "_name_or_path"  # the name or path that the checkpoint was loaded from
_USUAL_STEM = "config"
_FEW = 6  # entries of a list that an error shows
_LONGEST_PATTERN = 8  # entries of a repeated pattern
_MOST_LAYERS = 100_000  # more are surely a typing error, and would take long to process


def to_model(config: Config, name: str, source: str) -> ModelSpec:
    """Return the model that the config describes, under that name.

    Raises SpecError, with the place of the keys, for rules that the config breaks and layers without a matching kind.
    """
    _check_rules(config)
    sizes = {letter: evaluate_at(config, formula) for letter, formula in config.family.dimensions.items()}
    total = published_total(config)
    data = {
        "name": name,
        "source": source,
        "default_sequence_length": evaluate_at(config, config.family.default_sequence_length),
        "dimensions": {letter: size for letter, size in sizes.items() if size},
        "layers": _patterns(list(_sequence(config))),
        "parameters": total.total if total else None,
    }
    return validate(Document(data, {(): config.document.place(config.section)}), ModelSpec)


def model_name(config: Config, file: Path, output: Path | None) -> str:
    """Return the name of the model of the config in `file`, to be written to `output`.

    It is the name of the output file, by which dsx finds it; without one, that of the checkpoint, of the config file,
    or of its folder.
    """
    if output is not None:
        return output.stem
    origin = config.document.data.get(_ORIGIN)
    stated = origin.rstrip("/").rpartition("/")[2] if isinstance(origin, str) else ""
    folder = file.absolute().parent.name
    own = file.stem if file.stem != _USUAL_STEM else ""
    return stated.lower() or own or folder or config.model_type


def model_source(config: Config, file: Path) -> str:
    """Return the `source` of the model."""
    origin = config.document.data.get(_ORIGIN)
    of = f" of {origin}" if isinstance(origin, str) and origin else ""
    return f"{file.name}{of}, model_type {config.model_type}"


def published_total(config: Config) -> PublishedSpec | None:
    """Return the published number of parameters of the config's checkpoint, if its family has one."""
    if evaluate_at(config, config.family.other_head):
        return None
    return next((known for known in config.family.published if evaluate_at(config, known.when)), None)


def _check_rules(config: Config) -> None:
    faults = []
    for rule in config.family.require.values():
        if not evaluate_at(config, rule.rule):
            given = ", ".join(f"{key} = {_shown(config.values[key])}" for key in sorted(rule.rule.names))
            faults.append(f"{place(config, rule.rule.names)}: {rule.says}{f' ({given})' if given else ''}")
    if faults:
        raise SpecError("\n".join(faults))


def _shown(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return reprlib.repr(value) if len(value) <= _FEW else f"{len(value)} from {min(value)} to {max(value)}"
    return f"{len(value)} entries" if isinstance(value, list | dict) else reprlib.repr(value)


def _sequence(config: Config) -> Iterator[LayerCount]:
    """Yield the layers from first to last, equal neighbours as one entry."""
    kinds = [kind for layers in config.family.layers.values() for kind in _kinds(config, layers)]
    for kind, equal in groupby(kinds):
        yield layer_count(kind, len(list(equal)))


def _patterns(layers: list[LayerCount]) -> list[LayerCount | RepeatedLayers]:
    """Return the layers with each repeated pattern as one entry."""
    found: list[LayerCount | RepeatedLayers] = []
    first = 0
    while first < len(layers):
        times = {length: _repeats(layers, first, length) for length in range(2, _LONGEST_PATTERN + 1)}
        length = max(times, key=lambda length: times[length] * length if times[length] > 1 else 0)
        if times[length] > 1:
            found.append(RepeatedLayers(repeat=times[length], layers=layers[first : first + length]))
            first += times[length] * length
        else:
            found.append(layers[first])
            first += 1
    return found


def _repeats(layers: list[LayerCount], first: int, length: int) -> int:
    """Return how many times in a row the pattern of `length` entries at `first` occurs."""
    pattern, times = layers[first : first + length], 1
    while layers[first + times * length : first + (times + 1) * length] == pattern:
        times += 1
    return times


def _kinds(config: Config, layers: LayersSpec) -> Iterator[LayerKind]:
    number = evaluate_at(config, layers.count)
    where = place(config, layers.count.names)
    if not isinstance(number, int):
        raise SpecError(f"{where}: {layers.count.text} = {reprlib.repr(number)} is not a number of layers")
    if number > _MOST_LAYERS:
        raise SpecError(f"{where}: {layers.count.text} = {number} layers are too many")
    stated = stated_layers(config)
    if stated is not None and layers.count.names and number != stated:
        raise SpecError(f"{where}: {layers.count.text} = {number} layers, and {NUM_LAYERS} = {stated}: they differ")
    for index in range(number):
        at = {LAYER: index}
        values = at | {name: evaluate_at(config, when, at) for name, when in layers.where.items()}

        def holding(choices: Mapping[str, Formula], values: Mapping[str, Any] = values) -> list[str]:
            return [name for name, when in choices.items() if evaluate_at(config, when, values)]

        kind = next(iter(holding(layers.kind)), None)
        if kind is None:
            read = frozenset[str]().union(*(when.names for when in layers.kind.values()))
            read = read.union(*(when.names for name, when in layers.where.items() if name in read))
            keys = read & config.values.keys()
            given = ", ".join(_at(index, key, config.values[key]) for key in sorted(keys))
            known = ", ".join(layers.kind)
            raise SpecError(f"{place(config, keys)}: layer {index} matches no kind (known: {known}) where {given}")
        blocks = {parameter: holding(choices)[:1] for parameter, choices in layers.blocks.items()}
        chosen = tuple((parameter, block) for parameter, found in sorted(blocks.items()) for block in found)
        yield LayerKind(kind, frozenset(holding(layers.options)), chosen)


def _at(index: int, key: str, value: Any) -> str:
    entry = isinstance(value, list) and index < len(value)
    return f"{key}[{index}] = {value[index]!r}" if entry else f"{key} = {reprlib.repr(value)}"
