"""The stages of one plan with a layer layout: layers, times, memory, and the network link to each."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.pipeline import in_flight
from dsx.cost.stage_costs import StageCosts, sum_over_layers
from dsx.cost.stages import stages_between
from dsx.pricing.layers import price_keys
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import on_tiers, step_choices, take_rows
from dsx.space.choices import KEY_COLUMNS
from dsx.space.enumerate import Arrays


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage of a pipeline. Seconds are of one microbatch, forward and backward."""

    first_layer: int  # in the chain of embedding, body and head, counted from 0
    num_layers: int
    load_s: float
    compute_s: float  # of the load: kernels and their stalls
    comm_s: float  # of the load: exposed communication inside the stage
    recompute_s: float  # of the load: the recomputed forward
    in_flight: int  # microbatches in flight at most
    peak_bytes: float  # of one GPU
    link: str | None  # network tier of the link from the previous stage; None for the first stage


def stages_of_plan(problem: Problem, columns: Arrays, cut: np.ndarray) -> tuple[PlanStage, ...]:
    """Return the stages of a plan, given by all candidate columns [1], for the boundaries [L + 1] of its cut."""
    num_stages = int(columns["pp"][0])
    table = price_keys(problem, {name: columns[name] for name in KEY_COLUMNS})
    columns = on_tiers(problem, columns)
    only = np.zeros(1, dtype=np.int64)
    with jax.enable_x64(True):
        kinds = jax.tree.map(lambda leaf: np.asarray(take_rows(np.asarray(leaf), only, only)[..., 0]), table)
        tiers = [tier.name for tier in problem.cluster.network.middle]
        choices = step_choices(columns, lambda column: np.asarray(column[0], dtype=np.float64), tiers)
        cluster, assumptions = problem.at_point(0)
        workload = problem.workload
        costs = StageCosts(kinds, choices, workload.stack, workload.searched, cluster, assumptions)
        stages = stages_between(workload.stack, cut[: num_stages + 1].astype(np.float64))
        microbatches = jnp.broadcast_to(
            in_flight(stages.position, choices, workload.searched), jnp.shape(stages.position)
        )
        stalls = costs.stall_s or [0.0] * len(kinds)
        values = {
            "load_s": costs.load_s(stages),
            "compute_s": sum_over_layers(
                stages, [k.compute_s + k.memory_s + w for k, w in zip(kinds, stalls, strict=True)]
            ),
            "comm_s": sum_over_layers(stages, [k.tp_comm_s + k.cp_comm_s + k.ep_comm_s for k in kinds]),
            "recompute_s": sum_over_layers(stages, costs.recompute_s),
            "peak_bytes": costs.memory(stages, microbatches).peak_bytes,
        }
    *inner, outermost = [tier.name for tier in problem.cluster.network.tiers]
    per_unit = [(name, int(columns[f"pp_{name}"][0])) for name in inner]  # stages that share a unit of each tier
    return tuple(
        PlanStage(
            first_layer=int(cut[index]),
            num_layers=int(cut[index + 1] - cut[index]),
            in_flight=int(microbatches[index]),
            link=next((name for name, count in per_unit if index % count), outermost) if index else None,
            **{name: float(np.asarray(column)[index]) for name, column in values.items()},
        )
        for index in range(num_stages)
    )
