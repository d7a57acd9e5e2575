"""Plans that are nearly as fast as the fastest, by bounds: of the features that cost least, and of least memory.

No cut of a plan beats its bounds of time and memory, nor the cost of its other features. Plans that may be fast enough
are looked at by this cost first if the least is wanted, then by their bound of memory, until none that is left can be
better than the best so far. Variants (`dsx.space.variants`) come last: those of few plans may be better. Those with
offload come first where memory alone counts. Each plan has its fastest cut that fits, as everywhere in a search for the
fastest, and its even cut, which may cost less to set up.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsx.cost.cut_bounds import ROUNDING
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.row_costs import Rows
from dsx.search.best_variants import VariantGroup, fewest_first, variant_groups
from dsx.search.bounded import (
    bounds_of,
    cuts_within,
    fitting_bounds,
    loose_bounds_of_any_recompute,
    may_be_fast,
    rows_at,
)
from dsx.search.priced_space import PricedSpace
from dsx.search.search_spaces import SearchSpaces
from dsx.space.choices import PLACEMENT_COLUMNS
from dsx.space.enumerate import Arrays, take
from dsx.space.features import features_of, must_be_uneven, of_choices, of_keys, total_cost, uneven_of
from dsx.space.layer_layout import LAYOUT

Record = dict[str, Any]  # a plan with its costs, as `dsx.pricing.evaluate.priced_plans` has it

_ROWS = 1 << 13  # rows whose bounds are computed together: their arrays fit into the cache of a core
_FIRST, _MOST = 1 << 11, 1 << 13  # rows that are bounded together, at first and later
_FEW, _PRICED = 1 << 5, 1 << 8  # rows that are priced together, at first and at most


@dataclass(frozen=True, slots=True)
class Wanted:
    """The plan of least memory that takes at most `most_s` [s]; with `simple`, of those whose features cost least."""

    most_s: float
    simple: bool = False

    def rank(self, plan: Record) -> tuple[int, float, float]:
        """Return the cost that counts, the memory [bytes] and the time [s] of a plan, of which less is better."""
        cost = sum(features_of(plan["plan"]).values()) if self.simple else 0
        return cost, plan["peak_bytes"], plan["step_time_s"]


def nearly_fastest(found: SearchSpaces, known: Sequence[Record], wanted: Sequence[Wanted]) -> list[Record]:
    """Return the best plan of a search for each want.

    Args:
        found: the spaces of the search.
        known: feasible plans of it, the fastest first. That one must be fast enough for every want.
        wanted: what the plans should be; of equal ones a known one is returned.
    """
    best = [min((one for one in known if one["step_time_s"] <= want.most_s), key=want.rank) for want in wanted]
    longest = max(want.most_s for want in wanted) * (1.0 + ROUNDING)
    for source in found.priced(np.flatnonzero(found.key_bounds <= longest)):
        bounds = loose_bounds_of_any_recompute(source, source.loose_bound)
        groups = fewest_first(variant_groups(source, found.varied, bounds)) if found.varied else []
        costs = _costs_of_fast(source, np.minimum(*bounds) <= longest)
        looking = [_Looking(source, want, costs if want.simple else np.zeros_like(costs)) for want in wanted]
        best = [one.best(bounds[0], groups, of) for one, of in zip(looking, best, strict=True)]
    return best


def _costs_of_fast(source: PricedSpace, fast: np.ndarray) -> np.ndarray:
    """Return the least that features of the candidates of a source cost that are `fast` [N], 0 of the others."""
    blocks, found = source.space.blocks, np.zeros(len(fast), dtype=np.int16)
    places = blocks.places_of(np.flatnonzero(fast))
    placements = dict(zip(PLACEMENT_COLUMNS, blocks.placements, strict=True))
    others = of_choices(placements, _uneven(source, placements))
    found[fast] = total_cost(of_keys(source.space.keys).take(places.key), others.take(places.placement))
    return found


def _uneven(source: PricedSpace, choices: Arrays) -> Any:
    """Return which pipelines have uneven stages with every cut."""
    layers = source.problem.limits().chain.num_layers
    return source.problem.optimal_cuts & must_be_uneven(choices["pp"], choices["vpp"], layers)


@dataclass(frozen=True, slots=True)
class _Looking:
    """The search of some plans for the best of one kind."""

    source: PricedSpace
    want: Wanted
    costs: np.ndarray  # [N] least cost that counts of each candidate that may be fast enough

    def best(self, loose: np.ndarray, groups: Sequence[VariantGroup], best: Record) -> Record:
        """Return the best of a known plan, the plans of the source with bounds `loose` [s], and their variants."""
        # Offload saves memory, so that the leanest plan that has it leaves out most others.
        last = [group for group in groups if self.want.simple or not group.offloads]
        best = self._of_variants([group for group in groups if group.offloads and not self.want.simple], best)
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

    def _of_variants(self, groups: Iterable[VariantGroup], best: Record) -> Record:
        """Return the best of a known plan and the variants of some groups."""
        priced = replace(self.source, problem=self.source.whole_problem)
        for group in groups:
            best = self._least(priced, *group.within(self.want.most_s, *self._variants_wanted(group, best)), best)
        return best

    def _variants_wanted(
        self, group: VariantGroup, best: Record
    ) -> tuple[Callable[[np.ndarray], np.ndarray] | None, float | None]:
        """Return of which candidates variants may be better than a known plan, and the most memory [bytes] of these."""
        most, most_memory, _ = self.want.rank(best)
        if self.want.simple:
            return lambda candidates: self.costs[candidates] + group.added_cost <= most, None
        return None, most_memory

    @property
    def _most(self) -> float:
        return self.want.most_s * (1.0 + ROUNDING)

    def _least(self, source: PricedSpace, rows: Rows, known_s: np.ndarray, best: Record) -> Record:
        """Return the best of a known plan and of [N] rows; `known_s` are their bounds [s], -inf where none is known."""
        least, costs = self._bytes(source, rows), self._costs(rows)
        order, first, together = np.lexsort((least, costs)), 0, _FIRST
        order = order[least[order] < np.inf]
        while first < len(order):
            here = order[first : first + together]
            first, together = first + together, min(2 * together, _MOST)
            here = here[self._may_be_better(costs[here], least[here], best)]
            if not len(here):
                break  # the others cost no less, and need no less memory
            part, bounds = rows.take(here), known_s[here]
            if (bounds == -np.inf).any():
                bounds = fitting_bounds(source, part, self._most)
            part = part.take(cuts_within(self._usable(source, best), part, bounds, self._most)[0])
            part, few = self._possible(source, part, best), _FEW
            while len(part.positions):
                found = self._priced(source, part.take(slice(few)), best)
                part = part.take(slice(few, None))
                part = part if found is best else self._possible(source, part, found)
                best, few = found, min(2 * few, _PRICED)
        return best

    def _usable(self, source: PricedSpace, best: Record) -> PricedSpace:
        """Return a space with no more memory than a better plan has than a known one."""
        return source if self.want.simple else source.with_memory(best["peak_bytes"] * (1.0 + ROUNDING))

    def _possible(self, source: PricedSpace, rows: Rows, best: Record) -> Rows:
        """Return the rows that may be better than a known plan, by their bounds and by a probe of their cuts."""
        rows = rows.take(np.flatnonzero(self._may_be_better(self._costs(rows), self._bytes(source, rows), best)))
        most = np.full(len(rows.positions), self._most)
        return rows.take(np.flatnonzero(self._usable(source, best).may_take(rows, most)))

    def _priced(self, source: PricedSpace, rows: Rows, best: Record) -> Record:
        """Return the best of a known plan and of a few rows."""
        best = min([best, *self._leading(source, rows)], key=self.want.rank)
        if not source.problem.optimal_cuts:
            return best
        return min([best, *self._leading(*self._with_even_cuts(source, rows, best))], key=self.want.rank)

    def _with_even_cuts(self, source: PricedSpace, rows: Rows, best: Record) -> tuple[PricedSpace, Rows]:
        """Return the space of even cuts, and the rows that may be better than a known plan with another cut."""
        even, chunks = source.with_even_cuts, rows.choices["pp"] * rows.choices["vpp"]
        rows = rows.take(np.flatnonzero((chunks > 1) & even.problem.limits().divides(chunks)))
        better = self._may_be_better(self._costs(rows), self._bytes(even, rows), best)
        fast = better & (fitting_bounds(even, rows, self._most) <= self._most)
        return even, rows.take(np.flatnonzero(fast))

    def _leading(self, source: PricedSpace, rows: Rows) -> list[Record]:
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

    def _may_be_better(self, costs: np.ndarray, least: np.ndarray, best: Record) -> np.ndarray:
        """Return [N] whether rows of such least costs and memory [bytes] may be better than a known plan."""
        most, most_memory, _ = self.want.rank(best)
        return (costs < most) | ((costs == most) & (least <= most_memory * (1.0 + ROUNDING)))

    def _bytes(self, source: PricedSpace, rows: Rows) -> np.ndarray:
        """Return bounds of the memory of [N] rows [bytes]; infinite where they do not fit or take too long."""
        found = [np.zeros(0)]
        for start in range(0, len(rows.positions), _ROWS):
            part = rows.take(slice(start, start + _ROWS))
            bounds = bounds_of(source, part)
            found.append(np.where(may_be_fast(source, part, bounds, self._most), bounds.peak_bytes, np.inf))
        return np.concatenate(found)

    def _costs(self, rows: Rows) -> np.ndarray:
        """Return the least cost of [N] rows that counts."""
        if not self.want.simple:
            return np.zeros(len(rows.positions), dtype=np.int64)
        others = of_choices(rows.choices, _uneven(self.source, rows.choices))
        return total_cost(of_keys(self.source.space.keys).take(rows.positions), others)
