"""``dsx evaluate``: the time and memory of one plan, whether it fits, and its operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dsx.config.framework_file import FrameworkSpec
from dsx.config.load import Given
from dsx.cost.interval import unlike
from dsx.launching.request import LaunchSettings
from dsx.launching.writers import counted_ends_text, launch_of
from dsx.plans.frameworks import read_framework
from dsx.plans.plan import Plan
from dsx.pricing.measured_share import coverage, kernels_to_measure
from dsx.pricing.one_plan import PricedPlan as Priced
from dsx.pricing.one_plan import operator_costs
from dsx.pricing.problem import Problem
from dsx.tables.format import job_text, step_text, trained_text, whole_plan_text
from dsx.tables.plans import extrapolated_text, margin_text, placement_text, plans_frame
from dsx.tables.terms import (
    costs_text,
    coverage_data,
    coverage_text,
    effects_text,
    lacked_effects,
    operators_text,
    shapes_data,
    shapes_text,
    stages_data,
    stages_text,
)
from dsx.text import Data, DataFrame, printable
from dsx.verbs.arguments import Answer, paragraphs, with_units
from dsx.verbs.job import Job
from dsx.verbs.plan import PlanLike, plan_request
from dsx.verbs.searched import limits_broken_by, plan_not_run_text, run_by_none


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Answer):
    """A priced plan."""

    job: Job  # the job that was priced
    problem: Problem
    priced: Priced
    framework: FrameworkSpec  # that the caller names, else that of the assumption set
    with_operators: bool = False  # whether the operators are printed too

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
        """Bytes of the fullest GPU."""
        return self.costs["peak_bytes"]

    @property
    def fits(self) -> bool:
        """Whether the plan fits in memory, and gives every rank a part of each dimension."""
        return self.priced.fits

    @property
    def reject(self) -> tuple[str, ...]:
        """The names of the rules that the plan breaks; memory is one of them."""
        return tuple(self.broken)

    @property
    def broken(self) -> dict[str, str]:
        """The rules that the plan breaks, by name: the cause, and the nearest value that obeys the rule."""
        return broken_rules(self.priced)

    @property
    def not_run(self) -> Data:
        """The fewest choices that would have to change for the framework to run the plan."""
        return limits_broken_by(self.problem, self.framework, self.plan)

    @property
    def launch(self) -> LaunchSettings:
        """The Megatron-LM flags of the plan."""
        return launch_of(self.plan, self.problem, self.job.cluster.device)

    @cached_property
    def frame(self) -> DataFrame:
        """The plan as a row, with the columns of a result set; units in `attrs`."""
        names = [reason.name for reason in self.problem.reasons]
        return plans_frame([as_row(self.priced, self.job.cluster.name)], names)

    @cached_property
    def operators(self) -> DataFrame:
        """The kernels of one layer for one microbatch, one row per kernel and direction; units in `attrs`."""
        return with_units(
            [
                {"kernel": kernel["name"], "direction": direction, "saved_bytes": kernel["saved_bytes"]}
                | {name: value for name, value in kernel[direction].items() if name != "collectives"}
                for kernel in operator_costs(self.problem, self.plan)
                for direction in ("forward", "backward")
            ]
        )

    def _data(self) -> Data:
        covered = coverage(self.problem, self.plan)
        data = self._priced_data()
        data["extrapolated"] = unlike(self.problem.likeness, self.problem.assumptions_spec.trained_on)
        if self.with_operators:
            data["operators"] = operator_costs(self.problem, self.plan)
            data["shapes"] = shapes_data(kernels_to_measure(self.problem, self.plan))
        return data | ({"operator_times": coverage_data(covered)} if covered else {})

    def _priced_data(self) -> Data:
        """Return the plan, its costs and what it lacks as plain data."""
        data: Data = {"plan": self.plan.data, **self.costs, "fits": self.fits, "reject": list(self.reject)}
        data |= {"lacks": lacked_effects(self.problem.assumptions_spec, self.plan)}
        data |= {"stages": stages_data(self.plan, self.priced.stages)} if self.priced.stages else {}
        return data | {"framework": self.framework.name, "not_run": self.not_run}

    def _title(self) -> list[str]:
        """Return lines on the plan and its job, and on what was filled in."""
        strategy = printable(self.problem.strategies[0])
        filled = " ".join(f"{name}={share}" for name, share in self.priced.filled.items())
        lines = [
            f"{job_text(self.problem, self.plan['num_gpus'])}, {strategy}: {whole_plan_text(self.plan)}",
            step_text(self.plan["global_batch_size"], self.plan["sequence_length"]),
            trained_text(self.job.model),
            f"{filled} filled in rank order, {self.plan['order']}" if filled else "",
            counted_ends_text(self.plan, self.problem),
        ]
        return [*filter(None, lines)]

    def _rules_text(self, rejected: str, passed: str) -> str:
        """Return the line `rejected` and the rules that the plan breaks; the line `passed` if it breaks none."""
        lines = [f"  {violation.reason.name}: {violation.detail}" for violation in self.priced.broken]
        return "\n".join([rejected, *lines]) if lines else passed

    def __str__(self) -> str:
        covered, spec = coverage(self.problem, self.plan), self.problem.assumptions_spec
        parts = [
            "\n".join(self._title()),
            placement_text(self.plan, self.problem),
            costs_text(self.costs),
            effects_text(spec, self.plan),
            extrapolated_text(self.problem.likeness, spec.trained_on),
            stages_text(self.plan, self.priced.stages),
            self._rules_text("rejected:", "fits, and breaks no rule"),
            run_by_none([self.plan]) if self.framework.unlimited else plan_not_run_text(self.framework, self.not_run),
            margin_text(self.costs["peak_bytes"], self.problem) if self.fits else "",
            coverage_text(covered) if covered else "",
        ]
        if self.with_operators:
            parts.append(operators_text(operator_costs(self.problem, self.plan)))
            parts.append(shapes_text(shapes_data(kernels_to_measure(self.problem, self.plan))))
        return paragraphs(parts)


def as_row(priced: Priced, cluster: str) -> Data:
    """Return a priced plan in the form that `plans_frame` takes."""
    return {"plan": priced.plan, "hardware": {"cluster": cluster}, **priced.costs, "reject": [*broken_rules(priced)]}


def broken_rules(priced: Priced) -> dict[str, str]:
    """Return the rules that a plan breaks, by name, each with its cause."""
    return {violation.reason.name: violation.detail for violation in priced.broken}


def evaluate(
    job: Job,
    plan: PlanLike | None = None,
    *,
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    operators: bool = False,
    framework: Given | None = None,
    **choices: object,
) -> Evaluation:
    """Price one plan, even if it breaks rules or does not fit.

        dsx.evaluate(job, tp=8, pp=4, dp=16, microbatch_size=2)
        dsx.evaluate(job, "tp=8 pp=4 dp=16 nvs.tp=8 recompute=full")
        dsx.evaluate(job, tp=8, pp=4, dp=16, stage_layers=[9, 9, 9, 7])
        dsx.evaluate(job, found.plan, recompute="full")          # a plan of a search, with a change
        dsx.evaluate(job, found.frame.iloc[2])                   # a row of a result set

    Args:
        job: the model, the cluster, the GPUs and the batch.
        plan: a text as on the command line, a list of settings, a mapping of columns, a `Plan`, or a row of a
            DataFrame. Of the last two only the choices are used: the job has the GPUs, the batch and the cluster.
        strategy: a name or a .layer file; by default that of the plan, else a default one of the assumption set, or of
            the framework if it runs none of these.
        partition: how layers are divided into pipeline stages: evenly, or by the optimal cut; by default as the
            `stage_layers` of the plan say, else evenly.
        operators: print the operators of a layer too.
        framework: what runs the plan, with its software: a name (dsx list frameworks) or a YAML file; by default
            that of the assumption set.
        choices: columns of the plan, which override those of a mapping or a row. `tp_nvs` is the share of tp in a fast
            domain. `stage_layers` are the layers of each stage, or of each of its chunks where `vpp` is above 1, as a
            list or as Megatron-LM's layout, "Et*3|t*4|t*3L". The defaults are those of the command line
            (docs/choices.md): degrees are 1, shares are filled in rank order, and the other choices are the fixed
            choices of the assumption set.

    Raises PlanError for an invalid plan. A plan that breaks rules is priced, and `reject` names the rules.
    """
    request = plan_request(job, plan, choices, strategy, partition, framework)
    job = request.job
    frame = read_framework(job.assumptions.of_framework if framework is None else framework, job.inputs.near)
    return Evaluation(job, request.problem, request.priced(), frame, operators)
