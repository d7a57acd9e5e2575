"""Why a search has no feasible plan: no candidate at all, or none that fits."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dsx.cost.offload import of_node, usable_host_bytes
from dsx.display.job_text import step_text
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.problem import Problem
from dsx.printable import printable
from dsx.progress import Watch, progress
from dsx.search.blockers import Blocker, blockers
from dsx.search.search_spaces import SearchSpaces
from dsx.search.space import Space
from dsx.space.boxes import Limitation
from dsx.search.study import Study
from dsx.search.sweep import smallest
from dsx.space.boxes import Selection
from dsx.space.plan_rules import OPTIMAL_SCHEDULES
from dsx.space.recompute_values import FULL, NONE_CODE
from dsx.spec.sweep import SweepSpec
from dsx.units import counted, format_quantity


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
    searched = [Study(one.problem, one.space, 0, {}) for one in spaces.with_least_memory.parts if one.space.size]
    if searched:
        return _why_none_fits(searched, spaces.size, watch)
    return Infeasible(_why_no_candidate(spaces.spaces[0], problem, None, settings, limit), 0.0)


def _why_no_candidate(
    space: Space, problem: Problem, sweep: SweepSpec | None, settings: Selection, limit: Limitation
) -> str:
    num_gpus, batches = space.bounds.num_gpus, space.bounds.global_batch_size
    found = blockers(problem, num_gpus, batches, sweep.fix if sweep else settings, sweep.limit if sweep else limit)
    gpus = counted(num_gpus[0], "GPU") if len(num_gpus) == 1 else f"{' or '.join(map(str, num_gpus))} GPUs"
    job = f"{gpus} and global_batch_size={' or '.join(map(str, batches))}"
    if not found:
        frame = problem.framework
        run = "" if frame is None or frame.unlimited else f", as {printable(frame.name)} runs them,"
        return (
            f"no candidate: the rules of {' and '.join(problem.strategies)}{run} leave no combination of degrees for "
            f"{job} ({_pipelines_text(problem)}, dp must divide the batch)"
        )
    together = "" if len(found) == 1 else "; change any of these" if found[0].alone else "; change all of these"
    lines = [f"{_place(blocker, problem, sweep)}: {_as_text(blocker)}" for blocker in found]
    return "\n".join([f"no candidate for {job}: the fixed choices and limits leave none{together}", *lines])


def _pipelines_text(problem: Problem) -> str:
    if not problem.optimal_cuts:
        return f"pp must divide the {' or '.join(map(str, problem.limits().even_layers))} layers"
    return (
        f"pp is at most {problem.limits().max_stages}, the layers with embedding and head, and partition optimal "
        f"covers {OPTIMAL_SCHEDULES}"
    )


def _as_text(blocker: Blocker) -> str:
    nearest = f"; nearest: {blocker.nearest}" if blocker.nearest else ""
    return f"{blocker.setting}: {blocker.rule}{nearest}"


def _place(blocker: Blocker, problem: Problem, sweep: SweepSpec | None) -> str:
    if blocker.section == "fixed":
        return f"assumption set {problem.assumptions_spec.name!r}: fixed"
    if sweep is None:
        return "the command"
    return f"{sweep.place(blocker.section, blocker.column)}: {blocker.section}"


def _why_none_fits(searched: Sequence[Study], num_candidates: int, watch: Watch | None) -> Infeasible:
    with progress(sum(study.space.size for study in searched), "looking for the smallest", watch) as advance:
        nearest, rows = smallest(searched, advance)
    plan = priced_plans(nearest.problem, rows)[0]
    choices = plan["plan"]
    capacities = [study.problem.hardware.device.hbm_capacity for study in searched]
    largest = max(float(capacity.max()) for capacity in capacities)
    margin = nearest.problem.assumptions_spec.memory_margin
    needed = plan["peak_bytes"] * (1 + margin)
    if on_host := _host_text(nearest, plan, num_candidates):
        return Infeasible(on_host, needed / largest)
    varied = any(capacity.min() < largest for capacity in capacities)
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


def _host_text(nearest: Study, plan: Mapping[str, Any], num_candidates: int) -> str:
    """Return why no plan fits if the hosts of none hold what it offloads; `plan` needs the least memory of a GPU."""
    (cluster, assumptions), choices = nearest.problem.at_point(0), plan["plan"]
    num_gpus = float(choices["num_gpus"])
    usable, gpus = float(usable_host_bytes(num_gpus, cluster.node, assumptions)), float(of_node(num_gpus, cluster.node))
    if plan["host_bytes"] <= usable:
        return ""
    needed, there = (format_quantity(part * gpus, "bytes") for part in (plan["host_bytes"], usable))
    return (
        f"none of {counted(num_candidates, 'candidate')} fits: all offload more than the host of a node holds; the one "
        f"that needs least memory of a GPU keeps {needed} on it, and a job has {there} of it "
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
