"""Plans that are nearly as fast as the fastest, by bounds: the one of fewest features, and the one of least memory.

No cut of a plan beats its bounds of time and memory. Plans that may be fast enough are looked at by their features
first if the fewest are wanted, then by their bound of memory, until none that is left can be better than the best so
far. Variants (`dsx.space.variants`) come last: those of few plans may be better. Each plan has its fastest cut that
fits, as everywhere in a search for the fastest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsx.cost.cut_bounds import ROUNDING
from dsx.pricing.evaluate import priced_plans
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import joined
from dsx.search.best_variants import VariantGroup, variant_groups
from dsx.search.bounded import (
    bounds_of,
    cuts_within,
    fitting_bounds,
    loose_bounds_of_any_recompute,
    most_bytes,
    rows_at,
)
from dsx.search.priced_space import PricedSpace
from dsx.search.search_spaces import SearchSpaces
from dsx.space.choices import PLACEMENT_COLUMNS
from dsx.space.enumerate import Arrays, take
from dsx.space.features import features_of, num_features, of_choices, of_keys

Record = dict[str, Any]  # a plan with its costs, as `dsx.pricing.evaluate.priced_plans` has it

_ROWS = 1 << 13  # rows whose bounds are computed together: their arrays fit into the cache of a core
_FIRST, _MOST = 1 << 11, 1 << 13  # rows that are bounded together, at first and later
_PRICED = 1 << 8  # rows that are priced together


@dataclass(frozen=True, slots=True)
class Wanted:
    """The plan of least memory that takes at most `most_s` [s]; with `simple`, of those of fewest features."""

    most_s: float
    simple: bool = False

    def rank(self, plan: Record) -> tuple[int, float, float]:
        """Return the features that count, the memory [bytes] and the time [s] of a plan, of which less is better."""
        features = len(features_of(plan["plan"])) if self.simple else 0
        return features, plan["peak_bytes"], plan["step_time_s"]


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
        groups = list(variant_groups(source, found.varied, bounds)) if found.varied else []
        features = _features_of_fast(source, np.minimum(*bounds) <= longest)
        looking = [_Looking(source, want, features if want.simple else np.zeros_like(features)) for want in wanted]
        best = [one.best(bounds[0], groups, of) for one, of in zip(looking, best, strict=True)]
    return best


def _features_of_fast(source: PricedSpace, fast: np.ndarray) -> np.ndarray:
    """Return the features of the candidates of a source that are `fast` [N], 0 of the others."""
    blocks, found = source.space.blocks, np.zeros(len(fast), dtype=np.int8)
    places = blocks.places_of(np.flatnonzero(fast))
    placements = of_choices(dict(zip(PLACEMENT_COLUMNS, blocks.placements, strict=True)))
    found[fast] = num_features(of_keys(source.space.keys).take(places.key), placements.take(places.placement))
    return found


@dataclass(frozen=True, slots=True)
class _Looking:
    """The search of some plans for the best of one kind."""

    source: PricedSpace
    want: Wanted
    features: np.ndarray  # [N] features that count of each candidate that may be fast enough

    def best(self, loose: np.ndarray, groups: Sequence[VariantGroup], best: Record) -> Record:
        """Return the best of a known plan, the plans of the source with bounds `loose` [s], and their variants."""
        candidates = np.flatnonzero(loose <= self._most)
        features = self.features[candidates]
        for few in np.unique(features).tolist():
            if few > self.want.rank(best)[0]:
                break
            best = self._least(self.source, rows_at(self.source, candidates[features == few]), best)
        rows = [group.within(self.want.most_s, *self._variants_wanted(group, best))[0] for group in groups]
        if rows:
            priced = replace(self.source, problem=self.source.whole_problem)
            best = self._least(priced, _joined(rows), best)
        return best

    def _variants_wanted(
        self, group: VariantGroup, best: Record
    ) -> tuple[Callable[[np.ndarray], np.ndarray] | None, float | None]:
        """Return of which candidates variants may be better than a known plan, and the most memory [bytes] of these."""
        most, most_memory, _ = self.want.rank(best)
        if self.want.simple:
            return lambda candidates: self.features[candidates] + group.added_features <= most, None
        return None, most_memory

    @property
    def _most(self) -> float:
        return self.want.most_s * (1.0 + ROUNDING)

    def _least(self, source: PricedSpace, rows: Rows, best: Record) -> Record:
        """Return the best of a known plan and of [N] rows."""
        least, features = self._bytes(source, rows), self._features(rows)
        order, first, together = np.lexsort((least, features)), 0, _FIRST
        while first < len(order):
            here = order[first : first + together]
            first, together = first + together, min(2 * together, _MOST)
            part = rows.take(here[self._may_be_better(features[here], least[here], best)])
            if not len(part.positions):
                break  # the others have no fewer features and no less memory
            bounds = fitting_bounds(source, part, self._most)
            part = part.take(cuts_within(source, part, bounds, self._most)[0])
            for start in range(0, len(part.positions), _PRICED):
                best = self._priced(source, part.take(slice(start, start + _PRICED)), best)
        return best

    def _priced(self, source: PricedSpace, rows: Rows, best: Record) -> Record:
        """Return the best of a known plan and of a few rows."""
        better = self._may_be_better(self._features(rows), self._bytes(source, rows), best)
        rows = rows.take(np.flatnonzero(better & source.may_take(rows, np.full(len(better), self._most))))
        if not len(rows.positions):
            return best
        priced = source.fastest_rows(rows)
        fast = np.flatnonzero((priced["reject"] == 0) & (priced["step_time_s"] <= self._most))
        return min([best, *self._leading(source, take(priced, fast))], key=self.want.rank)

    def _leading(self, source: PricedSpace, priced: Arrays) -> list[Record]:
        """Return the best of some priced rows as a record; nothing of none."""
        if not len(priced["candidate"]):
            return []
        features = np.zeros(len(priced["candidate"]))
        if self.want.simple:
            features = num_features(of_keys(priced), of_choices(priced))
        first = np.lexsort((priced["step_time_s"], priced["peak_bytes"], features))[:1]
        return priced_plans(source.problem, take(priced, first))

    def _may_be_better(self, features: np.ndarray, least: np.ndarray, best: Record) -> np.ndarray:
        """Return [N] whether rows of such features and bounds of memory [bytes] may be better than a known plan."""
        most, most_memory, _ = self.want.rank(best)
        return (features < most) | ((features == most) & (least <= most_memory * (1.0 + ROUNDING)))

    def _bytes(self, source: PricedSpace, rows: Rows) -> np.ndarray:
        """Return bounds of the memory of [N] rows [bytes]; infinite where a GPU has less."""
        found = [np.zeros(0)]
        for start in range(0, len(rows.positions), _ROWS):
            part = rows.take(slice(start, start + _ROWS))
            least = np.asarray(bounds_of(source, part).peak_bytes)
            found.append(np.where(least <= most_bytes(source, part), least, np.inf))
        return np.concatenate(found)

    def _features(self, rows: Rows) -> np.ndarray:
        """Return the features of [N] rows that count."""
        if not self.want.simple:
            return np.zeros(len(rows.positions), dtype=np.int64)
        return num_features(of_keys(self.source.space.keys).take(rows.positions), of_choices(rows.choices))


def _joined(parts: Sequence[Rows]) -> Rows:
    points, positions, choices = zip(*parts, strict=True)
    return Rows(np.concatenate(points), np.concatenate(positions), joined(choices))
