"""The rules that a plan breaks, and its time and memory compared with the fastest plan of its job."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from dsx.api.answer import Answer, paragraphs
from dsx.api.evaluation import as_row, broken_rules, plan_text, rule_names, rules_text
from dsx.api.job import Job, checked
from dsx.api.plan_like import PlanLike, given_plan
from dsx.api.plan_problem import plan_problem
from dsx.api.searched import limits_broken, no_optimizer_text, not_run_text, plan_not_run_text
from dsx.display.cost_tables import comparison_text, costs_text
from dsx.display.effects_text import effects_text, lacked_effects
from dsx.display.memory_text import margin_text
from dsx.display.placement import filled_text, placement_text
from dsx.display.plan_frame import plans_frame
from dsx.display.quantities import whole_plan_text
from dsx.display.stage_table import stages_data, stages_text
from dsx.errors import SpecError
from dsx.launching.text import counted_ends_text
from dsx.pricing.evaluate import Evaluation, evaluate_plan
from dsx.pricing.problem import Problem
from dsx.printable import printable
from dsx.search.fastest import SearchCounts, fastest
from dsx.search.search_spaces import spaces_of
from dsx.space.frameworks import read_framework
from dsx.space.layer_layout import LAYOUT
from dsx.space.plan import Plan
from dsx.spec.framework import FrameworkSpec
from dsx.spec.load import Given
from dsx.spec.model import has_experts
from dsx.units import counted, format_quantity

if TYPE_CHECKING:
    import pandas as pd


_FEW = 0.1  # relative differences below it are said in percent
_SAME = 1e-9  # relative difference of step times that rounding alone may make


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Answer):
    """A priced plan, the rules that it breaks, and the fastest plan of the same job and strategy."""

    problem: Problem
    priced: Evaluation
    fastest: Mapping[str, Any] | None  # its `plan`, and its costs by column; None if none fits
    counts: SearchCounts  # number of candidates of the search, and of those that were priced
    framework: FrameworkSpec  # whose plans it is compared with, or, if it does not run the strategy, with all plans

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
    def reject(self) -> tuple[str, ...]:
        """The names of the rules that the plan breaks; memory is one of them."""
        return tuple(violation.reason.name for violation in self.priced.broken)

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The plan and the fastest one as rows, with the columns of a result set; units in `attrs`."""
        cluster = self.problem.cluster.name
        fastest = [{**self.fastest, "hardware": {"cluster": cluster}}] if self.fastest else []
        return plans_frame([as_row(self.priced, cluster), *fastest], rule_names(self.problem))

    @property
    def not_run(self) -> dict[str, Any]:
        """The fewest choices of the plan that would have to change for the framework to run it."""
        return limits_broken(self.framework, has_experts(self.problem.model.dimensions), self.plan)

    @property
    def fits(self) -> bool:
        """Whether the plan fits in memory, and gives every rank a part of each dimension."""
        return self.priced.fits

    @property
    def broken(self) -> dict[str, str]:
        """The rules that the plan breaks, by name: the cause, and the nearest value that obeys the rule."""
        return broken_rules(self.priced)

    def _data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        priced = self.priced
        violations = [{"reason": one.reason.name, "detail": one.detail} for one in priced.broken]
        data: dict[str, object] = {"plan": dict(priced.plan), **priced.costs, "fits": priced.fits}
        data |= {"reject": [one["reason"] for one in violations]}
        data["lacks"] = lacked_effects(self.problem.assumptions_spec, self.plan)
        data |= {"stages": stages_data(priced.plan, priced.stages)} if priced.stages else {}
        best = self.fastest and {**self.fastest, "plan": dict(self.fastest["plan"])}
        data |= {"why": violations, "best": best, "candidates": self.counts.candidates}
        return data | {"framework": self.framework.name, "not_run": self.not_run}

    def __str__(self) -> str:
        priced = self.priced
        number = len(priced.broken)
        rejected = f"is rejected, for {number} reason{'s' if number > 1 else ''}:"
        head = [
            plan_text(self.problem, priced.plan),
            filled_text(priced.plan, priced.filled),
            counted_ends_text(priced.plan, self.problem),
            rules_text(priced, rejected, "fits, and breaks no rule."),
            margin_text(priced.costs["peak_bytes"], self.problem) if priced.fits else "",
        ]
        return paragraphs(
            [
                "\n".join(filter(None, head)),
                placement_text(priced.plan, self.problem),
                costs_text(priced.costs),
                effects_text(self.problem.assumptions_spec, self.plan),
                stages_text(priced.plan, priced.stages) if priced.stages else "",
                self._compared_with_fastest(),
            ]
        )

    def _compared_with_fastest(self) -> str:
        fastest, name = self.fastest, printable(self.framework.name)
        not_run = plan_not_run_text(self.framework, self.not_run)
        other = f"{not_run} " if not_run else ""
        all_run = self.framework.unlimited or "strategy" in self.not_run
        runs = "" if all_run else f" that {name} runs"
        searched = f"{counted(self.counts.candidates, 'candidate')} of this job and strategy{runs}"
        if margin := self.problem.assumptions_spec.memory_margin:
            searched = f"{searched}, with a memory margin of {margin:.2g},"
        if fastest is None:
            return f"{other}Of {searched} none fits."
        if all(fastest["plan"].get(column) == self.plan.get(column) for column in ("candidate", LAYOUT)):
            return f"It is the fastest of {searched.removesuffix(',')}."
        takes = f"{other}The fastest of {searched} takes {format_quantity(fastest['step_time_s'], 's')}"
        if math.isnan(self.costs["mfu"]):  # its seconds are not those of a step
            return f"{takes} ({whole_plan_text(fastest['plan'])})."
        ratio = self.priced.costs["step_time_s"] / fastest["step_time_s"]
        longer = f"{ratio:.3g} times as long"
        if abs(ratio - 1) < _FEW:
            more = f"{100 * abs(ratio - 1):.2g} % {'longer' if ratio > 1 else 'less'}"
            longer = "as long" if abs(ratio - 1) < _SAME else more
        return (
            f"{takes} ({whole_plan_text(fastest['plan'])}); "
            f"this plan takes {longer}.{self._resolution(ratio)}\n\n"
            f"{comparison_text(self.costs, fastest)}"
        )

    def _resolution(self, ratio: float) -> str:
        resolution = self.problem.assumptions_spec.resolution
        if resolution is None or not 1 + _SAME < ratio <= 1 + resolution:
            return ""
        return f" That is within {100 * resolution:.2g} %, the resolution of the measurements."


