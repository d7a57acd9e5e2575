"""Published plans of large trainings beside what dsx predicts for them: benchmarks/published.py has the plans."""

from error_tables import cell, markdown
from published import Published, published

import dsx


def section(assumptions: str) -> str:
    """Return the section on the published plans, priced under an assumption set."""
    runs = published()
    header = ["training", "published step", "predicted", "error", "80 % interval", "memory", "fastest plan found"]
    assumed = "".join(f"* {one.name}: {one.source}: {one.measured}. {one.remark}".rstrip() + "\n" for one in runs)
    return (
        "## Published plans\n\nWhat `dsx evaluate` says of the published plan, under "
        f"`{assumptions}`, and the fastest plan that `dsx best` finds for the same job. "
        "[published.md](published.md) says where the two differ.\n\n"
        f"{markdown(header, [_row(one, assumptions) for one in runs])}\nThe plans, and what was assumed:\n\n{assumed}"
    )


def _row(one: Published, assumptions: str) -> list[str]:
    job = one.job.replace(assumptions=assumptions, set={"assumptions.linear_dtype": one.job.assumptions.linear_dtype})
    partition = "even" if "vpp" in one.plan or "schedule" in one.plan else "optimal"
    found = dsx.evaluate(job, one.plan, partition=partition).to_data()
    best = dsx.best(job)
    low, high = found["step_time_s_low"], found["step_time_s_high"]
    return [
        f"{one.name}, `{one.plan}`",
        f"{one.measured_s:.2f} s",
        f"{found['step_time_s']:.2f} s",
        cell(found["step_time_s"] / one.measured_s - 1),
        f"{low:.2f} to {high:.2f} s" if low == low else "-",
        f"{found['peak_bytes'] / 1e9:.0f} GB",
        f"{best.step_time_s:.2f} s, `{best.plan['strategy']}: {best.plan.text}`",
    ]
