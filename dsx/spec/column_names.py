"""The names of candidate and cost columns, as the schema of a sweep checks them.

A field wants a choice of the plan ("strategy"), one that is a number ("tp"), or an objective: any column
of numbers, with a leading minus if more of it is better ("-mfu").

The columns are defined in space and cost, which import jax; so they come in as names, in the validation
context. A spec that is made in code, without the context, may name anything.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from dsx.errors import did_you_mean


@dataclass(frozen=True)
class Columns:
    """The column names that a sweep may mention; the validation context of a sweep."""

    candidates: tuple[str, ...]
    costs: tuple[str, ...]
    named: tuple[str, ...] = ()  # candidate columns that hold names: strategy


def _candidate(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is None or name in columns.candidates:
        return name
    if name in columns.costs:
        raise ValueError(f"{name!r} is a cost, and a candidate column is wanted, such as 'tp'")
    raise ValueError(f"unknown candidate column {name!r}{did_you_mean(name, columns.candidates)}")


def _number(name: str, info: ValidationInfo[Columns | None]) -> str:
    if info.context and name in info.context.named:
        raise ValueError(f"{name!r} holds names, and a column of numbers is wanted, such as 'tp'; for a name use fix")
    return name


def _objective(written: str, info: ValidationInfo[Columns | None]) -> str:
    columns, name = info.context, written.removeprefix("-")
    if columns is None:
        return written
    known = [column for column in (*columns.candidates, *columns.costs) if column not in columns.named]
    if name not in known:
        what = f"{name!r} holds names, not numbers" if name in columns.named else f"unknown column {name!r}"
        raise ValueError(f"{what}{did_you_mean(name, known)}")
    return written


CandidateColumn = Annotated[str, AfterValidator(_candidate)]  # a choice of the plan: "strategy"
NumberColumn = Annotated[CandidateColumn, AfterValidator(_number)]  # one that is a number: "tp"
Objective = Annotated[str, AfterValidator(_objective)]  # a column to minimise, "step_time_s", or maximise, "-mfu"
