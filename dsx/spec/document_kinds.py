"""What kind of document a file is, told by its keys: for a file that is given in place of one of another kind.

A key tells of a kind if no other kind has it. A document is of another kind than the wanted one if it states none of
the keys that tell of the wanted one, and enough of those that tell of the other; then the faults of its single keys say
nothing. A config of Hugging Face tells of itself by the type of its model.

Not modelled: layer definitions and tables, which are no YAML sections; operator tables and families, which name no key.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dsx.spec.document import Document
from dsx.spec.locate import Kind, names

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
    # These validate with `dsx.spec.validated`, which asks here.
    from dsx.spec.assumptions import AssumptionsSpec
    from dsx.spec.cluster import ClusterSpec
    from dsx.spec.framework import FrameworkSpec
    from dsx.spec.model import ModelSpec
    from dsx.spec.stack import StackSpec
    from dsx.spec.sweep import SweepSpec

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
