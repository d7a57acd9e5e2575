"""One plan: its costs, whether it fits, the rules that it breaks, and its kernels one by one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.effects import of_plan
from dsx.cost.interval import StepInterval
from dsx.cost.layer import COMM_COLUMN, kernel_times, traffic
from dsx.cost.work import layer_values
from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import evaluate as value_of
from dsx.pricing.cuts import boundaries_of, price_best_cuts, price_chunks
from dsx.pricing.host_memory import host_memory_detail
from dsx.pricing.layers import outer_shares, work_of
from dsx.pricing.plan_stages import PlanStage, stages_of_plan
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import price_plans, rows_of_plans
from dsx.pricing.rows import candidate_columns, column_names, cost_columns, interval_columns
from dsx.space.boxes import broken
from dsx.space.choices import BY_NAME, CHOICE_COLUMNS, KEY_COLUMNS, NAMED, PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.space.codes import first_searched, searched_values
from dsx.space.enumerate import Arrays
from dsx.space.layer_layout import LAYOUT, check_stages, layers_of_chunks, text_of
from dsx.space.limits import GIVEN
from dsx.space.plan import Plan
from dsx.space.plan_rules import optimal_cut_covers
from dsx.space.plan_settings import JobSizes, PlanDefaults, filled_shares, parse_plan
from dsx.space.strategy_rules import HOST_MEMORY, MEMORY, VANISHES
from dsx.space.tiers import shares_on_tiers
from dsx.space.violations import Violation, violations
from dsx.spec.cluster import peak_flops
from dsx.spec.model import has_experts
from dsx.units import format_quantity

DIRECTIONS = ("forward", "backward")
_COSTS = (*StepCosts.__dataclass_fields__,)
# What follows from the whole work of a step and its seconds.
_SPEEDS = (*_COSTS[_COSTS.index("peak_bytes") + 1 :], *StepInterval.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A priced plan."""

    plan: Plan
    costs: dict[str, float]
    fits: bool  # peak_bytes and host_bytes are within what there is, and every rank has some of each dimension
    broken: tuple[Violation, ...]
    stages: tuple[PlanStage, ...]  # of a layer layout; empty if the cut is even
    # Shares of a fast domain above 1 that are filled in rank order and that no setting names, by "nvs.tp".
    filled: Mapping[str, int] = field(default_factory=dict)


def evaluate_plan(problem: Problem, settings: Sequence[str], num_gpus: int, global_batch_size: int) -> Evaluation:
    """Price the plan that `settings` describe, even if it breaks rules; the problem has one strategy.

    `default_placement` of the assumption set decides the shares of a fast domain that no setting names. If the problem
    has optimal cuts, so does the plan. Raises PlanError if the plan is not well formed.
    """
    plan = stated_plan(problem, settings, num_gpus, global_batch_size)
    return replace(price_plan(problem, plan), filled=filled_shares(plan, settings))


def stated_plan(problem: Problem, settings: Sequence[str], num_gpus: int, global_batch_size: int) -> Plan:
    """Return the plan that `settings` describe, without a price; as `evaluate_plan`.

    Where the assumption set is resolved for a framework that does not run a value that no setting names, the plan has
    the first that it runs.
    """
    problem.check_sizes([num_gpus])
    codes = {name: first_searched(problem.workload.searched, BY_NAME[name]) for name in SEARCHED_COLUMNS}
    job = JobSizes(num_gpus, global_batch_size, problem.sequence_length)

    def plan_with(codes: dict[str, int]) -> Plan:
        defaults = PlanDefaults(codes, in_rank_order=problem.assumptions_spec.default_placement == "rank_order")
        return parse_plan(settings, problem.kinds[0], problem.strategies[0], job, problem.limits(), defaults)

    plan = plan_with(codes)
    of_framework = _defaults_of_framework(problem, plan, settings)
    return plan_with(codes | of_framework) if of_framework else plan


def _defaults_of_framework(problem: Problem, plan: Plan, settings: Sequence[str]) -> dict[str, int]:
    """Return the values, as codes, that a plan has in place of those that no setting names and its framework lacks."""
    framework = problem.assumptions_spec.of_framework
    if isinstance(framework, str):
        return {}
    boxes = framework.boxes(has_experts(problem.model.dimensions))
    box = min(boxes, key=lambda one: len(broken(one, plan)), default=None)
    if box is None:
        return {}
    named = {setting.partition("=")[0] for setting in settings}
    lacked = [name for name in broken(box, plan) if name in SEARCHED_COLUMNS and name in box.fix and name not in named]
    return {name: BY_NAME[name].code(box.fix[name][0]) for name in lacked}


