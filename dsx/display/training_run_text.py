"""A training run as text: the plan to take with its days and cost, a line for each number of GPUs, the nearest miss."""

import math
from collections.abc import Sequence

from dsx.display.layout import WIDTH
from dsx.display.plan_table import with_choices
from dsx.display.quantities import quantity
from dsx.display.three_plans import stated_lines
from dsx.results.run_choice import (
    COST,
    DAYS,
    HOURS,
    Goal,
    Priced,
    cheapest,
    chosen,
    days_between,
    fastest,
    price_column,
)
from dsx.units import counted, format_total, scale_of_total

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
