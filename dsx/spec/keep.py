"""The candidates that a sweep keeps: all, the feasible, the best few, or a Pareto front.

Each hardware point has its own best and its own front, so clusters and what-ifs do not compete.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from dsx.spec.column_names import GroupColumn, Objective
from dsx.spec.load import Spec
from dsx.spec.value_types import Count


class KeepTop(Spec):
    """The `top` fastest candidates of each hardware point and group of equal `per` columns.

    `per` may also name columns of the hardware point, without effect.
    """

    top: Count
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


Keep = Annotated[
    Annotated[Literal["all", "feasible"], Tag("<word>")]
    | Annotated[KeepTop, Tag("<top>")]
    | Annotated[KeepPareto, Tag("<pareto>")],
    Discriminator(
        _arm,
        custom_error_type="keep",
        custom_error_message="expected all, feasible, {top: 10} or {pareto: [step_time_s, peak_bytes]}",
    ),
]
