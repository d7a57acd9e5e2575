"""The interval of a step time: the ratio of measurements to predictions, from an assumption set.

The interval is multiplicative. It depends on facts of a plan that every search has: whether its GPUs span several fast
domains, whether the model has experts, and in how many ways the measurements have little like it. It is computed for
the rows that a search keeps, since it changes no order.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsx.records import Array, ArrayLike, Bool, Float, Int, Real, column, record
from dsx.spec.cluster import DeviceSpec
from dsx.spec.known_errors import IntervalSpec, TrainedOnSpec, WhereSpec
from dsx.spec.model import ModelSpec, has_experts


@record
class StepInterval:
    """The 80 % interval of the step time of N candidates, [N] arrays; NaN where the assumption set states none."""

    step_time_s_low: Float[np.ndarray, "plans"] = column(
        "s", "lower end of the 80 % interval of the step time; NaN where the set states none"
    )
    step_time_s_high: Float[np.ndarray, "plans"] = column(
        "s", "upper end of the 80 % interval of the step time, likewise"
    )


@record
class PlanFacts:
    """The facts of plans that an interval may depend on; [N] bool arrays."""

    several_domains: Bool[np.ndarray, "plans"]  # the GPUs of the job span several fast domains
    experts: Bool[np.ndarray, "plans"]  # layers have experts
    thin: Int[np.ndarray, "plans"]  # in how many ways the measurements have little like the plan (`thinness`)

    def of(self, rows: np.ndarray) -> "PlanFacts":
        """Return the facts of some of the plans: their positions, or [N] bools."""
        return PlanFacts(self.several_domains[rows], self.experts[rows], self.thin[rows])


def plan_facts(
    num_gpus: Real[ArrayLike, "*#plans"],
    nvs_size: Real[ArrayLike, "*#plans"],
    experts: Bool[np.ndarray, "plans"] | bool,
    thin: Int[np.ndarray, "plans"] | int = 0,
) -> PlanFacts:
    """Return the facts of [N] plans from the number of GPUs of the job and of a fast domain, `experts` and `thin`."""
    several = np.asarray(num_gpus) > np.asarray(nvs_size)
    return PlanFacts(
        several_domains=several,
        experts=np.broadcast_to(np.asarray(experts, dtype=bool), several.shape),
        thin=np.broadcast_to(np.asarray(thin, dtype=np.int64), several.shape),
    )


ENOUGH = 3  # sources


class Likeness(NamedTuple):
    """What the measurements behind a set may share with a plan: a stack, a device generation, a kind of model."""

    stack: str
    generation: str
    kind: str  # "dense" or "experts"


def likeness(stack: str | None, device: DeviceSpec, model: ModelSpec) -> Likeness:
    """Return what measurements may share with plans of a model on a device, by software of a stack."""
    return Likeness(stack or "", device.family, "experts" if has_experts(model.dimensions) else "dense")


def sources_like(likeness: Likeness, trained_on: TrainedOnSpec) -> dict[str, int]:
    """Return, for each part of a likeness, how many of the sources that a set was fitted to have it."""
    return {part: getattr(trained_on, part).get(value, 0) for part, value in likeness._asdict().items()}


def unlike(likeness: Likeness, trained_on: TrainedOnSpec) -> dict[str, str]:
    """Return the parts of a likeness that no source has to which a set was fitted, with their values.

    Empty for a set that was fitted to none: nothing is known of what it extrapolates.
    """
    if not any(trained_on.model_dump().values()):
        return {}
    return {part: getattr(likeness, part) for part, count in sources_like(likeness, trained_on).items() if not count}


def thinness(counts: Mapping[str, int], filled: bool = False) -> int:
    """Return in how many ways the measurements have little like a plan.

    `counts` has the sources like it (`sources_like`); fewer than `ENOUGH` are little. Filled cells of a run's row count
    as one more: what is priced may not be what ran.
    """
    return sum(count < ENOUGH for count in counts.values()) + filled


def holds(where: WhereSpec, facts: PlanFacts) -> Bool[np.ndarray, "plans"]:
    """Return whether an interval holds for each plan, [N] bool."""
    held = np.ones(np.shape(facts.several_domains), dtype=bool)
    if where.domains is not None:
        held &= facts.several_domains == (where.domains == "several")
    if where.experts is not None:
        held &= facts.experts == where.experts
    if where.thin is not None:
        held &= facts.thin >= where.thin
    return held


def step_interval(
    entries: Sequence[IntervalSpec], step_time_s: Float[Array, "plans"], facts: PlanFacts
) -> StepInterval:
    """Return the interval of [N] step times [s], by the first of `entries` that holds for a plan."""
    seconds = np.asarray(step_time_s)
    low, high = (np.full(seconds.shape, np.nan, dtype=seconds.dtype) for _ in range(2))
    for entry in reversed(entries):
        held = holds(entry.where, facts)
        low[held], high[held] = entry.low, entry.high
    return StepInterval(step_time_s_low=seconds * low, step_time_s_high=seconds * high)
