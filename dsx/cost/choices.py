"""The choices that combine layer costs into a step.

If a search has only one value of a column (`dsx.space.codes.Searched`), the formulas of the others are not compiled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dsx.cost import xp
from dsx.cost.shapes import Column, PerPlan
from dsx.records import make_record
from dsx.space.choices import STEP_COLUMNS

if TYPE_CHECKING:

    class StepChoices:
        """The choices of N plans, one for each of `STEP_COLUMNS`: [N] floats, shaped to broadcast with the layer costs.

        Names are codes. `pp_outer` and `dp_outer` are tuples: stages and replicas in a unit of each tier between the
        fast domain and the outermost one.
        """

        pp_outer: tuple[Column, ...]
        dp_outer: tuple[Column, ...]

        def __init__(self, **columns: Column | tuple[Column, ...]) -> None: ...
        def __getattr__(self, column: str) -> Column: ...

else:
    _columns = [(name, Column, dataclasses.field()) for name in STEP_COLUMNS]
    _outer = [(name, tuple[Column, ...], dataclasses.field(default=())) for name in ("pp_outer", "dp_outer")]
    StepChoices = make_record("StepChoices", __name__, [*_columns, *_outer])


class PipelineChoices(NamedTuple):
    """The choices of N plans that the loosest bounds of their step times read; columns are as in StepChoices."""

    pp: Column
    vpp: Column
    num_microbatches: Column
    schedule: Column
    recompute: Column

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray]) -> "PipelineChoices":
        """Return the choices of integer columns."""
        return cls(*(columns[name].astype(np.float64) for name in cls._fields))


class StageChoices(NamedTuple):
    """The choices of N plans that the seconds and the memory of a stage read besides those of its layers."""

    pp: Column
    vpp: Column
    num_microbatches: Column
    schedule: Column
    offload: Column

    @classmethod
    def of(cls, choices: StepChoices) -> "StageChoices":
        """Return those of all choices."""
        return cls(*(getattr(choices, name) for name in cls._fields))


def pick(values: tuple[int, ...], column: PerPlan, options: Sequence[PerPlan] | Mapping[int, PerPlan]) -> PerPlan:
    """Return `options[column]`, for a `column` that has only `values`."""
    first, *others = values
    chosen = options[first]
    for value in others:
        chosen = xp.where(column == value, options[value], chosen)
    return chosen
