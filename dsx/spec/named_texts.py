"""The operator tables and blocks that an assumption set names: that they are there is found when the set is read.

Its layer texts and its strategy are not checked here: whoever builds a model from the set finds them at once.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.errors import InputError, SpecError
from dsx.spec.document import Document, KeyPath
from dsx.spec.locate import find, names
from dsx.spec.yaml_text import load_document

_A_SLIP = 0.95  # how alike names are of which one is the other, misspelt

if TYPE_CHECKING:
    from dsx.spec.assumptions import AssumptionsSpec


def check_names(spec: "AssumptionsSpec", document: Document, near: Path | None) -> None:
    """Raise SpecError that lists what the set names and nobody has.

    Tables of `unfused_operators` are read for some measured runs alone, and a fault should not wait for one. A block
    may lie beside a layer of one's own, so only a name that is nearly that of another one is a fault.
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
    texts = names("layers", ".layer")
    for field in ("set", "unfused_attention"):
        for parameter, block in getattr(spec, field).items():
            if isinstance(block, str) and block not in texts and (slips := get_close_matches(block, texts, 1, _A_SLIP)):
                fault((field, parameter), f"there is no block {block!r}; did you mean {slips[0]!r}?")
    if faults:
        raise SpecError("\n".join(faults))
