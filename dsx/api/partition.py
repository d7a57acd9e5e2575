"""The fastest plan of a job, each plan with its optimal cut of layers into pipeline stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsx.api.answer import Answer, paragraphs
from dsx.api.arguments import strategy_names, watcher
from dsx.api.best import searched_text
from dsx.api.infeasible import why_nothing_fits
from dsx.api.job import Job, checked, with_margin
from dsx.api.limits import LimitLike, given_limits
from dsx.api.plan_like import PlanLike, given_plan
from dsx.api.searched import Searched, check_fixed, left_out_text, searched
from dsx.display.job_text import only_text
from dsx.display.memory_text import tight_text
from dsx.display.placement import placement_text
from dsx.display.quantities import quantity
from dsx.display.stage_table import bottleneck, stages_data, stages_text
from dsx.errors import InputError, NothingFeasible
from dsx.launching.launch import Launch
from dsx.launching.text import launch_data, launch_of, launch_text
from dsx.pricing.evaluate import columns_of
from dsx.pricing.plan_stages import PlanStage, stages_of_plan
from dsx.pricing.problem import Problem
from dsx.printable import printable
from dsx.progress import Watch, progress, working
from dsx.remarks import remark
from dsx.search.fastest import SearchCounts, fastest, problems_of
from dsx.search.search_spaces import spaces_of
from dsx.space.boxes import Limitation, Selection
from dsx.space.choices import BY_NAME
from dsx.space.layer_layout import LAYOUT, layers_of_chunks
from dsx.space.limits import OPTIMAL
from dsx.space.plan import Plan
from dsx.space.plan_rules import OPTIMAL_SCHEDULES, optimal_cut_covers
from dsx.space.plan_settings import fixed_settings
from dsx.spec.load import Given
from dsx.units import format_quantity


@dataclass(frozen=True, eq=False, repr=False)
class Partition(Answer):
    """The fastest plan, with its optimal cut."""

    job: Job  # the job that was priced
    problem: Problem
    searched: Searched
    left_out: Mapping[str, str]  # strategies that a search without named ones left out, and why
    priced: dict[str, Any]  # the `plan`, and its costs by column
    stages: tuple[PlanStage, ...]  # first to last: layers, times, memory, and the link before each
    counts: SearchCounts  # number of candidates, and of those that were cut
    fix: Mapping[str, Sequence[int | str]] = field(default_factory=dict)  # values of the choices that the caller fixed
    limit: Limitation = field(default_factory=dict)  # bounds of the choices that the caller limited

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that were searched."""
        return tuple(name for name in self.searched.problem.strategies if name not in self.left_out)

    @property
    def plan(self) -> Plan:
        """Every choice by its column; `stage_layers` are the layers of the stages."""
        return self.priced["plan"]

    @property
    def step_time_s(self) -> float:
        """Seconds of one step."""
        return self.priced["step_time_s"]

    @property
    def launch(self) -> Launch:
        """The Megatron-LM flags of the plan."""
        return launch_of(self.plan, self.problem, self.job.cluster.device)

    def plot(self, path: str | Path) -> None:
        """Draw the stages into a file; its suffix is the format.

        Raises InputError for a format that cannot be written, StoreError if the file cannot be.
        """
        from dsx.results.plot.file import save
        from dsx.results.plot.stage_bars import placement_of, stages

        title = (
            f"{self.job.model.name} on {self.job.num_gpus} x {self.job.cluster.label}: "
            f"step {format_quantity(self.step_time_s, 's')}\n{self.plan.text}"
        )
        tiers = [tier.name for tier in self.problem.cluster.network.tiers]
        save(stages(self.stages, placement_of(self.plan, tiers), title), path)
        remark(f"wrote {path}")

    def _data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        counts = {"candidates": self.counts.candidates, "cut": self.counts.cut}
        counts |= {"framework": self.searched.framework.name, "strategies": list(self.strategies)}
        counts |= {"left_out": dict(self.left_out)}
        counts |= {"limit": {name: [*map(str, bounds)] for name, bounds in self.limit.items()}}
        data = self.priced | {"plan": dict(self.plan), "bottleneck_s": bottleneck(self.stages).load_s, **counts}
        return data | {"stages": stages_data(self.plan, self.stages), "launch": launch_data(self.launch)}

    def __str__(self) -> str:
        plan, priced = self.plan, self.priced
        slowest = format_quantity(bottleneck(self.stages).load_s, "s")
        state = f"schedule={plan['schedule']} zero_stage={plan['zero_stage']} recompute={plan['recompute']}"
        several = f"{printable(plan['strategy'])}: " if len(self.strategies) > 1 else ""
        head = [
            *searched_text(self.searched, self.strategies, self.job, self.counts),
            *filter(None, [left_out_text(self.left_out), only_text(self.fix, self.limit)]),
            f"step {quantity('step_time_s', self.step_time_s)}, bottleneck {slowest} of a microbatch, of which a "
            f"replica has {plan['num_microbatches']}; bubble {quantity('bubble_s', priced['bubble_s'])}, memory "
            f"{quantity('peak_bytes', priced['peak_bytes'])}",
            f"{several}{plan.text} ({state})",
            *filter(None, [tight_text(priced, "the plan", self.job.cluster.device.hbm_capacity, self.job.assumptions)]),
        ]
        return paragraphs(
            [
                "\n".join(head),
                placement_text(plan, self.problem),
                stages_text(plan, self.stages),
                launch_text(self.launch, "the plan"),
            ]
        )


