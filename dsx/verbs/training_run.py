"""``dsx best --train-tokens``: how many GPUs a training run takes, how many days, what it costs, and which plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from dsx.config.cluster_file import DeviceSpec, peak_flops
from dsx.config.load import Given
from dsx.config.sweep_file import missing_of_cluster
from dsx.errors import InputError, NothingFeasible, UnitError, file_path
from dsx.plans.plan import Plan
from dsx.pricing.problem import Problem
from dsx.progress import Watch
from dsx.results.ranked_by import (
    COST,
    DAYS,
    HOURS,
    LEAST_GOODPUT,
    Goal,
    Priced,
    cheapest,
    chosen,
    days_between,
    fastest,
    gets_nowhere,
    price_column,
)
from dsx.results.set_columns import MENTIONED
from dsx.search.fastest import ANY
from dsx.tables.format import WIDTH, quantity, step_text, wrapped
from dsx.tables.plans import plans_frame, stated_lines, with_choices
from dsx.text import Data, DataFrame, printable
from dsx.units import LARGEST_COUNT, counted, format_total, listed, parse_quantity, scale_of_total
from dsx.verbs.arguments import PricedPlans, counts, paragraphs, total, watcher
from dsx.verbs.best import BestPlans, Restricted
from dsx.verbs.job import Job, checked, with_margin
from dsx.verbs.plan import PlanLike
from dsx.verbs.searched import LimitLike
from dsx.verbs.several_jobs import best_of_each

_HOUR, _DAY = 3600.0, 86400.0
_SHOWN = ("step_time_s", "step_time_s_low", "step_time_s_high", "mfu", "peak_bytes", "tokens_per_s_per_gpu", "goodput")
_SHOWN += (DAYS, "gpu_hours", "cost_usd", "energy_kwh")


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(PricedPlans):
    """The fastest plan on each number of GPUs, and which of them to take."""

    job: Job  # its number of GPUs is that of the chosen plan, or of the fastest if none is chosen
    train_tokens: float  # tokens of the whole training
    goal: Goal  # the deadline [days] and the budget [USD], where there are any
    answers: Sequence[BestPlans]  # the answer of each number of GPUs, ascending

    @cached_property
    def priced(self) -> Sequence[Data]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The fastest plan of each number of GPUs on which one fits, under `plan`, and its costs by column.

        Left out are those to which failures leave nothing of their time.
        """
        return [answer.priced[0] for answer in self.answers if answer.priced and not gets_nowhere(answer.priced[0])]

    @property
    def infeasible(self) -> str:
        """Why no plan meets the goal, and what comes nearest; empty if one does."""
        if self.chosen is not None:
            return ""
        if not self.priced:
            return self._why_none
        return missed_text(self.priced, self.goal, self.train_tokens)

    @property
    def chosen(self) -> Data | None:
        """The plan to take, with its costs by column; None if none meets the goal."""
        return chosen(self.priced, self.goal)  # pyright: ignore[reportReturnType]

    @property
    def plan(self) -> Plan:
        """The plan to take; raises NothingFeasible, with what comes nearest, if none meets the goal."""
        return self._chosen["plan"]

    @property
    def best(self) -> BestPlans:
        """The answer of `dsx.best` on the chosen number of GPUs; raises NothingFeasible as `plan` does."""
        number = self._chosen["plan"]["num_gpus"]
        return next(answer for answer in self.answers if answer.job.num_gpus == number)

    @property
    def _failing(self) -> str:
        """On which numbers of GPUs failures leave nothing of the time; empty if on none."""
        numbers = [answer.job.num_gpus for answer in self.answers if answer.priced and gets_nowhere(answer.priced[0])]
        failures = self.job.cluster.failures
        if not numbers or failures is None:
            return ""
        on, every = listed(numbers, "GPU"), failures.mtbf / numbers[0]
        return (
            f"failures leave a job on {on} less than {100 * LEAST_GOODPUT:g} % of its time: one of {numbers[0]:,} "
            f"fails every {quantity('step_time_s', every)}"
        )

    @property
    def _why_none(self) -> str:
        """Why there is no plan on any number of GPUs."""
        if self._failing:
            return f"{self._failing}; state another mtbf, restart or checkpoint"
        last, first = self.answers[-1], self.answers[0].job.num_gpus
        would_fit = last.would_fit if last.counts.candidates else ""
        several = f"no plan on {counted(first, 'GPU')}, or on more; on the most: " if len(self.answers) > 1 else ""
        return "\n".join(filter(None, (several + last.infeasible, would_fit)))

    @property
    def _chosen(self) -> Data:
        if self.chosen is None:
            raise NothingFeasible(self.infeasible)
        return self.chosen

    @cached_property
    def frame(self) -> DataFrame:
        """One row for each plan of `priced`: the columns of a result set; units in `attrs`."""
        hardware = {"hardware": {"cluster": self.job.cluster.name}}
        return plans_frame([{**plan, **hardware} for plan in self.priced])

    def draw(self, path: str | Path) -> None:
        """Draw cost against days into a file, whose suffix is the image format.

        Raises NothingFeasible if `priced` is empty, InputError for an unknown suffix, StoreError for a
        path that cannot be written.
        """
        path = file_path("path", path)
        if not self.priced:
            raise NothingFeasible(self.infeasible)
        from dsx.pictures import cost_curve, save

        taken = self.chosen["plan"]["num_gpus"] if self.chosen else None
        step = step_text(self.job.global_batch_size, self.job.sequence_length)
        title = f"{format_total(self.train_tokens)} tokens, {self._where}\n{step}"
        deadline, budget = self.goal.deadline_days, self.goal.budget_usd
        ax = cost_curve(self.frame, deadline_days=deadline, budget_usd=budget, chosen=taken, title=title)
        save(ax, path)

    def _data(self) -> Data:
        def described(plan: Data) -> Data:
            low, high = days_between(plan)
            days = {"training_days_low": low, "training_days_high": high, "meets_goal": self.goal.met(plan)}
            return {"plan": plan["plan"].data} | {name: plan[name] for name in _SHOWN} | days

        return {
            "train_tokens": self.train_tokens,
            "deadline_days": self.goal.deadline_days,
            "budget_usd": self.goal.budget_usd,
            "paid_in": price_column(self.priced) if self.priced else None,
            "searched_gpus": [answer.job.num_gpus for answer in self.answers],
            "chosen": described(self._chosen) if self.chosen else None,
            "infeasible": self.infeasible or None,
            "plans": [described(plan) for plan in self.priced],
        }

    @property
    def _where(self) -> str:
        price = self.job.cluster.price
        at = f" at {price * _HOUR:g} USD/h" if price is not None else ""
        return f"{printable(self.job.model.name)} on {printable(self.job.cluster.label)}{at}"

    def __str__(self) -> str:
        job = self.job
        goal = f", {text}" if (text := goal_text(self.goal)) else ""
        steps = self.train_tokens / (job.global_batch_size * job.sequence_length)
        without = [answer.job.num_gpus for answer in self.answers if not answer.priced]
        head = [
            f"{self._where}: {format_total(self.train_tokens)} tokens{goal}",
            f"{step_text(job.global_batch_size, job.sequence_length)}, {counted(round(steps), 'step')}",
        ]
        last = [f"no plan fits on {listed(without, 'GPU')}"] if without else []
        last += [wrapped(self._failing)] if self._failing else []
        if job.cluster.price is None:
            last.append("the cluster states no price: --set cluster.price='2.5 USD/h' gives the cost")
        if job.cluster.failures is None:
            last.append("failures and checkpoints are not counted: the cluster states no failures")
        numbers = listed([answer.job.num_gpus for answer in self.answers], "GPU")
        compared = (
            f"compared: {numbers} with a batch of {job.global_batch_size:,}; another batch suits other numbers of "
        )
        last.append(wrapped(f"{compared}GPUs, which --num-gpus and --global-batch-size compare"))
        if not self.priced:
            return "\n".join((*head, self.infeasible))
        table = counts_text(self.priced, self.goal)
        taken = wrapped(self.infeasible) or answer_text(self.priced, self.goal)
        return paragraphs(["\n".join(head), taken, table, "\n".join(last)])


