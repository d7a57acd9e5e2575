"""A config.json as a model file: the keys that its family reads, the model, and what was ignored.

The family is found by `model_type`. JSON is read as YAML, so that errors can name the line. A key with the value null
counts as absent. Where a family reads a section of the config, a key that the section lacks is that of the whole
config. Two keys of a family may have one spelling, as a number for all layers and a list of one for each: a value is
that of the key whose type it has. The unused keys are those that would change the cost, and those that would not.
"""

import json
import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from dsx.config.documents import Document, KeyPath, Plain, parse_document, parse_json, read_text
from dsx.config.hf_family import (
    LAYER,
    ConfigFormula,
    FamilySpec,
    KeySpec,
    LayersSpec,
    PublishedSpec,
    evaluate,
    known_spellings,
    load_family,
    unknown_family,
)
from dsx.config.model_file import LayerCount, LayerKind, ModelSpec, RepeatedLayers, layer_count
from dsx.config.schema import validate
from dsx.config.search_path import names, shown
from dsx.errors import SpecError, StoreError, did_you_mean
from dsx.files import write_whole
from dsx.units import LARGEST_COUNT

MODEL_TYPE = "model_type"
NUM_LAYERS = "num_hidden_layers"  # a name that every family knows for it
_OF_TEXT = "_text"  # ends the model_type of the language model of a family that reads images too
_SECTIONS = ("text_config", "language_config", "llm_config")  # of the language model, where the family names none


@dataclass(frozen=True)
class Config:
    """A config.json as its family reads it."""

    model_type: str  # that names the family
    family: FamilySpec
    document: Document
    section: KeyPath  # path of the section that the family reads; () for the whole config
    values: dict[str, Plain]  # key of the family -> value, or default


def load_config(path: Path) -> Config:
    """Return the config at `path`.

    Raises SpecError, with file:line, for a file that is not a JSON object, and for all keys that are missing or have
    invalid values; UnknownNameError for a `model_type` without a family.
    """
    text, file = read_text(path), shown(path)
    data = parse_json(text, file)
    if not isinstance(data, dict):
        raise SpecError(f"{file}:1: expected an object with keys, as in a config.json, got {type(data).__name__}")
    # YAML does not allow tabs between tokens; JSON does not allow them inside tokens, so all of them are replaced.
    document = parse_document(text.replace("\t", " "), file)
    model_type, inside = _model_type(document)
    family = load_family(model_type)
    section = _section(document, model_type, family) if inside is None else inside
    return Config(model_type, family, document, section, _values(document, section, family))


def place(config: Config, keys: frozenset[str]) -> str:
    """Return the place of the first of the `keys` in the file; if it has none, that of the section."""
    spellings = [name for key in sorted(keys) if key in config.family.keys for name in _spellings(config.family, key)]
    parts = [*stated_in(config.document, config.section)][::-1]
    paths = ((*section, name) for name in spellings for section, part in parts if name in part)
    return config.document.place(next(paths, config.section))


def evaluate_at(config: Config, formula: ConfigFormula, extra: Mapping[str, object] | None = None) -> Plain:
    """Return the value of `formula` for the config; raises SpecError with the place of its keys."""
    try:
        return evaluate(formula, config.values | dict(extra or {}))
    except SpecError as error:
        raise SpecError(f"{place(config, formula.names)}: {error}") from None


def _stated_layers(config: Config) -> int | None:
    """Return the number of layers that a config states, and its family does not read; None if there is none."""
    if any(NUM_LAYERS in _spellings(config.family, key) for key in config.family.keys):
        return None
    parts = [part for _, part in stated_in(config.document, config.section)]
    number = next((part[NUM_LAYERS] for part in parts[::-1] if NUM_LAYERS in part), None)
    return number if isinstance(number, int) else None


def _model_type(document: Document) -> tuple[str, KeyPath | None]:
    """Return the family of a config, and the path of its language model; None if that is as the family says."""
    model_type = document.data.get(MODEL_TYPE)
    if model_type is None:
        near = "" if MODEL_TYPE in document.data else did_you_mean(MODEL_TYPE, document.data)
        raise SpecError(
            f"{document.place(())}: {MODEL_TYPE}: is required, but missing{near} "
            "(the config.json of a Hugging Face checkpoint has one)"
        )
    if family := _family_of(model_type):
        return family, None if family == model_type else ()
    sections = {name: document.data[name] for name in _SECTIONS if isinstance(document.data.get(name), dict)}
    for name, part in sections.items():
        if inner := _family_of(part.get(MODEL_TYPE)):
            return inner, (name,)
    section, part = next(iter(sections.items()), (None, document.data))
    raise unknown_family(MODEL_TYPE, str(model_type), document, section, part)


