"""The spaces of a search for the fastest plans of a job, and its fastest plans.

A search has a space for each way in which its plans are cut; they share their shard keys, of which the layers are
priced only when a search takes the key. Best cuts are known for some schedules (`dsx.plans.rules.optimal_cut_covers`):
optimal ones for one chunk per stage, the best of balanced and even ones for several. A search of any cut gives plans of
these schedules their best cut, and the others an even one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsx.arrays import Chosen, KeyFloats
from dsx.config.model_file import has_experts
from dsx.config.sweep_fields import Limit
from dsx.cost.cut_bounds import ROUNDING
from dsx.plans.choices import NONE_CODE, Choice
from dsx.plans.enumerate import Keys, take, with_values
from dsx.plans.frameworks import Limitation, Selection
from dsx.plans.rules import EVEN, OPTIMAL, optimal_cut_covers
from dsx.pricing.cuts import CandidateCounts
from dsx.pricing.one_plan import priced_plans
from dsx.pricing.problem import MAX_LAYERS, Problem
from dsx.progress import Watch, progress, seconds_left, unwatched, working
from dsx.records import Over
from dsx.search.bounds import (
    best_cuts,
    best_even,
    key_bounds,
    shares_of,
)
from dsx.search.ranking import Progress, silent
from dsx.search.spaces import (
    PricedSpace,
    Space,
    StrategiesOfCandidates,
    of_used_keys,
    of_values,
    recomputing,
    representatives,
    strategies_of,
    undominated,
    used_keys,
)
from dsx.search.variants import Variants, best_variants, varied_last
from dsx.text import Data

_SOME_KEYS = 1 << 12  # among which mostly one has candidates
_BOUNDED_KEYS = 1 << 16  # that are bounded together
_SAVES_MEMORY = "offload"  # of the choices that are searched last, the one whose default needs most memory


class SearchedSpace(NamedTuple):
    """The plans of a search that are cut in one way."""

    unrestricted: Problem  # with all searched values of the choices that are searched last
    problem: Problem  # with their defaults
    space: Space


class CandidateCount(NamedTuple):
    """How many candidates a search has, and of which strategies."""

    candidates: int  # with all variants
    strategies: StrategiesOfCandidates


@dataclass(frozen=True)
class SearchSpaces:
    """The spaces of a search.

    Their shard keys are all that the rules allow: some have no plan, or those of an earlier strategy. To tell takes
    seconds where there are many keys, and most of these are left out by their bounds.
    """

    problem: Problem  # of all spaces but for their cuts, with the defaults of the choices `varied`
    varied: Sequence[Choice]  # those whose other values are searched last, as variants of plans
    parts: Sequence[SearchedSpace]

    @property
    def keys(self) -> Keys:
        """All shard keys."""
        return self.parts[0].space.keys

    @property
    def num_keys(self) -> int:
        """The number of all shard keys."""
        return len(self.keys["tp"])

    @cached_property
    def spaces(self) -> list[Space]:
        """The space of each part, with the keys that have plans of their own."""
        return self._used(self.keys)

    def _used(self, keys: Keys) -> list[Space]:
        # The keys that have plans are the same, and found faster, with few values of `recompute`.
        codes = representatives(self.problem)
        spaces = [space.of_keys(keys).searching(recomputing(problem, codes)) for _, problem, space in self.parts]
        used = of_used_keys(self.problem, spaces)
        return [space.searching(part.problem) for space, part in zip(used, self.parts, strict=True)]

    @cached_property
    def counted(self) -> CandidateCount:
        """How many candidates there are, and of which strategies."""
        candidates = sum(space.size for space in self.spaces)
        for part, space in zip(self.parts, self.spaces, strict=True) if self.varied else ():
            variants = Variants(space.blocks, space.bounds, self.varied, part.unrestricted.workload.searched)
            candidates += space.blocks.size_with(variants.count)
        return CandidateCount(candidates, strategies_of(self.spaces))

    @property
    def any_candidates(self) -> bool:
        """Whether there are any candidates."""
        return any(few.size for part in self.parts for few in part.space.split(_SOME_KEYS))

    @property
    def with_least_memory(self) -> "SearchSpaces":
        """The spaces that have the plans of least memory, which no other value of `varied` has than of offload."""
        saves = any(choice.name == _SAVES_MEMORY for choice in self.varied)
        return self.enumerating(_SAVES_MEMORY) if saves else self

    def enumerating(self, name: str) -> "SearchSpaces":
        """Return the spaces with all values of one of the choices `varied`, which is then searched like the others."""
        values = {name: getattr(self.parts[0].unrestricted.workload.searched, name)}
        parts: list[SearchedSpace] = []
        for unrestricted, problem, space in self.parts:
            changed = _with_values(problem, values)
            parts.append(SearchedSpace(unrestricted, changed, space.searching(changed)))
        varied = tuple(choice for choice in self.varied if choice.name != name)
        return SearchSpaces(_with_values(self.problem, values), varied, parts)

    @property
    def as_launched(self) -> "SearchSpaces":
        """The spaces of the plans that need the fewest domains and nodes, all full but the last.

        If a framework launches them, domains have consecutive ranks.
        """
        codes, spaces = representatives(self.problem), self._placed(otherwise=False)
        with_codes = [
            space.searching(recomputing(part.problem, codes)) for space, part in zip(spaces, self.parts, strict=True)
        ]
        return self._of_keys(used_keys(with_codes), spaces)

    @property
    def not_as_launched(self) -> "SearchSpaces":
        """The spaces of all plans but those of `as_launched`."""
        return self._of_keys(slice(None), self._placed(otherwise=True))

    def _placed(self, otherwise: bool) -> list[Space]:
        framework = self.problem.framework
        in_rank_order = framework is not None and not framework.unlimited
        return [space.placed(problem.node_size, in_rank_order, otherwise) for _, problem, space in self.parts]

    def _of_keys(self, where: Chosen | slice, spaces: Sequence[Space]) -> "SearchSpaces":
        keys = take(self.keys, where)
        parts = [part._replace(space=space.of_keys(keys)) for part, space in zip(self.parts, spaces, strict=True)]
        return replace(self, parts=parts)

    @cached_property
    def key_bounds(self) -> KeyFloats:
        """Return the least seconds of a step of any plan of each shard key."""
        without_recomputation = recomputing(self.problem, [NONE_CODE])
        # A few at a time: the costs of all would take a gigabyte, and longer.
        bounds = [
            key_bounds(PricedSpace(without_recomputation, part, part.table(without_recomputation), "float64"))
            for part in self.parts[0].space.split(_BOUNDED_KEYS)
        ]
        return np.concatenate(bounds)

    def priced(self, where: Chosen | slice) -> list[Over[PricedSpace, "..."]]:
        """Return the parts that have candidates of some of the shard keys, with the layer costs of these.

        They are without values of `recompute` that others dominate.
        """
        keys = take(self.keys, where)
        spaces = self.spaces if len(keys["tp"]) == self.num_keys else self._used(keys)
        table = spaces[0].table(self.problem)
        values = undominated(self.problem, table)
        table = of_values(table, values)
        sources: list[PricedSpace] = []
        for (unrestricted, problem, _), space in zip(self.parts, spaces, strict=True):
            recomputed, full = recomputing(problem, values), recomputing(unrestricted, values)
            sources.append(PricedSpace(recomputed, space.searching(recomputed), table, "float64", full))
        return [source for source in sources if source.space.size]


def spaces_of(
    problems: Sequence[Problem],
    num_gpus: int,
    global_batch_size: int,
    fix: Selection,
    limit: Limitation | None = None,
) -> SearchSpaces:
    """Return the spaces of problems that differ in their cuts alone.

    Where there are several, a plan has its best cut if one is known for its schedule, and else an even one.
    """
    first = problems[0]
    boxes = [] if first.framework is None else first.framework.boxes(has_experts(first.model.dimensions))
    varied = varied_last(first.workload.searched, [*fix, *(limit or ())], boxes)
    usual = {choice.name: (choice.default_code,) for choice in varied}
    usually = _with_values(first, usual)
    unscheduled = {name: values for name, values in fix.items() if name != "schedule"}  # parts have their own schedules
    parts: list[SearchedSpace] = []
    for unrestricted, limited in _parts(problems, limit or {}):
        problem = _with_values(unrestricted, usual)
        keys = parts[0].space.keys if parts else None
        space = Space(problem, [num_gpus], [global_batch_size], unscheduled, limited, keys)
        parts.append(SearchedSpace(unrestricted, problem, space))
    return SearchSpaces(usually, varied, parts)


def _parts(problems: Sequence[Problem], limit: Limitation) -> list[tuple[Problem, Limitation]]:
    """Return the problem of each way to cut a plan, and the limits of its plans; optimal cuts come last."""
    if len(problems) == 1:
        return [(problems[0], limit)]
    even, optimal = problems
    schedules = even.workload.searched.schedule
    covered = tuple(code for code in schedules if optimal_cut_covers(code))
    uncovered = tuple(code for code in schedules if code not in covered)
    parts: list[tuple[Problem, Limitation]] = []
    if uncovered:
        # One stage has no schedule, so that its plans are those of the first one.
        pipelined = {**limit, "pp": [*limit.get("pp", ()), Limit(">=", 2)]} if covered else limit
        parts.append((_with_values(even, {"schedule": uncovered}), pipelined))
    if covered:
        parts.append((_with_values(optimal, {"schedule": covered}), limit))
    return parts


def _with_values(problem: Problem, values: Mapping[str, tuple[int, ...]]) -> Problem:
    """Return the problem with some values of its searched choices, by their codes."""
    return replace(problem, workload=replace(problem.workload, searched=with_values(problem.workload.searched, values)))


ANY = "any"
CUTS = (ANY, EVEN, OPTIMAL)  # that a search may take
FEW_KEYS = 1 << 15  # are priced in the time that it takes to choose from them


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How many candidates a search has, and what it did with them."""

    candidates: int
    priced: int  # bounds exclude the others
    feasible: int | None  # that fit in memory; None if some were not priced
    cut: int  # priced ones that got their best cut
    left_s: float = np.inf  # no plan that is undecided, for want of time, takes less [s]

    def unfinished(self, bounds: KeyFloats) -> "SearchCounts":
        """Return the counts of a search that has no time left for plans with these `bounds` [s]."""
        return replace(self, feasible=None, left_s=float(bounds.min(initial=np.inf)))

    def among(self, candidates: int) -> "SearchCounts":
        """Return the counts of a search with so many candidates, of which the others were left out."""
        all_counted = candidates == self.candidates or self.feasible == 0  # those of least memory come first
        return replace(self, candidates=candidates, feasible=self.feasible if all_counted else None)

    def plus(self, other: "SearchCounts") -> "SearchCounts":
        """Return the sum of two counts."""
        feasible = None if self.feasible is None or other.feasible is None else self.feasible + other.feasible
        return SearchCounts(
            self.candidates + other.candidates,
            self.priced + other.priced,
            feasible,
            self.cut + other.cut,
            min(self.left_s, other.left_s),
        )


