"""Result rows: candidates as columns, from keys, choices and costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.headroom import room
from dsx.cost.interval import StepInterval, plan_facts, sources_like, step_interval, thinness
from dsx.pricing.cuts import layers_of_stages, price_best_cuts
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, machines, price_rows
from dsx.space.candidate_ids import candidate_ids
from dsx.space.choices import CHOICE_COLUMNS, CODES, KEY_COLUMNS
from dsx.space.enumerate import Arrays
from dsx.space.strategy_rules import HOST_MEMORY, MEMORY
from dsx.spec.model import has_experts


@dataclass(frozen=True, slots=True)
class Counts:
    """How many candidates a search has, and what it did with them."""

    candidates: int
    feasible: int  # that were priced and fit in memory
    skipped: int = 0  # that a bound of many candidates leaves out
    bounded: int = 0  # that their own bound leaves out
    cut: int = 0  # that got their best cut

    @property
    def priced(self) -> int:
        """The candidates that were looked at one by one."""
        return self.candidates - self.skipped

    @property
    def infeasible(self) -> int:
        """The candidates that were looked at one by one and do not fit in memory."""
        return self.priced - self.bounded - self.feasible

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum of two counts."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in Counts.__dataclass_fields__))


def column_names(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Return, for each coded column, the names that its codes stand for."""
    return {
        "strategy": problem.strategies,
        **CODES,
    }


def candidate_columns(problem: Problem, keys: Arrays, positions: np.ndarray, choices: Arrays) -> Arrays:
    """Return ``candidate`` and all columns of a plan for [N] rows of keys and choices."""
    count = len(positions)
    columns: Arrays = {name: keys[name][positions] for name in KEY_COLUMNS}
    columns |= {name: choices[name] for name in CHOICE_COLUMNS}
    columns["sequence_length"] = np.full(count, problem.sequence_length)
    columns["candidate"] = candidate_ids(columns, column_names(problem))
    return columns


def cost_columns(costs: StepCosts) -> Arrays:
    """Return the cost columns of a record of [N] arrays."""
    return {name: getattr(costs, name) for name in StepCosts.__dataclass_fields__}


def interval_columns(problem: Problem, num_gpus: np.ndarray, step_time_s: np.ndarray) -> Arrays:
    """Return the columns of the prediction interval of [N] step times."""
    assumed = problem.assumptions_spec
    thin = thinness(sources_like(problem.likeness, assumed.trained_on))
    facts = plan_facts(num_gpus, problem.nvs_size, has_experts(problem.model.dimensions), thin)
    interval = step_interval(assumed.interval, step_time_s, facts)
    return {name: getattr(interval, name) for name in StepInterval.__dataclass_fields__}


def result_rows(problem: Problem, keys: Arrays, rows: Rows, costs: StepCosts, cuts: np.ndarray | None = None) -> Arrays:
    """Return all columns of [N] priced rows, and `point`, the hardware point of each.

    `cuts` are the boundaries [N, L + 1] of best cuts; they become the column `stage_layers`.
    """
    columns = candidate_columns(problem, keys, rows.positions, rows.choices) | cost_columns(costs)
    columns |= interval_columns(problem, columns["num_gpus"], columns["step_time_s"])
    # Memory, of GPU and host, is all that an enumerated candidate can break.
    usable = room(*machines(problem, rows.points), columns["num_gpus"].astype(np.float64))
    reject = np.zeros(len(rows.points), dtype=np.int64)
    for reason, fits in ((MEMORY, costs.peak_bytes <= usable.gpu), (HOST_MEMORY, costs.host_bytes <= usable.host)):
        reject |= np.where(fits, 0, 1 << problem.reasons.index(reason))
    columns |= {"reject": reject, "point": rows.points}
    return columns if cuts is None else columns | {"stage_layers": layers_of_stages(cuts)}


def priced_rows(problem: Problem, keys: Arrays, table: KeyCosts, rows: Rows) -> Arrays:
    """Return all columns of [N] rows, priced in float64."""
    if problem.optimal_cuts:
        priced = price_best_cuts(problem, table, rows)
        return result_rows(problem, keys, rows, priced.costs, priced.cuts)
    return result_rows(problem, keys, rows, price_rows(problem, table, rows))


def no_rows(problem: Problem, keys: Arrays) -> Arrays:
    """Return the columns of `priced_rows` without any row."""
    nothing = np.zeros(0, dtype=np.int64)
    costs = StepCosts(**dict.fromkeys(StepCosts.__dataclass_fields__, np.zeros(0)))
    rows = result_rows(problem, keys, Rows(nothing, nothing, dict.fromkeys(CHOICE_COLUMNS, nothing)), costs)
    return rows | ({"stage_layers": nothing.astype(object)} if problem.optimal_cuts else {})


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Return the rows of several tables as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