def _family_of(model_type: object) -> str | None:
    """Return the family of a `model_type`, which may be that of its language model alone; None if there is none."""
    families = names("families", ".yaml")
    spellings = (str(model_type), str(model_type).removesuffix(_OF_TEXT))
    return next((name for name in spellings if name in families), None)


def _section(document: Document, model_type: str, family: FamilySpec) -> KeyPath:
    if family.section is None:
        return ()
    content = document.data.get(family.section)
    required = {key for key, spec in family.keys.items() if spec.default is None}
    if content is None and required and required <= document.data.keys():
        return ()  # as older versions of the transformers library wrote it
    if not isinstance(content, dict):
        what = "is missing" if content is None else f"is {content!r}"
        near = "" if family.section in document.data else did_you_mean(family.section, document.data)
        raise document.fault(
            (family.section,),
            f"{what}{near}; in a config of {MODEL_TYPE} {model_type!r} this section describes the language model",
        )
    return (family.section,)


def stated_in(document: Document, section: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Plain]]]:
    """Yield the whole config, and the section that its family reads if it has one, each with its path."""
    yield (), document.data
    if section:
        yield section, document.data[str(section[0])]


def _spellings(family: FamilySpec, key: str) -> list[str]:
    return [key, *family.keys[key].also]


def _values(document: Document, section: KeyPath, family: FamilySpec) -> dict[str, Plain]:
    """Return the value of each key of the family, or its default; raises SpecError that lists all faults."""
    parts = [*stated_in(document, section)][::-1]
    occurring = {key: _stated(key, parts, family) for key in family.keys}
    of_layers = next((key for key in family.keys if NUM_LAYERS in _spellings(family, key)), "")
    num_layers: Plain = occurring[of_layers][0][1] if occurring.get(of_layers) else None
    if of_layers and num_layers is None and (default := family.keys[of_layers].default) and not default.names:
        num_layers = evaluate(default, {})
    values: dict[str, object] = {}
    faults: list[str] = []
    for key, spec in family.keys.items():
        occurrences = occurring[key]
        try:
            if occurrences:
                (first, value), *spellings = occurrences
                for path, other in spellings:
                    if other != value:
                        fault = f"is {other!r}, but {first[-1]}, another name for it, is {value!r}"
                        raise document.fault(path, fault)
                values[key] = _checked(value if key == of_layers else _of_each(value, spec, num_layers), spec)
            elif spec.default is None:
                near = did_you_mean(key, parts[0][1].keys() - {MODEL_TYPE, *known_spellings(family)})
                raise document.fault((*section, key), f"is required, but missing{near}")
        except ValueError as error:
            faults.append(document.message(occurrences[0][0], error))
        except SpecError as error:
            faults.append(str(error))
    if faults:
        raise SpecError("\n".join(faults))
    # Defaults of absent keys, which may be formulas of other keys.
    pending = {key: spec.default for key, spec in family.keys.items() if key not in values and spec.default}
    while ready := {key: default for key, default in pending.items() if default.names <= values.keys()}:
        for key, default in ready.items():
            try:
                values[key] = _checked(evaluate(default, values), family.keys[key])
            except (SpecError, ValueError) as error:
                place_of = document.place(section)
                raise SpecError(f"{place_of}: {key}: is missing, and its default cannot be computed: {error}") from None
            del pending[key]
    if pending:
        raise SpecError(f"the defaults of {', '.join(pending)} need each other; the file of the family is faulty")
    return values


def _stated(
    key: str, parts: Sequence[tuple[KeyPath, dict[str, Plain]]], family: FamilySpec
) -> list[tuple[KeyPath, Plain]]:
    """Return the values of a key with their paths; what the section states comes before what the whole config does."""

    def is_of_another(name: str, value: Plain) -> bool:
        """Return whether a value has the type of another key with the same spelling, and not that of `key`."""
        lists = {other: spec.holds == "list" for other, spec in family.keys.items() if name in (other, *spec.also)}
        is_list = isinstance(value, list)
        return lists[key] != is_list and is_list in lists.values()

    occurrences = [
        ((*path, name), part[name])
        for path, part in parts
        for name in _spellings(family, key)
        if part.get(name) is not None and not is_of_another(name, part[name])
    ]
    return [(path, value) for path, value in occurrences if len(path) == len(occurrences[0][0])]


def _checked(value: Plain, spec: KeySpec) -> Plain:
    """Return `value`; raises ValueError if it does not have the type of its key."""
    if spec.holds in ("count", "whole"):
        least = 1 if spec.holds == "count" else 0
        integral = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        if not integral or not least <= value <= LARGEST_COUNT:
            raise ValueError(f"expected a whole number from {least}, got {value!r}")
        return int(value)
    kind, what = {
        "flag": (bool, "true or false"),
        "text": (str, "a string"),
        "list": (list, "a list"),
        "section": (dict, "an object"),
    }[spec.holds]
    if not isinstance(value, kind):
        raise ValueError(f"expected {what}, got {value!r}")
    return value


