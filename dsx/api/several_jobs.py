"""The fastest plan of each of several jobs, which differ in their GPUs and batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from dsx.api.answer import PricedPlans, paragraphs
from dsx.api.arguments import counts, watcher
from dsx.api.best import BestPlans, Restricted, plans_of_roles
from dsx.api.job import Job, checked, with_margin
from dsx.api.limits import LimitLike
from dsx.api.plan_like import PlanLike
from dsx.display.layout import wrapped
from dsx.display.plan_frame import plans_frame
from dsx.display.several_jobs_text import jobs_text, none_fits_text
from dsx.display.three_plans import choices_text
from dsx.errors import NothingFeasible
from dsx.progress import Watch, progress
from dsx.remarks import each_once
from dsx.results.objectives import Objective, objective_named, ranked_by_count
from dsx.results.roles import FASTEST
from dsx.search.fastest import ANY
from dsx.space.plan import Plan
from dsx.spec.load import Given
from dsx.units import counted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class SeveralJobs(PricedPlans):
    """The fastest plan of each job, ranked and grouped by numbers of GPUs."""

    job: Job  # that of the best plan; the first one if none fits
    objective: Objective  # what plans are ranked by
    found: Sequence[BestPlans]  # the answer of each job, by GPUs and then batch, ascending

    @cached_property
    def priced(self) -> Sequence[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The fastest plan of each job that has one, under `plan`, and its costs by column.

        Plans of the same GPUs follow each other, the best first; so do numbers of GPUs, by their best plans.
        """
        return ranked_by_count([found.priced[0] for found in self.found if found.priced], self.objective)

    @property
    def infeasible(self) -> str:
        """Why no plan of any job fits; empty if one does."""
        return "" if self.priced else self.found[-1].infeasible

    @property
    def would_fit(self) -> str:
        """What would fit beside the largest job where no plan of any does, found by more searches."""
        return "" if self.priced else self.found[-1].would_fit

    @property
    def plan(self) -> Plan:
        """The best plan; raises NothingFeasible, with the reason, if there is none."""
        if not self.priced:
            raise NothingFeasible(self.infeasible)
        return self.priced[0]["plan"]

    @property
    def best(self) -> BestPlans:
        """The answer of the job of the best plan; raises NothingFeasible if there is none."""
        of = (self.plan["num_gpus"], self.plan["global_batch_size"])
        return next(found for found in self.found if (found.job.num_gpus, found.job.global_batch_size) == of)

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """One row for each job on which a plan fits, in the order of `plans`, with the columns of a result set."""
        hardware = {"hardware": {"cluster": self.job.cluster.name}}
        return plans_frame([{**plan, **hardware} for plan in self.priced])

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        return {
            "objective": self.objective.name,
            "searched": [list(_sizes(found.job)) for found in self.found],
            "infeasible": self.infeasible or None,
            "would_fit": self.would_fit or None,
            "plans": [{**plan, "plan": dict(plan["plan"])} for plan in self.priced],
        }

    def __str__(self) -> str:
        if not self.priced:
            return self.infeasible
        none = [_sizes(found.job) for found in self.found if not found.priced]
        gpus, batch = _sizes(self.best.job)
        return paragraphs(
            [
                jobs_text(self.priced, self.best.problem, self.objective),
                none_fits_text(none),
                choices_text(f"the best, on {counted(gpus, 'GPU')} with a batch of {batch:,}", self.plan),
                wrapped(
                    f"--num-gpus {gpus} --global-batch-size {batch} alone shows its simplest and its leanest plan too, "
                    "and launch flags."
                ),
            ]
        )


def several_jobs(
    job: Job,
    num_gpus: int | Sequence[int] | None = None,
    global_batch_size: int | Sequence[int] | None = None,
    *,
    objective: str = "tokens_per_s_per_gpu",
    fix: PlanLike | None = None,
    limit: LimitLike | None = None,
    strategy: str | Sequence[str] | None = None,
    framework: Given | None = None,
    partition: Literal["any", "even", "optimal"] = ANY,
    memory_margin: float | None = None,
    watch: Watch | None = None,
) -> SeveralJobs:
    """Search the fastest plan for each of some numbers of GPUs and batches, and rank them.

        found = dsx.several_jobs(job, [512, 1024], [1024, 2048])
        found.frame                                 # one row a job
        found.best                                  # the answer of `dsx.best` for the best job

    Args:
        job: the model and the cluster; its GPUs and its batch are those where none are given.
        num_gpus, global_batch_size: the values to combine.
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
    found = best_of_each(job, [*product(gpus, batches)], restricted, watch, "jobs")
    several = SeveralJobs(found[0].job, by, found)
    return SeveralJobs(several.best.job, by, found) if several.priced else several


def best_of_each(
    job: Job, sizes: Sequence[tuple[int, int]], restricted: Restricted, watch: Watch | None, what: str
) -> list[BestPlans]:
    """Return the fastest plan of a job with each of some numbers of GPUs and batches."""
    found: list[BestPlans] = []
    with each_once(), progress(len(sizes), what, watch) as advance:
        for num_gpus, batch in sizes:
            here = Job.of(job.inputs, num_gpus, batch, job.sequence_length)
            found.append(plans_of_roles(here, (FASTEST,), 1, restricted, _unseen))
            advance(1)
    return found


def _sizes(job: Job) -> tuple[int, int]:
    return job.num_gpus, job.global_batch_size


def _unseen(done: int, total: int, what: str) -> None:
    """Show no bar of the candidates: the one of the jobs is shown."""
    del done, total, what
