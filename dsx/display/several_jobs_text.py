"""The fastest plans of several jobs as a table, grouped by their GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsx.display.job_text import parameters_text
from dsx.display.layout import WIDTH, wrapped
from dsx.display.plan_table import Priced, with_choices
from dsx.display.quantities import quantity
from dsx.display.three_plans import interval_text
from dsx.printable import printable
from dsx.results.objectives import Objective
from dsx.units import counted

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem


def jobs_text(plans: Sequence[Priced], problem: "Problem", objective: Objective) -> str:
    """Return the model, and a line for each job; `plans` has those of the same GPUs one after the other."""
    name, cluster = printable(problem.model.name), printable(problem.cluster.label)
    head = [
        f"{name} on {cluster}: {parameters_text(problem)}, sequences of {counted(problem.sequence_length, 'token')}",
        f"the fastest plan of each job, ranked by {objective.name}, those of the same GPUs together",
    ]
    rows: list[list[str]] = []
    before = None
    for plan in plans:
        choices = plan["plan"]
        rows.append(
            [
                "" if choices["num_gpus"] == before else f"{choices['num_gpus']:,}",
                f"{choices['global_batch_size']:,}",
                quantity("step_time_s", plan["step_time_s"]),
                interval_text(plan["step_time_s_low"], plan["step_time_s_high"]) or "-",
                f"{plan['tokens_per_s_per_gpu']:,.0f}",
                quantity("mfu", plan["mfu"]),
                quantity("peak_bytes", plan["peak_bytes"]),
                choices["strategy"],
            ]
        )
        before = choices["num_gpus"]
    header = ["GPUs", "batch", "step", "80 % interval", "tokens/s/GPU", "MFU", "memory", "strategy"]
    return "\n".join([*map(wrapped, head), "", with_choices(plans, header, rows, WIDTH)])


def none_fits_text(jobs: Sequence[tuple[int, int]]) -> str:
    """Return on which (GPUs, batch) no plan fits; empty if there are none."""
    where = ", ".join(f"{counted(gpus, 'GPU')} with a batch of {batch:,}" for gpus, batch in jobs)
    return wrapped(f"no plan fits on {where}") if jobs else ""