def _of_each(value: Plain, spec: KeySpec, num_layers: Plain) -> Plain:
    """Return the number that all entries of a list have, or what is no list of numbers.

    The list has an entry for each of the layers, or for both sides of an image. Raises ValueError if it has more or
    fewer, or different ones.
    """
    if spec.holds not in ("count", "whole") or not isinstance(value, list) or not value:
        return value
    count, item = (num_layers, f"each of {num_layers} layers") if spec.each_of == "layers" else (2, "each of two sides")
    if not isinstance(count, int) or len(value) != count:
        alternative = f", or one for {item}" if isinstance(count, int) else ""
        raise ValueError(f"expected one value{alternative}, got {len(value)}")
    if any(entry != value[0] for entry in value):
        raise ValueError(
            f"has a value for {item}, from {reprlib.repr(value[0])} on; a model of dsx has one for all of them"
        )
    return value[0]


@dataclass(frozen=True)
class Ignored:
    """The unused keys of a config, by their effect on the cost."""

    unpriced: dict[str, str]  # key -> the cost that it changes
    unknown: dict[str, Plain]  # key of unknown effect -> its value
    no_cost: dict[str, list[str]]  # topic -> keys without effect


def ignored_keys(config: Config) -> Ignored:
    """Return the unused keys; a key of a section is section.key."""
    topics = {key: topic for topic, keys in config.family.no_cost.items() for key in keys}
    unpriced: dict[str, str] = {}
    unknown: dict[str, object] = {}
    no_cost: dict[str, list[str]] = {}
    keys = {key: spec for key, spec in config.family.keys.items() if key not in config.family.unpriced}
    read = {MODEL_TYPE, *config.section, *(name for key, spec in keys.items() for name in (key, *spec.also))}
    for section, part in stated_in(config.document, config.section):
        for key in (key for key in part if key not in read):
            path, value, spec = ".".join(map(str, (*section, key))), part[key], config.family.unpriced.get(key)
            if spec and value is not None and value not in spec.unless and evaluate_at(config, spec.when):
                unpriced[path] = spec.what
            elif spec:
                no_cost.setdefault("values that change nothing", []).append(path)
            elif key in topics:
                no_cost.setdefault(topics[key], []).append(path)
            else:
                unknown[path] = value
    return Ignored(unpriced, unknown, no_cost)


_ORIGIN = "_name_or_path"  # the name or path that the checkpoint was loaded from
_USUAL_STEM = "config"
_FEW = 6  # entries of a list that an error shows
_LONGEST_PATTERN = 8  # entries of a repeated pattern
_MOST_LAYERS = 100_000  # more are surely a typing error, and would take long to process