def _check_covered(fix: Selection) -> None:
    """Raise InputError if a search fixes the schedule to one that has no optimal cut."""
    schedules = fix.get("schedule", ())
    if schedules and not optimal_cut_covers([BY_NAME["schedule"].code(one) for one in schedules]).any():
        stated = ",".join(map(str, schedules))
        raise InputError(
            f"schedule={stated}: optimal cuts are known for {OPTIMAL_SCHEDULES} only; 'best' searches it with even cuts"
        )


def partition(
    job: Job,
    fix: PlanLike | None = None,
    *,
    limit: LimitLike | None = None,
    strategy: str | Sequence[str] | None = None,
    framework: Given | None = None,
    memory_margin: float | None = None,
    watch: Watch | None = None,
    **choices: object,
) -> Partition:
    """Return the fastest plan of a job, where each plan has its optimal cut of layers into stages; exact.

        dsx.partition(job, tp=[4, 8], zero_stage=1).stages

    Args:
        job: the model, the cluster, the GPUs and the batch.
        fix: columns that are fixed to these values, as a text or a mapping: "tp=8 zero_stage=1,3", {"tp": [4, 8]}.
        limit: bounds of columns, with the grammar of `limit` in a sweep: "tp<=8 pp>=2", ["tp<=8", "pp>=2"],
            {"tp": "<=8", "pp": [">=2", "<=16"]}.
        strategy: a name or a .layer file, or several; by default all that the framework runs.
        framework: what runs the plans: a name, a YAML file or its content; "any" for all plans. By default that of the
            assumption set.
        memory_margin: keep only plans that would fit if they needed this share more memory; by default that of the
            assumption set.
        watch: called with the candidates done, their total and the kind of work; by default a bar is shown.
        choices: further fixed columns.

    Raises PlanError for a value that no plan can have, InputError for a limit that is none or contradicts `fix`,
    NothingFeasible if no plan fits.
    """
    watch, job = watcher(watch), with_margin(checked(job), memory_margin).run_by(framework)
    given = given_plan(fix, choices, job)
    names = strategy_names(given.strategy if strategy is None else strategy)
    found = searched(job.inputs, names, framework, job.sequence_length)
    (stated,) = problems_of(OPTIMAL, found.problem)
    fixed = fixed_settings(given.settings, job.num_gpus, stated.limits())
    _check_covered(fixed)
    check_fixed(found, fixed, str)
    limits = given_limits(limit, fixed)
    problem = stated.searching(fixed)
    with working("enumerating", watch):
        spaces = spaces_of([problem], job.num_gpus, job.global_batch_size, fixed, limits)
        size = spaces.size
    with progress(size, "pricing", watch) as advance:
        answer = fastest(spaces, 1, advance)
    if not answer.plans:
        raise NothingFeasible(why_nothing_fits(spaces, stated, fixed, limits, watch).why)
    (plan,) = answer.plans
    layers = layers_of_chunks(plan["plan"][LAYOUT], problem.limits().chain)
    left_out = found.left_out(spaces.spaces)
    cut = stages_of_plan(problem, columns_of(problem, plan["plan"]), layers)
    return Partition(job, problem, found, left_out, plan, cut, answer.counts, fixed, limits)
