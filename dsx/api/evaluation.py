"""One plan priced: what it takes, whether it fits, and every operator of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from dsx.api.answer import Answer, paragraphs
from dsx.api.job import Job, checked
from dsx.api.plan_like import PlanLike, given_plan
from dsx.display.costs import costs_text, operators_text
from dsx.display.job import job_text, step_text
from dsx.display.launch import launch_of
from dsx.display.operator_times import coverage_data, coverage_text, shapes_data, shapes_text
from dsx.display.placement import filled_text, placement_text
from dsx.display.stages import stages_data, stages_text
from dsx.pricing.evaluate import Evaluation as Priced
from dsx.pricing.evaluate import evaluate_plan, operator_costs
from dsx.pricing.measured_kernels import coverage, kernels_to_measure
from dsx.pricing.problem import Problem
from dsx.printable import printable
from dsx.results.launch_flags import Launch
from dsx.space.plan import Plan

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Answer):
    """A priced plan."""

    job: Job  # what was asked
    problem: Problem
    priced: Priced
    with_operators: bool = False  # whether the operators are part of what is printed

    @property
    def plan(self) -> Plan:
        """Every choice by its column, with the candidate id."""
        return self.priced.plan

    @property
    def costs(self) -> Mapping[str, float]:
        """The costs by column; seconds and bytes."""
        return self.priced.costs

    @property
    def step_time_s(self) -> float:
        """Seconds of one step."""
        return self.costs["step_time_s"]

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest GPU."""
        return self.costs["peak_bytes"]

    @property
    def fits(self) -> bool:
        """Whether the plan fits in memory, and leaves every rank something."""
        return self.priced.fits

    @property
    def reject(self) -> tuple[str, ...]:
        """The names of the rules that the plan breaks, memory among them."""
        return tuple(violation.reason.name for violation in self.priced.broken)

    @property
    def broken(self) -> dict[str, str]:
        """The rules that the plan breaks, by name: what breaks each, and the nearest value that obeys it."""
        return broken_rules(self.priced)

    @property
    def launch(self) -> Launch:
        """The Megatron-LM flags of the plan."""
        return launch_of(self.plan, self.problem, self.job.cluster.device)

    @cached_property
    def operators(self) -> "pd.DataFrame":
        """The kernels of one layer for one microbatch, a row for each and direction; units in `attrs`."""
        import pandas as pd

        kernels = operator_costs(self.problem, self.plan)
        rows = [
            {"kernel": kernel["name"], "direction": direction, "saved_bytes": kernel["saved_bytes"]}
            | {name: value for name, value in kernel[direction].items() if name != "collectives"}
            for kernel in kernels
            for direction in ("forward", "backward")
        ]
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = {name: _unit(name) for name in frame.columns if _unit(name)}
        return frame

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        priced, covered = self.priced, coverage(self.problem, self.plan)
        data: dict[str, Any] = {"plan": dict(self.plan), **self.costs, "fits": self.fits, "reject": list(self.reject)}
        data |= {"stages": stages_data(self.plan, priced.stages)} if priced.stages else {}
        if self.with_operators:
            data["operators"] = operator_costs(self.problem, self.plan)
            data["shapes"] = shapes_data(kernels_to_measure(self.problem, self.plan))
        return data | ({"operator_times": coverage_data(covered)} if covered else {})

    def __str__(self) -> str:
        priced, covered = self.priced, coverage(self.problem, self.plan)
        filled = filled_text(self.plan, priced.filled)
        parts = [
            "\n".join(filter(None, (plan_text(self.problem, self.plan), filled))),
            placement_text(self.plan, self.problem),
            costs_text(self.costs),
            stages_text(self.plan, priced.stages) if priced.stages else "",
            rules_text(priced, "rejected:", "fits, and breaks no rule"),
            coverage_text(covered) if covered else "",
        ]
        if self.with_operators:
            parts.append(operators_text(operator_costs(self.problem, self.plan)))
            parts.append(shapes_text(shapes_data(kernels_to_measure(self.problem, self.plan))))
        return paragraphs(parts)


def _unit(column: str) -> str:
    return {"s": "s", "bytes": "bytes", "flops": "FLOP"}.get(column.rpartition("_")[2], "")


def plan_text(problem: Problem, plan: Plan) -> str:
    """Return a plan, and the job that it is of."""
    strategy = printable(problem.strategies[0])
    step = step_text(plan["global_batch_size"], plan["sequence_length"])
    return f"{job_text(problem, plan['num_gpus'])}, {strategy}: {plan.text}\n{step}"


def broken_rules(priced: Priced) -> dict[str, str]:
    """Return the rules that a plan breaks, by name, with what breaks each."""
    return {violation.reason.name: violation.detail for violation in priced.broken}


def rules_text(priced: Priced, rejected: str, passed: str) -> str:
    """Return which rules a plan breaks, behind the line `rejected`, or the line `passed`."""
    lines = [f"  {violation.reason.name}: {violation.detail}" for violation in priced.broken]
    return "\n".join([rejected, *lines]) if lines else passed


def evaluate(
    job: Job,
    plan: PlanLike | None = None,
    *,
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    operators: bool = False,
    **choices: Any,
) -> Evaluation:
    """Price one plan, also one that breaks rules or does not fit.

        dsx.evaluate(job, tp=8, pp=4, dp=16, microbatch_size=2)
        dsx.evaluate(job, "tp=8 pp=4 dp=16 nvs.tp=8 recompute=full")
        dsx.evaluate(job, found.plan, recompute="full")          # a plan of a search, changed
        dsx.evaluate(job, found.frame.iloc[2])                   # a row of a result set

    Args:
        job: what is asked.
        plan: a text as the command line takes it, its settings one by one, a mapping of columns, a `Plan`, or a row of
            a DataFrame. Of the last two only the choices count: the job says the GPUs, the batch and the machine.
        strategy: a name or a .layer file; by default that of the plan, or else of the assumption set.
        partition: how layers are cut into the stages of the pipeline: evenly, or as is best; by default as the plan
            was cut, or else evenly.
        operators: whether the operators of a layer are part of what is printed.
        choices: columns of the plan, in place of what a mapping or a row has there. `tp_nvs` is the share of tp in a
            fast domain. What no one says is as the command line has it (docs/choices.md): degrees are 1, shares are
            filled in rank order, and the rest is what the assumption set holds fixed.

    Raises PlanError for what is no plan of the job; one that breaks rules is priced, and `reject` names them.
    """
    given = given_plan(plan, choices, checked(job))
    problem = job.problem(strategy or given.strategy, partition or given.partition)
    return Evaluation(
        job, problem, evaluate_plan(problem, given.settings, job.num_gpus, job.global_batch_size), operators
    )
