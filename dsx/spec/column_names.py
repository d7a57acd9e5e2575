"""The names of candidate and cost columns, as the schema of a sweep checks them.

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


def _candidate(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    if columns is None or name in columns.candidates:
        return name
    if name in columns.costs:
        raise ValueError(f"{name!r} is a cost, and a candidate column is wanted, such as 'tp'")
    raise ValueError(f"unknown candidate column {name!r}{did_you_mean(name, columns.candidates)}")


def _any(name: str, info: ValidationInfo[Columns | None]) -> str:
    columns = info.context
    known = (*columns.candidates, *columns.costs) if columns else (name,)
    if name not in known:
        raise ValueError(f"unknown column {name!r}{did_you_mean(name, known)}")
    return name


CandidateColumn = Annotated[str, AfterValidator(_candidate)]  # a choice of the plan: "tp"
Column = Annotated[str, AfterValidator(_any)]  # a choice or a cost: "step_time_s"
