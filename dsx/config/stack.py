"""A software stack: what a framework of some years does, and the conditions under which it does it.

Stacks differ in what they overlap and fuse, in their attention kernels and data types. A stack states these fields of
an assumption set, each with its source, and may extend another stack, mostly that of earlier years. An assumption set
names the stack that it assumes (`stack`): the set's own fields and those of sets that extend it win over the stack,
and the stack wins over the sets that it extends. A measured run has the stack of its own software
(`dsx.runs.row_job`).

Software overlaps some communication, or captures some kernels in graphs, only for some plans:

    tp_overlap: {value: 0.8, needs: [tp_nvs == tp, platform == cuda], otherwise: 0.2, source: "..."}

All needs must be met. A need is one comparison, or several of which one must hold, as in `pp == 1 or vpp > 1`. A column
of a plan is compared with a number, with another column or with a name. `without` is for the regions of `recompute`, as
in `recompute without full experts`: it holds if none of those named is recomputed. `platform` is the software of the
device. Where a need is not met, the field is `otherwise`, or its value if that is worse. `lost` says in words what is.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, PrivateAttr

from dsx.config.cluster_file import PLATFORMS
from dsx.config.documents import Document, Plain, is_sourced, merged
from dsx.config.load import Given, statements
from dsx.config.schema import FileKind, Seconds, Share, Sourced, Spec, unsourced, validate
from dsx.errors import InputError, SpecError, did_you_mean

_CONDITION = ("needs", "otherwise", "lost")  # of a value with its source
PLATFORM = "platform"  # of a cluster; all other columns are those of a plan
WITHOUT = "without"

_COMPARISON = re.compile(r"(\w+) *(<=|>=|==|!=|<|>) *([\w-]+)")
_ABSENCE = re.compile(rf"(\w+) +{WITHOUT} +([\w-]+(?: +[\w-]+)*)")


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """One comparison: a column, a relation, and a number, a column or a name; several names after `without`."""

    column: str
    relation: str
    with_what: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.column, self.relation, *self.with_what])


Need = tuple[ColumnComparison, ...]  # one of which must hold


def _need(text: object) -> Need:
    if not isinstance(text, str):
        raise ValueError(f"expected comparisons, such as 'zero_stage <= 1', got {text!r}")
    comparisons: list[ColumnComparison] = []
    for part in text.split(" or "):
        if match := _COMPARISON.fullmatch(part.strip()):
            column, relation, bound = match.groups()
            if column == PLATFORM and bound not in PLATFORMS:
                near = f"{did_you_mean(bound, PLATFORMS)} (known: {', '.join(PLATFORMS)})"
                raise ValueError(f"{PLATFORM} has no {bound!r}{near}")
            if column == PLATFORM and relation not in ("==", "!="):
                raise ValueError(f"{PLATFORM} {relation} {bound}: a platform is compared with == or !=")
            comparisons.append(ColumnComparison(column, relation, (bound,)))
        elif match := _ABSENCE.fullmatch(part.strip()):
            comparisons.append(ColumnComparison(match[1], WITHOUT, tuple(match[2].split())))
        else:
            raise ValueError(
                f"{part.strip()!r} is no comparison, such as 'zero_stage <= 1', 'tp_nvs == tp', 'recompute != full' or "
                "'recompute without full experts'"
            )
    return tuple(comparisons)


def _texts(needs: list[Need]) -> list[str]:
    return [" or ".join(map(str, need)) for need in needs]


# All of them must be met.
Needs = Annotated[list[Annotated[Plain, BeforeValidator(_need)]], PlainSerializer(_texts)]


class ConditionSpec(Spec):
    """What an effect needs."""

    needs: Annotated[Needs, Field(min_length=1)]
    lost: str | None = None  # what plans without them are told, as in "CUDA graphs are off"

    @property
    def text(self) -> str:
        """The needs as text: "num_microbatches >= 2 and (pp == 1 or vpp > 1)"."""
        several = len(self.needs) > 1
        texts = zip(self.needs, _texts(self.needs), strict=True)
        return " and ".join(f"({text})" if several and len(need) > 1 else text for need, text in texts)


class ShareCondition(ConditionSpec):
    """What an overlap needs."""

    otherwise: Share


class SecondsCondition(ConditionSpec):
    """What a short latency needs."""

    otherwise: Seconds


class ConditionsSpec(Spec):
    """The conditions of the fields of an assumption set; a field without one holds for every plan."""

    tp_overlap: ShareCondition | None = None
    cp_overlap: ShareCondition | None = None
    ep_overlap: ShareCondition | None = None
    dispatch_latency: SecondsCondition | None = None
    pp_overlap: ShareCondition | None = None
    dp_overlap: ShareCondition | None = None

    @property
    def stated(self) -> Mapping[str, ShareCondition | SecondsCondition]:
        """The conditions by field."""
        conditions = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: condition for name, condition in conditions.items() if condition is not None}


def with_conditions(document: Document) -> Document:
    """Return the document of an assumption set with what its values need as a section of its own, `conditions`.

    The section may be there already, and counts then: what a framework needs for a value that its stack states. A value
    without needs has an empty entry, so that merged over another document it holds for every plan.
    """
    data, places = dict(document.data), dict(document.places)
    section = document.data.get("conditions", {})
    if not isinstance(section, dict):  # which its schema refuses
        return document
    moved: dict[str, Plain] = {}
    for name, content in document.data.items():
        needs = {key: content[key] for key in _CONDITION if key in content} if is_sourced(content) else {}
        if needs:
            data[name] = {key: value for key, value in content.items() if key not in _CONDITION}
            needs = {"lost": None} | needs  # not that of a value which it replaces
        if name in section or not (needs or name in ConditionsSpec.model_fields):
            continue
        moved[name] = needs or None
        places.setdefault(("conditions",), document.place(()))
        places["conditions", name] = document.place((name,))
        places |= {("conditions", name, key): document.place((name,)) for key in needs}
        places |= {("conditions", *path): place for path, place in document.places.items() if path[:1] == (name,)}
    return Document(data | {"conditions": moved | section}, places) if moved or section else document


T = TypeVar("T")


def worse(field: str, value: T, otherwise: T, least: Callable[[T, T], T], most: Callable[[T, T], T]) -> T:
    """Return the worse of two values of a field: less overlap, a longer latency; `least` and `most` are elementwise."""
    return (least if field.endswith("_overlap") else most)(value, otherwise)


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

    file_kind = FileKind("stack", "a stack", "--set assumptions.stack=FILE", "stacks")
    keys_of_file = ("extends",)

    name: str
    description: str
    source: str
    software: SoftwareSpec
    # Column of a plan -> value that the software uses for another thing -> an entry of data/runs/recompute-words.yaml.
    words: dict[str, dict[str, str]] = Field(default_factory=dict)
    assume: dict[str, Plain]  # field of an assumption set -> its value, with its source

    _document: Document = PrivateAttr(default=Document({}, {(): "stack"}))

    @property
    def fields(self) -> Document:
        """The fields that it states, with their places."""
        return self._document.inside("assume")


def load_stack(reference: Given) -> StackSpec:
    """Return a stack, given by name, path or content.

    Raises UnknownNameError, or SpecError with all faults of the file.
    """
    document = merged(statements(StackSpec, reference))
    spec = validate(document, StackSpec)
    spec._document = document
    return spec


def with_stack(documents: Sequence[Document], over: Document | None = None) -> list[Document]:
    """Return the documents of an assumption set, the set itself first, with the fields of its stack after its name.

    The fields of `over` win over those of the stack. A set that names none is returned as it is. Raises what
    `load_stack` raises, with the place that names the stack.
    """
    position = naming(documents, STACK)
    if position is None:
        return list(documents)
    document = documents[position]
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
    return [*documents[: position + 1], *([] if over is None else [over]), fields, *documents[position + 1 :]]


def of_other_stack(documents: Sequence[Document], name: str, place: str) -> list[Document]:
    """Return the documents of an assumption set with the name of another stack, which is stated at `place`.

    Raises SpecError if the set names none: its fields are complete, and a stack would change them.
    """
    position = naming(documents, STACK)
    if position is None:
        raise SpecError(f"{place}: the assumption set names no stack, so it cannot have the stack {name!r}")
    document = documents[position]
    renamed = Document(document.data | {STACK: name}, document.places | {(STACK,): place})
    return [*documents[:position], renamed, *documents[position + 1 :]]


def naming(documents: Sequence[Document], field: str) -> int | None:
    """Return the position of the first document that states a field."""
    return next((at for at, document in enumerate(documents) if document.data.get(field) is not None), None)
