"""A plan as an argument of the API, and the problem that prices it.

A plan is a text, settings, a mapping of columns, a `Plan`, or a row of a DataFrame. Its problem is under the strategy
that it names, or under a default one whose rules it keeps. A word that means another thing in the software of the job,
as `selective` does in TorchTitan, is refused: a stack lists such words (`words`), and data/runs/recompute-words.yaml
says what they mean.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.load import Given
from dsx.config.model_file import has_experts
from dsx.config.stack import load_stack
from dsx.config.what_if import is_field
from dsx.errors import InputError, PlanError, SpecError, did_you_mean
from dsx.plans.choices import SEARCHED_COLUMNS
from dsx.plans.layer_layout import LAYOUT, predicts
from dsx.plans.plan import SHARES, SIZES, Plan, Setting, filled_shares, setting_of
from dsx.plans.rules import DEGREES, EVEN, OPTIMAL
from dsx.plans.violations import VANISHES, strategy_reasons, violations
from dsx.pricing.one_plan import PricedPlan, price_plan, stated_plan
from dsx.pricing.problem import Problem
from dsx.progress import warn
from dsx.results.set_columns import COLUMNS, CUT
from dsx.runs.complete import recompute_words
from dsx.verbs.job import Job, checked

_HERE = {"selective": "core-attention"}  # the same as here, in words that are of no framework


def check_words(settings: Iterable[Setting], assumptions: AssumptionsSpec) -> None:
    """Raise InputError for a setting with a value that means another thing in the stack of an assumption set.

    Raises SpecError for a word of the stack that is not known, or that has no other name here.
    """
    try:
        stack = None if assumptions.stack is None else load_stack(assumptions.stack)
    except InputError:  # a file of its own that is not here
        stack = None
    if stack is None:
        return
    words = recompute_words() if stack.words else {}
    by_column = {setting.name: setting.values for setting in settings}
    for column, meanings in stack.words.items():
        place = f"stack {stack.name!r}: words.{column}"
        for value, word in meanings.items():
            if value not in _HERE:
                near = did_you_mean(value, _HERE)
                raise SpecError(f"{place}: {value!r} has no other name here{near} (known: {', '.join(_HERE)})")
            if word not in words:
                near = did_you_mean(word, words)
                raise SpecError(f"{place}.{value}: unknown word {word!r}{near} (known: {', '.join(words)})")
        for value in map(str, by_column.get(column, ())):
            if value in meanings:
                meant = words[meanings[value]]
                stored = 100 * meant.stored_share
                kept = f" with {stored:.0f} % of the layers of a stage as stored_layers" if stored else ""
                raise InputError(
                    f"{column}={value}: in the software {stack.name} that is {meanings[value]!r} ({meant.source}), and "
                    "here the recomputation of core attention alone, as in Megatron-LM; nearest: "
                    f"{column}={meant.recompute}{kept} for the one, {column}={_HERE[value]} for the other"
                )


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan, the job that it is of, and the problem that prices it."""

    job: Job
    problem: Problem
    plan: Plan
    filled: Mapping[str, int]  # shares of a fast domain that nobody states, as of `PricedPlan`
    cut: str  # how searches of its job divide layers

    def priced(self) -> PricedPlan:
        """Return the plan with its costs, even if it breaks rules or does not fit."""
        return replace(price_plan(self.problem, self.plan), filled=self.filled)


def plan_request(
    job: Job,
    plan: "PlanLike | None",
    choices: Mapping[str, object],
    strategy: str | None,
    partition: str | None,
    framework: Given | None,
) -> PlanRequest:
    """Return the plan that the arguments of `dsx.evaluate` state; raises what that raises."""
    job = checked(job).run_by(framework)
    as_settings = given_plan(plan, choices, job)
    settings, cut = as_settings.cut(partition)
    job = as_settings.of_job(job)
    problem, stated = _problem_of(job, settings, as_settings.strategy if strategy is None else strategy, cut)
    return PlanRequest(job, problem, stated, filled_shares(stated, settings), cut)


