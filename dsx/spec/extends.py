"""`extends: NAME`: a file that states only its differences from another file of the same kind.

The other file may extend a third. Sections merge; numbers, strings and lists replace.

Not modelled: removing a key, several bases.
"""

from pathlib import Path

from dsx.errors import InputError, SpecError
from dsx.spec.document import Document
from dsx.spec.document_kinds import wrong_base
from dsx.spec.locate import Kind, find, shown
from dsx.spec.yaml_text import load_document

_MOST_FILES = 30  # that extend each other; packaged: three


def extended(path: Path, kind: Kind, extending: tuple[Path, ...] = ()) -> list[tuple[Path, Document]]:
    """Return the file at `path` and those that it extends, each with its own content, the file itself first.

    `extending` are the files that extend `path`. Raises SpecError for a cycle, a base that does not exist, and
    what `load_document` raises.
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
        if told := wrong_base(shown(path), name, kind):
            raise SpecError(told) from None
        raise SpecError(f"{place}: extends: {error}") from None
    chain = (*extending, path)
    if any(base.resolve() == file.resolve() for file in chain):
        cycle = " extends ".join(shown(file) for file in (*chain, base))
        raise SpecError(f"{place}: extends: a file cannot extend itself: {cycle}")
    if len(chain) == _MOST_FILES:
        raise SpecError(f"{place}: extends: {shown(extending[0])} extends a chain of more than {_MOST_FILES} files")
    rest = {key: value for key, value in document.data.items() if key != "extends"}
    return [(path, Document(rest, document.places)), *extended(base, kind, chain)]
