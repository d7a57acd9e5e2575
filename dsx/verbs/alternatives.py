"""What else there is: why no plan fits, what would fit, and what another framework gains.

No plan fits if a search has no candidate at all, or none within memory. What would fit changes one thing at a time:
other choices, more GPUs, or another batch, each searched over the whole space for its fastest plan that fits. GPUs are
doubled until one fits; the batch is doubled and halved. A change by a factor divides the memory of a GPU by no more, so
one that cannot be enough is not searched.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.documents import is_sourced
from dsx.config.framework_file import FrameworkSpec
from dsx.config.model_file import has_experts
from dsx.config.sweep_file import SweepSpec
from dsx.cost.offload import of_node, usable_host_bytes
from dsx.errors import InputError
from dsx.forked import Told
from dsx.plans.choices import FULL, NONE_CODE
from dsx.plans.frameworks import Limitation, Selection
from dsx.plans.plan import Plan
from dsx.plans.rules import OPTIMAL_SCHEDULES
from dsx.pricing.one_plan import priced_plans
from dsx.pricing.problem import Problem
from dsx.progress import OutOfTimeError, Watch, progress
from dsx.search.blockers import Blocker, blockers
from dsx.search.fastest import SearchSpaces, fastest_below, problems_of, spaces_of
from dsx.search.spaces import Space, Study
from dsx.tables.format import only_text, quantity, share, step_text, whole_plan_text, wrapped
from dsx.text import Data, DataView, printable
from dsx.units import counted, format_quantity
from dsx.verbs.job import Job
from dsx.verbs.searched import SearchedStrategies, SearchRequest, limits_broken, other_frameworks, searched


class Infeasible(NamedTuple):
    """Why no plan of a search is feasible."""

    why: str  # and the nearest change that helps
    times: float  # the least memory that a plan needs, with its margin, over what a GPU has; 0 without a candidate


def why_infeasible(studies: Sequence[Study], problem: Problem, sweep: SweepSpec, watch: Watch | None = None) -> str:
    """Return why no plan of any study of a sweep is feasible, and the nearest change that helps.

    `problem` is that of the first study, as its files state it.
    """
    searched = [study for study in studies if study.space.size]
    if searched:
        return _why_none_fits(searched, sum(study.size for study in searched), watch).why
    return _why_no_candidate(studies[0].space, problem, sweep, sweep.fix, sweep.limit)


def why_nothing_fits(
    spaces: SearchSpaces, problem: Problem, settings: Selection, limit: Limitation, watch: Watch | None = None
) -> Infeasible:
    """Return why no plan of a search is feasible.

    `problem` is that of the search, as its files state it, with the cuts that leave most pipelines; `settings` and
    `limit` restrict columns.
    """
    least = spaces.with_least_memory
    searched = [
        Study(part.problem, space, 0, {}) for part, space in zip(least.parts, least.spaces, strict=True) if space.size
    ]
    if searched:
        return _why_none_fits(searched, spaces.counted.candidates, watch)
    return Infeasible(_why_no_candidate(spaces.spaces[0], problem, None, settings, limit), 0.0)


def _why_no_candidate(
    space: Space, problem: Problem, sweep: SweepSpec | None, settings: Selection, limit: Limitation
) -> str:
    num_gpus, batches = space.bounds.num_gpus, space.bounds.global_batch_size
    blocking = blockers(problem, num_gpus, batches, sweep.fix if sweep else settings, sweep.limit if sweep else limit)
    gpus = counted(num_gpus[0], "GPU") if len(num_gpus) == 1 else f"{' or '.join(map(str, num_gpus))} GPUs"
    job = f"{gpus} and global_batch_size={' or '.join(map(str, batches))}"
    if not blocking:
        frame = problem.framework
        run = "" if frame is None or frame.unlimited else f", as {printable(frame.name)} runs them,"
        return (
            f"no candidate: the rules of {' and '.join(problem.strategies)}{run} leave no combination of degrees for "
            f"{job} ({_pipelines_text(problem)}, dp must divide the batch)"
        )
    together = "" if len(blocking) == 1 else "; change any of these" if blocking[0].alone else "; change all of these"
    lines = [
        f"{_place(blocker, problem, sweep)}: {blocker.setting}: {blocker.rule}"
        f"{f'; nearest: {blocker.nearest}' if blocker.nearest else ''}"
        for blocker in blocking
    ]
    return "\n".join([f"no candidate for {job}: the fixed choices and limits leave none{together}", *lines])


def _pipelines_text(problem: Problem) -> str:
    if not problem.optimal_cuts:
        return f"pp must divide the {' or '.join(map(str, problem.limits().even_layers))} layers"
    return (
        f"pp is at most {problem.limits().max_stages}, the layers with embedding and head, and partition optimal "
        f"covers {OPTIMAL_SCHEDULES}"
    )


def _place(blocker: Blocker, problem: Problem, sweep: SweepSpec | None) -> str:
    if blocker.section == "fixed":
        return f"assumption set {problem.assumptions_spec.name!r}: fixed"
    if sweep is None:
        return "the command"
    return f"{sweep.place(blocker.section, blocker.column)}: {blocker.section}"


def _why_none_fits(searched: Sequence[Study], num_candidates: int, watch: Watch | None) -> Infeasible:
    from dsx.search.sweep import smallest

    with progress(sum(study.space.size for study in searched), "looking for the smallest", watch) as advance:
        nearest, rows = smallest(searched, advance)
    plan = priced_plans(nearest.problem, rows)[0]
    choices = plan["plan"]
    capacities = [study.problem.hardware.device.hbm_capacity for study in searched]
    largest = max(float(np.max(capacity)) for capacity in capacities)
    margin = nearest.problem.assumptions_spec.memory_margin
    needed = plan["peak_bytes"] * (1 + margin)
    if on_host := _host_text(nearest, plan, num_candidates):
        return Infeasible(on_host, needed / largest)
    varied = any(np.min(capacity) < largest for capacity in capacities)
    cuts = any(study.problem.optimal_cuts for study in searched)
    capacity = f"{'at most ' if varied else ''}{format_quantity(largest, 'bytes')}"
    no_margin = "no margin (--memory-margin 0), " if plan["peak_bytes"] <= largest < needed else ""
    room = f", {format_quantity(needed, 'bytes')} with the memory margin of {margin:g}" if margin else ""
    why = (
        f"none of {counted(num_candidates, 'candidate')} fits: the one that needs least memory "
        f"needs {format_quantity(plan['peak_bytes'], 'bytes')}{room}, and a GPU has {capacity}, "
        f"{format_quantity(needed - largest, 'bytes')} too little "
        f"({counted(choices['num_gpus'], 'GPU')}, "
        f"{step_text(choices['global_batch_size'], choices['sequence_length'])}, "
        f"{choices.text}); try {_settings_text(nearest.problem, cuts)}more GPUs, shorter sequences, "
        f"{no_margin}or GPUs with more memory: --set cluster.device.hbm_capacity='...'"
    )
    return Infeasible(why, needed / largest)


def _host_text(nearest: Study, plan: DataView, num_candidates: int) -> str:
    """Return why no plan fits if the hosts of none hold what it offloads; `plan` needs the least memory of a GPU."""
    (cluster, assumptions), choices = nearest.problem.at_point(0), plan["plan"]
    num_gpus = float(choices["num_gpus"])
    usable, gpus = float(usable_host_bytes(num_gpus, cluster.node, assumptions)), float(of_node(num_gpus, cluster.node))
    if plan["host_bytes"] <= usable:
        return ""
    needed, available = (format_quantity(part * gpus, "bytes") for part in (plan["host_bytes"], usable))
    return (
        f"none of {counted(num_candidates, 'candidate')} fits: all offload more than the host of a node holds; the one "
        f"that needs least memory of a GPU keeps {needed} on it, and a job has {available} of it "
        f"({counted(choices['num_gpus'], 'GPU')}, "
        f"{step_text(choices['global_batch_size'], choices['sequence_length'])}, "
        f"{choices.text}); try offload=none, more GPUs, or nodes with more memory: "
        "--set cluster.node.host_memory='...'"
    )


def _settings_text(problem: Problem, optimal_cuts: bool) -> str:
    """Return how to search optimal cuts, if none are, and to recompute activations, if no plan does."""
    cuts = "" if optimal_cuts else "stages of unequal numbers of layers (partition optimal), "
    if problem.workload.searched.recompute != (NONE_CODE,):
        return cuts
    of_the_set = "recompute" in problem.assumptions_spec.fixed
    return f"{cuts}{'--set assumptions.fixed.' if of_the_set else ''}recompute={FULL}, "


WORTH_SAYING = 0.001  # of the step time


@dataclass(frozen=True, slots=True)
class Beyond:
    """The fastest plan of other frameworks, where it is faster than all that the framework of a search runs."""

    plan: Plan
    step_time_s: float  # [s]
    saved: float | None  # of the step time of the fastest plan that the framework runs; None if none fits
    limits: DataView  # the choices of the plan that the framework does not run
    framework: str  # that runs the plan
    stack: str | None  # the software that the plan is priced with: its own, unless the search names one
    otherwise: str  # what it assumes otherwise than the framework of the search with the same software, and why

    def to_data(self) -> Data:
        """Return the plan as plain data."""
        return {
            "plan": self.plan.data,
            "step_time_s": self.step_time_s,
            "saved": self.saved,
            "limits": dict(self.limits),
            "framework": self.framework,
            "stack": self.stack,
        }


class Query(NamedTuple):
    """What a search is asked for."""

    job: Job
    strategies: Sequence[str]  # that it names
    partition: str
    fix: Selection
    limit: Limitation


def beyond(told: Told, request: SearchRequest, query: Query, with_roles: bool) -> tuple[Beyond | None, list[str]]:
    """Return the fastest plan of the frameworks other than that of a search, if it is faster than the best there.

    The frameworks are those with limits in the search path, each priced with its own software. The second result names
    those that run a plan of the kind that is asked for.

    Args:
        told: returns, `with_roles`, first the seconds of a step of the best plan that is placed as launched; then those
            of the best plan of the answer, and whether its plans are placed as launched, each as soon as it is known.
            Seconds are infinite if no plan fits.
        request: the search.
        query: what it was asked for.
        with_roles: whether the search chooses plans by role. These are mostly placed as launched.
    """
    if request.framework.unlimited:
        return None, []
    searches: list[tuple[str, SearchSpaces]] = []
    launched: list[tuple[str, SearchSpaces]] = []
    for other in other_frameworks(request.framework):
        spaces = None if other.unlimited else spaces_for(other, request, query)
        if spaces is None:
            continue
        of_launcher = [(other.name, spaces.as_launched)] if with_roles else []
        if any(placed.num_keys for _, placed in of_launcher) or spaces.any_candidates:
            searches.append((other.name, spaces))
            launched += of_launcher
    names = [name for name, _ in searches]
    for _, spaces in launched:
        _ = spaces.key_bounds
    (launched_s,) = told() if with_roles else (np.inf,)
    fastest = _fastest_of(launched, launched_s) if launched_s < np.inf else None
    best_s, as_launched = told()
    if not as_launched or launched_s == np.inf:
        fastest = _fastest_of(launched if as_launched else searches, best_s)
    if fastest is None or fastest[1] >= best_s:
        return None, names
    plan, least, name, problem = fastest
    saved = None if best_s == np.inf else 1 - least / best_s
    limits = limits_broken(request.framework, has_experts(request.problem.model.dimensions), plan)
    otherwise = _assumed_otherwise(request, problem)
    return Beyond(plan, least, saved, limits, name, problem.assumptions_spec.stack, otherwise), names


def _assumed_otherwise(request: SearchRequest, other: Problem) -> str:
    """Return what another framework assumes otherwise, and the source; empty if its software is other software."""
    usual, assumed = request.problem.assumptions_spec, other.assumptions_spec
    if usual.stack != assumed.stack:
        return ""
    stated = [frame.assume for frame in (other.framework, request.framework) if frame is not None]
    sources = {
        name: value.get("source") if is_sourced(value) else None for of in stated[::-1] for name, value in of.items()
    }
    texts: list[str] = []
    for name, source in sources.items():
        value, of_search = getattr(assumed, name), getattr(usual, name)
        why = f" ({printable(source)})" if source else ""
        if value != of_search:
            texts.append(f"it has {name}={value}, {printable(request.framework.name)} {of_search}{why}")
    return "; ".join(texts)


def _fastest_of(searches: Sequence[tuple[str, SearchSpaces]], below: float) -> tuple[Plan, float, str, Problem] | None:
    """Return the fastest plan of the searches of some frameworks, its seconds, the framework and its problem.

    Raises OutOfTimeError if no time is left to find it.
    """
    fastest: tuple[Plan, float, str, Problem] | None = None
    for name, spaces in searches:
        plans, counts = fastest_below(spaces, 1, below)
        if counts.left_s < below:
            raise OutOfTimeError
        if plans and plans[0]["step_time_s"] < below:
            below = plans[0]["step_time_s"]
            fastest = plans[0]["plan"], below, name, spaces.problem
    return fastest


def spaces_for(framework: FrameworkSpec, request: SearchRequest, query: Query) -> SearchSpaces | None:
    """Return the spaces of a search of another framework; None if it runs no strategy of the search."""
    job, experts = query.job, has_experts(query.job.model.dimensions)
    run = [name for name in query.strategies if framework.runs_strategy(name, experts)]
    if query.strategies and not run:
        return None
    built = dict(zip(request.problem.strategies, request.problem.models, strict=True))
    try:
        if _layers(request.problem.assumptions_spec) != _layers(job.inputs.run_by(framework).assumptions):
            built = {}
        other = searched(job.inputs, SearchedStrategies(run, built=built), framework, job.sequence_length)
    except InputError:
        return None  # it runs no strategy that the model can have, or its file is faulty
    problems = [problem.searching(query.fix) for problem in problems_of(query.partition, other.problem)]
    return spaces_of(problems, job.num_gpus, job.global_batch_size, query.fix, query.limit)


def _layers(assumptions: AssumptionsSpec) -> object:
    """Return what layers are built from."""
    named = ("layers", "uncounted_layers", "set", "operators", "uncounted", "fused_backward_reads")
    return [getattr(assumptions, name) for name in named]


def beyond_text(request: SearchRequest, other: Beyond | None, compared: Sequence[str]) -> str:
    """Return what the limits of the framework cost in a line; empty for a framework without limits.

    `compared` names the other frameworks that run such plans.
    """
    if request.framework.unlimited:
        return ""
    if other is None or (other.saved is not None and other.saved < WORTH_SAYING):
        names = _listed(compared)
        of = f"no plan of {names} saves more than {share(WORTH_SAYING, 1, 1)}"
        of = of if names else "no other framework runs such plans"
        return f"{of}; --framework any also searches what no framework runs"
    less = "" if other.saved is None else f", {share(other.saved, 1, 1)} less"
    if other.saved is not None and 1 / (1 - other.saved) - 1 <= (request.problem.assumptions_spec.resolution or 0.0):
        less += ", which measurements do not distinguish"  # stacks differ by as much for no cause that is known
    choices = " ".join(f"{column}={value}" for column, value in other.limits.items())
    cause = f"{choices}, which {printable(request.framework.name)} does not run there: " if choices else ""
    took = quantity("step_time_s", other.step_time_s)
    software = f" with the software {printable(other.stack)}" if other.stack else ""
    otherwise = f": {other.otherwise}" if other.otherwise else ""
    plan = f"({cause}{whole_plan_text(other.plan)})"
    return f"{printable(other.framework)}{software} would take {took}{less} {plan}{otherwise}"


def _listed(names: Sequence[str]) -> str:
    """Return names as text, as in "one, two or three"."""
    *leading, last = map(printable, names) if names else [""]
    return f"{', '.join(leading)} or {last}" if leading else last


_GPU_DOUBLINGS, _BATCH_DOUBLINGS = 6, 2
MOST_TIMES = 1 << _GPU_DOUBLINGS  # that the memory of a plan may be of a GPU's, for a change to help


def what_would_fit(request: SearchRequest, query: Query, times: float, watch: Watch | None = None) -> str:
    """Return a line for each change with which a plan fits; empty if there is none among those that are tried.

    `times` is the least memory that a plan needs over what a GPU has.
    """
    ways = [*_changes(query, times)] if times <= MOST_TIMES else []
    if not ways:
        return ""
    lines: list[str] = []
    done: set[str] = set()
    with progress(len(ways), "looking for what would fit", watch) as advance:
        for kind, words, changed in ways:
            if kind not in done and (fits := _fastest_that_fits(request, changed)) is not None:
                plan, peak_bytes = fits
                done.add(kind)
                of = f"{printable(plan['strategy'])}: {whole_plan_text(plan)}"
                lines.append(wrapped(f"{words}: {quantity('peak_bytes', peak_bytes)}, {of}", "  ", "  "))
            advance(1)
    return "\n".join(["what would fit, each with its fastest plan:", *lines]) if lines else ""


def _changes(query: Query, times: float) -> Iterator[tuple[str, str, Query]]:
    """Yield the kind of each change, what it is in words, and the search with it; nearer ones of a kind come first."""
    job = query.job
    gpus, batch, length = job.num_gpus, job.global_batch_size, job.sequence_length
    if query.fix or query.limit:
        yield (
            "choices",
            f"without {only_text(query.fix, query.limit).removeprefix('only ')}",
            query._replace(fix={}, limit={}),
        )
    enough = math.ceil(math.log2(max(times, 2.0)))  # the first doubling that may be
    for number in (gpus << step for step in range(enough, _GPU_DOUBLINGS + 1)):
        yield "GPUs", counted(number, "GPU"), query._replace(job=Job.of(job.inputs, number, batch, length))
    for step in range(enough, _BATCH_DOUBLINGS + 1):
        yield (
            "batch",
            f"a batch of {batch << step:,}",
            query._replace(job=Job.of(job.inputs, gpus, batch << step, length)),
        )
        if batch % (1 << step) == 0:
            less = batch >> step
            yield "batch", f"a batch of {less:,}", query._replace(job=Job.of(job.inputs, gpus, less, length))


def _fastest_that_fits(request: SearchRequest, query: Query) -> tuple[Plan, float] | None:
    """Return the fastest plan of a search and its memory [bytes]; None if none fits."""
    try:
        spaces = spaces_for(request.framework, request, query)
    except InputError:
        return None
    plans = [] if spaces is None else fastest_below(spaces, 1, np.inf)[0]
    return (plans[0]["plan"], plans[0]["peak_bytes"]) if plans else None
