"""The problem of one plan: under the strategy that it names, or under a default one whose rules it keeps."""

from collections.abc import Sequence

from dsx.api.job import Job
from dsx.errors import InputError
from dsx.pricing.evaluate import stated_plan
from dsx.pricing.problem import Problem
from dsx.space.strategy_rules import VANISHES, strategy_reasons
from dsx.space.violations import violations


def plan_problem(job: Job, settings: Sequence[str], strategy: str | None, partition: str) -> Problem:
    """Return the problem of a plan under `strategy`.

    If that is None: under the default strategy of the assumption set or, if the plan breaks its rules, under the first
    of the set's other strategies whose rules it keeps. Raises PlanError if the plan is not well formed.
    """
    problem = job.problem(strategy, partition)
    if strategy is not None or _keeps_rules(job, problem, settings):
        return problem
    for name in job.assumptions.other_strategies:
        try:
            other = job.problem(name, partition)
        except InputError:  # a model whose layers have no such strategy
            continue
        if _keeps_rules(job, other, settings):
            return other
    return problem


def _keeps_rules(job: Job, problem: Problem, settings: Sequence[str]) -> bool:
    """Return whether a plan keeps all rules of the strategy of a problem, and leaves every rank some of all sizes."""
    plan = stated_plan(problem, settings, job.num_gpus, job.global_batch_size)
    layers = problem.kinds[0]
    own = {reason.name for layer in layers for reason in strategy_reasons(layer)} | {VANISHES.name}
    return not any(
        found.reason.name in own for found in violations(plan, layers, problem.model.dimensions, problem.limits())
    )
