"""`extends: NAME`: a file that states only how it differs from another of the same kind.

The other file is found as any name is, and may extend a third. Sections merge; a number, a text or a list
replaces. Not modelled: removing a key, and several bases.
"""

from pathlib import Path

from dsx.errors import InputError, SpecError
from dsx.spec.document import Document, merge
from dsx.spec.locate import Kind, find, shown
from dsx.spec.yaml_text import load_document

_MOST_FILES = 30  # that extend each other; three in packaged ones


def load_extended(path: Path, kind: Kind) -> Document:
    """Return the document at `path` merged over those it extends.

    Raises SpecError for a cycle, a base that does not exist, and what `load_document` raises.
    """
    whole, *over = reversed([document for _, document in extended(path, kind)])
    for document in over:
        whole = merge(whole, document)
    return whole


def extended(path: Path, kind: Kind, extending: tuple[Path, ...] = ()) -> list[tuple[Path, Document]]:
    """Return the file at `path` and those it extends, each with what it states, the file itself first.

    `extending` are the files so far. Raises what `load_extended` raises.
    """
    document = load_document(path)
    if "extends" not in document.data:
        return [(path, document)]
    place = document.place(("extends",))
    name = document.data["extends"]
    if not isinstance(name, str):
        raise SpecError(f"{place}: extends: expected the name of one file, got {name!r}")
    try:
        base = find(kind, name, ".yaml", near=path)
    except InputError as error:
        raise SpecError(f"{place}: extends: {error}") from error
    chain = (*extending, path)
    if any(base.resolve() == file.resolve() for file in chain):
        circle = " extends ".join(shown(file) for file in (*chain, base))
        raise SpecError(f"{place}: extends: a file cannot extend itself: {circle}")
    if len(chain) == _MOST_FILES:
        raise SpecError(f"{place}: extends: {shown(extending[0])} is made of more than {_MOST_FILES} files")
    rest = {key: value for key, value in document.data.items() if key != "extends"}
    return [(path, Document(rest, document.places)), *extended(base, kind, chain)]