def training_run(
    job: Job,
    train_tokens: float | str,
    num_gpus: int | Sequence[int] | None = None,
    *,
    deadline: str | None = None,
    budget: float | str | None = None,
    fix: PlanLike | None = None,
    limit: LimitLike | None = None,
    strategy: str | Sequence[str] | None = None,
    framework: Given | None = None,
    partition: Literal["any", "even", "optimal"] = ANY,
    memory_margin: float | None = None,
    watch: Watch | None = None,
) -> TrainingRun:
    """Search the fastest plan on each of some numbers of GPUs, and say which to take for a training run.

        job = dsx.Job("llama-3-70b", "h100-nvs8", 1, 1024, set={"cluster.price": "2.5 USD/h"})
        run = dsx.training_run(job, "15T", deadline="60 days")
        run.plan, run.frame                         # the cheapest plan that is done in time; one row a number of GPUs
        run.draw("cost.png")                        # cost against days

    Args:
        job: the model, the cluster and the batch; its number of GPUs has no effect.
        train_tokens: tokens of the training: 15e12, "15T".
        num_gpus: the numbers of GPUs to compare; by default five powers of two, from the first that could be in time at
            the peak of the GPUs.
        deadline: the longest that the run may take, as in "60 days"; the cheapest plan within it is chosen.
        budget: the most that it may cost, in USD: 5e6, "5M"; without a deadline the fastest plan within it is chosen.
        fix, limit, strategy, framework, partition, memory_margin: as for `dsx.best`.
        watch: called with the numbers of GPUs done, their total and the kind of work; by default a bar is shown.

    Where the cluster states `failures`, days and cost include what they take. Days and cost are those of the predicted
    step time; the answer prints its 80 % interval too. It is no error if no plan meets the goal: `chosen` is then None,
    and `infeasible` says what comes nearest. Raises what `dsx.best` raises, and InputError for a budget if the cluster
    states no price.
    """
    watch, job = watcher(watch), with_margin(checked(job), memory_margin).run_by(framework)
    tokens = total("train_tokens", train_tokens)
    if tokens is None or tokens < job.sequence_length:
        fault_of_tokens = "" if tokens is None else f", {tokens:g} are less than one sequence"
        raise InputError(f"--train-tokens: a number of tokens is wanted, as in 15T{fault_of_tokens}")
    goal = Goal(_days(deadline), total("budget", budget))
    if goal.budget_usd is not None and (fault := missing_of_cluster(["cost_usd"], job.cluster, MENTIONED)):
        raise InputError(f"--budget {budget}: {fault}")
    restricted = Restricted(fix, limit, strategy, framework, partition, tokens)
    if num_gpus is None:
        numbers = powers_of_two(job.problem(), job.cluster.device, tokens, goal.deadline_days)
    else:
        numbers = counts("num_gpus", num_gpus)
    jobs = [Job.of(job.inputs, number, job.global_batch_size, job.sequence_length) for number in numbers]
    answers = best_of_each(jobs, restricted, watch, "numbers of GPUs")
    run = TrainingRun(job, tokens, goal, answers)
    at = run.chosen or (min(run.priced, key=lambda plan: plan[DAYS]) if run.priced else None)
    number = at["plan"]["num_gpus"] if at else answers[-1].job.num_gpus
    return replace(run, job=Job.of(job.inputs, number, job.global_batch_size, job.sequence_length))


