"""What a sweep keeps of its candidates: all, the feasible, the best few, or a Pareto front.

The best and the front are of each hardware point: clusters and what-ifs are compared, they do not compete.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dsx.spec.column_names import GroupColumn, Objective
from dsx.spec.load import Spec
from dsx.spec.quantities import Count


class KeepTop(Spec):
    """The `top` candidates of smallest step time, of each hardware point and group of equal `per` columns.

    `per` may name columns of the hardware point too, which changes nothing.
    """

    top: Count
    per: list[GroupColumn] = Field(default_factory=list)


class KeepPareto(Spec):
    """The feasible candidates that no other of their hardware point beats in all of the `pareto` columns."""

    pareto: Annotated[list[Objective], Field(min_length=1)]


def _arm(value: Any) -> str | None:
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