_NO_COUNTS = SearchCounts(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class FastestPlans:
    """The fastest plans of a search as records, in the form of a printed evaluation, and its counts."""

    plans: list[Data]
    counts: SearchCounts


def problems_of(cut: str, problem: Problem) -> list[Problem]:
    """Return the problem of each kind of cut that a search takes, best cuts last; `problem` has even cuts."""
    if cut != ANY:
        return [problem.with_partition(cut)]
    # A longer chain has no optimal cut.
    short = problem.num_layers + problem.num_end_layers <= MAX_LAYERS
    return [problem, problem.with_partition(OPTIMAL)] if short else [problem]


# Told a fast plan before the fastest is known, and the seconds of a step that no plan takes less than.
TellFirst = Callable[[Data, float], None]


def fastest(spaces: SearchSpaces, top: int, watch: Watch | None = unwatched) -> FastestPlans:
    """Return the `top` fastest feasible plans of a search.

    Some choices are searched last (`dsx.search.variants`). If fewer plans fit with their defaults, those that take
    longer than all of these are left out.
    """
    plans, counts = fastest_below(spaces, top, np.inf, watch)
    return FastestPlans(plans, counts.among(spaces.counted.candidates))


def fastest_below(
    spaces: SearchSpaces,
    top: int,
    below: float,
    watch: Watch | None = unwatched,
    tell: TellFirst = lambda *_: None,
) -> tuple[list[Data], SearchCounts]:
    """Return what `fastest` does, without plans that take longer than `below` [s], and the counts of what it priced.

    When no time is left, the result is what is known.
    """
    return fastest_usual(spaces, top, below, watch, tell).with_variants(top, below, watch)


class UsualPlans(NamedTuple):
    """The fastest plans of a search with the defaults of the choices that are searched last."""

    varied: Sequence[Choice]  # these choices
    sources: list[Over[PricedSpace, "..."]]  # of the keys that were searched; none if no time is left
    plans: list[Data]
    counts: SearchCounts

    @property
    def least_s(self) -> float:
        """The seconds that no plan of the sources takes less than."""
        return min(float(key_bounds(source).min()) for source in self.sources)

    def with_variants(self, top: int, below: float, watch: Watch | None) -> tuple[list[Data], SearchCounts]:
        """Return the `top` fastest of these plans and their variants, and the counts of all that was priced."""
        if not self.varied or not (self.plans or below < np.inf):
            return self.plans, self.counts
        plans, counts = self.plans, self.counts
        with working("searching variants", watch):
            # Of the variants, those may be missing that are slower than all of the plans.
            for source in self.sources:
                slowest = min(below, plans[-1]["step_time_s"]) if plans else below
                rows, of_part = best_variants(source, self.varied, top, slowest)
                num_priced, feasible = of_part.priced.candidates, of_part.priced.feasible
                feasible = feasible if of_part.left_s == np.inf else None
                cut = num_priced if source.problem.optimal_cuts else 0
                counts = counts.plus(SearchCounts(num_priced, num_priced, feasible, cut, of_part.left_s))
                plans = leading([*plans, *priced_plans(source.whole_problem, rows)], top)
        return plans, counts


def fastest_usual(
    spaces: SearchSpaces,
    top: int,
    below: float,
    watch: Watch | None,
    tell: TellFirst = lambda *_: None,
    longer: float = 1.0,
) -> UsualPlans:
    """Return the plans of `fastest_below` without variants, of which `tell` is told one as early as it is known.

    Their sources have the keys of all plans that take at most `longer` times as long as the fastest, at least 1.
    """
    with working("pricing", watch):
        promising, known, counts = _promising_keys(spaces, top, below, tell, longer)
        if spaces.num_keys >= FEW_KEYS and not seconds_left():
            return UsualPlans((), [], known, counts.unfinished(spaces.key_bounds))
        sources = spaces.priced(promising)
    most = known[-1]["step_time_s"] if known else below
    with progress(sum(source.space.size for source in sources), "pricing", watch) as advance:
        plans, of_sources = _fastest(sources, top, advance, most)
    if not seconds_left():
        counts = counts.plus(of_sources).unfinished(spaces.key_bounds[promising])
        return UsualPlans((), [], leading([*known, *plans], top), counts)
    if not plans and below == np.inf and (leaner := spaces.with_least_memory) is not spaces:
        return fastest_usual(leaner, top, below, watch, tell, longer)
    usual = UsualPlans(spaces.varied, sources, plans, of_sources)
    if plans and not known:  # a search of many keys told of a plan before
        tell(plans[0], usual.least_s)
    return usual


def leading(plans: Sequence[Data], top: int) -> list[Data]:
    """Return the `top` fastest plans, each once: with its fastest cut."""
    by_candidate: dict[str, Data] = {}
    for plan in sorted(plans, key=lambda plan: plan["step_time_s"]):
        by_candidate.setdefault(plan["plan"]["candidate"], plan)
    return [*by_candidate.values()][:top]


def _promising_keys(
    spaces: SearchSpaces, top: int, below: float, tell: TellFirst, longer: float
) -> tuple[Chosen, list[Data], SearchCounts]:
    """Return the shard keys that may have one of the `top` fastest plans.

    Of few keys they are all. Of many, each plan of the other keys takes more than `longer` times `below` [s], or than
    `longer` times as long as each of `top` plans of the most promising keys. These plans follow, fewer of them only if
    no time is left, and the counts of their search.
    """
    every = np.arange(spaces.num_keys)
    if len(every) < FEW_KEYS and below == np.inf:
        return every, [], _NO_COUNTS
    known, counts = list[Data](), _NO_COUNTS
    bounds = spaces.key_bounds
    for keys in shares_of(spaces.keys, bounds)[:-1] if below == np.inf else ():
        plans, counts = _fastest(spaces.priced(np.sort(keys))[-1:], top, silent, below)
        if len(plans) == top:
            known, below = plans, plans[-1]["step_time_s"]
            tell(plans[0], float(bounds.min()))
            break
        if not seconds_left():
            known = plans
            break
    return np.flatnonzero(bounds <= below * longer * (1.0 + ROUNDING)), known, counts


def _fastest(
    parts: Sequence[Over[PricedSpace, "..."]], top: int, progress: Progress, below: float
) -> tuple[list[Data], SearchCounts]:
    """Return the fastest plans of some parts; plans that take longer than `below` [s] may be missing."""
    plans: list[Data] = []
    candidates, cut, counts = 0, 0, CandidateCounts(0, 0)
    for source in parts:
        slowest = plans[-1]["step_time_s"] if len(plans) == top else np.inf
        if source.problem.optimal_cuts:
            rows, bounded = best_cuts(source, top, progress, below=min(slowest, below))
            cut, counts = cut + bounded.cut, counts.plus(CandidateCounts(bounded.cut, bounded.feasible))
        elif even_rows := best_even(source, top, min(slowest, below)):
            rows, of_few = even_rows
            counts = counts.plus(of_few)
            progress(source.space.size)
        elif not seconds_left():
            continue  # compiled code is not interrupted
        else:
            from dsx.search.tiles.top_plans import Blockwise

            rows, of_all = Blockwise(source, 0).best(top, progress=progress)
            counts = counts.plus(of_all)
        candidates += source.space.size
        plans = leading([*plans, *priced_plans(source.problem, rows)], top)
    # Where no plan fits, the others have a bound of memory that does not fit either.
    none_fits = not plans and below == np.inf
    feasible = counts.feasible if counts.priced == candidates or none_fits else None
    return plans, SearchCounts(candidates, counts.priced, feasible, cut)
