"""The spaces of a search for the fastest plans of a job, its fastest plans, and the best of those nearly as fast.

A search has a space for each way in which its plans are cut; they share their shard keys, of which the layers are
priced only when a search takes the key. Best cuts are known for some schedules (`dsx.plans.rules.optimal_cut_covers`):
optimal ones for one chunk per stage, the best of balanced and even ones for several. A search of any cut gives plans of
these schedules their best cut, and the others an even one.

Plans that are nearly as fast as the fastest are searched for the one of the features that cost least, and for the one
of least memory. No cut of a plan beats its bounds of time and memory, nor the cost of its other features. Plans that
may be fast enough are looked at by this cost first if the least is wanted, then by their bound of memory, until none
that is left can be better than the best so far. Variants (`dsx.plans.variants`) come last: those of few plans may be
better. Those with offload come first where memory alone counts. Each plan has its fastest cut that fits, as everywhere
in a search for the fastest, and its even cut, which may cost less to set up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsx.config.model_file import has_experts
from dsx.config.sweep_fields import Limit
from dsx.cost.cut_bounds import ROUNDING
from dsx.cost.shapes import Chosen, KeyFloats, PlanBools, PlanFloats, PlanInts
from dsx.forked import forked
from dsx.plans.choices import NONE_CODE, PLACEMENT_COLUMNS, Choice
from dsx.plans.codes import with_values
from dsx.plans.enumerate import Arrays, Keys, take
from dsx.plans.features import features_of, must_be_uneven, of_choices, of_keys, total_cost, uneven_of
from dsx.plans.frameworks import Limitation, Selection
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.rules import EVEN, OPTIMAL, optimal_cut_covers
from dsx.plans.variants import Variants, varied_last
from dsx.pricing.cuts import CandidateCounts
from dsx.pricing.keys import price_keys
from dsx.pricing.one_plan import priced_plans
from dsx.pricing.problem import MAX_LAYERS, Problem
from dsx.pricing.row_costs import KeptRows, Rows
from dsx.progress import Watch, progress, seconds_left, unwatched, working
from dsx.records import Bool, Over
from dsx.search.bounds import (
    best_cuts,
    best_even,
    cuts_within,
    fitting_bounds,
    key_bounds,
    loose_bounds_of_any_recompute,
    may_be_fast,
    memory_bounds,
    rows_at,
    shares_of,
)
from dsx.search.ranking import Progress, silent
from dsx.search.recompute_values import of_values, recomputing, representatives, undominated
from dsx.search.spaces import PricedSpace, Space, StrategiesOfCandidates, of_used_keys, strategies_of, used_keys
from dsx.search.variant_search import VariantGroup, best_variants, fewest_first, variant_groups
from dsx.text import Data

_SOME_KEYS = 1 << 12  # among which mostly one has candidates
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
        framework = self.problem.framework
        in_rank_order = framework is not None and not framework.unlimited
        codes = representatives(self.problem)
        launched = [space.as_launched(problem.node_size, in_rank_order) for _, problem, space in self.parts]
        few = [
            space.searching(recomputing(part.problem, codes)) for space, part in zip(launched, self.parts, strict=True)
        ]
        return self._of_keys(used_keys(few), launched)

    def within(self, most_s: float) -> "SearchSpaces":
        """Return the spaces of the shard keys that may have plans of at most `most_s` [s]."""
        fast = np.flatnonzero(self.key_bounds <= most_s * (1.0 + ROUNDING))
        return self._of_keys(fast, [part.space for part in self.parts])

    def _of_keys(self, where: np.ndarray, spaces: Sequence[Space]) -> "SearchSpaces":
        keys = take(self.keys, where)
        parts = [part._replace(space=space.of_keys(keys)) for part, space in zip(self.parts, spaces, strict=True)]
        return replace(self, parts=parts)

    @cached_property
    def key_bounds(self) -> KeyFloats:
        """Return the least seconds of a step of any plan of each shard key."""
        without_recomputation = recomputing(self.problem, [NONE_CODE])
        table = price_keys(without_recomputation, self.keys)
        return key_bounds(self.parts[0].space, table, without_recomputation.workload)

    def priced(self, where: Chosen | slice) -> list[Over[PricedSpace, "..."]]:
        """Return the parts that have candidates of some of the shard keys, with the layer costs of these.

        They are without values of `recompute` that others dominate.
        """
        keys = take(self.keys, where)
        spaces = self.spaces if len(keys["tp"]) == self.num_keys else self._used(keys)
        keys = spaces[0].keys
        table = price_keys(self.problem, keys)
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

    Some choices are searched last (`dsx.plans.variants`). If fewer plans fit with their defaults, those that take
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

    Where there are many keys, `tell` is told of a plan before. When no time is left, the result is what is known.
    """
    with working("pricing", watch):
        promising, known, counts = _promising_keys(spaces, top, below, tell)
        if spaces.num_keys >= FEW_KEYS and not seconds_left():
            return known, counts.unfinished(spaces.key_bounds)
        parts = spaces.priced(promising)
    most = known[-1]["step_time_s"] if known else below
    with progress(sum(source.space.size for source in parts), "pricing", watch) as advance:
        plans, of_parts = _fastest(parts, top, advance, most)
    if not seconds_left():
        return _leading([*known, *plans], top), counts.plus(of_parts).unfinished(spaces.key_bounds[promising])
    counts = of_parts
    if not plans and below == np.inf and (leaner := spaces.with_least_memory) is not spaces:
        return fastest_below(leaner, top, below, watch)
    # Of the variants, those may be missing that are slower than all of the plans.
    for source in parts if spaces.varied and (plans or below < np.inf) else ():
        slowest = min(below, plans[-1]["step_time_s"]) if plans else below
        rows, of_part = best_variants(source, spaces.varied, top, slowest)
        num_priced, feasible = of_part.priced.candidates, of_part.priced.feasible
        feasible = feasible if of_part.left_s == np.inf else None
        cut = num_priced if source.problem.optimal_cuts else 0
        counts = counts.plus(SearchCounts(num_priced, num_priced, feasible, cut, of_part.left_s))
        plans = _leading([*plans, *priced_plans(source.whole_problem, rows)], top)
    return plans, counts


