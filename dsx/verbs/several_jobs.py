"""``dsx best`` of several jobs: the fastest plan of each; they differ in their clusters, GPUs and batches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Literal

from dsx.config.load import Given
from dsx.errors import InputError, NothingFeasible
from dsx.plans.plan import Plan
from dsx.progress import Watch, each_once, progress
from dsx.results.ranked_by import FASTEST, Objective, Priced, objective_named, ranked_by_count
from dsx.search.fastest import ANY
from dsx.tables.format import WIDTH, parameters_text, quantity, wrapped
from dsx.tables.plans import choices_text, interval_text, with_choices
from dsx.text import Data, printable
from dsx.units import counted
from dsx.verbs.arguments import PricedPlans, counts, paragraphs, watcher
from dsx.verbs.best import BestPlans, Restricted, plans_of_roles
from dsx.verbs.job import Job, checked, with_margin
from dsx.verbs.plan import PlanLike
from dsx.verbs.searched import LimitLike

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem


@dataclass(frozen=True, eq=False, repr=False)
class SeveralJobs(PricedPlans):
    """The fastest plan of each job, ranked and grouped by GPUs."""

    job: Job  # that of the best plan; the first one if none fits
    objective: Objective  # what plans are ranked by
    answers: Sequence[BestPlans]  # the answer of each job, by cluster, GPUs and then batch, ascending

    @cached_property
    def priced(self) -> Sequence[Data]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The fastest plan of each job that has one, under `plan`, its costs by column, and its cluster in `hardware`.

        Plans of the same GPUs follow each other, the best first; so do numbers of GPUs, by their best plans.
        """
        with_plan = [(answer.job.cluster.name, answer.priced[0]) for answer in self.answers if answer.priced]
        fastest = [{**plan, "hardware": {"cluster": cluster}} for cluster, plan in with_plan]
        return ranked_by_count(fastest, self.objective)

    @property
    def infeasible(self) -> str:
        """Why no plan of any job fits; empty if one does."""
        return "" if self.priced else self.answers[-1].infeasible

    @property
    def would_fit(self) -> str:
        """What would fit beside the largest job where no plan of any does, found by more searches."""
        return "" if self.priced else self.answers[-1].would_fit

    @property
    def plan(self) -> Plan:
        """The best plan; raises NothingFeasible, with the reason, if there is none."""
        if not self.priced:
            raise NothingFeasible(self.infeasible)
        return self.priced[0]["plan"]

    @property
    def best(self) -> BestPlans:
        """The answer of the job of the best plan; raises NothingFeasible if there is none."""
        of = (self.priced[0]["hardware"]["cluster"], self.plan["num_gpus"], self.plan["global_batch_size"])
        return next(answer for answer in self.answers if (answer.job.cluster.name, *_sizes(answer.job)) == of)

    def _data(self) -> Data:
        searched = [list(_sizes(answer.job)) for answer in self.answers]
        data: Data = {"objective": self.objective.name, "clusters": self._clusters, "searched": searched}
        data |= {"infeasible": self.infeasible or None, "would_fit": self.would_fit or None}
        return data | {"plans": self._plans_data()}

    def __str__(self) -> str:
        if not self.priced:
            return self.infeasible
        without_plan = [answer.job for answer in self.answers if not answer.priced]
        where = ", ".join(f"{self._gpus(job)} with a batch of {job.global_batch_size:,}" for job in without_plan)
        best, (gpus, batch) = self.best.job, _sizes(self.best.job)
        cluster = f"--cluster {best.cluster.name} " if len(self._clusters) > 1 else ""
        alone = f"{cluster}--num-gpus {gpus} --global-batch-size {batch}"
        return paragraphs(
            [
                jobs_text(self.priced, self.best.problem, self.objective),
                no_faster_text(self.priced),
                wrapped(f"no plan fits on {where}") if where else "",
                choices_text(f"the best, on {self._gpus(best)} with a batch of {batch:,}", self.plan),
                wrapped(f"{alone} alone shows its simplest and its leanest plan too, and launch flags."),
            ]
        )

    @property
    def _clusters(self) -> list[str]:
        return [*dict.fromkeys(answer.job.cluster.name for answer in self.answers)]

    def _gpus(self, job: Job) -> str:
        of = f" of {printable(job.cluster.name)}" if len(self._clusters) > 1 else ""
        return f"{counted(job.num_gpus, 'GPU')}{of}"


