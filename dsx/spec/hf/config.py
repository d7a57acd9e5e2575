"""Reads a config.json: finds its family by `model_type`, and the values of the keys that the family reads.

JSON is read as YAML, so that errors can name the line. A key with the value null counts as absent. Where a family reads
a section of the config, a key that the section lacks is that of the whole config. Two keys of a family may have one
spelling, as a number for all layers and a list of one for each: a value is that of the key whose type it has.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.spec.document import Document, KeyPath
from dsx.spec.hf.family import FamilySpec, KeySpec, load_family
from dsx.spec.hf.formula import Formula, evaluate
from dsx.spec.hf.unknown import known_spellings, unknown_family
from dsx.spec.json_text import parse_json
from dsx.spec.locate import names, shown
from dsx.spec.text_file import read_text
from dsx.spec.yaml_text import parse_document
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
    values: dict[str, Any]  # key of the family -> value, or default


def load_config(path: Path) -> Config:
    """Return the config at `path`.

    Raises SpecError, with file:line, for a file that is not a JSON object, and for all keys that are missing or have
    invalid values; UnknownNameError for a `model_type` without a family.
    """
    document = _load_json(path)
    model_type, inside = _model_type(document)
    family = load_family(model_type)
    section = _section(document, model_type, family) if inside is None else inside
    return Config(model_type, family, document, section, _values(document, section, family))


def place(config: Config, keys: frozenset[str]) -> str:
    """Return the place of the first of the `keys` in the file; if it has none, that of the section."""
    spellings = [name for key in sorted(keys) if key in config.family.keys for name in _spellings(config.family, key)]
    parts = [*stated_in(config.document, config.section)][::-1]
    found = ((*section, name) for name in spellings for section, part in parts if name in part)
    return config.document.place(next(found, config.section))


def evaluate_at(config: Config, formula: Formula, extra: Mapping[str, object] | None = None) -> Any:
    """Return the value of `formula` for the config; raises SpecError with the place of its keys."""
    try:
        return evaluate(formula, config.values | dict(extra or {}))
    except SpecError as error:
        raise SpecError(f"{place(config, formula.names)}: {error}") from None


def known_keys(family: FamilySpec) -> set[str]:
    """Return the keys that the family reads, in all spellings, and those that it lists as unpriced or without cost."""
    return {MODEL_TYPE, *known_spellings(family)}


def stated_layers(config: Config) -> int | None:
    """Return the number of layers that a config states, and its family does not read; None if there is none."""
    if any(NUM_LAYERS in _spellings(config.family, key) for key in config.family.keys):
        return None
    parts = [part for _, part in stated_in(config.document, config.section)]
    found = next((part[NUM_LAYERS] for part in parts[::-1] if NUM_LAYERS in part), None)
    return found if isinstance(found, int) else None


def _load_json(path: Path) -> Document:
    text, file = read_text(path), shown(path)
    data = parse_json(text, file)
    if not isinstance(data, dict):
        raise SpecError(f"{file}:1: expected an object with keys, as in a config.json, got {type(data).__name__}")
    # YAML does not allow tabs between tokens; JSON does not allow them inside tokens, so all of them are replaced.
    return parse_document(text.replace("\t", " "), file)


def _model_type(document: Document) -> tuple[str, KeyPath | None]:
    """Return the family of a config, and the path of its language model; None if that is as the family says."""
    model_type = document.data.get(MODEL_TYPE)
    if model_type is None:
        near = "" if MODEL_TYPE in document.data else did_you_mean(MODEL_TYPE, document.data)
        raise SpecError(
            f"{document.place(())}: {MODEL_TYPE}: is required, but missing{near} "
            "(the config.json of a Hugging Face checkpoint has one)"
        )
    if own := _family_of(model_type):
        return own, None if own == model_type else ()
    sections = {name: document.data[name] for name in _SECTIONS if isinstance(document.data.get(name), dict)}
    for name, part in sections.items():
        if found := _family_of(part.get(MODEL_TYPE)):
            return found, (name,)
    section, part = next(iter(sections.items()), (None, document.data))
    raise unknown_family(MODEL_TYPE, str(model_type), document, section, part)


def _family_of(model_type: object) -> str | None:
    """Return the family of a `model_type`, which may be that of its language model alone; None if there is none."""
    known = names("families", ".yaml")
    stated = (str(model_type), str(model_type).removesuffix(_OF_TEXT))
    return next((name for name in stated if name in known), None)


def _section(document: Document, model_type: str, family: FamilySpec) -> KeyPath:
    if family.section is None:
        return ()
    given = document.data.get(family.section)
    required = {key for key, spec in family.keys.items() if spec.default is None}
    if given is None and required and required <= document.data.keys():
        return ()  # as older versions of the transformers library wrote it
    if not isinstance(given, dict):
        what = "is missing" if given is None else f"is {given!r}"
        near = "" if family.section in document.data else did_you_mean(family.section, document.data)
        raise document.fault(
            (family.section,),
            f"{what}{near}; in a config of {MODEL_TYPE} {model_type!r} this section describes the language model",
        )
    return (family.section,)


def stated_in(document: Document, section: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield the whole config, and the section that its family reads if it has one, each with its path."""
    yield (), document.data
    if section:
        yield section, document.data[str(section[0])]


