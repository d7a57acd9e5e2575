"""The plot of a sweep: its kind, and the columns that it shows.

It does not affect the results. `dsx.results.plot` knows which columns a kind of plot needs, and its defaults.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from dsx.spec.column_names import AxisColumn, ResultColumn
from dsx.spec.load import Spec
from dsx.spec.ranges import listed

PlotKind = Literal["breakdown", "scaling", "heatmap", "front"]


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class PlotSpec(Spec):
    """A plot of a result set; columns are choices, costs, "cluster", or fields of what_if."""

    kind: PlotKind
    x: Annotated[list[AxisColumn], BeforeValidator(listed)] = Field(default_factory=list)
    y: AxisColumn | None = None
    value: ResultColumn | None = None  # the values of a heatmap's cells
    by: ResultColumn | None = None  # one line, or marker, for each of its values
    # What others are compared with: a value of `by`, as in the legend; on a front a plan, as in "tp=8 pp=16".
    baseline: Annotated[str, BeforeValidator(_text)] | None = None
    # Only rows with these values.
    where: dict[AxisColumn, Annotated[str, BeforeValidator(_text)]] = Field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """All named columns, without the sign of an objective."""
        named = (*self.x, self.y, self.value, self.by, *self.where)
        return tuple(name.removeprefix("-") for name in named if name is not None)

    @field_validator("x", "y")
    @classmethod
    def _only_a_front_has_objectives(
        cls, given: list[str] | str | None, info: ValidationInfo
    ) -> list[str] | str | None:
        for name in listed(given) or ():
            if name.startswith("-") and info.data.get("kind", "front") != "front":
                raise ValueError(f"{name!r} is an objective, which only a front has; write {name[1:]!r}")
        return given
