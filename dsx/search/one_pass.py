"""The plans of an answer, in one pass over the plans of a search: the fastest, and the best of each role.

A framework launches some plans as they are; the others are placed by hand, on nodes that they fill in part or with
ranks in another order. The pass goes through those that are placed as launched, on many GPUs a tenth of all, and then
through the others, of which few may be as fast: each plan is in one of two sets, and is looked at once. The plans of
the roles are looked for meanwhile, in processes beside the search, among the plans of the first set that may be fast
enough. Only where another placement is faster by more than measurements tell are they looked for among all.

The best of each role is nearly as fast as the fastest: of least memory, or of the features that cost least. No cut of a
plan beats its bounds of time and memory, nor the cost of its other features. Plans that may be fast enough are looked
at by this cost first if the least is wanted, then by their bound of memory, until none that is left can be better than
the best so far. Variants (`dsx.search.variants`) come last: those of few plans may be better. Those with offload come
first where memory alone counts. Each plan has its fastest cut that fits, as everywhere in a search for the fastest, and
its even cut, which may cost less to set up.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsx.arrays import Chosen, PlanBools, PlanFloats, PlanInts
from dsx.cost.cut_bounds import ROUNDING
from dsx.forked import forked
from dsx.plans.choices import PLACEMENT_COLUMNS, Choice
from dsx.plans.enumerate import Arrays, take
from dsx.plans.features import features_of, must_be_uneven, of_choices, of_keys, total_cost, uneven_of
from dsx.plans.layer_layout import LAYOUT
from dsx.pricing.one_plan import priced_plans
from dsx.pricing.row_costs import KeptRows, Rows
from dsx.progress import OutOfTimeError, Watch, working
from dsx.records import Bool, Over
from dsx.search.bounds import (
    cuts_within,
    key_bounds,
    loose_bounds_of_any_recompute,
    may_be_fast,
    memory_bounds,
    rows_at,
    step_bounds,
)
from dsx.search.fastest import SearchCounts, SearchSpaces, TellFirst, fastest_below, fastest_usual, leading
from dsx.search.spaces import PricedSpace
from dsx.search.variants import BoundedRows, KeptBounds, VariantGroup, fewest_first, variant_groups
from dsx.text import Data

_FIRST, _MOST = 1 << 11, 1 << 13  # rows that are bounded together, at first and later
_SAMPLED = 64  # candidates of which one is looked at for a lean plan, before all of them
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


class _Nearly(NamedTuple):
    """A space whose plans may be nearly as fast as the fastest."""

    source: PricedSpace
    loose: PlanFloats  # loose bounds [s] of the candidates
    groups: Sequence[Over[VariantGroup, "..."]]
    costs: PlanInts  # least costs of the features of those that may be fast enough


def nearly_fastest(
    sources: Sequence[Over[PricedSpace, "..."]], varied: Sequence[Choice], plans: Sequence[Data], longest: float
) -> "NearlyFastest":
    """Return the plans of a search, and their variants, that may take at most `longest` [s].

    Args:
        sources: the spaces of the search, with the keys of all these plans.
        varied: the choices that are searched last.
        plans: feasible plans, the fastest first.
        longest: seconds of a step.
    """
    longest *= 1.0 + ROUNDING
    nearly: list[_Nearly] = []
    for source in sources:
        source = source.of_keys(np.flatnonzero(key_bounds(source) <= longest))
        bounds = loose_bounds_of_any_recompute(source, source.loose_bound)
        groups = fewest_first(variant_groups(source, varied, bounds)) if varied else []
        nearly.append(_Nearly(source, bounds[0], groups, _costs_of_fast(source, np.minimum(*bounds) <= longest)))
    return NearlyFastest(plans, nearly)


@dataclass(frozen=True, slots=True)
class NearlyFastest:
    """Plans that may be nearly as fast as the fastest, of which the best for several wants are found."""

    known: Sequence[Data]  # priced ones, the fastest first
    sources: Sequence[Over[_Nearly, "..."]]

    def best(self, want: Wanted) -> Data:
        """Return the best plan for a want, which the fastest plan fulfils; of equal ones a known one is returned."""
        best = min((plan for plan in self.known if plan["step_time_s"] <= want.most_s), key=want.rank)
        looking = [
            _Looking(nearly, want, nearly.costs if want.simple else np.zeros_like(nearly.costs))
            for nearly in self.sources
        ]
        for of_source in looking:
            best = of_source.sampled(best)
        for of_source in looking:
            best = of_source.best(best)
        return best


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

    nearly: Over[_Nearly, "..."]
    want: Wanted
    costs: PlanInts  # least cost that counts of each candidate that may be fast enough

    @property
    def source(self) -> PricedSpace:
        """The space of the plans."""
        return self.nearly.source

    @property
    def _offloading(self) -> list[VariantGroup]:
        """The variants that are looked at first: offload saves memory, so that the leanest leaves out most others."""
        return [group for group in self.nearly.groups if group.offloads and not self.want.simple]

    def sampled(self, best: Data) -> Data:
        """Return the best of a known plan and of a sample of the variants that are looked at first."""
        return self._of_variants(self._offloading, best, _SAMPLED)

    def best(self, best: Data) -> Data:
        """Return the best of a known plan, the plans of the source, and their variants."""
        offloading = self._offloading
        last = [group for group in self.nearly.groups if group not in offloading]
        best = self._of_variants(offloading, best)
        candidates = np.flatnonzero(self.nearly.loose <= self._most)
        candidates = candidates[np.argsort(self.costs[candidates], kind="stable")]
        costs, first = self.costs[candidates], 0
        while first < len(costs) and costs[first] <= self.want.rank(best)[0]:
            # Whole levels of costs, so that plans of one level are in the order of their memory.
            stop = int(np.searchsorted(costs, costs[min(first + _FIRST, len(costs)) - 1], side="right"))
            rows = rows_at(self.source, candidates[first:stop])
            best = self._least(self.source, self._bounded(self.source, rows, best), best)
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

            best = self._least(priced, group.within(self.want.most_s, wanted, usable), best)
        return best

    @property
    def _most(self) -> float:
        return self.want.most_s * (1.0 + ROUNDING)

    def _least(self, source: PricedSpace, bounded: BoundedRows, best: Data) -> Data:
        """Return the best of a known plan and of rows."""
        costs = self._costs(bounded.rows)
        order, first, together = np.lexsort((bounded.peak_bytes, costs)), 0, _FIRST
        while first < len(order):
            part = bounded.take(order[first : first + together])
            first, together = first + together, min(2 * together, _MOST)
            part = part.take(self._may_be_better(part, best))
            if not len(part.step_s):
                break  # the others cost no less, and need no less memory
            step_s = part.step_s if (part.step_s > -np.inf).all() else step_bounds(source, part.rows)
            part = part.take(cuts_within(self._usable(source, best), part.rows, step_s, self._most)[0])
            part, num_priced = self._possible(source, part, best), _FEW
            while len(part.step_s):
                better = self._priced(source, part.rows.take(slice(num_priced)), best)
                part = part.take(np.arange(num_priced, len(part.step_s)))
                part = part if better is best else self._possible(source, part, better)
                best, num_priced = better, min(2 * num_priced, _PRICED)
        return best

    def _usable(self, source: PricedSpace, best: Data) -> PricedSpace:
        """Return a space with no more memory than a better plan has than a known one."""
        return source if self.want.simple else source.with_memory(best["peak_bytes"] * (1.0 + ROUNDING))

    def _possible(self, source: PricedSpace, bounded: BoundedRows, best: Data) -> KeptBounds:
        """Return the rows that may be better than a known plan, by their bounds and by a probe of their cuts."""
        bounded = bounded.take(self._may_be_better(bounded, best))
        most = np.full(len(bounded.step_s), self._most)
        return bounded.take(np.flatnonzero(self._usable(source, best).may_take(bounded.rows, most)))

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
        rows = self._bounded(even, rows, best).rows
        return even, rows.take(np.flatnonzero(step_bounds(even, rows) <= self._most))

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
            uneven = uneven_of(priced[LAYOUT]) if source.problem.optimal_cuts else False
            costs = total_cost(of_keys(priced), of_choices(priced, uneven))
        first = np.lexsort((priced["step_time_s"], priced["peak_bytes"], costs))[:1]
        return priced_plans(source.problem, take(priced, first))

    def _may_be_better(self, bounded: BoundedRows, best: Data) -> Chosen:
        """Return which rows may be better than a known plan, by their costs and their memory."""
        costs, (most, most_memory, _) = self._costs(bounded.rows), self.want.rank(best)
        lean = bounded.peak_bytes <= most_memory * (1.0 + ROUNDING)
        return np.flatnonzero((costs < most) | ((costs == most) & lean))

    def _bounded(self, source: PricedSpace, rows: Rows, best: Data) -> KeptBounds:
        """Return the rows that may fit, be fast enough and be better than a known plan."""
        memory = memory_bounds(source, rows, np.inf if self.want.simple else best["peak_bytes"] * (1.0 + ROUNDING))
        fits = np.flatnonzero(memory.fits)
        bounded = BoundedRows(rows.take(fits), memory.peak_bytes[fits], np.full(len(fits), -np.inf))
        bounded = bounded.take(self._may_be_better(bounded, best))
        every = np.ones(len(bounded.step_s), dtype=bool)
        return bounded.take(np.flatnonzero(may_be_fast(source, bounded.rows, every, self._most)))

    def _costs(self, rows: Rows) -> PlanInts:
        """Return the least cost of rows that counts."""
        if not self.want.simple:
            return np.zeros(len(rows.positions), dtype=np.int64)
        of_rows = of_choices(rows.choices, _uneven(self.source, rows.choices))
        return total_cost(of_keys(self.source.space.keys).take(rows.positions), of_rows)


# Told the fastest plan that is known, of those placed as launched, and again if the answer is not of these.
TellFastest = Callable[[Data | None, bool], None]
_WORK = "looking for simpler and leaner plans"


class AnswerPlans(NamedTuple):
    """The plans of an answer."""

    of_all: list[Data]  # the fastest of all plans that are known
    plans: list[Data]  # the fastest ones of the answer
    of_roles: list[Data] | None  # None if no time was left to find them
    as_launched: bool  # whether these are the best of the plans that are placed as launched
    counts: SearchCounts


@dataclass(frozen=True, slots=True)
class OnePass:
    """A search for the `most` fastest plans, and for the best one for each role.

    Where the fastest plan of all is placed by hand, and no faster than measurements tell, the answer has plans that are
    placed as launched alone.
    """

    spaces: SearchSpaces
    most: int
    wants: Callable[[float], Sequence[Wanted]]  # what the roles want, from the seconds of a step of the fastest plan
    num_roles: int  # the first ones, whose plans are wanted
    tell_first: TellFirst
    tell_fastest: TellFastest
    watch: Watch | None

    def plans(self) -> AnswerPlans:
        """Return the plans of the answer."""
        if not self.num_roles:
            plans, counts = fastest_below(self.spaces, self.most, np.inf, self.watch, self.tell_first)
            return AnswerPlans(plans, plans, [], as_launched=False, counts=counts)
        with working("enumerating", self.watch):
            launched, by_hand = self.spaces.as_launched, self.spaces.not_as_launched
        longer = max(want.most_s for want in self.wants(1.0)[: self.num_roles])
        usual = fastest_usual(launched, self.most, np.inf, self.watch, self.tell_first, longer)
        if usual.counts.left_s < np.inf:
            return self._ended(usual.plans, usual.counts, by_hand)
        if not usual.plans:
            self.tell_fastest(None, True)
            plans, more = fastest_below(by_hand, self.most, np.inf, self.watch)
            return self._with_roles_of_all(plans, usual.counts.plus(more), by_hand)

        looked = nearly_fastest(usual.sources, usual.varied, usual.plans, self._longest(usual.plans[0]))
        # The leanest plan takes longest to find, and does not wait for the variants: hardly ever are these so much
        # faster that a plan which is nearly as fast as the usual ones is too slow beside them.
        leanest = self._wanted(usual.plans[0])[-1:] if self.num_roles > 1 else []
        with ExitStack() as beside:
            last = beside.enter_context(forked(lambda _: [*map(looked.best, leanest)]))
            plans, counts = usual.with_variants(self.most, np.inf, self.watch)
            if counts.left_s < np.inf:
                return self._ended(plans, counts, by_hand)
            self.tell_fastest(plans[0], True)
            wants, looked = self._wanted(plans[0]), replace(looked, known=plans)
            simple = wants[: len(wants) - len(leanest)]
            first = beside.enter_context(forked(lambda _: [*map(looked.best, simple)]))

            below = plans[-1]["step_time_s"] if len(plans) == self.most else np.inf
            placed, more = fastest_below(by_hand, self.most, below, self.watch)
            of_all, counts = leading([*plans, *placed], self.most), counts.plus(more)
            if plans[0]["step_time_s"] > (within := self._within(of_all[0])):
                beside.close()  # the plans that are looked for there are not those of the answer
                return self._with_roles_of_all(of_all, counts, by_hand)
            wants = [replace(want, most_s=min(want.most_s, within)) for want in wants]
            of_roles: list[Data] | None = None
            with suppress(OutOfTimeError), working(_WORK, self.watch):
                of_roles = [
                    plan if plan["step_time_s"] <= want.most_s else looked.best(want)
                    for want, plan in zip(wants, [*first.result(), *last.result()], strict=True)
                ]
        return AnswerPlans(of_all, of_all if of_all[0] is plans[0] else plans, of_roles, True, counts)

    def _ended(self, plans: list[Data], counts: SearchCounts, by_hand: SearchSpaces) -> AnswerPlans:
        """Return the answer of known plans, placed as launched, where no time is left for those placed `by_hand`."""
        self.tell_fastest(plans[0] if plans else None, True)
        counts = counts.plus(SearchCounts(0, 0, None, 0).unfinished(by_hand.key_bounds))
        return AnswerPlans(plans, plans, None, as_launched=bool(plans), counts=counts)

    def _wanted(self, fastest: Data) -> list[Wanted]:
        return [*self.wants(fastest["step_time_s"])[: self.num_roles]]

    def _longest(self, fastest: Data) -> float:
        """Return the most seconds of a step of the plan of a role."""
        return max(want.most_s for want in self._wanted(fastest))

    def _within(self, fastest: Data) -> float:
        """Return the most seconds of a step that measurements do not tell from those of the fastest plan."""
        return max(want.most_s for want in self.wants(fastest["step_time_s"]))

    def _with_roles_of_all(self, plans: list[Data], counts: SearchCounts, by_hand: SearchSpaces) -> AnswerPlans:
        """Return the answer where the fastest of all plans, `plans`, decide it; `by_hand` has bounds of all keys."""
        self.tell_fastest(plans[0] if plans else None, False)
        if not plans:
            return AnswerPlans(plans, plans, [], as_launched=False, counts=counts)
        of_roles: list[Data] | None = None
        with suppress(OutOfTimeError):
            longest, wants = self._longest(plans[0]), self._wanted(plans[0])
            sources = self.spaces.priced(np.flatnonzero(by_hand.key_bounds <= longest * (1.0 + ROUNDING)))
            looked = nearly_fastest(sources, self.spaces.varied, plans, longest)
            with forked(lambda _: looked.best(wants[-1])) as last, working(_WORK, self.watch):
                of_roles = [*map(looked.best, wants[:-1]), last.result()]
        return AnswerPlans(plans, plans, of_roles, as_launched=False, counts=counts)
