"""One plan: its costs, whether it fits, the rules that it breaks, its stages, and its kernels one by one.

A plan that offloads more than the hosts hold is told its bytes beside those of a node, and the nearest change that
fits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsx import arrays as xp
from dsx.config.cluster_file import peak_flops
from dsx.config.model_file import has_experts
from dsx.cost.context import StepCosts, of_plan
from dsx.cost.interval import StepInterval
from dsx.cost.layer import COMM_COLUMN, kernel_times, traffic
from dsx.cost.layer_work import layer_values
from dsx.cost.offload import ACTIVATIONS, OPTIMIZER, of_node, usable_host_bytes
from dsx.cost.pipeline import in_flight
from dsx.cost.stage import StageCosts
from dsx.cost.stages import over_layers, stages_between
from dsx.cost.step import with_effects
from dsx.notation.expressions import evaluate as value_of
from dsx.plans.choices import BY_NAME, CHOICE_COLUMNS, CODES, KEY_COLUMNS, NAMED, PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.plans.enumerate import Arrays, first_searched, searched_values
from dsx.plans.frameworks import broken
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.placement import shares_on_tiers
from dsx.plans.plan import JobSizes, Plan, PlanDefaults, Setting, own_cut, plan_of_settings
from dsx.plans.rules import GIVEN, optimal_cut_covers
from dsx.plans.violations import HOST_MEMORY, MEMORY, VANISHES, Violation, violations
from dsx.pricing.cuts import (
    boundaries_of,
    candidate_columns,
    column_names,
    cost_columns,
    interval_columns,
    price_best_cuts,
    price_chunks,
)
from dsx.pricing.keys import outer_shares, price_keys, work_of
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import on_tiers, price_plans, rows_of_plans, step_choices, take_rows
from dsx.records import Int, Over, tree_map
from dsx.schedules.order import StageChunks, of_pipeline
from dsx.schedules.schedules import SCHEDULES
from dsx.units import format_quantity

_OFFLOAD = CODES["offload"]
_OneRow = Over[Arrays, "... 1"]


def host_memory_detail(
    problem: Problem, codes: Mapping[str, int], costs: Mapping[str, float], with_offload: Callable[[int], StepCosts]
) -> str:
    """Return how much too much a plan keeps on its hosts; empty if it fits.

    `costs` are those of the plan by column, `with_offload` returns its costs with another code of `offload`.
    """
    cluster, assumptions = problem.at_point(0)
    usable = float(usable_host_bytes(float(codes["num_gpus"]), cluster.node, assumptions))
    if costs["host_bytes"] <= usable:
        return ""
    gpus = float(of_node(float(codes["num_gpus"]), cluster.node))
    node, share = float(cluster.node.host_memory), float(assumptions.host_memory_share)
    alone = {name: with_offload(_OFFLOAD.index(name)) for name in _OFFLOAD if name != _OFFLOAD[codes["offload"]]}
    parts = {name: float(alone[name].host_bytes[0]) if name in alone else costs["host_bytes"] for name in _PARTS}
    largest = max(parts, key=lambda name: parts[name])
    capacity = float(cluster.device.hbm_capacity)
    fitting = [name for name, c in alone.items() if c.host_bytes[0] <= usable and c.peak_bytes[0] <= capacity]
    enough = f"{math.ceil(costs['host_bytes'] * gpus / share / 1e9)} GB"
    nearest = " or ".join([*(f"offload={name}" for name in fitting[-1:]), f"cluster.node.host_memory={enough!r}"])
    return (
        f"the {gpus:.0f} GPUs of a node keep {_bytes(costs['host_bytes'] * gpus)} on its host, "
        f"{_bytes((costs['host_bytes'] - usable) * gpus)} more than the {_bytes(usable * gpus)} that a job has of its "
        f"{_bytes(node)}; the largest part is {_PARTS[largest]} with {_bytes(parts[largest] * gpus)}; "
        f"nearest: {nearest}"
    )


_PARTS = {OPTIMIZER: "the state of the optimizer and its gradients", ACTIVATIONS: "the activations"}


def _bytes(value: float) -> str:
    return format_quantity(value, "bytes")


@dataclass(frozen=True, slots=True)
class StageChunk:
    """The layers of a chunk, in the chain of embedding, body and head."""

    first_layer: int  # counted from 0
    num_layers: int


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage of a pipeline. Seconds are of one microbatch, forward and backward."""

    chunks: tuple[StageChunk, ...]  # first to last; one if vpp is 1
    load_s: float
    compute_s: float  # of the load: kernels and their stalls
    comm_s: float  # of the load: exposed communication inside the stage
    recompute_s: float  # of the load: the recomputed forward
    in_flight: float  # microbatches in flight at most; with several chunks, the mean over them
    peak_bytes: float  # of one GPU
    link: str | None  # network tier of the link from the previous stage; None for the first stage

    @property
    def first_layer(self) -> int:
        """The first layer of its first chunk."""
        return self.chunks[0].first_layer

    @property
    def num_layers(self) -> int:
        """The layers of all chunks."""
        return sum(chunk.num_layers for chunk in self.chunks)