def _leading(plans: Sequence[Data], top: int) -> list[Data]:
    """Return the `top` fastest plans, each once: with its fastest cut."""
    by_candidate: dict[str, Data] = {}
    for plan in sorted(plans, key=lambda plan: plan["step_time_s"]):
        by_candidate.setdefault(plan["plan"]["candidate"], plan)
    return [*by_candidate.values()][:top]


def _promising_keys(
    spaces: SearchSpaces, top: int, below: float, tell: TellFirst
) -> tuple[Chosen, list[Data], SearchCounts]:
    """Return the shard keys that may have one of the `top` fastest plans.

    Of few keys they are all. Of many, no plan of the others is as fast as `below` [s], or as `top` plans of the most
    promising ones. These follow, fewer of them only if no time is left, and the counts of their search.
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
    return np.flatnonzero(bounds <= below * (1.0 + ROUNDING)), known, counts


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
        plans = _leading([*plans, *priced_plans(source.problem, rows)], top)
    # Where no plan fits, the others have a bound of memory that does not fit either.
    feasible = counts.feasible if counts.priced == candidates or not plans else None
    return plans, SearchCounts(candidates, counts.priced, feasible, cut)


_FIRST, _MOST = 1 << 11, 1 << 13  # rows that are bounded together, at first and later
_SAMPLED = (64, 8, 1)  # candidates of which one is looked at for a lean plan, before more of them
_FEW, _PRICED = 1 << 8, 1 << 10  # rows that are priced together, at first and at most


@dataclass(frozen=True, slots=True)
class Wanted:
    """The plan of least memory that takes at most `most_s` [s]; with `simple`, of those whose features cost least."""

    most_s: float
    simple: bool = False

    def rank(self, plan: Data) -> tuple[int, float, float]:
        """Return the cost that counts, the memory [bytes] and the time [s] of a plan, of which less is better."""
        cost = sum(features_of(plan["plan"]).values()) if self.simple else 0
        return cost, plan["peak_bytes"], plan["step_time_s"]


def nearly_fastest(
    spaces: SearchSpaces, plans: Sequence[Data], wants: Sequence[Wanted], watch: Watch | None = unwatched
) -> list[Data]:
    """Return the best plan of a search for each want.

    Args:
        spaces: the spaces of the search.
        plans: feasible plans of it, the fastest first. That one must be fast enough for every want.
        wants: what the plans should be; of equal ones a known one is returned. The last one is found beside the others.
        watch: told of the work; by default nobody is.
    """
    longest = max(want.most_s for want in wants) * (1.0 + ROUNDING)
    sources: list[_Nearly] = []
    for source in spaces.priced(np.flatnonzero(spaces.key_bounds <= longest)):
        bounds = loose_bounds_of_any_recompute(source, source.loose_bound)
        groups = fewest_first(variant_groups(source, spaces.varied, bounds)) if spaces.varied else []
        sources.append(_Nearly(source, bounds[0], groups, _costs_of_fast(source, np.minimum(*bounds) <= longest)))

    def best(want: Wanted) -> Data:
        known = min((plan for plan in plans if plan["step_time_s"] <= want.most_s), key=want.rank)
        for nearly in sources:
            costs = nearly.costs if want.simple else np.zeros_like(nearly.costs)
            known = _Looking(nearly.source, want, costs).best(nearly.loose, nearly.groups, known)
        return known

    with forked(lambda _: best(wants[-1])) as last, working("looking for simpler and leaner plans", watch):
        return [*map(best, wants[:-1]), last.result()]


class _Nearly(NamedTuple):
    """A space whose plans may be nearly as fast as the fastest."""

    source: PricedSpace
    loose: PlanFloats  # loose bounds [s] of the candidates
    groups: Sequence[Over[VariantGroup, "..."]]
    costs: PlanInts  # least costs of the features of those that may be fast enough


def _costs_of_fast(source: PricedSpace, fast: PlanBools) -> PlanInts:
    """Return the least that features of the candidates of a source cost that are `fast`, 0 of the others."""
    blocks, costs = source.space.blocks, np.zeros(len(fast), dtype=np.int16)
    places = blocks.places_of(np.flatnonzero(fast))
    placements = dict(zip(PLACEMENT_COLUMNS, blocks.placements, strict=True))
    of_placements = of_choices(placements, _uneven(source, placements))
    costs[fast] = total_cost(of_keys(source.space.keys).take(places.key), of_placements.take(places.placement))
    return costs


def _uneven(source: PricedSpace, choices: Arrays) -> bool | PlanBools:
    """Return which pipelines have uneven stages with every cut."""
    layers = source.problem.limits().chain.num_layers
    return source.problem.optimal_cuts & must_be_uneven(choices["pp"], choices["vpp"], layers)


@dataclass(frozen=True, slots=True)
class _Looking:
    """The search of some plans for the best of one kind."""

    source: PricedSpace
    want: Wanted
    costs: PlanInts  # least cost that counts of each candidate that may be fast enough

    def best(self, loose: PlanFloats, groups: Sequence[Over[VariantGroup, "..."]], best: Data) -> Data:
        """Return the best of a known plan, the plans of the source with bounds `loose` [s], and their variants."""
        # Offload saves memory, so that the leanest plan that has it leaves out most others.
        offloading = [group for group in groups if group.offloads and not self.want.simple]
        last = [group for group in groups if group not in offloading]
        for every in _SAMPLED:
            best = self._of_variants(offloading, best, every)
        candidates = np.flatnonzero(loose <= self._most)
        candidates = candidates[np.argsort(self.costs[candidates], kind="stable")]
        costs, first = self.costs[candidates], 0
        while first < len(costs) and costs[first] <= self.want.rank(best)[0]:
            # Whole levels of costs, so that plans of one level are in the order of their memory.
            stop = int(np.searchsorted(costs, costs[min(first + _FIRST, len(costs)) - 1], side="right"))
            rows = rows_at(self.source, candidates[first:stop])
            best = self._least(self.source, rows, np.full(stop - first, -np.inf), best)
            first = stop
        return self._of_variants(last, best)

    def _of_variants(self, groups: Sequence[Over[VariantGroup, "..."]], best: Data, every: int = 1) -> Data:
        """Return the best of a known plan and the variants of some groups, or of `every` so many candidates of them."""
        priced = replace(self.source, problem=self.source.whole_problem)
        for group in groups:
            most, most_bytes, _ = self.want.rank(best)
            most_before, usable = (most - group.added_cost, None) if self.want.simple else (most, most_bytes)

            def wanted(candidates: Chosen, most: float = most_before) -> Bool[np.ndarray, "chosen"]:
                return (candidates % every == 0) & (self.costs[candidates] <= most)

            best = self._least(priced, *group.within(self.want.most_s, wanted, usable), best)
        return best

    @property
    def _most(self) -> float:
        return self.want.most_s * (1.0 + ROUNDING)

    def _least(self, source: PricedSpace, rows: Rows, known_s: PlanFloats, best: Data) -> Data:
        """Return the best of a known plan and of rows; `known_s` are their bounds [s], -inf where none is known."""
        costs = self._costs(rows)
        least = self._bytes(source, rows, costs, best)
        order, first, together = np.lexsort((least, costs)), 0, _FIRST
        order = order[least[order] < np.inf]
        while first < len(order):
            positions = order[first : first + together]
            first, together = first + together, min(2 * together, _MOST)
            positions = positions[self._may_be_better(costs[positions], least[positions], best)]
            if not len(positions):
                break  # the others cost no less, and need no less memory
            part, bounds = rows.take(positions), known_s[positions]
            if (bounds == -np.inf).any():
                bounds = fitting_bounds(source, part, self._most)
            part = part.take(cuts_within(self._usable(source, best), part, bounds, self._most)[0])
            part, num_priced = self._possible(source, part, best), _FEW
            while len(part.positions):
                better = self._priced(source, part.take(slice(num_priced)), best)
                part = part.take(slice(num_priced, None))
                part = part if better is best else self._possible(source, part, better)
                best, num_priced = better, min(2 * num_priced, _PRICED)
        return best

    def _usable(self, source: PricedSpace, best: Data) -> PricedSpace:
        """Return a space with no more memory than a better plan has than a known one."""
        return source if self.want.simple else source.with_memory(best["peak_bytes"] * (1.0 + ROUNDING))

    def _possible(self, source: PricedSpace, rows: Rows, best: Data) -> KeptRows:
        """Return the rows that may be better than a known plan, by their bounds and by a probe of their cuts."""
        rows = rows.take(np.flatnonzero(self._bytes(source, rows, self._costs(rows), best) < np.inf))
        most = np.full(len(rows.positions), self._most)
        return rows.take(np.flatnonzero(self._usable(source, best).may_take(rows, most)))

    def _priced(self, source: PricedSpace, rows: Rows, best: Data) -> Data:
        """Return the best of a known plan and of a few rows."""
        best = min([best, *self._leading(source, rows)], key=self.want.rank)
        if not source.problem.optimal_cuts:
            return best
        return min([best, *self._leading(*self._with_even_cuts(source, rows, best))], key=self.want.rank)

    def _with_even_cuts(self, source: PricedSpace, rows: Rows, best: Data) -> tuple[PricedSpace, KeptRows]:
        """Return the space of even cuts, and the rows that may be better than a known plan with another cut."""
        even, chunks = source.with_even_cuts, rows.choices["pp"] * rows.choices["vpp"]
        rows = rows.take(np.flatnonzero((chunks > 1) & even.problem.limits().divides(chunks)))
        rows = rows.take(np.flatnonzero(self._bytes(even, rows, self._costs(rows), best) < np.inf))
        return even, rows.take(np.flatnonzero(fitting_bounds(even, rows, self._most) <= self._most))

    def _leading(self, source: PricedSpace, rows: Rows) -> list[Data]:
        """Return the best of some rows as a record; nothing if none fits and is fast enough."""
        if not len(rows.positions):
            return []
        priced = source.fastest_rows(rows)
        priced = take(priced, np.flatnonzero((priced["reject"] == 0) & (priced["step_time_s"] <= self._most)))
        if not len(priced["candidate"]):
            return []
        costs = np.zeros(len(priced["candidate"]))
        if self.want.simple:
            uneven = uneven_of(priced[LAYOUT].tolist()) if source.problem.optimal_cuts else False
            costs = total_cost(of_keys(priced), of_choices(priced, uneven))
        first = np.lexsort((priced["step_time_s"], priced["peak_bytes"], costs))[:1]
        return priced_plans(source.problem, take(priced, first))

    def _may_be_better(self, costs: PlanInts, least: PlanFloats, best: Data) -> PlanBools:
        """Return whether rows of such least costs and memory [bytes] may be better than a known plan."""
        most, most_memory, _ = self.want.rank(best)
        return (costs < most) | ((costs == most) & (least <= most_memory * (1.0 + ROUNDING)))

    def _bytes(self, source: PricedSpace, rows: Rows, costs: PlanInts, best: Data) -> PlanFloats:
        """Return bounds of the memory [bytes] of rows of such least costs.

        They are infinite where the rows do not fit, take too long, or cannot be better than a known plan.
        """
        memory = memory_bounds(source, rows, np.inf if self.want.simple else best["peak_bytes"] * (1.0 + ROUNDING))
        better = memory.fits & self._may_be_better(costs, memory.peak_bytes, best)
        return np.where(may_be_fast(source, rows, better, self._most), memory.peak_bytes, np.inf)

    def _costs(self, rows: Rows) -> PlanInts:
        """Return the least cost of rows that counts."""
        if not self.want.simple:
            return np.zeros(len(rows.positions), dtype=np.int64)
        of_rows = of_choices(rows.choices, _uneven(self.source, rows.choices))
        return total_cost(of_keys(self.source.space.keys).take(rows.positions), of_rows)
