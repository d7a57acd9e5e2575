"""Checks of a document: its kind, its fields, and the values that they may have.

What kind of document a file is, told by its keys: for a file that is given in place of one of another kind.

A key tells of a kind if no other kind has it. A document is of another kind than the wanted one if it states none of
the keys that tell of the wanted one, and enough of those that tell of the other; then the faults of its single keys say
nothing. A config of Hugging Face tells of itself by the type of its model.

Not modelled: layer definitions and tables, which are no YAML sections; operator tables and families, which name no key.

Validates a document against its schema, with one error that lists all faults.

pydantic finds the faults; this module writes them as `file:line: path: message`, with the nearest name.

The types of single values in a spec: quantities with units, counts, fractions.

Each accepts a plain value, or a value with its source, ``{value: 80 GB, source: "data sheet"}``. The source is for
people and is dropped. Quantities become SI floats; `model_dump(mode="json")` writes them with their unit, so that the
dump can be read.

Bounds of fitted numbers: ``{value: 0.8, source: "...", between: [0.6, 0.95]}``.

A fit may change only numbers that state bounds. Bounds have the unit of the number. The spec, which prices plans, does
not hold them.
"""

import re
import reprlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, Strict, Tag, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dsx.config.documents import Document, KeyPath, Kind, is_sourced, names
from dsx.errors import SpecError, UnitError, did_you_mean, nearest_names
from dsx.units import (
    LARGEST_COUNT,
    SHARE,
    WHOLE_NUMBER,
    Dimension,
    parse_count,
    parse_number,
    parse_quantity,
    parse_total,
)

_OF_CONFIGS = ("model_type", "architectures")
_ENOUGH = 2  # telling keys; of a kind that requires fewer, these


@dataclass(frozen=True)
class _DocumentKind:
    noun: str  # with its article
    spec: type[BaseModel]
    place: str  # where such a document goes
    kind: Kind | None = None  # of its names; None: it has only a path


def wrong_kind(document: Document, wanted: type[BaseModel]) -> str:
    """Return that `document` is of another kind than `wanted`, and where it goes; "" if it may be of that kind."""
    known = {each.spec: each for each in _kinds()}
    if wanted not in known or not isinstance(document.data, Mapping):
        return ""
    stated = document.data.keys()
    if stated & _telling(wanted):
        return ""
    place = document.place(())
    file = re.sub(r":\d+$", "", place)
    no_other = f"no {known[wanted].noun.split(maxsplit=1)[1]}"
    if any(key in document.data for key in _OF_CONFIGS):
        return f"{file}: is a config of Hugging Face, {no_other} of dsx: {_conversion(file, in_file=file != place)}"
    told = {each.spec: len(stated & _telling(each.spec)) for each in known.values()}
    likely = known[max(told, key=lambda spec: told[spec])]
    if told[likely.spec] >= min(_ENOUGH, _required(likely.spec)):
        return f"{file}: is {likely.noun}, {no_other}: give it to {likely.place}"
    base = document.data.get("extends")  # read before, but of a sweep
    return wrong_base(file, base, known[wanted].kind) if isinstance(base, str) else ""


def wrong_base(file: str, base: str, wanted: Kind | None) -> str:
    """Return that a file extends something of another kind than `wanted`, by the name of its base; "" if not so."""
    for each in _kinds():
        if each.kind not in (None, wanted) and base in names(each.kind, ".yaml"):
            return f"{file}: extends {base}, {each.noun}, so it is one too: give it to {each.place}"
    return ""


def _conversion(file: str, in_file: bool) -> str:
    name = file if in_file else "config.json"
    output = f"{Path(name).stem.lower()}.yaml"
    return f"dsx import-hf {shlex.quote(name)} -o {shlex.quote(output)} makes a model of it"


@cache
def _kinds() -> tuple[_DocumentKind, ...]:
    # These validate with `dsx.config.values`, which asks here.
    from dsx.config.assumption_set import AssumptionsSpec
    from dsx.config.cluster_file import ClusterSpec
    from dsx.config.framework_file import FrameworkSpec
    from dsx.config.model_file import ModelSpec
    from dsx.config.stack import StackSpec
    from dsx.config.sweep_file import SweepSpec

    return (
        _DocumentKind("a model", ModelSpec, "--model", "models"),
        _DocumentKind("a cluster", ClusterSpec, "--cluster", "clusters"),
        _DocumentKind("a sweep", SweepSpec, "dsx sweep"),
        _DocumentKind("an assumption set", AssumptionsSpec, "--assumptions", "assumptions"),
        _DocumentKind("a framework", FrameworkSpec, "--framework", "frameworks"),
        _DocumentKind("a stack", StackSpec, "--set assumptions.stack=FILE", "stacks"),
    )


