"""Answers on several jobs, training runs and measured kernels as text.

The fastest plans of several jobs as a table, grouped by their GPUs.

A training run as text: the plan to take with its days and cost, a line for each number of GPUs, the nearest miss.

Measured kernels and collectives as text and as plain data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsx.results.ranked_by import (
    COST,
    DAYS,
    HOURS,
    Goal,
    Objective,
    Priced,
    cheapest,
    chosen,
    days_between,
    fastest,
    price_column,
)
from dsx.tables.format import WIDTH, quantity, table, wrapped
from dsx.tables.job import parameters_text
from dsx.tables.plans import interval_text, stated_lines, with_choices
from dsx.text import printable
from dsx.units import counted, format_quantity, format_total, scale_of_total

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


_ENERGY = ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh"))


def _rounded(value: float) -> str:
    """Return a computed number with three digits and a suffix: "10.0 M"."""
    factor, suffix = scale_of_total(value)
    return f"{value / factor:#.3g}".removesuffix(".") + suffix


def days_text(days: float) -> str:
    """Return days with two or three digits: "0.43", "4.1", "41.7"."""
    return f"{days:.2f}" if days < 1 else f"{days:.1f}"


def goal_text(goal: Goal) -> str:
    """Return "done in 60 days for at most 5 M USD"; empty without a goal."""
    stated = [f"in {counted(goal.deadline_days, 'day')}"] if goal.deadline_days is not None else []
    stated += [f"for at most {format_total(goal.budget_usd)} USD"] if goal.budget_usd is not None else []
    return " ".join(stated)


def answer_text(plans: Sequence[Priced], goal: Goal) -> str:
    """Return the plan to take, its days and what it costs; empty if none meets the goal.

    `plans` has the fastest plan of each number of GPUs on which one fits.
    """
    taken = chosen(plans, goal)
    if taken is None:
        return ""
    why = "the cheapest of those compared"
    if goal.deadline_days is not None:
        why = "the cheapest of those compared that is done in time"
    elif goal.budget_usd is not None:
        why = "the fastest of those compared that is paid for"
    kept = taken["goodput"]
    failing = [f"failures and checkpoints take {100 * (1 - kept):.1f} % of the time"] if math.isfinite(kept) else []
    lines = [
        f"{counted(taken['plan']['num_gpus'], 'GPU')}, {why}: {days_text(taken[DAYS])} days{_interval(taken)}",
        *(f"  {line}" for line in (", ".join(_paid(taken)), *failing)),
        f"  step {quantity('step_time_s', taken['step_time_s'])}, MFU {quantity('mfu', taken['mfu'])}, "
        f"memory {quantity('peak_bytes', taken['peak_bytes'])}",
        *stated_lines(taken["plan"], "  "),
    ]
    if goal.deadline_days is not None and days_between(taken)[1] > goal.deadline_days:
        sure = [plan for plan in plans if goal.met(plan) and days_between(plan)[1] <= goal.deadline_days]
        number = min(sure, key=_price)["plan"]["num_gpus"] if sure else 0
        also = f"; on {counted(number, 'GPU')} it is in time there too" if sure else ""
        lines.append(f"  at the slow end of the interval it is late{also}")
    return "\n".join(lines)


def _price(plan: Priced) -> float:
    return plan[HOURS]


def _interval(plan: Priced) -> str:
    between = _between(plan)
    return f" (80 % interval {between})" if between else ""


def _between(plan: Priced) -> str:
    low, high = days_between(plan)
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{low:.0f} to {high:.0f}" if low >= 10 else f"{days_text(low)} to {days_text(high)}"


def _paid(plan: Priced) -> list[str]:
    """Return what a run takes: money and energy where they are known, and GPU hours."""
    cost, energy = plan[COST], plan["energy_kwh"]
    factor, unit = next((pair for pair in _ENERGY if energy >= pair[0]), _ENERGY[-1])
    return [
        *([f"{_rounded(cost)} USD"] if math.isfinite(cost) else []),
        f"{_rounded(plan[HOURS])} GPU hours",
        *([f"{energy / factor:.3g} {unit}"] if math.isfinite(energy) else []),
    ]


def counts_text(plans: Sequence[Priced], goal: Goal) -> str:
    """Return a table of the fastest plan of each number of GPUs; an asterisk is at the plan to take."""
    column, taken = price_column(plans), chosen(plans, goal)
    marked = goal.deadline_days is not None or goal.budget_usd is not None
    rows: list[list[str]] = []
    for plan in plans:
        missed = [word for word, holds in (("late", goal.is_late(plan)), ("dear", goal.is_dear(plan))) if holds]
        rows.append(
            [
                "*" if plan is taken else "",
                f"{plan['plan']['num_gpus']:,}",
                days_text(plan[DAYS]),
                _between(plan) or "-",
                _rounded(plan[column]),
                *([", ".join(missed)] if marked else []),
                f"{plan['tokens_per_s_per_gpu']:,.0f}",
                quantity("mfu", plan["mfu"]),
                plan["plan"]["strategy"],
            ]
        )
    paid = "USD" if column == COST else "GPU hours"
    header = ["", "GPUs", "days", "80 % interval", paid, *([""] if marked else []), "tokens/s/GPU", "MFU", "strategy"]
    return with_choices(plans, header, rows, WIDTH)


def missed_text(plans: Sequence[Priced], goal: Goal, train_tokens: float) -> str:
    """Return why no plan meets the goal, and what comes nearest: in GPUs and days, in money, in tokens."""
    numbers = [plan["plan"]["num_gpus"] for plan in plans]
    on = f"{min(numbers):,} to {max(numbers):,} GPUs" if len(numbers) > 1 else counted(numbers[0], "GPU")
    parts = [f"no plan on {on} trains {format_total(train_tokens)} tokens {goal_text(goal)}"]
    in_time = [plan for plan in plans if not goal.is_late(plan)]
    paid_for = [plan for plan in plans if not goal.is_dear(plan)]
    if goal.deadline_days is not None and not in_time:
        nearest = fastest(plans)
        tokens = _rounded(train_tokens * goal.deadline_days / nearest[DAYS])
        parts.append(
            f"the fastest takes {_told(nearest)}, and trains {tokens} tokens in {counted(goal.deadline_days, 'day')}"
        )
    if goal.budget_usd is not None and not paid_for:
        nearest = cheapest(plans)
        tokens = _rounded(train_tokens * goal.budget_usd / nearest[COST])
        parts.append(
            f"the cheapest takes {_told(nearest)}, and trains {tokens} tokens for {format_total(goal.budget_usd)} USD"
        )
    if in_time and paid_for:
        parts.append(f"the cheapest in time takes {_told(cheapest(in_time))}")
        parts.append(f"the fastest that is paid for {_told(fastest(paid_for))}")
    if goal.deadline_days is not None:
        parts.append("more GPUs, another batch (--global-batch-size) or fewer tokens may do")
    return "; ".join(parts)


def _told(plan: Priced) -> str:
    cost = f" and {_rounded(plan[COST])} USD" if math.isfinite(plan[COST]) else ""
    return f"{days_text(plan[DAYS])} days{cost} on {counted(plan['plan']['num_gpus'], 'GPU')}"


LARGE = 0.1  # a spread above it is said
_SHOWN = 10  # kernels of a list in a text


def kernels_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return kernels as a table, with the rate of each: FLOP/s of multiplies, else bytes/s."""
    rows = [
        [
            one["operator"],
            one["direction"] or "",
            one["shape"],
            one["dtype"],
            format_quantity(one["time_s"], "s"),
            f"{100 * one['spread']:.0f} %",
            _rate(one),
        ]
        for one in measured
    ]
    header = ["operator", "direction", "m x n x k", "dtype", "time", "spread", "rate"]
    return table(header, rows, text=(0, 1, 2, 3)) if rows else ""