def _problem_of(job: Job, settings: Sequence[Setting], strategy: str | None, partition: str) -> tuple[Problem, Plan]:
    """Return the problem of a plan under `strategy`, with the plan.

    If that is None: under the first of the default strategies that takes the plan and whose rules it keeps, else under
    the first of all. They are those of the assumption set that the framework of the job runs or, if it runs none of
    them, those of the framework.
    """
    sizes = job.num_gpus, job.global_batch_size
    if strategy is not None:
        problem = job.problem(strategy, partition)
        return problem, stated_plan(problem, settings, *sizes)
    assumptions, framework = job.assumptions, job.assumptions.of_framework
    usual = [assumptions.default_strategy, *assumptions.other_strategies]
    run = None if isinstance(framework, str) else framework.strategies(has_experts(job.model.dimensions))
    first, *further = usual if run is None else [name for name in usual if name in run] or list(run)
    problem = job.problem(first, partition)
    for name in (first, *further):
        with suppress(InputError):  # a model whose layers have no such strategy, a degree that it does not divide by
            candidate = problem if name == first else job.problem(name, partition)
            plan, layers = stated_plan(candidate, settings, *sizes), candidate.kinds[0]
            # Of the strategy, and that every rank has some of all sizes.
            rules = {reason.name for layer in layers for reason in strategy_reasons(layer)} | {VANISHES.name}
            broken = violations(plan, layers, candidate.model.dimensions, candidate.limits())
            if not any(violation.reason.name in rules for violation in broken):
                return candidate, plan
    return problem, stated_plan(problem, settings, *sizes)


class Row(Protocol):
    """A row of a DataFrame, such as `frame.iloc[0]`."""

    def items(self) -> Iterable[tuple[Hashable, object]]:
        """Yield the columns with their values."""
        ...


PlanLike = str | Sequence[str] | Mapping[str, object] | Row

_SETTABLE = (*DEGREES, *SIZES, *(f"{axis}_nvs" for axis in DEGREES), *SEARCHED_COLUMNS)
_OF_THE_JOB = ("num_gpus", "global_batch_size", "sequence_length")
# Columns of a row that are no choices: those of its job and hardware, its costs, and derived ones.
_NO_SETTINGS = {column.name for column in (*COLUMNS, CUT)} - {*_SETTABLE}


class GivenPlan(NamedTuple):
    """A plan as settings, with its strategy and the layer layout that it was priced with."""

    settings: list[Setting]
    strategy: str | None  # None if the plan has none
    layout: Setting | None = None  # of a mapping or a row; None if it has none

    @property
    def _stated_layout(self) -> Setting | None:
        return next(
            (setting for setting in self.settings if setting.name == LAYOUT and setting.value is not None), None
        )

    def cut(self, partition: str | None) -> tuple[list[Setting], str]:
        """Return the settings of a plan that is priced alone, and how searches of its job divide layers.

        The plan keeps its layout unless `partition` asks for another cut. Raises InputError if a setting states a
        layout and `partition` another cut.
        """
        layout = self._stated_layout
        if partition is not None and layout is not None:
            raise InputError(f"{str(layout)!r} states a layer layout, and partition {partition} another: leave out one")
        if partition is not None or (layout or self.layout) is None:
            return self.settings, partition or EVEN
        return self.settings if layout or self.layout is None else [*self.settings, self.layout], OPTIMAL

    def of_job(self, job: Job) -> Job:
        """Return the job of the plan: a layout with a layer of multi-token prediction trains a model with one."""
        layout = self._stated_layout
        if job.model.num_prediction_layers or layout is None or not predicts(layout.text):
            return job
        warn(
            f"the layout has m, a layer of multi-token prediction, so {job.model.name} is priced with one, as "
            "--set model.num_prediction_layers=1 has it"
        )
        return job.replace(set={"model.num_prediction_layers": 1})


