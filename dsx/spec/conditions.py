"""Conditions of effects: what a plan and its cluster need so that a field of an assumption set holds.

Software overlaps some communication, or captures some kernels in graphs, only for some plans:

    tp_overlap: {value: 0.8, needs: [tp_nvs == tp, platform == cuda], otherwise: 0.2, source: "..."}

All needs must be met. A need is one comparison, or several of which one must hold, as in `pp == 1 or vpp > 1`. A column
of a plan is compared with a number, with another column or with a name. `without` is for the regions of `recompute`, as
in `recompute without full experts`: it holds if none of those named is recomputed. `platform` is the software of the
device. Where a need is not met, the field is `otherwise`, or its value if that is worse. `lost` says in words what is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from dsx.errors import did_you_mean
from dsx.spec.cluster import PLATFORMS
from dsx.spec.document import Document, is_sourced
from dsx.spec.load import Spec
from dsx.spec.value_types import Seconds, Share

_CONDITION = ("needs", "otherwise", "lost")  # of a value with its source
PLATFORM = "platform"  # of a cluster; all other columns are those of a plan
WITHOUT = "without"

_COMPARISON = re.compile(r"(\w+) *(<=|>=|==|!=|<|>) *([\w-]+)")
_ABSENCE = re.compile(rf"(\w+) +{WITHOUT} +([\w-]+(?: +[\w-]+)*)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: a column, a relation, and a number, a column or a name; several names after `without`."""

    column: str
    relation: str
    with_what: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.column, self.relation, *self.with_what])


Need = tuple[Comparison, ...]  # one of which must hold


def _need(stated: object) -> Need:
    if not isinstance(stated, str):
        raise ValueError(f"expected comparisons, such as 'zero_stage <= 1', got {stated!r}")
    found: list[Comparison] = []
    for part in stated.split(" or "):
        if match := _COMPARISON.fullmatch(part.strip()):
            found.append(_compared(match[1], match[2], match[3]))
        elif match := _ABSENCE.fullmatch(part.strip()):
            found.append(Comparison(match[1], WITHOUT, tuple(match[2].split())))
        else:
            raise ValueError(
                f"{part.strip()!r} is no comparison, such as 'zero_stage <= 1', 'tp_nvs == tp', 'recompute != full' or "
                "'recompute without full experts'"
            )
    return tuple(found)


def _compared(column: str, relation: str, bound: str) -> Comparison:
    if column == PLATFORM and bound not in PLATFORMS:
        raise ValueError(f"{PLATFORM} has no {bound!r}{did_you_mean(bound, PLATFORMS)} (known: {', '.join(PLATFORMS)})")
    if column == PLATFORM and relation not in ("==", "!="):
        raise ValueError(f"{PLATFORM} {relation} {bound}: a platform is compared with == or !=")
    return Comparison(column, relation, (bound,))


def _texts(needs: list[Need]) -> list[str]:
    return [" or ".join(map(str, need)) for need in needs]


# All of them must be met.
Needs = Annotated[list[Annotated[Any, BeforeValidator(_need)]], PlainSerializer(_texts)]


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
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: condition for name, condition in found.items() if condition is not None}


def with_conditions(document: Document) -> Document:
    """Return the document of an assumption set with what its values need as a section of its own, `conditions`.

    The section may be there already, and counts then: what a framework needs for a value that its stack states. A value
    without needs has an empty entry, so that merged over another document it holds for every plan.
    """
    data, places = dict(document.data), dict(document.places)
    section = document.data.get("conditions", {})
    if not isinstance(section, dict):  # which its schema refuses
        return document
    moved: dict[str, Any] = {}
    for name, stated in document.data.items():
        needs = {key: stated[key] for key in _CONDITION if key in stated} if is_sourced(stated) else {}
        if needs:
            data[name] = {key: value for key, value in stated.items() if key not in _CONDITION}
            needs = {"lost": None} | needs  # not that of a value which it replaces
        if name in section or not (needs or name in ConditionsSpec.model_fields):
            continue
        moved[name] = needs or None
        places.setdefault(("conditions",), document.place(()))
        places["conditions", name] = document.place((name,))
        places |= {("conditions", name, key): document.place((name,)) for key in needs}
        places |= {("conditions", *path): place for path, place in document.places.items() if path[:1] == (name,)}
    return Document(data | {"conditions": moved | section}, places) if moved or section else document


def worse(field: str, value: Any, otherwise: Any, least: Any, most: Any) -> Any:
    """Return the worse of two values of a field: less overlap, a longer latency; `least` and `most` are elementwise."""
    return (least if field.endswith("_overlap") else most)(value, otherwise)