def _days(deadline: object) -> float | None:
    """Return a deadline in days; InputError for one that is no time above zero."""
    if deadline is None:
        return None
    try:
        days = parse_quantity(deadline.lower() if isinstance(deadline, str) else deadline, "s") / _DAY
    except UnitError:
        fault = "is no time with its unit, as in '60 days' or '48 h' (known: s, min, h, d, day, days)"
        raise InputError(f"--deadline: {deadline!r:.60} {fault}") from None
    if days <= 0:
        raise InputError(f"--deadline: {deadline} is not above zero")
    return days


_LONGEST_DAYS = 180.0  # of a run without a deadline, at the peak of its GPUs
_COUNTS = 5  # a plan reaches a third to half of the peak, so the first or second is in time


def least_gpus(problem: Problem, device: DeviceSpec, train_tokens: float, days: float) -> int:
    """Return the fewest GPUs that could train so many tokens in so many days at the peak of their data sheet."""
    peak = peak_flops(device, problem.assumptions_spec.linear_dtype)
    flops = problem.workload.model_flops * train_tokens / problem.sequence_length
    return max(1, math.ceil(flops / (peak * days * _DAY)))


def powers_of_two(problem: Problem, device: DeviceSpec, train_tokens: float, days: float | None) -> list[int]:
    """Return the numbers of GPUs for a run of so many tokens that is done in so many days, if that is stated.

    Raises InputError for a run that is too large for any number of GPUs.
    """
    longest = days or _LONGEST_DAYS
    least = least_gpus(problem, device, train_tokens, longest)
    if least << _COUNTS > LARGEST_COUNT:
        limit = "a later deadline" if days else f"a deadline (without one it is {counted(longest, 'day')})"
        raise InputError(
            f"--train-tokens {train_tokens:g}: in {counted(longest, 'day')} at the peak of their data sheet they need "
            f"{least:,} GPUs; state fewer tokens, {limit}, or the numbers of GPUs"
        )
    first = max(problem.cluster.network.nvs.size, 1 << (least - 1).bit_length())
    first = 1 << (first.bit_length() - 1)
    return [first << step for step in range(_COUNTS)]


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
    parts = [f"in {counted(goal.deadline_days, 'day')}"] if goal.deadline_days is not None else []
    parts += [f"for at most {format_total(goal.budget_usd)} USD"] if goal.budget_usd is not None else []
    return " ".join(parts)


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
    interval = f" (80 % interval {between})" if (between := _between(taken)) else ""
    failing = [f"failures and checkpoints take {100 * (1 - kept):.1f} % of the time"] if math.isfinite(kept) else []
    lines = [
        f"{counted(taken['plan']['num_gpus'], 'GPU')}, {why}: {days_text(taken[DAYS])} days{interval}",
        *(f"  {line}" for line in (", ".join(_paid(taken)), *failing)),
        f"  step {quantity('step_time_s', taken['step_time_s'])}, MFU {quantity('mfu', taken['mfu'])}, "
        f"memory {quantity('peak_bytes', taken['peak_bytes'])}",
        *stated_lines(taken["plan"], "  "),
    ]
    if goal.deadline_days is not None and days_between(taken)[1] > goal.deadline_days:
        sure = [plan for plan in plans if goal.met(plan) and days_between(plan)[1] <= goal.deadline_days]
        number = min(sure, key=lambda plan: plan[HOURS])["plan"]["num_gpus"] if sure else 0
        also = f"; on {counted(number, 'GPU')} it is in time there too" if sure else ""
        lines.append(f"  at the slow end of the interval it is late{also}")
    return "\n".join(lines)


