"""Specs: the schema of a document, types of its values, and one error that lists all faults of a file.

pydantic finds the faults; this module writes them as `file:line: path: message`, with the nearest name. A file of
another kind than the wanted one is told by its keys: it states none of the keys that only the wanted kind has, and
enough of those that only the other kind has; then the faults of its single keys say nothing. A config of Hugging Face
is told by the type of its model.

Not modelled: layer definitions and tables, which are no YAML sections; operator tables and families, which name no key.

The types of single values are quantities with units, counts and shares. Each accepts a plain value, or a value with its
source, ``{value: 80 GB, source: "data sheet"}``. The source is for people and is dropped. Quantities become SI floats;
`model_dump(mode="json")` writes them with their unit, so that the dump can be read. A number that a fit may change
states bounds in its unit, ``{value: 0.8, between: [0.6, 0.95]}``; the spec, which prices plans, does not hold them.
"""

import contextlib
import re
import reprlib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, ParamSpec, TypeGuard, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from dsx.config.documents import Document, KeyPath, is_sourced
from dsx.config.search_path import Folder, names
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

P = ParamSpec("P")
T = TypeVar("T")

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
        keys = ("value", "source")
        wrong = next((key for key in value if key not in keys), None)
        reason = f"unknown key {wrong!r}{did_you_mean(str(wrong), keys)}" if wrong else "the value is missing"
        raise ValueError(f"expected one value, or {{value: ..., source: ...}}: {reason}")
    return value


def _parsed(parse: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what `parse` makes of its arguments; its error is a ValueError, of which pydantic knows the place."""
    try:
        return parse(*arguments, **named)
    except (SpecError, UnitError) as error:
        raise ValueError(str(error)) from None


def number(value: object, expected: str = "a finite number") -> int | float:
    """Return `value`, plain or with its source, as a number; a message says what is `expected`."""
    return _parsed(parse_number, unsourced(value), expected)


def share(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number of which the schema checks that it is a share."""
    return number(value, SHARE)


def total(value: object) -> int | float:
    """Return `value`, plain or with its source, as a number that may have a suffix: "15T"."""
    return _parsed(parse_total, unsourced(value))


def whole_number(value: object) -> int:
    """Return `value`, plain or with its source, as an int: 1e3 is valid, 1.5 is not."""
    plain = number(value, WHOLE_NUMBER)
    if plain != int(plain):
        raise ValueError(f"{plain!r} is not a whole number")
    return int(plain)


def count(value: object) -> int:
    """Return `value`, plain or with its source, as a whole number from 1 to `LARGEST_COUNT`."""
    return _parsed(parse_count, unsourced(value))


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


@dataclass(frozen=True, slots=True)
class Quantity:
    """The mark of a field with a unit, by which it is read, "80 GB", and written, "80000000000.0 B"."""

    unit: Dimension

    def __get_pydantic_core_schema__(self, source: type[float], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: _parsed(parse_quantity, unsourced(value), self.unit),
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: f"{value!r} {_BASE_UNIT[self.unit]}", when_used="json"
            ),
        )


Bytes = Annotated[float, Quantity("bytes"), Field(ge=0)]  # "80 GB"
BytesPerSecond = Annotated[float, Quantity("bytes/s"), Field(gt=0)]  # "900 GB/s", "400 Gb/s"
FlopsPerSecond = Annotated[float, Quantity("flop/s"), Field(gt=0)]  # "2.5 PFLOP/s"
Seconds = Annotated[float, Quantity("s"), Field(ge=0)]  # "2.5 us"
Watts = Annotated[float, Quantity("W"), Field(gt=0)]  # "700 W"
DollarsPerSecond = Annotated[float, Quantity("USD/s"), Field(gt=0)]  # "2.5 USD/h"

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


def usually(default: T) -> T:
    """Return a field that is written only where it differs from its default.

    Result sets are identified by hashes of what they were made from, which a field added later must not change.
    """
    return Field(default, exclude_if=lambda value: value == default)


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
    data, bounds, faults = dict(document.data), dict[str, Bounds](), list[str]()
    for name, entry in document.data.items():
        if name not in model.model_fields or not is_sourced(entry) or "between" not in entry:
            continue
        data[name] = {key: value for key, value in entry.items() if key != "between"}
        try:
            bounds[name] = bounds_of(model.model_fields[name], entry["between"], entry["value"])
        except ValueError as error:
            faults.append(f"{document.place((name, 'between'))}: {name}: {error}")
    if faults:
        raise SpecError("\n".join(faults))
    return Document(data, document.places), bounds


