"""The candidates that a sweep keeps: all, the feasible, the best few, or a Pareto front.

Each hardware point has its own best and its own front, so clusters and what-ifs do not compete.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dsx.errors import did_you_mean
from dsx.spec.column_names import GroupColumn, LeastCost, Objective
from dsx.spec.load import Spec
from dsx.spec.value_types import Count

FASTEST = "step_time_s"


class KeepTop(Spec):
    """The `top` candidates of smallest `objective` of each hardware point and group of equal `per` columns.

    `per` may also name columns of the hardware point, without effect.
    """

    top: Count
    objective: LeastCost = FASTEST
    per: list[GroupColumn] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _is_no_front(cls, data: object) -> object:
        if isinstance(data, dict) and "pareto" in data:
            raise ValueError("top and pareto exclude each other: keep the fastest candidates, or a front")
        return data


class KeepPareto(Spec):
    """The feasible candidates that no other one of their hardware point dominates in the `pareto` columns."""

    pareto: Annotated[list[Objective], Field(min_length=1)]


def _arm(value: object) -> str | None:
    match value:
        case str():
            return "<word>"
        case {"top": _} | KeepTop():
            return "<top>"
        case {"pareto": _} | KeepPareto():
            return "<pareto>"
        case _:
            return None


_WORDS = ("all", "feasible")
_FORMS = f"{', '.join(_WORDS)}, {{top: 10}} or {{pareto: [step_time_s, peak_bytes]}}"


def _word(word: str) -> str:
    if word not in _WORDS:
        raise ValueError(f"{word!r} is not one of {_FORMS}{did_you_mean(word, _WORDS)}")
    return word


Keep = Annotated[
    Annotated[Literal["all", "feasible"], BeforeValidator(_word), Tag("<word>")]
    | Annotated[KeepTop, Tag("<top>")]
    | Annotated[KeepPareto, Tag("<pareto>")],
    Discriminator(
        _arm,
        custom_error_type="keep",
        custom_error_message=f"expected {_FORMS}",
    ),
]


def objectives(keep: Keep) -> Sequence[str]:
    """Return the columns by which candidates are kept, of a front with their signs; none where all are."""
    match keep:
        case KeepTop(objective=objective):
            return (objective,)
        case KeepPareto(pareto=columns):
            return columns
        case _:
            return ()