def _telling(spec: type[BaseModel]) -> set[str]:
    """Return the keys that no other kind has."""
    others = [each.spec.model_fields.keys() for each in _kinds() if each.spec is not spec]
    return spec.model_fields.keys() - set[str]().union(*others)


def _required(spec: type[BaseModel]) -> int:
    """Return how many of its telling keys a document of a kind has to state."""
    fields: Mapping[str, Any] = spec.model_fields
    return sum(fields[name].is_required() for name in _telling(spec))


S = TypeVar("S", bound=BaseModel)

_MOST_FAULTS = 40  # listed in one message; finding the nearest names for 100,000 would take minutes


def validate(document: Document, model: type[S], context: object = None) -> S:
    """Return `document` as a `model`; `context` goes to the model's validators.

    Raises SpecError that lists the first forty faults, or says of what other kind the document is.
    """
    try:
        return model.model_validate(document.data, context=context)
    except ValidationError as error:
        if told := wrong_kind(document, model):
            raise SpecError(told) from None
        found = error.errors(include_url=False)
        faults = [_fault(document, model, details) for details in found[:_MOST_FAULTS]]
        if more := found[_MOST_FAULTS:]:
            faults.append(f"... and {len(more):,} more faults")
        raise SpecError("\n".join(faults)) from None


def _fault(document: Document, model: type[BaseModel], details: ErrorDetails) -> str:
    location = details["loc"]
    if location and location[-1] == "[key]":  # pydantic's mark for a fault of the key itself
        location = location[:-1]
    return document.message(_walked(model, location)[1], _message(model, location, details))


def _message(model: type[BaseModel], location: KeyPath, details: ErrorDetails) -> str:
    given, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            former: dict[str, str] = getattr(model, "former_keys", {}) if len(location) == 1 else {}
            if location[-1] in former:
                return f"is no longer a key; write '{former[str(location[-1])]}'"
            known = _known_keys(model, location[:-1])
            known += getattr(model, "keys_of_file", ()) if len(location) == 1 else ()
            near = did_you_mean(str(location[-1]), known) or _below(model, location, known)
            return f"unknown key{near} (known: {', '.join(known)})"
        case "missing":
            return f"is required, but missing{_misspelt(model, location, given)}"
        case "model_type":
            known = _known_keys(model, location)
            return f"expected a section with the keys {', '.join(known)}, got {reprlib.repr(given)}"
        case "value_error":
            return str(context["error"])
        case "literal_error":
            known = re.findall(r"'([^']*)'", context["expected"])
            return f"{given!r} is not one of {', '.join(known)}{did_you_mean(str(given), known)}"
        case "dict_type":
            return f"expected keys and values, got {reprlib.repr(given)}"
        case "list_type":
            return f"expected a list, as in [a, b], got {reprlib.repr(given)}"
        case "too_short":
            return _length(context["actual_length"], f"at least {context['min_length']}", context["min_length"])
        case "too_long":
            return _length(context["actual_length"], f"at most {context['max_length']}", context["max_length"])
        case _:
            message = details["msg"]
            stated = given["value"] if is_sourced(given) else given
            return f"{message[0].lower()}{message[1:]}, got {reprlib.repr(stated)}"


def _length(found: int, wanted: str, bound: int) -> str:
    entries = "one entry" if found == 1 else f"{found or 'no'} entries"
    return f"has {entries}, but {wanted} {'is' if bound == 1 else 'are'} needed"


def _misspelt(model: type[BaseModel], location: KeyPath, given: object) -> str:
    """Return a hint at the `given` key that may be a misspelt missing one, in a section that allows any key."""
    # A pair with one entry misses an entry, not a key.
    if not isinstance(given, dict) or (part := _part(model, location[:-1])).model_config.get("extra") == "forbid":
        return ""
    return did_you_mean(str(location[-1]), given.keys() - part.model_fields.keys())


