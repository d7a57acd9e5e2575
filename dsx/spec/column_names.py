"""Types of the fields of a sweep that name columns of its result set.

A field takes a choice of the plan ("strategy"), a choice that is a number ("tp"), a column to group by (a choice, or a
column of the hardware point: "cluster", "device.hbm_capacity"), an objective (a column of numbers, with a leading minus
to maximise it: "-mfu"), or any column to draw.

The columns are defined in space and cost, which import jax, and by what_if of the sweep. They come in as names, in the
validation context; without a context any name is valid.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from dsx.errors import did_you_mean


@dataclass(frozen=True)
class Columns:
    """The column names that a sweep may mention; the validation context of a sweep."""

    candidates: tuple[str, ...]
    costs: tuple[str, ...]
    named: tuple[str, ...] = ()  # candidate columns of names: strategy
    point: tuple[str, ...] = ("cluster",)  # columns of the hardware point: the cluster, and the fields of what_if
    intervals: tuple[str, ...] = ()  # bounds of costs, computed for kept rows alone, so no objective
    # From a name that is no column, and the columns that could be meant, to advice; "" if there is none.
    nearest: Callable[[str, Iterable[str]], str] = did_you_mean

    @property
    def all(self) -> tuple[str, ...]:
        """Every column, in the order of the result set."""
        return (*self.point, *self.candidates, *self.costs, *self.intervals)


def _candidate(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is None or name in columns.candidates:
        return name
    if name in columns.point or "." in name:  # only fields of what_if have a dot
        raise ValueError(f"{name!r} belongs to the hardware; expected a choice of the plan, such as 'tp'")
    raise ValueError(_no_choice(name, columns, columns.candidates))


def _group(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is None or name in columns.candidates or name in columns.point:
        return name
    raise ValueError(_no_choice(name, columns, (*columns.candidates, *columns.point)))


def _no_choice(name: str, columns: Columns, known: tuple[str, ...]) -> str:
    if name in columns.costs or name in columns.intervals:
        return f"{name!r} is a cost; expected a candidate column, such as 'tp'"
    return f"unknown candidate column {name!r}{_nearest(name, columns, known)}"


def _nearest(name: str, columns: Columns, known: Sequence[str]) -> str:
    # Only fields of what_if have a dot.
    dotted = [column for column in known if "." in column]
    if "." in name and not dotted:
        return "; what_if varies no such field"
    return columns.nearest(name, dotted if "." in name else known)


def _number(name: str, info: ValidationInfo[Columns | None]) -> str:
    if info.context and name in info.context.named:
        raise ValueError(f"{name!r} holds names; expected a column of numbers, such as 'tp'; for a name use fix")
    return name


def _objective(written: str, info: ValidationInfo[Columns | None]) -> str:
    columns, name = info.context, written.removeprefix("-")
    if columns is None:
        return written
    known = [column for column in (*columns.candidates, *columns.costs) if column not in columns.named]
    if name in columns.point:
        raise ValueError(f"{name!r} does not vary within a front: each hardware point has a front of its own")
    if name in columns.intervals:
        raise ValueError(f"{name!r} is computed for kept rows alone and cannot be an objective; 'step_time_s' can")
    if name not in known:
        what = f"{name!r} holds names, not numbers" if name in columns.named else f"unknown column {name!r}"
        raise ValueError(f"{what}{columns.nearest(name, known)}")
    return written


def _least_cost(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is None or name in columns.costs:
        return name
    if name.startswith("-"):
        raise ValueError(f"{name!r}: the top candidates are those of the smallest cost; a front can maximise")
    raise ValueError(f"{name!r} is no cost{did_you_mean(name, columns.costs)}; expected one to be small: 'cost_usd'")


def _result(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is not None and name not in columns.all:
        raise ValueError(f"unknown column {name!r}{_nearest(name, columns, columns.all)}")
    return name


def _axis(written: str, info: ValidationInfo[Columns | None]) -> str:
    _result(written.removeprefix("-"), info)
    return written


CandidateColumn = Annotated[str, AfterValidator(_candidate)]  # a choice of the plan: "strategy"
NumberColumn = Annotated[CandidateColumn, AfterValidator(_number)]  # a choice that is a number: "tp"
GroupColumn = Annotated[str, AfterValidator(_group)]  # a choice, or a column of the hardware point: "cluster"
Objective = Annotated[str, AfterValidator(_objective)]  # a column to minimise, "step_time_s", or maximise, "-mfu"
LeastCost = Annotated[str, AfterValidator(_least_cost)]  # a cost to minimise: "cost_usd"
ResultColumn = Annotated[str, AfterValidator(_result)]  # any column
AxisColumn = Annotated[str, AfterValidator(_axis)]  # any column, or an objective: "-mfu"
