"""A software stack: what a training framework of some years does, as fields of an assumption set.

Stacks differ in what they overlap and fuse, in their attention kernels and data types. A stack states these fields,
each with its source, and may extend another stack, mostly that of earlier years. An assumption set names the stack that
it assumes (`stack`): the set's own fields and those of sets that extend it win over the stack, and the stack wins over
the sets that it extends. A measured run has the stack of its own software (`dsx.runs.software`).
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from dsx.errors import InputError, SpecError
from dsx.spec.document import Document, KeyPath, merged
from dsx.spec.load import Given, Spec, statements
from dsx.spec.locate import names
from dsx.spec.validated import validate
from dsx.spec.value_types import Sourced, unsourced

STACK = "stack"  # field of an assumption set

_MONTH = re.compile(r"((?:19|20)[0-9]{2})(?:-(0[1-9]|1[0-2]))?")


def _month(value: object) -> object:
    """Return the months since year 0 of "2024" or "2024-07"."""
    match = _MONTH.fullmatch(str(value))
    if match is None:
        raise ValueError(f"expected a year or a month, such as 2024 or 2024-07, got {value!r}")
    return months(int(match[1]), int(match[2] or 1))


def months(year: int, month: int) -> int:
    """Return the months from year 0 to a month, counted from 1."""
    return 12 * year + month - 1


Month = Annotated[int, BeforeValidator(_month)]


class SoftwareSpec(Spec):
    """The software that a stack describes, as run tables name it."""

    # Words of its frameworks; case does not count. The stacks without any are for software that no other stack names.
    words: list[str] = Field(default_factory=list)
    since: Month  # of its releases; until the next stack with the same words
    # What its logs call peak memory: that of tensors (max_memory_allocated of PyTorch), or of the allocator.
    logs: Annotated[Literal["allocated", "reserved"], Sourced] = "allocated"


class StackSpec(Spec):
    """A stack; `load_stack` creates it. The assumption set validates the fields that it states."""

    keys_of_file: ClassVar[Sequence[str]] = ("extends",)

    name: str
    description: str
    source: str
    software: SoftwareSpec
    # Column of a plan -> value that the software uses for another thing -> an entry of data/runs/recompute-words.yaml.
    words: dict[str, dict[str, str]] = Field(default_factory=dict)
    assume: dict[str, Any]  # field of an assumption set -> its value, with its source

    _document: Document = PrivateAttr(default=Document({}, {(): "stack"}))

    @property
    def fields(self) -> Document:
        """The fields that it states, with their places."""
        places = self._document.places
        inner: dict[KeyPath, str] = {path[1:]: place for path, place in places.items() if path[:1] == ("assume",)}
        return Document(dict(self.assume), inner)


def load_stack(given: Given) -> StackSpec:
    """Return a stack, given by name, path or content.

    Raises UnknownNameError, or SpecError with all faults of the file.
    """
    document = merged(statements("stacks", "stack", StackSpec, given, None))
    spec = validate(document, StackSpec)
    spec._document = document
    return spec


def stack_names() -> Sequence[str]:
    """Return the sorted names of the stacks in the search path."""
    return names("stacks", ".yaml")


def with_stack(stated: Sequence[Document], over: Document | None = None) -> list[Document]:
    """Return the documents of an assumption set, the set itself first, with the fields of its stack after its name.

    The fields of `over` win over those of the stack. A set that names none is returned as it is. Raises what
    `load_stack` raises, with the place that names the stack.
    """
    position = naming(stated, STACK)
    if position is None:
        return list(stated)
    document = stated[position]
    try:
        name = unsourced(document.data[STACK])
    except ValueError as error:
        raise document.fault((STACK,), error) from None
    if not isinstance(name, str):
        raise document.fault((STACK,), f"expected the name of a stack, got {name!r}")
    try:
        fields = load_stack(name).fields
    except InputError as error:
        raise document.fault((STACK,), error) from None
    return [*stated[: position + 1], *([] if over is None else [over]), fields, *stated[position + 1 :]]


def of_other_stack(stated: Sequence[Document], name: str, place: str) -> list[Document]:
    """Return the documents of an assumption set with the name of another stack, which is stated at `place`.

    Raises SpecError if the set names none: its fields are complete, and a stack would change them.
    """
    position = naming(stated, STACK)
    if position is None:
        raise SpecError(f"{place}: the assumption set names no stack, so it cannot have the stack {name!r}")
    document = stated[position]
    renamed = Document(document.data | {STACK: name}, document.places | {(STACK,): place})
    return [*stated[:position], renamed, *stated[position + 1 :]]


def naming(stated: Sequence[Document], field: str) -> int | None:
    """Return the position of the first document that states a field."""
    return next((at for at, document in enumerate(stated) if document.data.get(field) is not None), None)