def _below(model: type[BaseModel], location: KeyPath, known: Sequence[str]) -> str:
    """Return a hint at the keys of the sections `known` that an unknown key of the part above may be."""
    outer, name = location[:-1], str(location[-1])
    sections = {key: _walked(model, (*outer, key))[0] for key in known}
    keys = {key: [*part.model_fields] for key, part in sections.items() if _is_model(part)}
    near = nearest_names(name, {one for names in keys.values() for one in names}, cutoff=0.7)
    found = [".".join(map(str, (*outer, key, one))) for key, names in keys.items() for one in names if one in near]
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _known_keys(model: type[BaseModel], location: KeyPath) -> list[str]:
    """Return the keys that the schema allows at `location`."""
    return list(_part(model, location).model_fields)


def _part(model: type[BaseModel], location: KeyPath) -> type[BaseModel]:
    """Return the model of the schema at `location`, which is a section."""
    return _walked(model, location)[0]


def _annotated(union: Any) -> list[tuple[Any, Any]]:
    """Return the annotated arms of a union, each with its last annotation."""
    arms = [get_args(arm) for arm in get_args(union) if get_origin(arm) is Annotated]
    return [(kind, annotations[-1]) for kind, *annotations in arms]


def _walked(model: type[BaseModel], location: KeyPath) -> tuple[Any, KeyPath]:
    """Return the part of the schema at `location`, and the path of its keys; None beneath a value without keys.

    The arms of a union have tags such as "<top>", which are steps of a location and not part of the data.
    """
    kind: Any = model
    path: list[str | int] = []
    for step in location:
        arms = {tag.tag: arm for arm, tag in _annotated(kind) if isinstance(tag, Tag)}
        if step in arms:
            kind = arms[step]
        else:
            path.append(step)
            if _is_model(kind):
                kind = kind.model_fields[str(step)].annotation if str(step) in kind.model_fields else None
            else:
                kind = next(reversed(get_args(kind)), None)
        if type(None) in get_args(kind):  # an optional part
            kind = get_args(kind)[0]
        if get_origin(kind) is Annotated and not isinstance(get_args(kind)[1], Tag):
            kind = get_args(kind)[0]
    return kind, tuple(path)


_BASE_UNIT: dict[Dimension, str] = {
    "bytes": "B",
    "bytes/s": "B/s",
    "flop/s": "FLOP/s",
    "s": "s",
    "W": "W",
    "USD/s": "USD/s",
}


def unsourced(value: object) -> object:
    """Return the value of ``{value: ..., source: ...}``, or `value` itself if it is plain."""
    if is_sourced(value):
        if "between" in value:
            raise ValueError("only fitted real numbers of an assumption set have 'between'; leave it out")
        return value["value"]
    if isinstance(value, dict):
        known = ("value", "source")
        wrong = next((key for key in value if key not in known), None)
        found = f"unknown key {wrong!r}{did_you_mean(str(wrong), known)}" if wrong else "the value is missing"
        raise ValueError(f"expected one value, or {{value: ..., source: ...}}: {found}")
    return value


def number(value: object, wanted: str = "a finite number") -> int | float:
    """Return `value`, plain or with its source, as a number; a message says what is `wanted`."""
    try:
        return parse_number(unsourced(value), wanted)
    except SpecError as error:
        raise ValueError(str(error)) from None