def why(
    job: Job,
    plan: PlanLike | None = None,
    *,
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    framework: Given | None = None,
    **choices: object,
) -> Explanation:
    """Explain a plan: the rules that it breaks, its time, its memory, and the fastest plan of the same job.

        print(dsx.why(job, "tp=16 pp=4 dp=16"))

    The fastest plan is one that `framework` runs, and both are priced with its software, as of `best`. Other arguments
    are those of `evaluate`. Raises PlanError for an invalid plan, UnknownNameError or SpecError for a framework that
    cannot be read or does not run the strategy.
    """
    job = checked(job).run_by(framework)
    given = given_plan(plan, choices, job)
    settings, cut = given.cut(partition)
    job = given.of_job(job)
    problem = plan_problem(job, settings, given.strategy if strategy is None else strategy, cut)
    priced = evaluate_plan(problem, settings, job.num_gpus, job.global_batch_size)
    return explained(problem, priced, None if framework is None else read_framework(framework))


def explained(problem: Problem, priced: Evaluation, framework: FrameworkSpec | None = None) -> Explanation:
    """Return a priced plan with the fastest one of its job that a framework runs, by default the assumption set's.

    If that of the assumption set does not run the strategy, it is the fastest one of all. Raises SpecError if a given
    framework does not.
    """
    strategy, experts = problem.strategies[0], has_experts(problem.model.dimensions)
    compared = framework or problem.framework or read_framework(problem.assumptions_spec.of_framework)
    optimizer = problem.assumptions_spec.optimizer
    if framework and not framework.with_optimizer(optimizer).runs:
        raise SpecError(no_optimizer_text(framework, optimizer))
    compared = compared.with_optimizer(optimizer)
    if compared.runs_strategy(strategy, experts):
        problem = problem.run_by(compared)
        compared = problem.framework or compared
    elif framework:
        raise SpecError(f"strategy {strategy}: {not_run_text(framework, strategy, experts)}")
    spaces = spaces_of([problem], priced.plan["num_gpus"], priced.plan["global_batch_size"], {})
    found = fastest(spaces, 1)
    return Explanation(problem, priced, next(iter(found.plans), None), found.counts, compared)
