"""What a search takes: its framework and its strategies, and what an answer says of them.

A search that names no strategy takes all that its framework runs. Those that cannot be built for the model, or that
have no candidate of their own, are left out, and the answer says why. A strategy that is named is searched, or raises.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsx.config.assumption_set import Optimizer
from dsx.config.framework_file import BoxSpec, FrameworkSpec, framework_names
from dsx.config.load import Given
from dsx.config.model_file import has_experts
from dsx.config.sweep_fields import column_limits, contradiction
from dsx.errors import InputError, SpecError, nearest_names
from dsx.launching.writers import of_words
from dsx.notation.library import check_strategy, strategy_names
from dsx.notation.model import Model
from dsx.plans.choices import NAMED
from dsx.plans.frameworks import Limitation, Selection, broken, compatible, plans_of, read_framework
from dsx.plans.placement import all_divisors
from dsx.plans.plan import Plan
from dsx.pricing.problem import Problem, ProblemOptions, make_problem, priceable_model
from dsx.progress import warn
from dsx.results.set_columns import MENTIONED
from dsx.schedules.schedules import SCHEDULES, names_of
from dsx.search.spaces import StrategiesOfCandidates, fault_of_limit
from dsx.text import Data, DataView, printable
from dsx.verbs.job import Inputs

_COMMON = range(2, 17)  # numbers of stages of most pipelines


def say_few_pipelines(problem: Problem) -> None:
    """Warn if no common number of stages divides the layers of the model, and name those that do.

    Optimal cuts need no equal stages, so their searches have no such limit.
    """
    if problem.optimal_cuts:
        return
    layers = problem.num_layers
    possible = all_divisors(problem.limits().even_layers).tolist()
    if layers > 1 and not any(stages in _COMMON for stages in possible):
        only = " or ".join(map(str, possible))
        warn(
            f"{problem.model.name} has {layers} layers between embedding and head, which {_COMMON[0]} to {_COMMON[-1]} "
            f"stages do not divide: pp is {only} in this search (partition: optimal has the others)"
        )


def say_inexact_schedules(problem: Problem) -> None:
    """Warn of searched schedules whose closed form a replay of their passes exceeds; only those named are searched."""
    searched = [SCHEDULES[code] for code in problem.workload.searched.schedule]
    if inexact := [schedule for schedule in searched if not schedule.exact]:
        warn(
            f"a step of {names_of(inexact)} takes longer than its closed form: by up to a sixth with many "
            "microbatches, several times as long with few"
        )


_NO_DEGREES = "the rules leave no combination of degrees for this job"
_LISTED, _FEW = 8, 4  # values that an error lists, and those that it lists of more
_NOT_ITS_OWN = "each plan is also one of another strategy"


@dataclass(frozen=True)
class SearchRequest:
    """The problem of a search, with even cuts, and its strategies."""

    problem: Problem
    framework: FrameworkSpec
    not_built: Mapping[str, str]  # strategy -> why it cannot be built for the model
    named: bool  # whether the search names its strategies

    def left_out(self, strategies: StrategiesOfCandidates) -> dict[str, str]:
        """Return why strategies have no candidate of the search, unless it names them."""
        if self.named:
            return {}
        reasons = dict(self.not_built)
        for code, name in enumerate(self.problem.strategies):
            if code not in strategies.own:
                reasons[name] = _NOT_ITS_OWN if code in strategies.with_others else _NO_DEGREES
        return reasons


class SearchedStrategies(NamedTuple):
    """The strategies that a search names."""

    names: Sequence[str]  # none for all
    merged: bool = True  # whether a plan that several strategies have is searched once
    built: Mapping[str, Model] = {}  # the model under some strategies, if it is built already
    place: str = "--strategy"  # what names them


def searched(
    inputs: Inputs,
    named: SearchedStrategies,
    framework: Given | None,
    sequence_length: int | None,
    train_tokens: float | None = None,
) -> SearchRequest:
    """Return what a search takes; its plans are priced as its framework runs them.

    Args:
        inputs: the files of the problem.
        named: the strategies that the search names.
        framework: by default that of the assumption set.
        sequence_length: tokens, by default that of the model.
        train_tokens: tokens of the whole training.

    Raises InputError for a strategy that is named and cannot be used, or that the framework does not run.
    """
    strategies, merged, built, place = named
    spec = read_framework(inputs.assumptions.of_framework if framework is None else framework, inputs.near)
    of_words(spec.flags, f"{spec.place('flags')}: flags")  # wrong ones are an error before the search
    generation = inputs.cluster.device.family
    assumed = inputs.assumptions.run_by(spec, generation)
    frame = spec.on(generation).with_optimizer(assumed.optimizer)
    if not frame.runs:
        raise SpecError(no_optimizer_text(spec, assumed.optimizer))
    listed, experts = assumed.searched_strategies, has_experts(inputs.model.dimensions)
    where = place if strategies else f"assumption set {assumed.name!r}: searched_strategies"
    for name in [*strategies] or listed or []:
        check_strategy(name, inputs.near, where)
    names = [*strategies] or listed or list(dict.fromkeys([assumed.default_strategy, *strategy_names()]))
    models: dict[str, Model] = {}
    faults: dict[str, InputError] = {}
    for name in names:
        if not strategies and not frame.runs_strategy(name, experts):
            continue
        try:
            models[name] = built.get(name) or priceable_model(inputs.model, assumed, name, inputs.near)
        except InputError as error:
            if strategies:
                raise
            faults[name] = error
    for name, model in models.items():
        if not frame.runs_strategy(_name(model), experts):
            raise SpecError(f"{place} {name}: {not_run_text(frame, _name(model), experts)}")
    if not models and faults:
        raise next(iter(faults.values()))
    if not models:
        raise SpecError(f"framework {frame.name!r} runs none of the strategies {', '.join(names)}")
    files = (inputs.model, inputs.cluster, assumed)
    problem = make_problem(
        *files,
        list(models),
        ProblemOptions(
            sequence_length=sequence_length,
            train_tokens=train_tokens,
            near=inputs.near,
            operator_times=inputs.operator_times,
            framework=frame,
            merged=merged,
        ),
        models=tuple(models.values()),
    )
    not_built = {name: str(error).splitlines()[0] for name, error in faults.items()}
    return SearchRequest(problem, problem.framework or frame, not_built, named=bool(strategies))


def _name(model: Model) -> str:
    return model.kinds[0].strategy


def not_run_text(framework: FrameworkSpec, strategy: str, experts: bool) -> str:
    """Return that a framework does not run a strategy, what it runs, and the nearest framework that does."""
    runners = [other.name for other in other_frameworks(framework) if other.runs_strategy(strategy, experts)]
    runs = ", ".join(framework.strategies(experts) or ())
    only = (
        f" on models with{'' if experts else 'out'} experts" if framework.runs_strategy(strategy, not experts) else ""
    )
    return f"framework {printable(framework.name)!r} does not run it{only} (it runs {runs}); {_nearest(runners)}"


def no_optimizer_text(framework: FrameworkSpec, optimizer: Optimizer) -> str:
    """Return that a framework runs no plan with an optimizer, what it runs, and the nearest framework that does."""
    runners = [other.name for other in other_frameworks(framework) if other.with_optimizer(optimizer).runs]
    return (
        f"framework {printable(framework.name)!r} runs no plan with assumptions.optimizer={optimizer} (it runs "
        f"{', '.join(framework.optimizers)}); {_nearest(runners)}"
    )


def other_frameworks(framework: FrameworkSpec) -> list[FrameworkSpec]:
    """Return the other frameworks in the search path, those with limits first."""
    frames = [frame for name in framework_names() if (frame := _read(name)) is not None and name != framework.name]
    return sorted(frames, key=lambda other: other.unlimited)


def run_by_none(plans: Iterable[Plan]) -> str:
    """Return which strategies of some plans no framework runs, with those that some do; empty if there are none."""
    limited = [frame for name in framework_names() if (frame := _read(name)) is not None and not frame.unlimited]
    run = dict.fromkeys(
        name for frame in limited for experts in (False, True) for name in frame.strategies(experts) or ()
    )
    unrun = [name for name in dict.fromkeys(plan["strategy"] for plan in plans) if name not in run]
    if not unrun:
        return ""
    frames = ", ".join(printable(frame.name) for frame in limited)
    return f"no framework runs {', '.join(map(printable, unrun))} ({frames}); they run {', '.join(map(printable, run))}"


def _read(name: str) -> FrameworkSpec | None:
    """Return a framework; None for a faulty file, which is an error where somebody asks for it by name."""
    try:
        return read_framework(name)
    except InputError:
        return None


def _nearest(names: Sequence[str]) -> str:
    return f"nearest: framework {names[0]}" if names else "no framework runs it"


def check_fixed(request: SearchRequest, fix: Selection, place: Callable[[str], str]) -> None:
    """Raise SpecError for fixed values that the framework runs with no strategy of the search.

    `place` gives the place of a column.
    """
    frame, experts = request.framework, has_experts(request.problem.model.dimensions)
    boxes = plans_of(frame, request.problem.strategies, experts)
    for column, values in fix.items():
        for value in values:
            choice = {column: [value]}
            if not any(compatible(box, choice) for box in boxes):
                runs = _runs_text(column, boxes, str(value))
                raise SpecError(
                    f"{place(column)}: framework {printable(frame.name)!r} does not run {column}={value} (it runs "
                    f"{runs}); {_nearest(_running(request, choice, experts))}"
                )
    if not any(compatible(box, fix) for box in boxes):
        settings = " ".join(f"{column}={','.join(map(str, values))}" for column, values in fix.items())
        raise SpecError(
            f"{place(next(iter(fix)))}: framework {printable(frame.name)!r} runs no plan with {settings} together; "
            f"{_nearest(_running(request, fix, experts))}"
        )


def _running(request: SearchRequest, fix: Selection, experts: bool) -> list[str]:
    """Return the names of the other frameworks that run a strategy of the search with these values."""
    return [
        other.name
        for other in other_frameworks(request.framework)
        if any(compatible(box, fix) for box in plans_of(other, request.problem.strategies, experts))
    ]


def _runs_text(column: str, boxes: Sequence[BoxSpec], target: str) -> str:
    """Return which values of a column boxes have, of many those nearest to the `target` one."""
    has = [value for box in boxes for value in box.fix.get(column, ()) if compatible(box, {column: [value]})]
    values = list(dict.fromkeys(map(str, has)))
    limited = [box.limit.get(column, ()) for box in boxes if column not in box.fix]
    bounds = list(dict.fromkeys(str(bound) for bounds in limited for bound in bounds))
    if len(values) > _LISTED and column not in NAMED:
        near = sorted(map(int, values), key=lambda value: abs(value - int(target)))
        values = [*map(str, sorted(near[:_FEW])), f"and {len(values) - _FEW} more"]
    elif len(values) > _LISTED:
        near = dict.fromkeys([*nearest_names(target, values, cutoff=0.0, most=_FEW), *sorted(values, key=len)])
        values = [*[*near][:_FEW], f"and {len(values) - _FEW} more: docs/choices.md has the values of {column}"]
    return f"{column} {', '.join([*values, *bounds])}"


def limits_broken(framework: FrameworkSpec, experts: bool, plan: DataView) -> Data:
    """Return the fewest choices of a plan that would have to change for a framework to run it.

    `experts` says whether the model of the plan has any.
    """
    boxes = framework.boxes(experts)
    columns = min((broken(box, plan) for box in boxes), key=len)
    return {column: plan[column] for column in columns}


def limits_broken_by(problem: Problem, framework: FrameworkSpec, plan: Plan) -> Data:
    """Return the fewest choices that would have to change for a framework to run a plan of `problem`.

    The optimizer of the assumption set is one if the framework runs no plan with it.
    """
    optimizer = problem.assumptions_spec.optimizer
    frame = framework.with_optimizer(optimizer)
    if not frame.runs:
        return {"assumptions.optimizer": optimizer}
    frame = problem.run_by(frame).framework or frame
    return limits_broken(frame, has_experts(problem.model.dimensions), plan)


def plan_not_run_text(framework: FrameworkSpec, changed: DataView) -> str:
    """Return that a framework does not run a plan, for the choices that would have to change; empty without any."""
    choices = " ".join(f"{column}={value}" for column, value in changed.items())
    return f"{printable(framework.name)} does not run this plan, for {choices}." if changed else ""


def left_out_text(left_out: Mapping[str, str]) -> str:
    """Return the strategies that a search left out, and why, in a line; empty if there are none."""
    reasons = dict.fromkeys(left_out.values())
    texts = (
        f"{', '.join(printable(name) for name, why in left_out.items() if why == reason)} ({printable(reason)})"
        for reason in reasons
    )
    return f"left out: {'; '.join(texts)}" if left_out else ""


# "tp<=8 pp>=2", ["tp<=8", "pp>=2"] or {"tp": "<=8", "pp": [">=2", "<=16"]}.
LimitLike = str | Sequence[str] | Mapping[str, object]


def given_limits(limit: LimitLike | None, fixed: Selection) -> Limitation:
    """Return the limits of a search by column; `fixed` has the values that its columns may have.

    Raises InputError for a column that cannot be limited, a bound that is none, and a limit that no fixed value obeys.
    """
    limits = column_limits(limit, MENTIONED, "limit")
    for column, bounds in limits.items():
        if fault := fault_of_limit(column):
            raise SpecError(f"limit: {fault}")
        if fault := contradiction(column, bounds, fixed.get(column, ())):
            raise InputError(f"limit: {fault}")
    return limits