def _between(plan: Priced) -> str:
    low, high = days_between(plan)
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{low:.0f} to {high:.0f}" if low >= 10 else f"{days_text(low)} to {days_text(high)}"


def _paid(plan: Priced) -> list[str]:
    """Return what a run takes: money and energy where they are known, and GPU hours."""
    cost, energy = plan[COST], plan["energy_kwh"]
    factor, unit = next((pair for pair in _ENERGY if energy >= pair[0]), _ENERGY[-1])
    money = [f"{_rounded(cost)} USD"] if math.isfinite(cost) else []
    used = [f"{energy / factor:.3g} {unit}"] if math.isfinite(energy) else []
    return [*money, f"{_rounded(plan[HOURS])} GPU hours", *used]


def counts_text(plans: Sequence[Priced], goal: Goal) -> str:
    """Return a table of the fastest plan of each number of GPUs; an asterisk is at the plan to take."""
    column, taken = price_column(plans), chosen(plans, goal)
    marked = goal.deadline_days is not None or goal.budget_usd is not None
    rows: list[list[str]] = []
    for plan in plans:
        missed = [word for word, holds in (("late", goal.is_late(plan)), ("dear", goal.is_dear(plan))) if holds]
        days = ["*" if plan is taken else "", f"{plan['plan']['num_gpus']:,}", days_text(plan[DAYS])]
        days += [_between(plan) or "-", _rounded(plan[column]), *([", ".join(missed)] if marked else [])]
        speed = [f"{plan['tokens_per_s_per_gpu']:,.0f}", quantity("mfu", plan["mfu"]), plan["plan"]["strategy"]]
        rows.append([*days, *speed])
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
        within = counted(goal.deadline_days, "day")
        parts.append(f"the fastest takes {_told(nearest)}, and trains {tokens} tokens in {within}")
    if goal.budget_usd is not None and not paid_for:
        nearest = cheapest(plans)
        tokens = _rounded(train_tokens * goal.budget_usd / nearest[COST])
        cost = format_total(goal.budget_usd)
        parts.append(f"the cheapest takes {_told(nearest)}, and trains {tokens} tokens for {cost} USD")
    if in_time and paid_for:
        parts.append(f"the cheapest in time takes {_told(cheapest(in_time))}")
        parts.append(f"the fastest that is paid for {_told(fastest(paid_for))}")
    if goal.deadline_days is not None:
        parts.append("more GPUs, another batch (--global-batch-size) or fewer tokens may do")
    return "; ".join(parts)


def _told(plan: Priced) -> str:
    cost = f" and {_rounded(plan[COST])} USD" if math.isfinite(plan[COST]) else ""
    return f"{days_text(plan[DAYS])} days{cost} on {counted(plan['plan']['num_gpus'], 'GPU')}"
