"""The fastest plans of several jobs as a table, grouped by their GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsx.display.job_text import parameters_text
from dsx.display.layout import WIDTH, wrapped
from dsx.display.plan_table import with_choices
from dsx.results.objectives import Priced
from dsx.display.quantities import quantity
from dsx.display.three_plans import interval_text
from dsx.printable import printable
from dsx.results.objectives import Objective
from dsx.units import counted

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem


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
    before: tuple[str, int] | None = None
    for plan in plans:
        choices, on = plan["plan"], plan["hardware"]["cluster"]
        again = (on, choices["num_gpus"]) == before
        rows.append(
            [
                *([] if len(clusters) == 1 else ["" if again else on]),
                "" if again else f"{choices['num_gpus']:,}",
                f"{choices['global_batch_size']:,}",
                quantity("step_time_s", plan["step_time_s"]),
                interval_text(plan["step_time_s_low"], plan["step_time_s_high"]) or "-",
                f"{plan['tokens_per_s_per_gpu']:,.0f}",
                quantity("mfu", plan["mfu"]),
                quantity("peak_bytes", plan["peak_bytes"]),
                choices["strategy"],
            ]
        )
        before = on, choices["num_gpus"]
    columns = ["GPUs", "batch", "step", "80 % interval", "tokens/s/GPU", "MFU", "memory", "strategy"]
    header = [*([] if len(clusters) == 1 else ["cluster"]), *columns]
    return "\n".join([*map(wrapped, head), "", with_choices(plans, header, rows, WIDTH)])


def no_faster_text(plans: Sequence[Priced]) -> str:
    """Return which jobs are no faster than the same batch on fewer GPUs of the cluster; empty if all are."""
    said: list[str] = []
    for plan in plans:
        alike = [other for other in plans if _with_other_gpus(plan) == _with_other_gpus(other)]
        fewer = [other for other in alike if other["plan"]["num_gpus"] < plan["plan"]["num_gpus"]]
        fastest = min(fewer, key=lambda other: other["step_time_s"], default=None)
        if fastest is not None and fastest["step_time_s"] <= plan["step_time_s"]:
            gpus, batch = counted(plan["plan"]["num_gpus"], "GPU"), plan["plan"]["global_batch_size"]
            of = f"{fastest['plan']['num_gpus']:,} of {printable(plan['hardware']['cluster'])}"
            said.append(f"{gpus} are no faster than {of} with a batch of {batch:,}")
    return "\n".join(map(wrapped, said))


def _with_other_gpus(plan: Priced) -> tuple[str, int]:
    return plan["hardware"]["cluster"], plan["plan"]["global_batch_size"]


def none_fits_text(jobs: Sequence[tuple[str, int]]) -> str:
    """Return on which (GPUs as text, batch) no plan fits; empty if there are none."""
    where = ", ".join(f"{gpus} with a batch of {batch:,}" for gpus, batch in jobs)
    return wrapped(f"no plan fits on {where}") if jobs else ""