def share(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number of which the schema checks that it is a share."""
    return number(value, SHARE)


def total(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number that may have a suffix: "15T"."""
    try:
        return parse_total(unsourced(value))
    except SpecError as error:
        raise ValueError(str(error)) from None


def whole_number(value: object) -> int:
    """Return `value`, plain or with its source, as an int: 1e3 is valid, 1.5 is not."""
    plain = number(value, WHOLE_NUMBER)
    if plain != int(plain):
        raise ValueError(f"{plain!r} is not a whole number")
    return int(plain)


def count(value: object) -> int:
    """Return `value`, plain or with its source, as a whole number from 1 to `LARGEST_COUNT`."""
    try:
        return parse_count(unsourced(value))
    except SpecError as error:
        raise ValueError(str(error)) from None


def choice(value: object) -> int | str:
    """Return `value`, plain or with its source, as the value of a candidate column: a number or a name."""
    plain = unsourced(value)
    if isinstance(plain, str) and plain:
        return plain
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise ValueError(f"{plain!r} is neither a whole number nor a name")
    if not 0 <= plain <= LARGEST_COUNT:
        raise ValueError(f"{plain!r} is not a whole number from 0 to {LARGEST_COUNT}")
    return plain


def _read(dimension: Dimension) -> BeforeValidator:
    def read(value: object) -> float:
        try:
            return parse_quantity(unsourced(value), dimension)
        except UnitError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


def _write(dimension: Dimension) -> PlainSerializer:
    return PlainSerializer(lambda value: f"{value!r} {_BASE_UNIT[dimension]}", when_used="json")


Bytes = Annotated[float, _read("bytes"), Field(ge=0), _write("bytes")]  # "80 GB"
BytesPerSecond = Annotated[float, _read("bytes/s"), Field(gt=0), _write("bytes/s")]  # "900 GB/s", "400 Gb/s"
FlopsPerSecond = Annotated[float, _read("flop/s"), Field(gt=0), _write("flop/s")]  # "2.5 PFLOP/s"
Seconds = Annotated[float, _read("s"), Field(ge=0), _write("s")]  # "2.5 us"
Watts = Annotated[float, _read("W"), Field(gt=0), _write("W")]  # "700 W"
DollarsPerSecond = Annotated[float, _read("USD/s"), Field(gt=0), _write("USD/s")]  # "2.5 USD/h"

Count = Annotated[int, BeforeValidator(count)]  # at least 1
Total = Annotated[int, Field(gt=0), BeforeValidator(whole_number)]  # at least 1, and as large as one likes
Fraction = Annotated[float, Field(gt=0, le=1), BeforeValidator(share)]  # of a peak: above 0, at most 1
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(share)]  # from 0 to 1
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(number)]
UsageEffectiveness = Annotated[float, Field(ge=1), BeforeValidator(number)]  # of a site: its power over its machines'
Tokens = Annotated[float, Field(gt=0), BeforeValidator(total)]  # "15T"
Flag = Annotated[bool, Strict(), BeforeValidator(unsourced)]  # true or false
Choice = Annotated[int | str, BeforeValidator(choice)]  # of a candidate column: 8, "1f1b"

Sourced = BeforeValidator(unsourced)  # for any other type that may carry a source


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range within which a fit may change a number, in SI units; low < high."""

    low: float
    high: float


def without_bounds(document: Document, model: type[BaseModel]) -> tuple[Document, dict[str, Bounds]]:
    """Return the document without its bounds, and the bounds by field.

    Raises SpecError that lists, with their lines, bounds that are not two increasing numbers of their field, and values
    outside their bounds.
    """
    data, found, faults = dict(document.data), dict[str, Bounds](), list[str]()
    for name, stated in document.data.items():
        if name not in model.model_fields or not is_sourced(stated) or "between" not in stated:
            continue
        data[name] = {key: value for key, value in stated.items() if key != "between"}
        try:
            found[name] = _bounds_around(model.model_fields[name], stated["between"], stated["value"])
        except ValueError as error:
            faults.append(f"{document.place((name, 'between'))}: {name}: {error}")
    if faults:
        raise SpecError("\n".join(faults))
    return Document(data, document.places), found


def bounds_of(info: FieldInfo, between: object) -> Bounds:
    """Return the bounds that `between` states for a number; ValueError if they are not two increasing numbers."""
    if info.annotation is not float:
        raise ValueError("has 'between', but is not a real number, which a fit could change")
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"between: expected two numbers, [lowest, highest], got {between!r}")
    kind = TypeAdapter[float](info.rebuild_annotation())
    low, high = (_number(kind, bound) for bound in between)
    if low >= high:
        raise ValueError(f"between: the lower bound comes first, but {between[0]} is not below {between[1]}")
    return Bounds(low, high)


def _bounds_around(info: FieldInfo, between: object, value: object) -> Bounds:
    bounds = bounds_of(info, between)
    try:
        own = TypeAdapter[float](info.rebuild_annotation()).validate_python(value)
    except ValidationError:  # the validation of the field reports it
        return bounds
    if not bounds.low <= own <= bounds.high:
        raise ValueError(f"the value {value} is not between {between[0]} and {between[1]}")  # pyright: ignore[reportIndexIssue]
    return bounds


def _number(kind: TypeAdapter[float], bound: object) -> float:
    try:
        return kind.validate_python(bound)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"between: {bound!r}: {message[0].lower()}{message[1:]}") from None