def _spellings(family: FamilySpec, key: str) -> list[str]:
    return [key, *family.keys[key].also]


def _values(document: Document, section: KeyPath, family: FamilySpec) -> dict[str, Any]:
    """Return the value of each key of the family; raises SpecError that lists all faults."""
    parts = [*stated_in(document, section)][::-1]
    given_of = {key: _given(key, parts, family) for key in family.keys}
    of_layers = next((key for key in family.keys if NUM_LAYERS in _spellings(family, key)), None)
    num_layers = None if of_layers is None else _number(given_of[of_layers], family.keys[of_layers])
    stated: dict[str, object] = {}
    faults: list[str] = []
    for key, spec in family.keys.items():
        given = given_of[key]
        try:
            if given:
                _check_alike(document, given)
                value = given[0][1] if key == of_layers else _of_each(given[0][1], spec, num_layers)
                stated[key] = _checked(value, spec)
            elif spec.default is None:
                near = did_you_mean(key, parts[0][1].keys() - known_keys(family))
                raise document.fault((*section, key), f"is required, but missing{near}")
        except ValueError as error:
            faults.append(document.message(given[0][0], error))
        except SpecError as error:
            faults.append(str(error))
    if faults:
        raise SpecError("\n".join(faults))
    return _with_defaults(stated, document.place(section), family)


def _given(key: str, parts: Sequence[tuple[KeyPath, dict[str, Any]]], family: FamilySpec) -> list[tuple[KeyPath, Any]]:
    """Return the values of a key with their paths; what the section states comes before what the whole config does."""
    found = [
        ((*path, name), part[name])
        for path, part in parts
        for name in _spellings(family, key)
        if part.get(name) is not None and not _is_of_another(family, key, name, part[name])
    ]
    return [(path, value) for path, value in found if len(path) == len(found[0][0])]


def _number(given: list[tuple[KeyPath, Any]], spec: KeySpec) -> Any:
    """Return the stated value of a key, or its default if it is a number."""
    if given or spec.default is None or spec.default.names:
        return given[0][1] if given else None
    return evaluate(spec.default, {})


def _is_of_another(family: FamilySpec, key: str, name: str, value: Any) -> bool:
    """Return whether a value has the type of another key with the same spelling, and not that of `key`."""
    others = [other for other in family.keys if other != key and name in _spellings(family, other)]
    if not others:
        return False
    is_list = isinstance(value, list)
    return (family.keys[key].holds == "list") != is_list and any(
        (family.keys[other].holds == "list") == is_list for other in others
    )


def _check_alike(document: Document, given: list[tuple[KeyPath, Any]]) -> None:
    """Raise SpecError for two spellings of a key that have different values."""
    first, stated = given[0]
    for path, value in given[1:]:
        if value != stated:
            raise document.fault(path, f"is {value!r}, but {first[-1]}, another name for it, is {stated!r}")


def _checked(value: Any, spec: KeySpec) -> Any:
    """Return `value`; raises ValueError if it does not have the type of its key."""
    if spec.holds in ("count", "whole"):
        least = 1 if spec.holds == "count" else 0
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        if not whole or not least <= value <= LARGEST_COUNT:
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


def _of_each(value: Any, spec: KeySpec, num_layers: Any) -> Any:
    """Return the number that all entries of a list have, or what is no list of numbers.

    The list has an entry for each of the layers, or for both sides of an image. Raises ValueError if it has more or
    fewer, or different ones.
    """
    if spec.holds not in ("count", "whole") or not isinstance(value, list) or not value:
        return value
    count, each = (num_layers, f"each of {num_layers} layers") if spec.each_of == "layers" else (2, "each of two sides")
    if not isinstance(count, int) or len(value) != count:
        known = f", or one for {each}" if isinstance(count, int) else ""
        raise ValueError(f"expected one value{known}, got {len(value)}")
    if any(one != value[0] for one in value):
        raise ValueError(
            f"has a value for {each}, from {reprlib.repr(value[0])} on; a model of dsx has one for all of them"
        )
    return value[0]


def _with_defaults(stated: dict[str, object], where: str, family: FamilySpec) -> dict[str, Any]:
    """Return the values with the defaults of absent keys; a default may be a formula of other keys."""
    values = dict(stated)
    for key, default in _in_order(family, stated):
        try:
            value = evaluate(default, values)
            values[key] = _checked(value, family.keys[key])
        except (SpecError, ValueError) as error:
            raise SpecError(f"{where}: {key}: is missing, and its default cannot be computed: {error}") from None
    return values


def _in_order(family: FamilySpec, stated: dict[str, object]) -> Iterator[tuple[str, Formula]]:
    """Yield the absent keys and their defaults, each after the keys that it reads."""
    known = {*stated}
    pending = {key: spec.default for key, spec in family.keys.items() if key not in stated and spec.default}
    while ready := {key: default for key, default in pending.items() if default.names <= known}:
        yield from ready.items()
        known |= ready.keys()
        pending = {key: default for key, default in pending.items() if key not in ready}
    if pending:
        raise SpecError(f"the defaults of {', '.join(pending)} need each other; the file of the family is faulty")
