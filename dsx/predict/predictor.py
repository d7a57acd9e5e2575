"""Predictions of measured setups by the cost model of the searches."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dsx.cost.interval import Likeness, PlanFacts, likeness, plan_facts, sources_like, step_interval, thinness, unlike
from dsx.predict.batches import batches
from dsx.predict.counted_memory import counted_memory
from dsx.predict.missing_recompute import MARGIN, is_inferred, with_recompute
from dsx.predict.predictions import Predictions
from dsx.predict.setup_costs import price
from dsx.runs.measured_memory import ALLOCATED, RESERVED
from dsx.runs.reasons import Reason
from dsx.runs.setups import Setup
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.known_errors import TrainedOnSpec
from dsx.spec.model import has_experts


def predict(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
    """Return the step time and memory of each setup, or the reason why it cannot be priced."""
    setups = with_recompute(setups, assumptions)
    count = len(setups)
    step, peak, allocated, reserved = (np.full(count, np.nan) for _ in range(4))
    priced, reasons = batches(setups, assumptions)
    for batch in priced:
        costs = price(batch)
        step[batch.rows], peak[batch.rows] = costs.step_time_s, costs.peak_bytes
        memory = counted_memory(costs, batch.assumptions)
        allocated[batch.rows], reserved[batch.rows] = memory[ALLOCATED], memory[RESERVED]
    thin = [thinness(sources_like(likeness_of(one), assumptions.trained_on), bool(one.filled)) for one in setups]
    interval = step_interval(assumptions.interval, step, facts_of(setups, np.array(thin, dtype=np.int64)))
    is_filled = [is_inferred(setup) for setup in setups]
    room = np.where(is_filled, MARGIN, 1.0) * np.array(
        [setup.cluster.device.hbm_capacity for setup in setups], dtype=np.float64
    )
    return Predictions(
        step_time_s=step,
        low=interval.step_time_s_low,
        high=interval.step_time_s_high,
        peak_bytes=peak,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        fits=peak <= room,
        inferred_recompute=tuple(
            str(setup.plan["recompute"]) if filled else None for setup, filled in zip(setups, is_filled, strict=True)
        ),
        reason=tuple(reasons.get(row) for row in range(count)),
    )


def facts_of(setups: Sequence[Setup], thin: np.ndarray | int = 0) -> PlanFacts:
    """Return the facts of these setups that select an interval; `thin` is `dsx.cost.interval.thinness` of each."""
    return plan_facts(
        np.array([setup.plan["num_gpus"] for setup in setups]),
        np.array([setup.cluster.network.nvs.size for setup in setups]),
        np.array([has_experts(setup.model.dimensions) for setup in setups]),
        thin,
    )


def count_unlike(setups: Iterable[Setup | Reason], trained_on: TrainedOnSpec) -> dict[str, dict[str, int]]:
    """Return how many setups have what no source has to which a set was fitted, by part of the likeness and value."""
    found: dict[str, Counter[str]] = {}
    for setup in setups:
        if isinstance(setup, Setup):
            for part, value in unlike(likeness_of(setup), trained_on).items():
                found.setdefault(part, Counter())[value] += 1
    return {part: dict(counts.most_common()) for part, counts in found.items()}


def likeness_of(setup: Setup) -> Likeness:
    """Return what measurements may share with a setup."""
    return likeness(setup.stack, setup.cluster.device, setup.model)