def to_model(config: Config, name: str, source: str) -> ModelSpec:
    """Return the model that the config describes, under that name.

    Raises SpecError, with the place of the keys, for rules that the config breaks and layers without a matching kind.
    """
    faults: list[str] = []
    for rule in config.family.require.values():
        if not evaluate_at(config, rule.rule):
            actual = ", ".join(f"{key} = {_shown(config.values[key])}" for key in sorted(rule.rule.names))
            faults.append(f"{place(config, rule.rule.names)}: {rule.says}{f' ({actual})' if actual else ''}")
    if faults:
        raise SpecError("\n".join(faults))
    sizes = {letter: evaluate_at(config, formula) for letter, formula in config.family.dimensions.items()}
    total = published_total(config)
    kinds = [kind for layers in config.family.layers.values() for kind in _kinds(config, layers)]
    data = {
        "name": name,
        "source": source,
        "default_sequence_length": evaluate_at(config, config.family.default_sequence_length),
        "dimensions": {letter: size for letter, size in sizes.items() if size},
        "layers": _patterns([layer_count(kind, len([*equal])) for kind, equal in groupby(kinds)]),
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
    published = origin.rstrip("/").rpartition("/")[2] if isinstance(origin, str) else ""
    folder = file.absolute().parent.name
    stem = file.stem if file.stem != _USUAL_STEM else ""
    return published.lower() or stem or folder or config.model_type


def model_source(config: Config, file: Path) -> str:
    """Return the `source` of the model."""
    origin = config.document.data.get(_ORIGIN)
    of = f" of {origin}" if isinstance(origin, str) and origin else ""
    return f"{file.name}{of}, model_type {config.model_type}"


def published_total(config: Config) -> PublishedSpec | None:
    """Return the published number of parameters of the config's checkpoint, if its family has one."""
    if evaluate_at(config, config.family.other_head):
        return None
    return next((checkpoint for checkpoint in config.family.published if evaluate_at(config, checkpoint.when)), None)


def _shown(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(entry, int) for entry in value):
        return reprlib.repr(value) if len(value) <= _FEW else f"{len(value)} from {min(value)} to {max(value)}"
    return f"{len(value)} entries" if isinstance(value, list | dict) else reprlib.repr(value)


def _patterns(layers: list[LayerCount]) -> list[LayerCount | RepeatedLayers]:
    """Return the layers with each repeated pattern as one entry."""
    patterns: list[LayerCount | RepeatedLayers] = []
    first = 0
    while first < len(layers):
        times = {length: _repeats(layers, first, length) for length in range(2, _LONGEST_PATTERN + 1)}
        length = max(times, key=lambda length: times[length] * length if times[length] > 1 else 0)
        pattern, repeated = layers[first : first + length], times[length] > 1
        patterns.append(RepeatedLayers(repeat=times[length], layers=pattern) if repeated else layers[first])
        first += times[length] * length if repeated else 1
    return patterns


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
    num_stated = _stated_layers(config)
    if num_stated is not None and layers.count.names and number != num_stated:
        raise SpecError(f"{where}: {layers.count.text} = {number} layers, and {NUM_LAYERS} = {num_stated}: they differ")
    for index in range(number):
        at = {LAYER: index}
        values = at | {name: evaluate_at(config, when, at) for name, when in layers.where.items()}

        def holding(choices: Mapping[str, ConfigFormula], values: Mapping[str, Plain] = values) -> list[str]:
            return [name for name, when in choices.items() if evaluate_at(config, when, values)]

        kind = next(iter(holding(layers.kind)), None)
        if kind is None:
            read = frozenset[str]().union(*(when.names for when in layers.kind.values()))
            read = read.union(*(when.names for name, when in layers.where.items() if name in read))
            keys = read & config.values.keys()
            values_read = {key: config.values[key] for key in sorted(keys)}
            actual = ", ".join(
                f"{key}[{index}] = {value[index]!r}"
                if isinstance(value, list) and index < len(value)
                else f"{key} = {reprlib.repr(value)}"
                for key, value in values_read.items()
            )
            kinds = ", ".join(layers.kind)
            raise SpecError(f"{place(config, keys)}: layer {index} matches no kind (known: {kinds}) where {actual}")
        blocks = {parameter: holding(choices)[:1] for parameter, choices in layers.blocks.items()}
        chosen = tuple((parameter, block) for parameter, names in sorted(blocks.items()) for block in names)
        yield LayerKind(kind, frozenset(holding(layers.options)), chosen)


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")  # a string that YAML reads as itself
_WORDS = {"null", "true", "false"}  # strings of this form that YAML reads as other values
_SUFFIX = ".yaml"


def model_text(model: ModelSpec, published: PublishedSpec | None = None) -> str:
    """Return the model as YAML that `load_model` can read; `published` is the source of its number of parameters."""
    dimensions = ", ".join(f"{letter}: {size}" for letter, size in model.dimensions.items())
    lines = [
        f"name: {_text(model.name)}",
        *([f"description: {_text(model.description)}"] if model.description else []),
        f"source: {_text(model.source)}",
        f"default_sequence_length: {model.default_sequence_length}",
        f"dimensions: {{{dimensions}}}",
        "layers:",
    ]
    for entry in model.layers:
        if isinstance(entry, LayerCount):
            lines.append(f"  - {_layer(entry)}")
        else:
            lines += [f"  - repeat: {entry.repeat}", "    layers:"]
            lines += [f"      - {_layer(layers)}" for layers in entry.layers]
    if model.parameters is not None:
        source = f", source: {_text(published.source)}" if published else ""
        lines.append(f"parameters: {{value: {model.parameters}{source}}}")
    return "\n".join(lines) + "\n"


def _layer(layers: LayerCount) -> str:
    options = f", options: [{', '.join(map(_text, layers.options))}]" if layers.options else ""
    blocks = "".join(f", {_text(parameter)}: {_text(block)}" for parameter, block in layers.layer.blocks)
    count = f", count: {layers.count}" if layers.count > 1 else ""
    return f"{{kind: {_text(layers.kind)}{options}{blocks}{count}}}"


def check_target(path: Path, overwrite: bool) -> None:
    """Raise SpecError unless `path` can name a model file; StoreError for an existing file, unless `overwrite`."""
    if not path.name:
        raise SpecError(f"-o {str(path)!r} names no file: a model file ends in {_SUFFIX}")
    if path.suffix != _SUFFIX:
        raise SpecError(f"{path}: a model file ends in {_SUFFIX}: choose {path.with_suffix(_SUFFIX)}")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; choose another file with -o")
    if os.path.lexists(path) and not overwrite:
        raise StoreError(f"{path} exists; choose another file with -o, or replace it with --overwrite")


def write(text: str, path: Path) -> None:
    """Write `text` to `path` atomically; raises StoreError if that fails."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another path") from None


def _text(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