def price_plan(problem: Problem, plan: Plan) -> Evaluation:
    """Price a plan, even if it breaks rules; the problem has one strategy, that of the plan.

    The cut is the plan's own (`stage_layers`) if it has one. Else it is the optimal one if the problem has optimal cuts
    and that of such a plan is known, and even if not. Raises PlanError for a cut that does not match the plan.
    """
    kinds, limits, codes = problem.kinds[0], problem.limits(), plan.codes
    layers: tuple[int, ...] = ()
    if (layout := plan.get(LAYOUT)) is not None:
        limits = replace(limits, partition=GIVEN)
        layers = layers_of_chunks(str(layout), limits.chain)
        check_stages(layers, str(layout), codes["pp"], codes["vpp"])
    problem = _searching_only(problem, codes)
    columns = _columns(problem, codes)
    if not layers and problem.optimal_cuts and bool(optimal_cut_covers(codes["schedule"])):
        layers = _optimal_cut(problem, columns)
    priced = cost_columns(_priced(problem, columns, layers))
    priced |= interval_columns(problem, columns["num_gpus"], priced["step_time_s"])
    costs = {name: float(column[0]) for name, column in priced.items()}
    broken = violations(plan, kinds, problem.model.dimensions, limits)

    def with_offload(code: int) -> StepCosts:
        other = codes | {"offload": code}
        return _priced(_searching_only(problem, other), _columns(problem, other), layers)

    if too_much := host_memory_detail(problem, codes, costs, with_offload):
        broken.insert(0, Violation(HOST_MEMORY, too_much))
    capacity = problem.cluster.device.hbm_capacity
    if costs["peak_bytes"] > capacity:
        broken.insert(0, Violation(MEMORY, _memory_detail(costs, capacity)))
    fits = not any(violation.reason in (MEMORY, HOST_MEMORY, VANISHES) for violation in broken)
    if not _whole(problem, codes, costs["mfu"], broken):
        costs |= dict.fromkeys(_SPEEDS, math.nan)
    if layers:
        columns[LAYOUT] = np.array([text_of(layers)], dtype=object)
    stages = stages_of_plan(problem, columns, layers) if layers else ()
    return Evaluation(named_row(problem, columns, 0), costs, fits, tuple(broken), stages)


def _whole(problem: Problem, codes: Mapping[str, int], mfu: float, broken: Sequence[Violation]) -> bool:
    """Return whether the ranks of a plan do all the work of a step: else its seconds say nothing of its speed."""
    sequences = codes["dp"] * codes["microbatch_size"] * codes["num_microbatches"]
    device = problem.cluster.device
    most = peak_flops(device, problem.assumptions_spec.linear_dtype) / device.matrix_flops
    vanishes = any(violation.reason == VANISHES for violation in broken)
    return not vanishes and sequences == codes["global_batch_size"] and mfu <= most


def _optimal_cut(problem: Problem, columns: Arrays) -> tuple[int, ...]:
    (cut,) = price_best_cuts(problem.without_margin(), *rows_of_plans(problem, columns)).cuts
    return tuple(np.diff(cut)[: int(columns["pp"][0] * columns["vpp"][0])].tolist())


def _searching_only(problem: Problem, codes: Mapping[str, int]) -> Problem:
    """Return the problem with the searched choices of one plan."""
    searched = searched_values({name: [codes[name]] for name in SEARCHED_COLUMNS})
    return replace(problem, workload=replace(problem.workload, searched=searched))


def _priced(problem: Problem, columns: Arrays, layers: Sequence[int]) -> StepCosts:
    """Return the costs of one plan; its cut is even unless `layers` are those of its chunks."""
    if not layers:
        return price_plans(problem, columns)
    boundaries = boundaries_of(layers, int(columns["pp"][0]))[..., None]
    return price_chunks(problem, *rows_of_plans(problem, columns), boundaries)