@xp.unchecked
def stages_of_plan(problem: Problem, columns: _OneRow, layers: Sequence[int]) -> tuple[PlanStage, ...]:
    """Return the stages of a plan, given by all candidate columns, for the layers of its chunks."""
    num_stages = int(columns["pp"][0])
    table = price_keys(problem, {name: columns[name] for name in KEY_COLUMNS})
    columns = on_tiers(problem, columns)
    only = np.zeros(1, dtype=np.int64)
    kinds = tree_map(lambda leaf: take_rows(np.asarray(leaf), only, only), table)
    tiers = [tier.name for tier in problem.cluster.network.middle]
    choices = step_choices(columns, lambda column: column.astype(np.float64), tiers)
    workload = problem.workload
    kinds = with_effects(kinds, choices, workload.stack, workload.searched, problem.assumptions)
    costs = StageCosts(choices, workload.searched, workload.stack, *problem.at_point(0), kinds)
    boundaries = boundaries_of(layers, num_stages)
    holds = of_pipeline(SCHEDULES[int(columns["schedule"][0])].holds, num_stages)
    stages = stages_between(workload.stack, boundaries[..., None].astype(np.float64), choices.pp, holds)
    chunks_of_stages = _chunks(boundaries, holds)
    microbatches = in_flight(stages.position, costs)
    if not holds.in_rounds:
        of_last = in_flight(stages.position, costs, last=True)
        microbatches = 0.5 * (microbatches + of_last)
    stalls = costs.stall_s or [0.0] * len(kinds)
    busy = [kind.compute_s + kind.memory_s + stall for kind, stall in zip(kinds, stalls, strict=True)]
    of_chain = {
        kind: layers / holds.num_chains for kind, layers in stages.layers.items()
    }  # that a microbatch goes through
    values: dict[str, Any] = {
        "load_s": over_layers(of_chain, costs.forward_backward_s),
        "compute_s": over_layers(of_chain, busy),
        "comm_s": over_layers(of_chain, [kind.tp_comm_s + kind.cp_comm_s + kind.ep_comm_s for kind in kinds]),
        "recompute_s": over_layers(of_chain, costs.recompute_s),
        "peak_bytes": costs.peak_memory(stages, holds).peak_bytes,
    }
    held = np.broadcast_to(microbatches, (num_stages, 1))
    *inner, outermost = [tier.name for tier in problem.cluster.network.tiers]
    per_unit = [(name, int(columns[f"pp_{name}"][0])) for name in inner]  # stages that share a unit of each tier
    return tuple(
        PlanStage(
            chunks=chunks,
            in_flight=float(held[index, 0]),
            link=next((name for name, count in per_unit if index % count), outermost) if index else None,
            **{name: float(column[index, 0]) for name, column in values.items()},
        )
        for index, chunks in enumerate(chunks_of_stages)
    )


def _chunks(boundaries: Int[np.ndarray, "rounds boundaries"], holds: StageChunks) -> list[tuple[StageChunk, ...]]:
    """Return the chunks of each stage from the boundaries of all rounds."""
    firsts, sizes = boundaries[:, :-1].ravel().tolist(), np.diff(boundaries, axis=1).ravel().tolist()
    chunks = [StageChunk(int(first), int(size)) for first, size in zip(firsts, sizes, strict=True)]
    num_rounds, num_stages = len(boundaries), boundaries.shape[1] - 1
    stage_of = [stage for chain in holds.chains(num_stages, num_rounds) for stage in chain]
    of_stages: list[list[StageChunk]] = [[] for _ in range(num_stages)]
    for stage, chunk in zip(stage_of, chunks * holds.num_chains, strict=True):
        of_stages[stage].append(chunk)
    return [tuple(of_stage) for of_stage in of_stages]


