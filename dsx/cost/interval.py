"""How far a price can be trusted, and what it means for a training run: intervals, headroom, days and money.

Predictions of memory have errors, so a search leaves room, and a plan fits with some probability. The assumption set
states quantiles of measured / predicted peak memory. Between and beyond them the logarithm of the ratio is taken as
normal, with a deviation of its own on either side of the median. What a plan keeps on the host is known better than
what a GPU holds, so it needs no margin: `host_memory_share` says what a job has of the host's memory.

The interval of a step time is the ratio of measurements to predictions, from an assumption set. It depends on facts of
a plan that every search has: whether its GPUs span several fast domains, whether the model has experts, and in how many
ways the measurements have little like it. It is computed for the rows that a search keeps, since it changes no order.

A training run of many steps loses time to failures. A job writes a checkpoint every so often and goes on from the last
one after a failure. Failures come at random, with the same rate at any time. With n GPUs of which each fails after a
mean time m, the job fails after M = m / n. If writing a checkpoint stops it for c and coming back takes R, it keeps of
its time the share

    goodput = t / (M exp(R / M) (exp((t + c) / M) - 1))

(J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22, 2006, equation 20),
where t is the time between two checkpoints. The best t is close to sqrt(2 c M) - c (J. W. Young, A first order
approximation to the optimum checkpoint interval, CACM 17, 1974); Daly's equation 37 has two more terms, and M where a
checkpoint takes more than 2 M.

Not modelled: spare machines that run out, a job that goes on with fewer GPUs, checkpoints that are written while the
job trains on, and failures that are slow instead of fatal.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.config.assumption_set import IntervalSpec, MemoryIntervalSpec, TrainedOnSpec, WhereSpec
from dsx.config.cluster_file import Cluster, DeviceOperation, DeviceSpec
from dsx.config.model_file import ModelSpec, has_experts
from dsx.cost.context import Assumptions, StepCosts
from dsx.cost.offload import usable_host_bytes
from dsx.records import Array, ArrayLike, Bool, Float, Int, Real, column, record

_NORMAL = NormalDist()
_TAIL = _NORMAL.inv_cdf(0.9)  # deviations from the median to the outer quantiles


class Room(NamedTuple):
    """The most bytes that a plan which a search keeps may need."""

    gpu: PerPlan  # of a GPU, as predicted
    host: PerPlan  # of the host, for each GPU

    def holds(self, costs: StepCosts) -> Bool[ArrayLike, "*#plans"]:
        """Return whether plans fit."""
        return (costs.peak_bytes <= self.gpu) & (costs.host_bytes <= self.host)


def room(cluster: Cluster, assumptions: Assumptions, num_gpus: PerPlan) -> Room:
    """Return the room of plans with so many GPUs."""
    gpu = cluster.device.hbm_capacity / (1.0 + assumptions.memory_margin)
    return Room(gpu, usable_host_bytes(num_gpus, cluster.node, assumptions))


def probability_of_fitting(interval: MemoryIntervalSpec, peak_bytes: float, hbm_capacity: float) -> float:
    """Return the probability that a plan with this predicted peak fits in the memory of a GPU."""
    above = math.log(hbm_capacity / peak_bytes / interval.median)
    side = interval.high / interval.median if above > 0 else interval.median / interval.low
    deviation = math.log(side) / _TAIL
    return _NORMAL.cdf(above / deviation) if deviation else float(above >= 0)


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


_HOUR, _DAY, _KWH = 3600.0, 86400.0, 3.6e6  # s, s, J


def checkpoint_interval_s(mtbf: PerPlan, checkpoint: PerPlan) -> PerPlan:
    """Return the best time between two checkpoints [s] of a job with a mean time between failures [s]; Daly 2006."""
    ratio = checkpoint / (2.0 * mtbf)
    # 1 + sqrt(r) / 3 + r / 9 of the root, less the checkpoint itself.
    interval = (2.0 * checkpoint * mtbf) ** 0.5 * (1.0 + ratio**0.5 / 3.0 + ratio / 9.0) - checkpoint
    return xp.where(ratio < 1.0, interval, mtbf)


@xp.unchecked
def goodput(operation: DeviceOperation, num_gpus: PerPlan) -> PerPlan:
    """Return the share of the time of a job on `num_gpus` GPUs that failures leave it; NaN where none are stated."""
    fails = operation.mtbf > 0
    mtbf = xp.where(fails, operation.mtbf, 1.0) / num_gpus
    checkpoint = xp.where(fails, operation.checkpoint, 1.0)
    interval = checkpoint_interval_s(mtbf, checkpoint)
    taken = mtbf * xp.exp(operation.restart / mtbf) * xp.expm1((interval + checkpoint) / mtbf)
    return xp.where(fails, interval / taken, float("nan"))


def run_columns(
    tokens_per_s: PerPlan, num_gpus: PerPlan, train_tokens: PerPlan, operation: DeviceOperation
) -> dict[str, Any]:
    """Return the columns of `StepCosts` that describe a run of `train_tokens` tokens; NaN where an input is."""
    kept = goodput(operation, num_gpus)
    days = train_tokens / tokens_per_s / _DAY / xp.where(operation.mtbf > 0, kept, 1.0)
    hours = days * (_DAY / _HOUR) * num_gpus
    price = xp.where(operation.price > 0, operation.price, float("nan"))
    power = xp.where(operation.site_power > 0, operation.site_power, float("nan"))
    ones = xp.ones_like(tokens_per_s)
    return {
        "tokens_per_s_per_gpu": tokens_per_s / num_gpus,
        "goodput": kept * ones,
        "training_days": days,
        "gpu_hours": hours,
        "cost_usd": hours * (_HOUR * price),
        "energy_kwh": hours * (_HOUR * power / _KWH),
    }
