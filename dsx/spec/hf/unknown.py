"""What to write for a config of a family that dsx does not have: a family file that extends the nearest one."""

import re
from typing import Any

from dsx.errors import UnknownNameError
from dsx.spec.checkpoint_names import packaged_model
from dsx.spec.document import Document
from dsx.spec.hf.family import FamilySpec, load_family
from dsx.spec.hf.formula import evaluate
from dsx.spec.locate import names

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of a file
_FEWEST_KEYS = 4  # that a family reads of a config to be near it
_LISTED = 12  # keys


def unknown_family(
    key: str, model_type: str, document: Document, section: str | None, part: dict[str, Any]
) -> UnknownNameError:
    """Return the error for a config with an unknown `model_type`, which stands at `key`.

    `part` is what describes its language model: the whole config, or that `section`.
    """
    known = names("families", ".yaml")
    packaged = packaged_model(model_type.replace("_", "-"), names("models", ".yaml"))
    hint = [f" at {document.place((key,))}"]
    if packaged:
        hint.append(f"the packaged model {packaged!r} may be it: --model {packaged}")
    if _NAME.fullmatch(model_type):
        hint += _advice(model_type, section, {name for name, value in part.items() if value is not None} - {key})
    return UnknownNameError(key, model_type, known, "\n".join(hint))


def known_spellings(family: FamilySpec) -> set[str]:
    """Return the keys that a family reads, in all spellings, and those that it lists as unpriced or without cost."""
    read = {name for key, spec in family.keys.items() for name in (key, *spec.also)}
    return {*read, *family.unpriced, *(key for keys in family.no_cost.values() for key in keys)}


def _advice(model_type: str, section: str | None, given: set[str]) -> list[str]:
    """Return the lines of a family file."""
    families = {name: load_family(name) for name in names("families", ".yaml")}
    near = {name: family for name, family in families.items() if len(_read(family, given)) >= _FEWEST_KEYS}
    file = f"families/{model_type}.yaml in a folder of DSX_PATH adds it (docs/how-to/import-hf.md)"
    if not near:
        return [file]
    # Of equally near families the one with most checkpoints.
    name = min(near, key=lambda name: (_distance(near[name], given), -len(near[name].published), name))
    lines = [f"extends: {name}", f'source: "config.json, model_type {model_type}"']
    lines += [f"section: {section}"] if section else []
    if missing := _missing(families[name], given):
        stated = (
            f"{key}: {{holds: {families[name].keys[key].holds}, default: FORMULA OF OTHER KEYS}}" for key in missing
        )
        lines.append(f"keys: {{{', '.join(stated)}}}")
    unread = sorted(given - known_spellings(families[name]))
    more = ", ..." if len(unread) > _LISTED else ""
    rest = [f"and what {name} does not say: {', '.join(unread[:_LISTED])}{more}"] if unread else []
    return [
        f"{file}; the nearest family by its keys is {name}, so begin with:",
        *(f"  {line}" for line in lines),
        *rest,
    ]


def _read(family: FamilySpec, given: set[str]) -> set[str]:
    return {key for key, spec in family.keys.items() if given & {key, *spec.also}}


def _missing(family: FamilySpec, given: set[str]) -> list[str]:
    """Return the keys that the family requires and the config lacks."""
    return [key for key, spec in family.keys.items() if spec.default is None and not given & {key, *spec.also}]


def _distance(family: FamilySpec, given: set[str]) -> int:
    """Return how many keys either lacks of the other, and of how many the family takes a value that is not nothing."""
    absent = [spec.default for key, spec in family.keys.items() if spec.default and not given & {key, *spec.also}]
    assumed = sum(bool(evaluate(default, {})) for default in absent if not default.names)
    return len(_missing(family, given)) + len(given - known_spellings(family)) + assumed
