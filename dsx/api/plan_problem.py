"""The problem of one plan: under the strategy that it names, or under a default one whose rules it keeps."""

from collections.abc import Sequence
from contextlib import suppress

from dsx.api.job import Job
from dsx.errors import InputError
from dsx.pricing.evaluate import stated_plan
from dsx.pricing.problem import Problem
from dsx.space.strategy_rules import VANISHES, strategy_reasons
from dsx.space.violations import violations
from dsx.spec.model import has_experts


def plan_problem(job: Job, settings: Sequence[str], strategy: str | None, partition: str) -> Problem:
    """Return the problem of a plan under `strategy`.

    If that is None: under the first of the default strategies that takes the plan and whose rules it keeps, else under
    the first of all. They are those of the assumption set that the framework of the job runs or, if it runs none of
    them, those of the framework.
    """
    if strategy is not None:
        return job.problem(strategy, partition)
    first, *others = _default_strategies(job)
    problem = job.problem(first, partition)
    for name in (first, *others):
        with suppress(InputError):  # a model whose layers have no such strategy, a degree that it does not divide by
            found = problem if name == first else job.problem(name, partition)
            if _keeps_rules(job, found, settings):
                return found
    return problem


def _default_strategies(job: Job) -> list[str]:
    """Return the strategies of a plan that names none, the first choice first."""
    assumptions = job.assumptions
    usual, framework = [assumptions.default_strategy, *assumptions.other_strategies], assumptions.of_framework
    run = None if isinstance(framework, str) else framework.strategies(has_experts(job.model.dimensions))
    return usual if run is None else [name for name in usual if name in run] or list(run)


def _keeps_rules(job: Job, problem: Problem, settings: Sequence[str]) -> bool:
    """Return whether a plan keeps all rules of the strategy of a problem, and leaves every rank some of all sizes."""
    plan = stated_plan(problem, settings, job.num_gpus, job.global_batch_size)
    layers = problem.kinds[0]
    own = {reason.name for layer in layers for reason in strategy_reasons(layer)} | {VANISHES.name}
    return not any(
        found.reason.name in own for found in violations(plan, layers, problem.model.dimensions, problem.limits())
    )