def _rate(one: Mapping[str, Any]) -> str:
    amount, unit = (one["flops"], "flop/s") if one["flops"] else (one["bytes"], "bytes/s")
    return format_quantity(amount / one["time_s"], unit)


def spread_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return which times vary much; empty if none does."""
    loose = [one for one in measured if one["spread"] > LARGE]
    if not loose:
        return ""
    named = [f"{one['operator']} {one['direction'] or ''} {one['shape']}".replace("  ", " ") for one in loose[:_SHOWN]]
    more = ", ..." if len(loose) > _SHOWN else ""
    return (
        f"{counted(len(loose), 'time')} with a spread above {100 * LARGE:.0f} % between the quartiles; was something "
        f"else running? {', '.join(named)}{more}"
    )


def left_out_text(left_out: Sequence[Mapping[str, Any]]) -> str:
    """Return the kernels without a time by the reason; empty if there are none."""
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        what = f"{one['operator']} {one['direction'] or ''}".strip()
        reasons.setdefault(one["why_not"], []).append(f"{what} {one['shape']}")
    lines = [
        f"{counted(len(names), 'kernel')} not measured ({reason}): {', '.join(names[:_SHOWN])}"
        f"{', ...' if len(names) > _SHOWN else ''}"
        for reason, names in reasons.items()
    ]
    return "\n".join(lines)


def collectives_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return collectives as a table."""
    rows = [
        [
            one["collective"],
            str(one["num_devices"]),
            format_quantity(one["bytes"], "bytes"),
            format_quantity(one["time_s"], "s"),
            f"{100 * one['spread']:.0f} %",
            format_quantity(one["bytes"] / one["time_s"], "bytes/s"),
        ]
        for one in measured
    ]
    return table(["collective", "devices", "size", "time", "spread", "rate"], rows) if rows else ""