def bounds_of(info: FieldInfo, between: object, value: object = None) -> Bounds:
    """Return the bounds that `between` states for a number.

    Raises ValueError if they are not two increasing numbers, or `value` is a number that is not between them.
    """
    if info.annotation is not float:
        raise ValueError("has 'between', but is not a real number, which a fit could change")
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"between: expected two numbers, [lowest, highest], got {between!r}")
    kind = TypeAdapter[float](info.rebuild_annotation())
    ends: list[float] = []
    for bound in between:
        try:
            ends.append(kind.validate_python(bound))
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"between: {bound!r}: {message[0].lower()}{message[1:]}") from None
    low, high = ends
    if low >= high:
        raise ValueError(f"between: the lower bound comes first, but {between[0]} is not below {between[1]}")
    with contextlib.suppress(ValidationError):  # which the validation of the field reports
        if value is not None and not low <= kind.validate_python(value) <= high:
            raise ValueError(f"the value {value} is not between {between[0]} and {between[1]}")
    return Bounds(low, high)


S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class FileKind:
    """A kind of file that states a spec."""

    target: str  # in messages, and in `--set`
    noun: str  # with its article
    place: str  # where such a file goes
    folder: Folder | None = None  # of its names; None: it has only a path


class Spec(BaseModel):
    """Base of all specs: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file_kind: ClassVar[FileKind]  # of a spec that has files
    former_keys: ClassVar[Mapping[str, str]] = {}  # former key -> what to write instead
    keys_of_file: ClassVar[Sequence[str]] = ()  # keys that are read before the spec is validated
    open_keys: ClassVar[Collection[str]] = ()  # fields of which `--set` may add keys that the schema does not list

    @classmethod
    def may_add(cls, path: Sequence[str]) -> bool:
        """Return whether `--set` may add a path that is no field of the schema."""
        return len(path) == 2 and path[0] in cls.open_keys


@cache
def _kinds() -> tuple[type[Spec], ...]:
    # These validate with this module, which asks here.
    from dsx.config.assumption_set import AssumptionsSpec
    from dsx.config.cluster_file import ClusterSpec
    from dsx.config.framework_file import FrameworkSpec
    from dsx.config.model_file import ModelSpec
    from dsx.config.stack import StackSpec
    from dsx.config.sweep_file import SweepSpec

    return ModelSpec, ClusterSpec, SweepSpec, AssumptionsSpec, FrameworkSpec, StackSpec


_OF_CONFIGS = ("model_type", "architectures")
_ENOUGH = 2  # telling keys; of a kind that requires fewer, these


def wrong_kind(document: Document, target: type[BaseModel]) -> str:
    """Return that `document` is of another kind than `target`, and where it goes; "" if it may be of that kind."""
    spec = next((kind for kind in _kinds() if kind is target), None)
    if spec is None or not isinstance(document.data, Mapping):
        return ""
    keys = document.data.keys()
    if keys & _telling(spec):
        return ""
    place = document.place(())
    file = re.sub(r":\d+$", "", place)
    no_other = f"no {spec.file_kind.noun.split(maxsplit=1)[1]}"
    if any(key in keys for key in _OF_CONFIGS):
        in_file = file != place
        name = file if in_file else "config.json"
        convert = f"dsx import-hf {shlex.quote(name)} -o {shlex.quote(f'{Path(name).stem.lower()}.yaml')}"
        return f"{file}: is a config of Hugging Face, {no_other} of dsx: {convert} makes a model of it"
    likely = max(_kinds(), key=lambda kind: len(keys & _telling(kind)))
    required = sum(likely.model_fields[name].is_required() for name in _telling(likely))
    if len(keys & _telling(likely)) >= min(_ENOUGH, required):
        return f"{file}: is {likely.file_kind.noun}, {no_other}: give it to {likely.file_kind.place}"
    base = document.data.get("extends")  # read before, but of a sweep
    return wrong_base(file, base, spec) if isinstance(base, str) else ""


def _telling(spec: type[Spec]) -> set[str]:
    """Return the keys that no other kind has."""
    return spec.model_fields.keys() - {key for kind in _kinds() if kind is not spec for key in kind.model_fields}


def wrong_base(file: str, base: str, spec: type[Spec]) -> str:
    """Return that a file extends something of another kind than `spec`, by the name of its base; "" if not so."""
    for kind in (other.file_kind for other in _kinds() if other is not spec):
        if kind.folder is not None and base in names(kind.folder, ".yaml"):
            return f"{file}: extends {base}, {kind.noun}, so it is one too: give it to {kind.place}"
    return ""


_MOST_FAULTS = 40  # listed in one message; finding the nearest names for 100,000 would take minutes


def validate(document: Document, model: type[S], context: object = None) -> S:
    """Return `document` as a `model`; `context` goes to the model's validators.

    Raises SpecError that lists the first forty faults, or says of what other kind the document is.
    """
    try:
        return model.model_validate(document.data, context=context)
    except ValidationError as error:
        if fault := wrong_kind(document, model):
            raise SpecError(fault) from None
        errors = error.errors(include_url=False)
        faults: list[str] = []
        for details in errors[:_MOST_FAULTS]:
            location = details["loc"]
            if location and location[-1] == "[key]":  # pydantic's mark for a fault of the key itself
                location = location[:-1]
            faults.append(document.message(_walked(model, location)[1], _message(model, location, details)))
        if more := errors[_MOST_FAULTS:]:
            faults.append(f"... and {len(more):,} more faults")
        raise SpecError("\n".join(faults)) from None


def _message(model: type[BaseModel], location: KeyPath, details: ErrorDetails) -> str:
    value, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            keys = [*_walked(model, location[:-1])[0].model_fields]
            if len(location) == 1 and issubclass(model, Spec):
                if former := model.former_keys.get(str(location[-1])):
                    return f"is no longer a key; write '{former}'"
                keys += model.keys_of_file
            near = did_you_mean(str(location[-1]), keys) or _below(model, location, keys)
            return f"unknown key{near} (known: {', '.join(keys)})"
        case "missing":
            # A section that allows any key may have a misspelt one; a pair with one entry misses an entry, not a key.
            part = _walked(model, location[:-1])[0]
            misspelt = isinstance(value, dict) and part.model_config.get("extra") != "forbid"
            near = did_you_mean(str(location[-1]), value.keys() - part.model_fields.keys()) if misspelt else ""
            return f"is required, but missing{near}"
        case "model_type":
            keys = [*_walked(model, location)[0].model_fields]
            return f"expected a section with the keys {', '.join(keys)}, got {reprlib.repr(value)}"
        case "value_error":
            return str(context["error"])
        case "literal_error":
            keys = re.findall(r"'([^']*)'", context["expected"])
            return f"{value!r} is not one of {', '.join(keys)}{did_you_mean(str(value), keys)}"
        case "dict_type":
            return f"expected keys and values, got {reprlib.repr(value)}"
        case "list_type":
            return f"expected a list, as in [a, b], got {reprlib.repr(value)}"
        case "too_short":
            return _length(context["actual_length"], f"at least {context['min_length']}", context["min_length"])
        case "too_long":
            return _length(context["actual_length"], f"at most {context['max_length']}", context["max_length"])
        case _:
            message = details["msg"]
            plain = value["value"] if is_sourced(value) else value
            return f"{message[0].lower()}{message[1:]}, got {reprlib.repr(plain)}"


def _length(count: int, expected: str, bound: int) -> str:
    entries = "one entry" if count == 1 else f"{count or 'no'} entries"
    return f"has {entries}, but {expected} {'is' if bound == 1 else 'are'} needed"


def _below(model: type[BaseModel], location: KeyPath, section_names: Sequence[str]) -> str:
    """Return a hint at the keys of the sections `section_names` that an unknown key of the part above may be."""
    outer, name = location[:-1], str(location[-1])
    sections = {key: _walked(model, (*outer, key))[0] for key in section_names}
    keys = {key: [*part.model_fields] for key, part in sections.items() if _is_model(part)}
    near = nearest_names(name, {field for fields in keys.values() for field in fields}, cutoff=0.7)
    paths = [
        ".".join(map(str, (*outer, key, field))) for key, fields in keys.items() for field in fields if field in near
    ]
    return f"; did you mean {' or '.join(map(repr, paths))}?" if paths else ""


def _is_model(part: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _walked(model: type[BaseModel], location: KeyPath) -> tuple[Any, KeyPath]:
    """Return the part of the schema at `location`, and the path of its keys; None beneath a value without keys.

    The arms of a union have tags such as "<top>", which are steps of a location and not part of the data.
    """
    kind: Any = model
    path: list[str | int] = []
    for step in location:
        annotated = [get_args(arm) for arm in get_args(kind) if get_origin(arm) is Annotated]
        arms = {tags[-1].tag: arm for arm, *tags in annotated if isinstance(tags[-1], Tag)}
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
