"""Checks, when an assumption set is read, that the operator tables and blocks exist that it names.

Building a model checks its layer definitions and its strategy.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.errors import InputError, SpecError
from dsx.spec.document import Document, KeyPath
from dsx.spec.locate import find, names
from dsx.spec.yaml_text import load_document

_MISSPELT = 0.95  # similarity from which on a name counts as a misspelt one

if TYPE_CHECKING:
    from dsx.spec.assumptions import AssumptionsSpec


def check_names(spec: "AssumptionsSpec", document: Document, near: Path | None) -> None:
    """Raise SpecError that lists the missing tables, and the block names that look misspelt.

    Only some measured runs need the tables of `unfused_operators`, so a fault of theirs would appear late. A block may
    be in the folder of a user's own layer, so a block name is a fault only if it is nearly that of a known block.
    """
    faults: list[str] = []

    def fault(path: KeyPath, message: object) -> None:
        faults.append(document.message(path, message))

    tables: dict[KeyPath, str] = {("operators", index): name for index, name in enumerate(spec.operators)}
    tables |= {("unfused_operators", operator): name for operator, name in spec.unfused_operators.items()}
    for path, name in tables.items():
        try:
            operators = load_document(find("operators", name, ".yaml", near)).data
        except InputError as error:
            fault(path, error)
            continue
        if path[0] == "unfused_operators" and path[1] not in operators:
            fault(path, f"the table {name!r} has no operator {path[1]!r} (it has: {', '.join(operators)})")
    definitions = names("layers", ".layer")
    for field in ("set", "unfused_attention", "set_in_runs"):
        for parameter, block in getattr(spec, field).items():
            if not isinstance(block, str) or block in definitions:
                continue
            if near_names := get_close_matches(block, definitions, 1, _MISSPELT):
                fault((field, parameter), f"there is no block {block!r}; did you mean {near_names[0]!r}?")
    if faults:
        raise SpecError("\n".join(faults))