def several_jobs(
    job: Job,
    num_gpus: int | Sequence[int] | None = None,
    global_batch_size: int | Sequence[int] | None = None,
    *,
    cluster: Sequence[Given] | None = None,
    objective: str = "tokens_per_s_per_gpu",
    fix: PlanLike | None = None,
    limit: LimitLike | None = None,
    strategy: str | Sequence[str] | None = None,
    framework: Given | None = None,
    partition: Literal["any", "even", "optimal"] = ANY,
    memory_margin: float | None = None,
    watch: Watch | None = None,
) -> SeveralJobs:
    """Search the fastest plan for each of some clusters, numbers of GPUs and batches, and rank them.

        found = dsx.several_jobs(job, [512, 1024], [1024, 2048])
        found = dsx.several_jobs(job, cluster=["h100-nvs8", "gb200-nvl72"])
        found.frame                                 # one row a job
        found.best                                  # the answer of `dsx.best` for the best job

    Args:
        job: the model; its cluster, GPUs and batch are those where none are given.
        num_gpus, global_batch_size: the values to combine.
        cluster: the clusters to combine them with, each as of `dsx.Job`.
        objective: what ranks the fastest plans of the jobs: tokens_per_s_per_gpu, tokens_per_s, step_time_s, mfu, or
            peak_bytes.
        fix, limit, strategy, framework, partition, memory_margin: as for `dsx.best`.
        watch: called with the jobs done, their total and the kind of work; by default a bar is shown.

    It is no error if no plan fits: `plans` is then empty, and `infeasible` says why. Raises what `dsx.best` raises, and
    UnknownNameError for an unknown objective.
    """
    watch, job = watcher(watch), with_margin(checked(job), memory_margin).run_by(framework)
    by = objective_named(objective)
    gpus = [job.num_gpus] if num_gpus is None else counts("num_gpus", num_gpus)
    batches = [job.global_batch_size] if global_batch_size is None else counts("global_batch_size", global_batch_size)
    restricted = Restricted(fix, limit, strategy, framework, partition, None)
    on = [job] if cluster is None else [job.replace(cluster=base) for base in cluster]
    if twice := [name for name, times in Counter(base.cluster.name for base in on).items() if times > 1]:
        raise InputError(f"--cluster {twice[0]} is named twice")
    jobs = [Job.of(base.inputs, *sizes, base.sequence_length) for base in on for sizes in product(gpus, batches)]
    answers = best_of_each(jobs, restricted, watch, "jobs")
    several = SeveralJobs(answers[0].job, by, answers)
    return SeveralJobs(several.best.job, by, answers) if several.priced else several


def best_of_each(jobs: Sequence[Job], restricted: Restricted, watch: Watch | None, what: str) -> list[BestPlans]:
    """Return the fastest plan of each job; the bar is that of the jobs, and none of candidates is shown."""
    answers: list[BestPlans] = []
    with each_once(), progress(len(jobs), what, watch) as advance:
        for job in jobs:
            answers.append(plans_of_roles(job, (FASTEST,), 1, restricted, lambda *_: None))
            advance(1)
    return answers


def _sizes(job: Job) -> tuple[int, int]:
    return job.num_gpus, job.global_batch_size


def jobs_text(plans: Sequence[Priced], problem: "Problem", objective: Objective) -> str:
    """Return the model, and a line for each job; `plans` has those of the same GPUs one after the other."""
    clusters = dict.fromkeys(plan["hardware"]["cluster"] for plan in plans)
    name = printable(problem.model.name)
    cluster = printable(" or ".join(clusters) if len(clusters) > 1 else problem.cluster.label)
    head = [
        f"{name} on {cluster}: {parameters_text(problem)}, sequences of {counted(problem.sequence_length, 'token')}",
        f"the fastest plan of each job, ranked by {objective.name}, those of the same GPUs together",
    ]
    rows: list[list[str]] = []
    previous: tuple[str, int] | None = None
    for plan in plans:
        choices, on = plan["plan"], plan["hardware"]["cluster"]
        is_repeated = (on, choices["num_gpus"]) == previous
        job = [*([] if len(clusters) == 1 else [on]), f"{choices['num_gpus']:,}"]
        step = [quantity("step_time_s", plan["step_time_s"])]
        step += [interval_text(plan["step_time_s_low"], plan["step_time_s_high"]) or "-"]
        step += [
            f"{plan['tokens_per_s_per_gpu']:,.0f}",
            *(quantity(name, plan[name]) for name in ("mfu", "peak_bytes")),
        ]
        shown = [""] * len(job) if is_repeated else job
        rows.append([*shown, f"{choices['global_batch_size']:,}", *step, choices["strategy"]])
        previous = on, choices["num_gpus"]
    columns = ["GPUs", "batch", "step", "80 % interval", "tokens/s/GPU", "MFU", "memory", "strategy"]
    header = [*([] if len(clusters) == 1 else ["cluster"]), *columns]
    return "\n".join([*map(wrapped, head), "", with_choices(plans, header, rows, WIDTH)])


def no_faster_text(plans: Sequence[Priced]) -> str:
    """Return which jobs are no faster than the same batch on fewer GPUs of the cluster; empty if all are."""
    lines: list[str] = []
    for plan in plans:
        cluster, batch = plan["hardware"]["cluster"], plan["plan"]["global_batch_size"]
        fewer = [
            other
            for other in plans
            if (other["hardware"]["cluster"], other["plan"]["global_batch_size"]) == (cluster, batch)
            and other["plan"]["num_gpus"] < plan["plan"]["num_gpus"]
        ]
        fastest = min(fewer, key=lambda other: other["step_time_s"], default=None)
        if fastest is not None and fastest["step_time_s"] <= plan["step_time_s"]:
            gpus = counted(plan["plan"]["num_gpus"], "GPU")
            of = f"{fastest['plan']['num_gpus']:,} of {printable(cluster)}"
            lines.append(f"{gpus} are no faster than {of} with a batch of {batch:,}")
    return "\n".join(map(wrapped, lines))