def given_plan(plan: PlanLike | None, choices: Mapping[str, object], job: Job) -> GivenPlan:
    """Return a plan with some `choices`, which override the same columns of a mapping or a row.

    Of a row only the choices are used. The job has the GPUs, the batch and the sequence length; a warning tells if the
    row is of another job. A column that is neither a choice nor one of a result stays among the settings, whose reader
    refuses it with the nearest that there is. Raises InputError for an argument that is not a plan, and for a
    value that means another thing in the software of the job.
    """
    if hasattr(plan, "iterrows"):
        raise InputError("a DataFrame has several plans: give one of its rows, as in frame.iloc[0]")
    if isinstance(plan, Sequence):
        if not all(isinstance(setting, str) for setting in plan):
            raise _no_plan(plan)
        words = plan.split() if isinstance(plan, str) else " ".join(plan).split()
        settings = [*map(Setting.of, words), *_settings(choices)]
        check_words(settings, job.assumptions)
        return GivenPlan(settings, None)
    if plan is not None and not hasattr(plan, "items"):
        raise _no_plan(plan)
    columns = {} if plan is None else {str(name): value for name, value in plan.items()}
    of_job = [name for name in _OF_THE_JOB if name in columns]
    # A plan of a search has the values of dsx.
    check_words(_settings(choices if of_job else {**columns, **choices}), job.assumptions)
    if differing := [name for name in of_job if columns[name] != getattr(job, name)]:
        theirs = ", ".join(f"{name}={columns[name]}" for name in differing)
        ours = ", ".join(f"{name}={getattr(job, name)}" for name in differing)
        warn(f"the plan is of a job with {theirs}, but it is priced for this one, with {ours}")
    chosen = {name: value for name, value in columns.items() if not _is_result(name, columns)}
    strategy, layout = columns.get("strategy"), columns.get(LAYOUT)
    return GivenPlan(
        _settings({**chosen, **choices}),
        None if strategy is None else str(strategy),
        # A row of a frame that mixes cuts has no text where its cut is even.
        Setting(LAYOUT, _value(LAYOUT, layout)) if isinstance(layout, str | Sequence) else None,
    )


def _is_result(name: str, columns: Mapping[str, object]) -> bool:
    """Return whether a column is one that every result has, a number that a sweep varied, or a share of a tier."""
    if name in _NO_SETTINGS:
        return True
    if name in _SETTABLE or name in SHARES:
        return False
    if "." in name:
        return is_field(name)
    # A row has the shares of all axes on a tier of its network, or of none.
    axis, _, tier = name.partition("_")
    return axis in DEGREES and all(f"{other}_{tier}" in columns for other in DEGREES)


def _settings(columns: Mapping[str, object]) -> list[Setting]:
    return [Setting(setting_of(name), _value(name, value)) for name, value in columns.items()]


def _value(name: str, value: object) -> int | str | tuple[int | str, ...]:
    """Return the value of a column as a setting has it; a purely numeric row has its integers as floats."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if (isinstance(value, float) and value.is_integer()) or (isinstance(value, int) and not isinstance(value, bool)):
        return int(value)
    if isinstance(value, bytes | bytearray):
        raise PlanError(f"{name}={value!r}: bytes are no value; give a number or a text, as in tp=8 recompute='full'")
    if isinstance(value, Set):
        value = sorted(value, key=str)  # in the same order every time
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = (_value(name, item) for item in value)
        values = tuple(chain.from_iterable(item if isinstance(item, tuple) else (item,) for item in items))
        return values[0] if len(values) == 1 else values or ""
    return str(value)


def _no_plan(argument: object) -> InputError:
    return InputError(
        f"{type(argument).__name__} is not a plan: give a text such as 'tp=8 dp=64', a mapping of columns, a Plan, "
        "or a row of a DataFrame"
    )
