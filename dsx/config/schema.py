"""Specs: the schema of a document, the kinds of files that have one, and one error that lists all faults of a file.

pydantic finds the faults; this module writes them as `file:line: path: message`, with the nearest name. A file of
another kind than the wanted one is told by its keys: it states none of the keys that only the wanted kind has, and
enough of those that only the other kind has; then the faults of its single keys say nothing. A config of Hugging Face
is told by the type of its model.

Not modelled: layer definitions and tables, which are no YAML sections; operator tables and families, which name no key.
"""

import re
import reprlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Tag, ValidationError
from pydantic_core import ErrorDetails

from dsx.config.documents import Document, KeyPath, is_sourced
from dsx.config.search_path import Folder, names
from dsx.errors import SpecError, did_you_mean, nearest_names

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