DIRECTIONS = ("forward", "backward")
_COSTS = (*StepCosts.__dataclass_fields__,)
# What follows from the whole work of a step and its seconds.
_SPEEDS = (*_COSTS[_COSTS.index("peak_bytes") + 1 :], *StepInterval.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A priced plan."""

    plan: Plan
    costs: dict[str, float]
    fits: bool  # peak_bytes and host_bytes are within what there is, and every rank has some of each dimension
    broken: tuple[Violation, ...]
    stages: tuple[PlanStage, ...]  # of a layer layout; empty if the cut is even
    # Shares of a fast domain above 1 that are filled in rank order and that no setting names, by "nvs.tp".
    filled: Mapping[str, int] = field(default_factory=dict)


def stated_plan(problem: Problem, settings: Sequence[Setting], num_gpus: int, global_batch_size: int) -> Plan:
    """Return the plan that `settings` describe, even if it breaks rules; the problem has one strategy.

    `default_placement` of the assumption set decides the shares of a fast domain that no setting names. Where the
    assumption set is resolved for a framework that does not run a value that no setting names, the plan has the first
    that it runs. Raises PlanError if the plan is not well formed.
    """
    problem.check_sizes([num_gpus])
    codes = {name: first_searched(problem.workload.searched, BY_NAME[name]) for name in SEARCHED_COLUMNS}
    job = JobSizes(num_gpus, global_batch_size, problem.sequence_length)

    def plan_with(codes: dict[str, int]) -> Plan:
        defaults = PlanDefaults(codes, in_rank_order=problem.assumptions_spec.default_placement == "rank_order")
        return plan_of_settings(settings, problem.kinds[0], problem.strategies[0], job, problem.limits(), defaults)

    plan = plan_with(codes)
    of_framework = _defaults_of_framework(problem, plan, settings)
    return plan_with(codes | of_framework) if of_framework else plan


def _defaults_of_framework(problem: Problem, plan: Plan, settings: Sequence[Setting]) -> dict[str, int]:
    """Return the values, as codes, that a plan has in place of those that no setting names and its framework lacks."""
    framework = problem.assumptions_spec.of_framework
    if isinstance(framework, str):
        return {}
    boxes = framework.boxes(has_experts(problem.model.dimensions))
    box = min(boxes, key=lambda box: len(broken(box, plan)), default=None)
    if box is None:
        return {}
    named = {setting.name for setting in settings}
    lacked = [name for name in broken(box, plan) if name in SEARCHED_COLUMNS and name in box.fix and name not in named]
    return {name: BY_NAME[name].code(box.fix[name][0]) for name in lacked}


def price_plan(problem: Problem, plan: Plan) -> PricedPlan:
    """Price a plan, even if it breaks rules; the problem has one strategy, that of the plan.

    The cut is the plan's own (`stage_layers`) if it has one. Else it is the optimal one if the problem has optimal cuts
    and that of such a plan is known, and even if not. Raises PlanError for a cut that does not match the plan.
    """
    kinds, limits, codes = problem.kinds[0], problem.limits(), plan.codes
    if layers := own_cut(plan, limits.chain):
        limits = replace(limits, partition=GIVEN)
    problem = _searching_only(problem, codes)
    columns = _columns(problem, codes)
    if not layers and problem.optimal_cuts and bool(optimal_cut_covers(codes["schedule"])):
        (cut,) = price_best_cuts(problem.without_margin(), *rows_of_plans(problem, columns)).cuts
        layers = tuple(np.diff(cut)[: int(columns["pp"][0] * columns["vpp"][0])].tolist())
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
    stages = stages_of_plan(problem, columns, layers) if layers else ()
    return PricedPlan(named_row(problem, columns, 0, layers), costs, fits, tuple(broken), stages)


def _whole(problem: Problem, codes: Mapping[str, int], mfu: float, broken: Sequence[Violation]) -> bool:
    """Return whether the ranks of a plan do all the work of a step: else its seconds say nothing of its speed."""
    sequences = codes["dp"] * codes["microbatch_size"] * codes["num_microbatches"]
    device = problem.cluster.device
    most = peak_flops(device, problem.assumptions_spec.linear_dtype) / device.matrix_flops
    vanishes = any(violation.reason == VANISHES for violation in broken)
    return not vanishes and sequences == codes["global_batch_size"] and mfu <= most


def _searching_only(problem: Problem, codes: Mapping[str, int]) -> Problem:
    """Return the problem with the searched choices of one plan."""
    searched = searched_values({name: [codes[name]] for name in SEARCHED_COLUMNS})
    return replace(problem, workload=replace(problem.workload, searched=searched))


def _priced(problem: Problem, columns: _OneRow, layers: Sequence[int]) -> Over[StepCosts, "... 1"]:
    """Return the costs of one plan; its cut is even unless `layers` are those of its chunks."""
    if not layers:
        return price_plans(problem, columns)
    boundaries = boundaries_of(layers, int(columns["pp"][0]))[..., None]
    return price_chunks(problem, *rows_of_plans(problem, columns), boundaries)


def named_row(problem: Problem, columns: Arrays, row: int, layers: tuple[int, ...] = ()) -> Plan:
    """Return the plan of one row, with its candidate id, and with the layers of its chunks if it has a cut of its own.

    On more than two tiers, ``<axis>_<tier>`` says how many members share a unit of each tier between fast domain and
    outermost tier.
    """
    names = column_names(problem)
    codes = {name: int(columns[name][row]) for name in ("candidate", *PLAN_COLUMNS)}
    tiers = shares_on_tiers(codes, problem.cluster.network, problem.expert_axes[codes["strategy"]])
    values = {name: names[name][value] if name in NAMED else value for name, value in codes.items()} | tiers
    return Plan(values | ({LAYOUT: layers} if layers else {}))


def columns_of(problem: Problem, plan: Plan) -> _OneRow:
    """Return a plan as one row of columns, names as codes."""
    names = column_names(problem)
    values = {name: plan[name] for name in PLAN_COLUMNS}
    return {name: np.array([names[name].index(value) if name in NAMED else value]) for name, value in values.items()}


def priced_plans(problem: Problem, rows: Arrays) -> list[dict[str, Any]]:
    """Return the feasible rows of a search as records, in the form of a printed evaluation."""
    costs = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
    layers = rows[LAYOUT].tolist() if LAYOUT in rows else [[]] * len(rows["candidate"])
    return [
        {"plan": named_row(problem, rows, row, tuple(filter(None, layers[row])))}
        | {name: float(rows[name][row]) for name in costs}
        | {"fits": True, "reject": []}
        for row in range(len(rows["candidate"]))
    ]


def _columns(problem: Problem, codes: Mapping[str, int]) -> _OneRow:
    codes = {**codes, "strategy": 0}
    keys = {name: np.array([codes[name]]) for name in KEY_COLUMNS}
    choices = {name: np.array([codes[name]]) for name in CHOICE_COLUMNS}
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
    work = work_of(problem, layer, keys)
    work = replace(work, outer=outer_shares(problem, 0, keys, np.zeros(1, dtype=np.int64), tuple(work.shares)))
    values = layer_values(layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)
    cluster, assumptions = problem.at_point(0)
    times = kernel_times(work, cluster, of_plan(assumptions, plan.codes))
    moved = np.sum(traffic(work, assumptions), axis=0)
    comm_columns = dict.fromkeys(COMM_COLUMN.values())
    kernels: list[dict[str, Any]] = []
    for index, kernel in enumerate(layer.priced_kernels):
        row: dict[str, Any] = {"name": kernel.name, "operators": list(kernel.kinds), "counted": kernel.runs}
        for direction, name in enumerate(DIRECTIONS):
            at = direction, index, 0
            row[name] = {
                "matrix_flops": float(work.matrix[at]),
                "vector_flops": float(work.vector[at]),
                "bytes": float(np.asarray(moved)[at]),
                "compute_s": float(times.compute_s[at]),
                "memory_s": float(times.memory_s[at]),
                **{column: float(times.comm_s[column][at]) for column in comm_columns},
                "collectives": [
                    {
                        "kind": collective.kind,
                        "axis": collective.axis,
                        "bytes": float(np.ravel(value_of(collective.bytes, values))[0]),
                        "tensor": collective.tensor,
                        "panels": int(np.ravel(values["panels"])[0]) if collective.panelled else 1,
                    }
                    for collective in kernel.collectives[direction]
                ],
            }
        row["saved_bytes"] = float(np.ravel(value_of(kernel.saved_bytes, values))[0])
        kernels.append(row)
    return kernels