def named_row(problem: Problem, columns: Arrays, row: int) -> Plan:
    """Return the plan of one row, with its candidate id, and its layer layout if the row has one.

    On more than two tiers, ``<axis>_<tier>`` says how many members share a unit of each tier between fast domain and
    outermost tier.
    """
    known = column_names(problem)
    codes = {name: int(columns[name][row]) for name in ("candidate", *PLAN_COLUMNS)}
    tiers = shares_on_tiers(codes, problem.cluster.network, problem.expert_axes[codes["strategy"]])
    values = {name: known[name][value] if name in NAMED else value for name, value in codes.items()} | tiers
    return Plan(values | ({LAYOUT: columns[LAYOUT][row]} if LAYOUT in columns else {}))


def columns_of(problem: Problem, plan: Plan) -> Arrays:
    """Return a plan as one row of columns, names as codes."""
    known = column_names(problem)
    values = {name: plan[name] for name in PLAN_COLUMNS}
    return {name: np.array([known[name].index(value) if name in NAMED else value]) for name, value in values.items()}


def priced_plans(problem: Problem, rows: Arrays) -> list[dict[str, Any]]:
    """Return the feasible rows of a search as records, in the form of a printed evaluation."""
    costs = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
    return [
        {"plan": named_row(problem, rows, row)}
        | {name: float(rows[name][row]) for name in costs}
        | {"fits": True, "reject": []}
        for row in range(len(rows["candidate"]))
    ]


def _columns(problem: Problem, codes: Mapping[str, int]) -> Arrays:
    whole = {**codes, "strategy": 0}
    keys = {name: np.array([whole[name]]) for name in KEY_COLUMNS}
    choices = {name: np.array([whole[name]]) for name in CHOICE_COLUMNS}
    return candidate_columns(problem, keys, np.zeros(1, dtype=np.int64), choices)


def _memory_detail(costs: dict[str, float], capacity: float) -> str:
    parts = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "overhead_bytes")
    largest = max(parts, key=lambda name: costs[name])
    peak = costs["peak_bytes"]
    return (
        f"{format_quantity(peak, 'bytes')} exceed the {format_quantity(capacity, 'bytes')} of a GPU by "
        f"{format_quantity(peak - capacity, 'bytes')}; the largest part is {largest} with "
        f"{format_quantity(costs[largest], 'bytes')}"
    )


def operator_costs(problem: Problem, plan: Plan) -> list[dict[str, Any]]:
    """Return the kernels of one body layer for one microbatch: work, times, collectives, saved bytes."""
    layer = problem.layers[0]
    keys = {name: np.array([0 if name == "strategy" else plan[name]]) for name in KEY_COLUMNS}
    arguments = (layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)
    work = work_of(problem, layer, keys)
    work = replace(work, outer=outer_shares(problem, 0, keys, np.zeros(1, dtype=np.int64), tuple(work.shares)))
    values = layer_values(*arguments)
    cluster, assumptions = problem.at_point(0)
    times = kernel_times(work, cluster, of_plan(assumptions, plan.codes))
    moved = np.sum(traffic(work, assumptions), axis=0)
    return [_kernel(layer, index, work, moved, times, values) for index in range(len(layer.priced_kernels))]


def _kernel(
    layer: DerivedLayer, index: int, work: Any, moved: np.ndarray, times: Any, values: dict[str, Any]
) -> dict[str, Any]:
    kernel = layer.priced_kernels[index]
    made: dict[str, Any] = {"name": kernel.name, "operators": list(kernel.kinds), "counted": kernel.runs}
    for direction, name in enumerate(DIRECTIONS):
        made[name] = {
            "matrix_flops": float(work.matrix[direction, index, 0]),
            "vector_flops": float(work.vector[direction, index, 0]),
            "bytes": float(moved[direction, index, 0]),
            "compute_s": float(times.compute_s[direction, index, 0]),
            "memory_s": float(times.memory_s[direction, index, 0]),
            **{c: float(times.comm_s[c][direction, index, 0]) for c in dict.fromkeys(COMM_COLUMN.values())},
            "collectives": [
                {
                    "kind": collective.kind,
                    "axis": collective.axis,
                    "bytes": float(np.ravel(value_of(collective.bytes, values))[0]),
                    "tensor": collective.tensor,
                    "panels": int(values["panels"][0]) if collective.panelled else 1,
                }
                for collective in kernel.collectives[direction]
            ],
        }
    made["saved_bytes"] = float(np.ravel(value_of(kernel.saved_bytes, values))[0])
    return made
