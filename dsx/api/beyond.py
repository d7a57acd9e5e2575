"""What the limits of a framework cost: the fastest plan that another framework runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dsx.api.job import Job
from dsx.api.searched import Searched, limits_broken, other_frameworks, searched
from dsx.display.quantities import quantity, share, whole_plan_text
from dsx.errors import InputError
from dsx.printable import printable
from dsx.search.fastest import fastest_below, problems_of
from dsx.search.search_spaces import SearchSpaces, spaces_of
from dsx.space.boxes import Limitation, Selection
from dsx.space.plan import Plan
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.framework import FrameworkSpec
from dsx.spec.model import has_experts

WORTH_SAYING = 0.001  # of the step time


@dataclass(frozen=True, slots=True)
class Beyond:
    """The fastest plan of other frameworks, where it is faster than all that the framework of a search runs."""

    plan: Plan
    step_time_s: float  # [s]
    saved: float | None  # of the step time of the fastest plan that the framework runs; None if none fits
    limits: Mapping[str, Any]  # the choices of the plan that the framework does not run
    framework: str  # that runs the plan
    stack: str | None  # the software that the plan is priced with: its own, unless the search names one

    def to_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "plan": dict(self.plan),
            "step_time_s": self.step_time_s,
            "saved": self.saved,
            "limits": dict(self.limits),
            "framework": self.framework,
            "stack": self.stack,
        }


class Asked(NamedTuple):
    """What a search is asked for."""

    job: Job
    strategies: Sequence[str]  # that it names
    partition: str
    fix: Selection
    limit: Limitation


def beyond(
    found: Searched, asked: Asked, best: Mapping[str, Any] | None, as_launched: bool = False
) -> tuple[Beyond | None, list[str]]:
    """Return the fastest plan of the frameworks other than that of a search, if it is faster than the `best` there.

    The frameworks are those with limits in the search path, each priced with its own software. The second result names
    those that run a plan of the kind that is asked for. With `as_launched`, those of `best` are.
    """
    if found.framework.unlimited:
        return None, []
    least = np.inf if best is None else best["step_time_s"]
    fastest: tuple[Plan, str, str | None] | None = None
    others: list[str] = []
    for other in _limited(found.framework):
        if (spaces := spaces_for(other, found, asked)) is None or not any(space.size for space in spaces.spaces):
            continue
        others.append(other.name)
        plans, _ = fastest_below(spaces.as_launched if as_launched else spaces, 1, least)
        if plans and plans[0]["step_time_s"] < least:
            least, stack = plans[0]["step_time_s"], spaces.problem.assumptions_spec.stack
            fastest = plans[0]["plan"], other.name, stack
    if fastest is None:
        return None, others
    plan, name, stack = fastest
    saved = None if best is None else 1 - least / best["step_time_s"]
    limits = limits_broken(found.framework, has_experts(found.problem.model.dimensions), plan)
    return Beyond(plan, least, saved, limits, name, stack), others


def _limited(framework: FrameworkSpec) -> list[FrameworkSpec]:
    return [other for other in other_frameworks(framework) if not other.unlimited]


def spaces_for(framework: FrameworkSpec, found: Searched, asked: Asked) -> SearchSpaces | None:
    """Return the spaces of a search of another framework; None if it runs no strategy of the search."""
    job, experts = asked.job, has_experts(asked.job.model.dimensions)
    run = [name for name in asked.strategies if framework.runs_strategy(name, experts)]
    if asked.strategies and not run:
        return None
    built = dict(zip(found.problem.strategies, found.problem.models, strict=True))
    try:
        if _layers(found.problem.assumptions_spec) != _layers(job.inputs.run_by(framework).assumptions):
            built = {}
        other = searched(job.inputs, run, framework, job.sequence_length, built=built)
    except InputError:
        return None  # it runs no strategy that the model can have, or its file is faulty
    problems = [problem.searching(asked.fix) for problem in problems_of(asked.partition, other.problem)]
    return spaces_of(problems, job.num_gpus, job.global_batch_size, asked.fix, asked.limit)


def _layers(assumptions: AssumptionsSpec) -> object:
    """Return what layers are built from."""
    named = ("layers", "uncounted_layers", "set", "operators", "uncounted", "fused_backward_reads")
    return [getattr(assumptions, name) for name in named]


def beyond_text(found: Searched, other: Beyond | None, compared: Sequence[str]) -> str:
    """Return what the limits of the framework cost in a line; empty for a framework without limits.

    `compared` names the other frameworks that run such plans.
    """
    if found.framework.unlimited:
        return ""
    if other is None or (other.saved is not None and other.saved < WORTH_SAYING):
        names = _listed(compared)
        of = f"no plan of {names} saves more than {share(WORTH_SAYING, 1, 1)}"
        of = of if names else "no other framework runs such plans"
        return f"{of}; --framework any also searches what no framework runs"
    less = "" if other.saved is None else f", {share(other.saved, 1, 1)} less"
    if other.saved is not None and 1 / (1 - other.saved) - 1 <= (found.problem.assumptions_spec.resolution or 0.0):
        less += ", which measurements do not distinguish"  # stacks differ by as much for no cause that is known
    choices = " ".join(f"{column}={value}" for column, value in other.limits.items())
    cause = f"{choices}, which {printable(found.framework.name)} does not run there: " if choices else ""
    took = quantity("step_time_s", other.step_time_s)
    software = f" with the software {printable(other.stack)}" if other.stack else ""
    return f"{printable(other.framework)}{software} would take {took}{less} ({cause}{whole_plan_text(other.plan)})"


def _listed(names: Sequence[str]) -> str:
    """Return names as text, as in "one, two or three"."""
    *others, last = map(printable, names) if names else [""]
    return f"{', '.join(others)} or {last}" if others else last
