"""``dsx best``: the fastest plans of a job."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

from dsx.config.load import Given
from dsx.config.operator_files import OperatorTime
from dsx.cost.interval import unlike
from dsx.errors import InputError, NothingFeasible, UnknownNameError
from dsx.forked import forked
from dsx.launching.hosts import other_placement
from dsx.launching.request import LaunchSettings
from dsx.launching.writers import launch_data, launch_of, launch_text
from dsx.plans.features import features_of
from dsx.plans.frameworks import Limitation
from dsx.plans.plan import Plan, fixed_settings
from dsx.pricing.measured_share import KernelCoverage, coverage, idle_rows
from dsx.pricing.problem import Problem
from dsx.progress import OutOfTimeError, Watch, early, seconds_left, time_limit, warn, working
from dsx.results.ranked_by import FASTEST, ROLES, TIED, by_role, launched_first, wanted_by_role
from dsx.search.fastest import ANY, CUTS, FEW_KEYS, SearchCounts, SearchSpaces, fastest_below, problems_of, spaces_of
from dsx.search.one_pass import OnePass
from dsx.tables.format import (
    WIDTH,
    job_data,
    job_text,
    only_text,
    parameters_text,
    quantity,
    share,
    step_text,
    trained_text,
    whole_plan_text,
    wrapped,
)
from dsx.tables.plans import (
    extrapolated_text,
    fitting,
    less_sure_text,
    mfu_of_peaks,
    placement_text,
    plans_frame,
    plans_text,
    precision_text,
    resolution_text,
    roles_of,
    selection_text,
    taken_text,
    three_plans_text,
    tie_text,
    tied_text,
    tight_text,
    within_resolution,
)
from dsx.tables.terms import coverage_data, coverage_text, idle_data, idle_text, shares_text
from dsx.text import Data, DataView, printable
from dsx.units import counted
from dsx.verbs.alternatives import (
    MOST_TIMES,
    WORTH_SAYING,
    Beyond,
    Query,
    beyond,
    beyond_text,
    what_would_fit,
    why_nothing_fits,
)
from dsx.verbs.arguments import PricedPlans, count, paragraphs, seconds_from, strategy_names, total, watcher
from dsx.verbs.job import Job, checked, replicas_left_out, say_unusual, unfilled_domain, with_margin
from dsx.verbs.plan import PlanLike, given_plan
from dsx.verbs.searched import (
    LimitLike,
    SearchedStrategies,
    SearchRequest,
    check_fixed,
    given_limits,
    left_out_text,
    run_by_none,
    say_few_pipelines,
    say_inexact_schedules,
    searched,
)

if TYPE_CHECKING:
    import pandas as pd


_SIMPLER, _OTHERS = "simpler and leaner plans", "other frameworks"
_KNOWN = 5  # plans that an answer has beside those three
_LONGEST = 100_000  # plans of a list; each is priced with its best cut


@dataclass(frozen=True, eq=False, repr=False)
class BestPlans(PricedPlans):
    """The fastest plans of a job, and how many candidates were priced."""

    job: Job  # the job that was priced
    query: Query  # what the search was asked for
    problem: Problem
    searched: SearchRequest
    priced: Sequence[Data]
    counts: SearchCounts  # number of candidates, and of those that were priced, fit and were cut
    left_out: Mapping[str, str]  # strategies that a search without named ones left out, and why
    beyond: Beyond | None  # the fastest plan of the other frameworks, if it is faster than all of these
    compared: Sequence[str] | None  # other frameworks that run plans of the kind that is asked for; None: no time left
    idle: Sequence[OperatorTime]  # rows of the operator times that are of no kernel of any plan
    infeasible: str = ""  # why no plan fits; empty if one does
    fix: Mapping[str, Sequence[int | str]] = field(default_factory=dict)  # values of the choices that the caller fixed
    limit: Limitation = field(default_factory=dict)  # bounds of the choices that the caller limited
    answer: Mapping[str, Data] = field(default_factory=dict)  # to choose from, by name; empty of a list
    as_launched: bool = False  # whether these are the best of the plans that are placed as launched, not of all
    faster_placement: DataView | None = None  # a faster plan within the resolution, placed as none is launched
    times: float = 0.0  # the least memory that a plan needs over what a GPU has, where none fits
    limit_s: float = math.inf  # the longest that the search might take
    least_s: float = math.inf  # no plan takes less: of the fastest plan, or less if time ran out; infinite if none fits
    not_compared: Sequence[str] = ()  # what no time was left for

    @property
    def fastest(self) -> Plan:
        """The fastest plan; raises NothingFeasible if there is none."""
        return self.plan

    @property
    def simplest(self) -> Plan:
        """The plan whose features cost least, then of least memory, within the resolution of the measurements."""
        return self._chosen("simplest")["plan"]

    @property
    def leanest(self) -> Plan:
        """The plan of least memory within the resolution of the measurements."""
        return self._chosen("leanest")["plan"]

    def _chosen(self, name: str) -> Data:
        if self._nonempty and _SIMPLER in self.not_compared:
            raise InputError(f"no {name} was found in {self.limit_s:g} s: give a longer time_limit")
        if not self.answer:
            raise InputError(f"a list of the {counted(len(self.priced), 'fastest plan')} has no {name}: leave out top")
        return self.answer[name]

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that were searched."""
        return tuple(name for name in self.searched.problem.strategies if name not in self.left_out)

    @property
    def fixed(self) -> dict[str, int | str]:
        """The choices that the assumption set fixes, and the caller does not."""
        return {name: value for name, value in self.job.assumptions.fixed.items() if name not in self.fix}

    @cached_property
    def would_fit(self) -> str:
        """What would fit where no plan does, found by more searches: other choices, more GPUs, another batch."""
        searched = self.priced or self.timed_out
        return "" if searched else what_would_fit(self.searched, self.query, self.times)

    @property
    def timed_out(self) -> bool:
        """Whether a part of the answer was not found in the time that the search might take."""
        return bool(self.not_compared) or self.counts.left_s < math.inf

    @property
    def _time_text(self) -> str:
        if not self.timed_out:
            return ""
        took, known = self.step_time_s, "the fastest plan is known"
        if self.counts.left_s < took:
            less = f"{quantity('step_time_s', self.counts.left_s)}, {share(took - self.counts.left_s, took, 0)} less"
            known = f"no plan takes less than {less}"
        elif self.counts.left_s < math.inf:
            known = f"{known}, plans as fast as the next ones may be missing"
        missing = f"; {' and '.join(self.not_compared)} were not compared" if self.not_compared else ""
        return f"--time-limit {self.limit_s:g} s ended the search: {known}{missing}."

    @property
    def plan(self) -> Plan:
        """The fastest plan; raises NothingFeasible, with the reason, if there is none."""
        return self._fastest["plan"]

    @property
    def step_time_s(self) -> float:
        """Seconds of a step of the fastest plan; raises NothingFeasible if there is none."""
        return self._fastest["step_time_s"]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The plans as rows, with the columns of a result set; units in `attrs`."""
        hardware = {"hardware": {"cluster": self.job.cluster.name}}
        return plans_frame([{**priced, **hardware} for priced in self.priced])

    def launch(self, number: int | str = 1) -> LaunchSettings:
        """Return the Megatron-LM flags of a plan: counted from 1 as they are printed, or "simplest" or "leanest".

        Raises InputError if there is no such plan, NothingFeasible if no plan fits.
        """
        num_plans = len(self._nonempty)
        if number in ROLES:
            return launch_of(self._chosen(str(number))["plan"], self.problem, self.job.cluster.device)
        if number not in range(1, num_plans + 1):
            raise InputError(f"no plan {number!r:.60}: there are {counted(len(self.priced), 'plan')}, counted from 1")
        return launch_of(self.plans[int(number) - 1], self.problem, self.job.cluster.device)

    @property
    def _fixed_text(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.fixed.items())
        unsearched = f"not searched: {settings} (--fix searches other values)" if settings else ""
        return "; ".join(filter(None, (only_text(self.fix, self.limit), unsearched)))

    @property
    def _faster_text(self) -> str:
        faster = self.faster_placement
        if faster is None:
            return ""
        why = ". ".join(f"It {text}" for text in _placed_by_hand(faster, self.searched))
        took = faster["step_time_s"]
        return (
            f"Another placement would take {quantity('step_time_s', took)}, "
            f"{share(self.step_time_s - took, self.step_time_s, 1)} less, which measurements do not distinguish "
            f"({whole_plan_text(faster['plan'])}). {why}."
        )

    @property
    def _nonempty(self) -> Sequence[Data]:
        if not self.priced:
            raise NothingFeasible(self.infeasible)
        return self.priced

    @property
    def _fastest(self) -> Data:
        return self._nonempty[0]

    @property
    def _covered(self) -> list[KernelCoverage]:
        return [covered for plan in self.priced if (covered := coverage(self.problem, plan["plan"]))]

    def _data(self) -> Data:
        resolution, faster = self.job.assumptions.resolution, self.faster_placement
        return {
            **job_data(self.problem, self.job.num_gpus, self.job.global_batch_size),
            **{name: self._described(plan) for name, plan in self.answer.items()},
            "candidates": self.counts.candidates,
            "priced": self.counts.priced,
            "feasible": self.counts.feasible,
            "cut": self.counts.cut,
            "framework": self.searched.framework.name,
            "strategies": list(self.strategies),
            "left_out": dict(self.left_out),
            "beyond_framework": self.beyond and self.beyond.to_data(),
            "compared_frameworks": None if self.compared is None else list(self.compared),
            "fixed": self.fixed,
            "limit": {name: [*map(str, bounds)] for name, bounds in self.limit.items()},
            "resolution": resolution,
            "within_resolution": within_resolution(self.priced, resolution),
            **({"idle_operator_times": idle_data(self.idle)} if self.problem.operator_times else {}),
            "extrapolated": unlike(self.problem.likeness, self.job.assumptions.trained_on),
            "infeasible": self.infeasible or None,
            "would_fit": self.would_fit or None,
            "faster_placement": self._described(faster) if faster else None,
            **({"timed_out": self.timed_out, "least_s": self.least_s} if self.limit_s < math.inf else {}),
            "plans": [self._described(plan) for plan in self.priced],
        }

    def _described(self, plan: DataView) -> Data:
        """Return a plan as plain data."""
        device, assumed = self.job.cluster.device, self.job.assumptions
        covered = coverage(self.problem, plan["plan"])
        probabilities = fitting([plan], device.hbm_capacity, assumed)
        return {
            **plan,
            "plan": plan["plan"].data,
            "features": features_of(plan["plan"]),
            "mfu_of_peak": mfu_of_peaks(plan["mfu"], device, assumed.linear_dtype),
            "launch": launch_data(launch_of(plan["plan"], self.problem, device)),
            **({"fits_probability": probabilities[0]} if probabilities else {}),
            **({"operator_times": coverage_data(covered)} if covered else {}),
        }

    def __str__(self) -> str:
        if not self.priced:
            return self.infeasible
        capacity, assumed, device = (
            self.problem.cluster.device.hbm_capacity,
            self.job.assumptions,
            self.job.cluster.device,
        )
        head = [*searched_text(self.searched, self.strategies, self.job, self.counts), self._fixed_text]
        lines = [wrapped(line) for line in (*head, left_out_text(self.left_out)) if line]
        if not self.answer:
            fits = fitting(self.priced, capacity, assumed)
            shown = {"plan 1": self.priced[0]}
            table = plans_text(self.priced, with_strategy=len(self.strategies) > 1, fits=fits, width=WIDTH)
            parts, tie = ["\n".join([*lines, table])], tied_text(self.priced)
            chosen = resolution_text(self.priced, assumed.resolution)
        else:
            shown = {f"the {name} plan": plan for name, plan in roles_of(self.answer).items()}
            parts = ["\n".join(lines), three_plans_text(self.answer, device, assumed)]
            fastest = "the fastest placed as launched" if self.as_launched else "the first of --top"
            tie = tie_text(self.priced, fastest)
            chosen = selection_text(assumed.resolution, self.counts.candidates, self.as_launched)
        first = next(iter(shown))
        notes = (
            self._time_text,
            chosen,
            tie,
            self._faster_text,
            precision_text(device, assumed.linear_dtype),
            extrapolated_text(self.problem.likeness, assumed.trained_on),
            less_sure_text(self.problem.likeness, assumed.name),
            *(tight_text(plan, name, capacity, assumed) for name, plan in shown.items()),
            "" if self.compared is None else beyond_text(self.searched, self.beyond, self.compared),
            run_by_none(plan["plan"] for plan in shown.values()) if self.searched.framework.unlimited else "",
        )
        parts.append("\n".join(wrapped(note) for note in notes if note))
        if (times := self.problem.operator_times) is not None:
            covered = self._covered
            of_plans = (shares_text(covered), coverage_text(covered[0], first, with_idle=False))
            parts.append("\n".join(filter(None, (*of_plans, idle_text(times.file, self.idle, "any plan")))))
        parts.append(placement_text(self.plan, self.problem, f"{first}: "))
        parts.append(launch_text(self.launch(), first))
        return paragraphs(parts)


def _in_a_line(plan: DataView) -> str:
    took, what = quantity("step_time_s", plan["step_time_s"]), plan["plan"]
    return f"{took} a step: {printable(what['strategy'])}, {whole_plan_text(what)}"


def _placed_by_hand(plan: DataView, request: SearchRequest) -> list[str]:
    """Return what the placement of a plan takes and has that its framework does not launch; empty if it launches it."""
    problem = request.problem
    taken = taken_text(plan["plan"], problem.cluster, problem.assumptions_spec)
    laid = [] if request.framework.unlimited else other_placement(plan["plan"])
    return [*filter(None, [taken]), *(f"has {placement}" for placement in laid)]


def _with_launched_first(plans: list[Data], most: int, spaces: SearchSpaces, request: SearchRequest) -> list[Data]:
    """Return a list of the `most` fastest plans, those in front that tie with the fastest and are launched as they are.

    If all plans of the list tie and are placed by hand, the last one makes room for the fastest launched one that ties.
    """

    def by_hand(plan: Data) -> bool:
        return bool(_placed_by_hand(plan, request))

    ordered = launched_first(plans, by_hand)
    within_s = plans[0]["step_time_s"] * (1 + TIED) if plans else 0.0
    if len(plans) < most or plans[-1]["step_time_s"] > within_s or not all(map(by_hand, plans)) or not seconds_left():
        return ordered
    launched, _ = fastest_below(spaces.as_launched, 1, within_s)
    return [*(plan for plan in launched if plan["step_time_s"] <= within_s and not by_hand(plan)), *ordered][:most]


def _first(plan: DataView, plans: Sequence[Data]) -> list[Data]:
    """Return plans with one of them, or another, in front."""
    return [dict(plan), *(other for other in plans if other["plan"] != plan["plan"])]


def searched_text(request: SearchRequest, strategies: Sequence[str], job: Job, counts: SearchCounts) -> list[str]:
    """Return lines on the job of a search, on its step, and on how many candidates of which strategies it priced."""
    problem, names = request.problem, list(map(printable, strategies))
    of = f"{len(names)} strategies, {', '.join(names)}" if len(names) > 1 else f"one strategy, {names[0]}"
    stack = printable(problem.assumptions_spec.stack or "")
    runs = "" if request.framework.unlimited else f", as {printable(request.framework.name)} runs them"
    generation = request.framework.on_generation.get(job.cluster.device.family)
    lacking = f", on {printable(job.cluster.device.name)} without {printable(generation.without)}" if generation else ""
    runs = f"{runs} (software {stack}{lacking})" if stack else runs
    cut = f", {counts.cut:,} of them with their best cut" if counts.cut else ""
    excluded = "bounds exclude the others" if counts.left_s == math.inf else "others were left for want of time"
    bounded = f"{counts.priced:,} priced{cut}, {excluded}"
    done = f"{counts.feasible:,} feasible" if counts.feasible is not None else bounded
    return [
        f"{job_text(problem, job.num_gpus)}: {parameters_text(problem)}",
        step_text(job.global_batch_size, problem.sequence_length),
        *filter(None, [trained_text(job.model)]),
        f"{counted(counts.candidates, 'candidate')} of {of}{runs}; {done}",
    ]


def best(
    job: Job,
    top: int | None = None,
    *,
    fix: PlanLike | None = None,
    limit: LimitLike | None = None,
    strategy: str | Sequence[str] | None = None,
    framework: Given | None = None,
    partition: Literal["any", "even", "optimal"] = ANY,
    memory_margin: float | None = None,
    train_tokens: float | str | None = None,
    time_limit: str | None = None,
    watch: Watch | None = None,
) -> BestPlans:
    """Price every plan that a framework runs; find the fastest.

    The answer has three plans to choose from, or a list of the fastest.

        found = dsx.best(dsx.Job("llama-3-70b", "h100-nvs8", num_gpus=512, global_batch_size=1024))
        found.simplest, found.leanest               # beside the fastest, found.plan
        found.frame                                 # the fastest plans as a DataFrame
        dsx.evaluate(found.job, found.plan)         # the fastest one, part by part
        dsx.best(job, fix="vpp=1 offload=none,optimizer", limit="tp<=8", strategy="1d,2d")

    An assumption set may fix choices (`fixed` of the answer); `fix` searches other values of them, or fewer of a choice
    that is searched. `beyond` of the answer is the fastest plan of the other frameworks, if it is faster.

    Args:
        job: the model, the cluster, the GPUs and the batch.
        top: how many of the fastest plans to list, at most 100,000; by default the answer has three to choose from.
        fix: columns with the values that they may have, as a text or a mapping: "tp=8 vpp=1,2", {"tp": [4, 8]}.
        limit: bounds of columns, with the grammar of `limit` in a sweep: "tp<=8 pp>=2", ["tp<=8", "pp>=2"],
            {"tp": "<=8", "pp": [">=2", "<=16"]}.
        strategy: a name or a .layer file, or several: "1d,2d" or ["1d", "2d"]; by default all that the framework runs.
            A plan that several strategies have is searched once, under the first of them.
        framework: what runs the plans: a name (dsx list frameworks) or a YAML file; "any" for all plans. By default
            that of the assumption set.
        partition: how layers are divided into pipeline stages: "even"; "optimal", the best known cut of each plan (the
            optimal one for vpp=1, above the best of two balanced ones and the even one); or "any", that cut, and the
            even one for schedules without it.
        memory_margin: keep only plans that would fit if they needed this share more memory; by default that of the
            assumption set.
        train_tokens: tokens of the whole training, as in "15T", for the columns `training_days`, `gpu_hours`,
            `cost_usd` and `energy_kwh`; `dsx.training_run` compares them over numbers of GPUs.
        time_limit: the longest that the search may take, as in "10 s". The answer is then the fastest plans so far,
            with the seconds of a step that no plan takes less than (`least_s`). The most promising plans are searched
            however long they take, all candidates are counted, and compiled code is not interrupted.
        watch: called with the candidates done, their total and the kind of work; by default a bar is shown.

    It is no error if no plan fits: `plans` is then empty, and `infeasible` says why. Raises UnknownNameError or
    SpecError for a strategy that cannot be used, and for a strategy or a value of `fix` that the framework does not
    run; InputError for a limit that is none or contradicts `fix`, and for a longer list.
    """
    if top is not None and count("top", top) > _LONGEST:
        every = "a sweep with keep: all has every plan (dsx sweep)"
        raise InputError(f"--top {top}: a list has at most {_LONGEST:,} plans; {every}")
    limit_s = math.inf if time_limit is None else seconds_from("time_limit", time_limit)
    restricted = Restricted(fix, limit, strategy, framework, partition, train_tokens, limit_s)
    job = with_margin(checked(job), memory_margin).run_by(framework)
    if top is None:
        return plans_of_roles(job, ROLES, _KNOWN, restricted, watch)
    return plans_of_roles(job, (), count("top", top), restricted, watch)


class Restricted(NamedTuple):
    """The arguments of a search that restrict or describe it, as `best` takes them."""

    fix: PlanLike | None
    limit: LimitLike | None
    strategy: str | Sequence[str] | None
    framework: Given | None
    partition: Literal["any", "even", "optimal"]
    train_tokens: float | str | None
    limit_s: float = math.inf  # the longest that the search may take


def plans_of_roles(job: Job, roles: Sequence[str], most: int, restricted: Restricted, watch: Watch | None) -> BestPlans:
    """Return the `most` fastest plans of a job, and those of the first `roles`; the fastest role is then the first.

    `answer` has them if all roles are wanted. Raises what `best` raises.
    """
    watch, begin = watcher(watch), monotonic()
    fix, limit, strategy, framework, partition, train_tokens, limit_s = restricted
    fixed_plan = given_plan(fix, {}, job)
    if partition not in CUTS:
        raise UnknownNameError("partition", str(partition), CUTS)
    names = strategy_names(fixed_plan.strategy if strategy is None else strategy)
    tokens = total("train_tokens", train_tokens)
    request = searched(job.inputs, SearchedStrategies(names), framework, job.sequence_length, tokens)
    cut_problems = problems_of(partition, request.problem)
    *_, widest = cut_problems  # optimal cuts allow the most pipelines
    say_few_pipelines(widest)
    say_unusual(job, widest)
    for remark in (
        *unfilled_domain(job.num_gpus, widest.nvs_size),
        *replicas_left_out(job.num_gpus, job.global_batch_size),
    ):
        warn(remark)
    fixed = fixed_settings(fixed_plan.settings, job.num_gpus, widest.limits())
    check_fixed(request, fixed, "--fix {}".format)
    limits = given_limits(limit, fixed)
    problems = [problem.searching(fixed) for problem in cut_problems]
    say_inexact_schedules(problems[0])
    query = Query(job, names, partition, fixed, limits)
    why, times, other, compared = "", 0.0, None, list[str]()
    wants = partial(wanted_by_role, resolution=job.assumptions.resolution)

    def tell_first(plan: Data, least_s: float) -> None:
        less = f"none{' placed as launched' if roles else ''} takes less than {quantity('step_time_s', least_s)}"
        early(f"a plan takes {_in_a_line(plan)}; {less}", begin, watch)

    def tell_fastest(plan: Data | None, as_launched: bool) -> None:
        if as_launched:
            others.tell(plan["step_time_s"] if plan else math.inf)
        if plan and len(roles) == len(ROLES) and seconds_left():
            placed, more = (" placed as launched", "other placements, ") if as_launched else ("", "")
            follow = f"{more}equal ones, {_SIMPLER} follow"
            early(f"none{placed} is faster than {_in_a_line(plan)}; {follow}", begin, watch)

    with ExitStack() as beside:
        others = beside.enter_context(forked(beyond, request, query, bool(roles)))
        with working("enumerating", watch):
            spaces = spaces_of(problems, job.num_gpus, job.global_batch_size, fixed, limits)
            if not roles and spaces.num_keys < FEW_KEYS:
                _ = spaces.spaces  # before the process that counts them
        with forked(lambda _: spaces.counted, when_idle=True) as counting:
            with time_limit(limit_s - (monotonic() - begin)):
                search = OnePass(spaces, most, wants, len(roles), tell_first, tell_fastest, watch)
                of_all, plans, of_roles, as_launched, counts = search.plans()
                plans = plans if roles else _with_launched_first(plans, most, spaces, request)
                not_compared = [_SIMPLER] if of_roles is None and plans else []
                if not plans and counts.left_s < math.inf:
                    why = f"no plan that fits was found in the time, --time-limit {limit_s:g} s"
                elif not plans:
                    why, times = why_nothing_fits(spaces, widest, fixed, limits, watch)
                if times <= MOST_TIMES:
                    others.tell(plans[0]["step_time_s"] if plans else math.inf, as_launched)
                    try:
                        with working("comparing with other frameworks", watch):
                            other, compared = others.result()
                    except OutOfTimeError:
                        compared, not_compared = None, [*not_compared, _OTHERS]
            beside.close()  # the process that counts goes on alone
            with working("counting candidates", watch):
                count = counting.result()
    costs = [sum(features_of(plan["plan"]).values()) for plan in of_roles or ()]
    role_plans, idle = by_role(of_roles or [], costs), idle_rows(problems[0])
    less = 1 - of_all[0]["step_time_s"] / plans[0]["step_time_s"] if plans else 0.0
    faster = of_all[0] if less >= WORTH_SAYING else None
    if why and other and compared:
        why = f"{why}\n{beyond_text(request, other, compared)}"
    return BestPlans(
        job,
        query,
        problems[0],
        request,
        _first(role_plans[FASTEST], plans) if role_plans else plans,
        counts.among(count.candidates),
        request.left_out(count.strategies),
        other,
        compared,
        idle,
        why,
        fixed,
        limits,
        role_plans if len(roles) == len(ROLES) else {},
        as_launched,
        faster,
        times,
        limit_s,
        min([counts.left_s, *(plan["step_time_s"] for plan in of_all[:1])]),
        not_compared,
    )
