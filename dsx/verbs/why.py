"""``dsx why``: the rules that a plan breaks, and its time and memory beside those of the fastest plan of its job."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from dsx.config.framework_file import FrameworkSpec
from dsx.config.load import Given
from dsx.config.model_file import has_experts
from dsx.errors import SpecError, file_path
from dsx.plans.frameworks import read_framework
from dsx.plans.layer_layout import LAYOUT
from dsx.pricing.one_plan import PricedPlan, price_plan
from dsx.pricing.problem import Problem
from dsx.search.fastest import SearchCounts, fastest, spaces_of
from dsx.tables.format import whole_plan_text
from dsx.tables.plans import margin_text, placement_text, plans_frame
from dsx.tables.terms import comparison_text, costs_text, effects_text, stages_text
from dsx.text import Data, DataFrame, DataView, printable
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import paragraphs
from dsx.verbs.evaluate import Evaluation, as_row
from dsx.verbs.job import Job
from dsx.verbs.plan import PlanLike, Row, plan_request
from dsx.verbs.searched import limits_broken, no_optimizer_text, not_run_text, plan_not_run_text
from dsx.verbs.show import Hardware, row_of

_FEW = 0.1  # relative differences below it are said in percent
_SAME = 1e-9  # relative difference of step times that rounding alone may make


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Evaluation):
    """A priced plan, the rules that it breaks, and the fastest plan of the same job and strategy.

    The framework is that whose plans it is compared with, or, if that does not run the strategy, with all plans.
    """

    fastest: DataView | None = None  # its `plan`, and its costs by column; None if none fits
    counts: SearchCounts = field(kw_only=True)  # candidates of the search, and those of them that were priced

    @cached_property
    def frame(self) -> DataFrame:
        """The plan and the fastest one as rows, with the columns of a result set; units in `attrs`."""
        cluster = self.problem.cluster.name
        fastest = [{**self.fastest, "hardware": {"cluster": cluster}}] if self.fastest else []
        return plans_frame([as_row(self.priced, cluster), *fastest], [rule.name for rule in self.problem.reasons])

    @property
    def not_run(self) -> Data:
        """The fewest choices of the plan that would have to change for the framework to run it."""
        return limits_broken(self.framework, has_experts(self.problem.model.dimensions), self.plan)

    def _data(self) -> Data:
        violations = [{"reason": name, "detail": detail} for name, detail in self.broken.items()]
        best = self.fastest and {**self.fastest, "plan": self.fastest["plan"].data}
        return self._priced_data() | {"why": violations, "best": best, "candidates": self.counts.candidates}

    def __str__(self) -> str:
        number = len(self.priced.broken)
        rejected = f"is rejected, for {number} reason{'s' if number > 1 else ''}:"
        margin = margin_text(self.costs["peak_bytes"], self.problem) if self.fits else ""
        head = [*self._title(), self._rules_text(rejected, "fits, and breaks no rule."), margin]
        terms = [placement_text(self.plan, self.problem), costs_text(self.costs)]
        terms += [effects_text(self.problem.assumptions_spec, self.plan), stages_text(self.plan, self.priced.stages)]
        return paragraphs(["\n".join(filter(None, head)), *terms, self._compared_with_fastest()])

    def _compared_with_fastest(self) -> str:
        fastest, spec, costs = self.fastest, self.problem.assumptions_spec, self.costs
        not_run = plan_not_run_text(self.framework, self.not_run)
        other = f"{not_run} " if not_run else ""
        all_run = self.framework.unlimited or "strategy" in self.not_run
        runs = "" if all_run else f" that {printable(self.framework.name)} runs"
        cuts = "optimal" if self.problem.optimal_cuts else "even"
        of = f"of this job with strategy {printable(self.problem.strategies[0])} and {cuts} cuts"
        searched = f"{counted(self.counts.candidates, 'candidate')} {of}{runs}"
        margin = f", with a memory margin of {spec.memory_margin:.2g}" if spec.memory_margin else ""
        within = f"{searched}{margin}{',' if margin else ''}"
        if fastest is None:
            return f"{other}Of {within} none fits."
        if all(fastest["plan"].get(column) == self.plan.get(column) for column in ("candidate", LAYOUT)):
            return f"It is the fastest of {searched}{margin}."
        plan = whole_plan_text(fastest["plan"])
        takes = f"{other}The fastest of {within} takes {format_quantity(fastest['step_time_s'], 's')} ({plan})"
        if math.isnan(costs["mfu"]):  # its seconds are not those of a step
            return f"{takes}."
        ratio = costs["step_time_s"] / fastest["step_time_s"]
        longer = f"{ratio:.3g} times as long"
        if abs(ratio - 1) < _FEW:
            longer = f"{100 * abs(ratio - 1):.2g} % {'longer' if ratio > 1 else 'less'}"
        if abs(ratio - 1) < _SAME:
            longer = "as long"
        resolution = ""
        if spec.resolution is not None and 1 + _SAME < ratio <= 1 + spec.resolution:
            resolution = f" That is within {100 * spec.resolution:.2g} %, the resolution of the measurements."
        more = "dsx best searches all strategies and cuts."
        return f"{takes}; this plan takes {longer}.{resolution} {more}\n\n{comparison_text(costs, fastest)}"


def why(
    job: Job,
    plan: PlanLike | None = None,
    *,
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    framework: Given | None = None,
    **choices: object,
) -> Explanation:
    """Explain a plan: the rules that it breaks, its time, its memory.

    The answer compares it with the fastest plan of the same job.

        print(dsx.why(job, "tp=16 pp=4 dp=16"))

    The fastest plan is one that `framework` runs, and both are priced with its software, as of `best`. Other arguments
    are those of `evaluate`. Raises PlanError for an invalid plan, UnknownNameError or SpecError for a framework that
    cannot be read or does not run the strategy.
    """
    request = plan_request(job, plan, choices, strategy, partition, framework)
    frame = None if framework is None else read_framework(framework)
    return explained(request.job, request.problem, request.priced(), frame)


def explained(job: Job, problem: Problem, priced: PricedPlan, framework: FrameworkSpec | None = None) -> Explanation:
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
    answer = fastest(spaces, 1)
    plan = next(iter(answer.plans), None)
    return Explanation(job, problem, priced, compared, fastest=plan, counts=answer.counts)


def why_row(folder: str | Path, candidate: int | str | Row, hardware: Hardware = ()) -> Explanation:
    """Explain a row of a result set: the rules that it breaks, its time, its memory, and the fastest of its job.

        dsx.why_row("results/sweep", df.iloc[0])
        dsx.why_row("results/sweep", 8151892079365825710, {"device.hbm_capacity": "80 GB"})

    Args:
        folder: the folder of the result set.
        candidate: its id, or the row itself as `dsx.load` gives it.
        hardware: the cluster or the what-if values of the row, if the sweep varies them: a mapping, with numbers in SI
            units, or a list such as ["device.hbm_capacity=80 GB"].

    Raises InputError if there is no such row, or several; StoreError if the set cannot be read.
    """
    row = row_of(file_path("folder", folder), candidate, hardware)
    sizes = (row.plan["num_gpus"], row.plan["global_batch_size"], row.plan["sequence_length"])
    problem = row.problem
    return explained(Job.of(row.inputs, *sizes), problem, price_plan(problem, row.plan))
