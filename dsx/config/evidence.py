"""What measurements tell of an assumption set: its errors, what it was fitted to, what a user's runs may change.

A set that was never compared with measurements states none of it. data/measured/runs.yaml says in short what was
measured.
"""

import math
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dsx.config.documents import Plain, load_document
from dsx.config.schema import Spec, validate
from dsx.config.search_path import packaged_data
from dsx.config.values import Count, Flag, NonNegative, Positive


class SizesSpec(Spec):
    """The least and the most of a size."""

    least: Positive
    most: Positive
    source: str


class ErrorsSpec(Spec):
    """How far off predictions of runs are that no number was fitted to."""

    median_error: Positive  # of step time, a share; the mean over sources
    sources: Count
    rows: Count
    date: str
    source: str


class MeasuredRunsSpec(Spec):
    """The sizes of measured runs, and errors by assumption set and kind of model ("dense", "experts")."""

    sizes: dict[str, SizesSpec]
    errors: dict[str, dict[str, ErrorsSpec]]


@cache
def measured_runs() -> MeasuredRunsSpec:
    """Return what the file has; SpecError for a faulty one."""
    return validate(load_document(packaged_data() / "measured" / "runs.yaml"), MeasuredRunsSpec)


class WhereSpec(Spec):
    """The plans that an interval is for; None matches any plan."""

    domains: Literal["one", "several"] | None = None  # number of fast domains of the job's GPUs
    experts: Flag | None = None  # whether the layers have experts
    thin: Annotated[int, Field(ge=0)] | None = None  # in at least so many ways, measurements have little like the plan


class TrainedOnSpec(Spec):
    """How many sources of measurements a set was fitted to, by what they have."""

    stack: dict[str, Count] = Field(default_factory=dict)
    generation: dict[str, Count] = Field(default_factory=dict)  # of devices
    kind: dict[Literal["dense", "experts"], Count] = Field(default_factory=dict)  # of models


# Of a log time; a factor of more than a hundred is a mistake.
Effect = Annotated[float, Field(ge=-math.log(100), le=math.log(100))]


class EffectsSpec(Spec):
    """Log factors on the time of kernels that a fit leaves to a stack and to a device generation."""

    stack: dict[str, Effect] = Field(default_factory=dict)
    generation: dict[str, Effect] = Field(default_factory=dict)
    # Standard deviations of the effects, and of the mean log error of a source beyond them.
    stack_deviation: NonNegative = 0.0
    generation_deviation: NonNegative = 0.0
    source_deviation: NonNegative = 0.0


class FreeSpec(Spec):
    """How far a user's runs may change a field."""

    deviation: Positive  # over users, as a share of the distance between the bounds
    between: Annotated[list[Plain], Field(min_length=2, max_length=2)]  # with the unit of the field


class MemoryIntervalSpec(Spec):
    """Quantiles of measured / predicted peak memory: 10 % of the measurements are below `low`, 90 % below `high`."""

    low: Positive
    median: Positive
    high: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.median <= self.high:
            quantiles = f"{self.low:g}, {self.median:g}, {self.high:g}"
            raise ValueError(f"low, median and high must be in order, but are {quantiles}")
        return self


class RatioSpec(Spec):
    """The 80 % interval of measured / predicted step time."""

    low: Positive
    high: Positive

    @field_validator("high")
    @classmethod
    def _above_low(cls, value: float, info: ValidationInfo) -> float:
        low = info.data.get("low")
        if low is not None and value < low:
            raise ValueError(f"{value:g} is less than low, {low:g}")
        return value


class IntervalSpec(RatioSpec):
    """That interval for the plans of `where`."""

    where: WhereSpec = WhereSpec()


class AdaptedSpec(RatioSpec):
    """What is left of the errors after the set is adapted to so many runs of a cluster and framework, or more."""

    runs: Count
    resolution: NonNegative | None = None  # as that of the set
