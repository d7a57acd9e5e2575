"""Validates a document against its schema, with one error that lists all faults.

pydantic finds the faults; this module writes them as `file:line: path: message`, with the nearest name.
"""

import re
import reprlib
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from dsx.errors import SpecError, did_you_mean, nearest_names
from dsx.spec.document import Document, KeyPath, is_sourced
from dsx.spec.document_kinds import wrong_kind

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
