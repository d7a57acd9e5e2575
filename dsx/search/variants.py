"""Variants of plans: the same plan with other values of the choices that a search by bounds looks at last.

These choices do not change the seconds of the passes of a pipeline, or only make them longer than without
recomputation. So a search bounds a plan once, and looks at its variants only where the bound allows. Their number
multiplies the space, but the bounds of few plans are computed.

What variants a candidate has depends on its placement alone.

The fastest variants are found by bounds. A pipeline takes no less time with offload, and no less than without any
recomputation. So a plan is bounded once for each offload, at one ZeRO replica, which needs least memory, and without
the reductions in its passes, which are shorter where ZeRO shards over fewer ranks. Of the layers that store their
activations it is bounded with the most that memory may hold, which makes the fastest pipeline unless they go to the
host. Only the variants of plans that may be fast enough then are made.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsx.arrays import Chosen, PlanBools, PlanFloats, PlanInts
from dsx.config.framework_file import BoxSpec
from dsx.config.sweep_fields import Limit
from dsx.cost.context import PipelineChoices
from dsx.cost.cut_bounds import ROUNDING, StoringSeconds
from dsx.cost.offload import ACTIVATIONS, offload_codes
from dsx.plans.blocks import Blocks, Places, zero_replicas_of_whole_groups
from dsx.plans.choices import CROSSED, NONE_CODE, PLACEMENT_COLUMNS, Choice
from dsx.plans.enumerate import Arrays, Kept, SearchedCodes, SpaceBounds, changes, cross, take, with_values
from dsx.plans.features import least_costs
from dsx.plans.frameworks import Boxes, compatible
from dsx.plans.rules import RULES
from dsx.pricing.cuts import CandidateCounts, joined
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.progress import OutOfTimeError, seconds_left
from dsx.records import Bool, Int, Over
from dsx.search.bounds import (
    cuts_within,
    fastest_first,
    key_bounds,
    least_bytes,
    loose_bounds_of_any_recompute,
    may_be_fast,
    memory_bounds,
    most_bytes,
    parts_of,
    rows_at,
    rows_of,
    step_bounds,
)
from dsx.search.ranking import leading_rows
from dsx.search.spaces import PricedSpace

VARIED = tuple(choice for choice in CROSSED if choice.varied_last)


class Variants:
    """The variants of the candidates of some blocks, which have the defaults of the choices `varied`.

    Attributes:
        count: variants of each placement, without itself.
        num_unlike: variants of all placements that have unlike ones.
    """

    def __init__(self, blocks: Blocks, bounds: SpaceBounds, varied: Sequence[Choice], searched: SearchedCodes) -> None:
        """Make the variants in the boxes of `bounds`; `searched` has the values of the choices."""
        placements = dict(zip(PLACEMENT_COLUMNS, blocks.placements, strict=True))
        placements |= {"ep_replicas": blocks.ep_replicas, "boxes": blocks.boxes}
        placements["recompute"] = _standing_for_recompute(placements["recompute"], bounds.boxes)
        # The columns of a placement that decide which variants it has.
        names = {choice.name for choice in varied}
        rules = [{*rule.reads} for rule in RULES if names & {*rule.reads} and {*rule.reads} <= {*PLACEMENT_COLUMNS}]
        columns = names.union({"dp"}, *rules, bounds.boxes.restricted) & {*PLACEMENT_COLUMNS}
        read = ["ep_replicas", "boxes", *sorted(columns)]
        first, self._class = _classes([placements[name] for name in read])
        self._columns = _crossed({name: placements[name][first] for name in read}, bounds, varied, searched)
        origin = self._columns.pop("origin")
        self._count = np.bincount(origin, minlength=len(first))
        self.count = self._count[self._class]
        self.num_unlike = len(origin)

    def of(self, placement: Int[np.ndarray, "plans"]) -> tuple[Int[np.ndarray, "kept"], Kept]:
        """Return the variants of some placements: the position of the original of each, and the varied columns."""
        origin, place = _members(self._count, self._class[placement])
        return origin, take(self._columns, place)


def varied_last(searched: SearchedCodes, named: Sequence[str], boxes: Sequence[BoxSpec]) -> tuple[Choice, ...]:
    """Return the choices of a search that it can look at last, in the order of `CROSSED`.

    Not those that the search names, nor any if the framework runs a plan, but not the same one with the defaults.
    """
    varied = tuple(
        choice
        for choice in VARIED
        if choice.name not in named and getattr(searched, choice.name) != (choice.default_code,)
    )
    names = [choice.name for choice in varied]
    usual = [box for box in boxes if compatible(box, {choice.name: [choice.default] for choice in varied})]
    return varied if all(any(_has_plans_of(wide, box, names) for wide in usual) for box in boxes) else ()


def _has_plans_of(box: BoxSpec, other: BoxSpec, leaving_out: Sequence[str]) -> bool:
    """Return whether a box has all plans of another one, whatever the values of some columns."""
    fixed = all(
        column in leaving_out or (column in other.fix and {*other.fix[column]} <= {*values})
        for column, values in box.fix.items()
    )
    limited = all(
        {*bounds} <= {*other.limit.get(column, ())}
        or (column in leaving_out and all(isinstance(bound, Limit) for bound in bounds))
        for column, bounds in box.limit.items()
    )
    strategies = box.strategy is None or (other.strategy is not None and {*other.strategy} <= {*box.strategy})
    return fixed and limited and strategies


def _standing_for_recompute(recompute: Int[np.ndarray, "placements"], boxes: Boxes) -> Int[np.ndarray, "placements"]:
    """Return values of `recompute` that stand for the values of placements: variants go with both or with none."""
    codes, of_placement = np.unique(recompute, return_inverse=True)
    kept = [choices({"recompute": codes}) for box in boxes.boxes for choices in box.choices]
    _, first, which = np.unique(np.stack([codes == NONE_CODE, *kept]), axis=1, return_index=True, return_inverse=True)
    return codes[first][which][of_placement]


def _classes(
    columns: Sequence[Int[np.ndarray, "rows"]],
) -> tuple[Int[np.ndarray, "classes"], Int[np.ndarray, "rows"]]:
    """Return the position of the first row of each class of equal rows, and the class of each row."""
    order = np.lexsort(columns)
    begins = changes(*(column[order] for column in columns))
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return order[begins], of_row


def _crossed(table: Arrays, bounds: SpaceBounds, varied: Sequence[Choice], searched: SearchedCodes) -> Kept:
    """Return the variants of placements, in their order, by the varied columns and `origin`."""
    names = [choice.name for choice in varied]
    usual = {choice.name: choice.default_code for choice in varied}
    ranks = int(np.lcm.reduce(np.unique(table["dp"]))) if len(table["dp"]) else 1
    table = {name: column for name, column in table.items() if name not in names}
    table["origin"] = np.arange(len(table["boxes"]))
    for choice in varied:
        values = np.array(getattr(searched, choice.name))
        if choice.tried and not len(values):
            values = choice.tried(bounds.limits.even_layers, ranks)
        table = _with_values(table, choice.name, values, bounds)
    other = np.zeros(len(table["origin"]), dtype=bool)
    for name in names:
        other |= table[name] != usual[name]
    table = take(table, other)
    return {name: table[name] for name in ("origin", *names)}


def _with_values(table: Arrays, name: str, values: Int[np.ndarray, "values"], bounds: SpaceBounds) -> Kept:
    """Return a table with each row repeated for each of `values` of a choice that it may have."""
    rules = [rule for rule in RULES if name in rule.reads and {*table, name} >= {*rule.reads}]
    read = {"boxes", *bounds.boxes.restricted}.union(*(rule.reads for rule in rules))
    read |= {"dp", "ep_replicas"} if name == "zero_replicas" else set()
    # Rows that are alike for the rules have the same values, so that few are crossed with all.
    names = [column for column in table if column in read]
    first, of_row = _classes([table[column] for column in names])
    classes = cross({column: table[column][first] for column in names} | {"class": np.arange(len(first))}, name, values)
    for rule in rules:
        classes = take(classes, rule.holds(classes, bounds.limits))
    if name == "zero_replicas":
        classes = take(classes, zero_replicas_of_whole_groups(classes, classes["ep_replicas"]))
    in_boxes = np.zeros(len(classes["boxes"]), dtype=bool)
    for of_keys in np.unique(classes["boxes"]).tolist():
        in_boxes |= (classes["boxes"] == of_keys) & bounds.boxes.keep(of_keys, classes)
    classes = take(classes, in_boxes)
    count = np.bincount(classes["class"], minlength=len(first))
    origin, place = _members(count, of_row)
    return take(table, origin) | {name: classes[name][place]}


def _members(
    count: Int[np.ndarray, "classes"], of_row: Int[np.ndarray, "rows"]
) -> tuple[Int[np.ndarray, "members"], Int[np.ndarray, "members"]]:
    """Return, for each member of the class of each row, the row and the place among all `count` members."""
    first, members = (np.cumsum(count) - count)[of_row], count[of_row]
    row = np.repeat(np.arange(len(of_row)), members)
    within = np.arange(len(row)) - np.repeat(np.cumsum(members) - members, members)
    return row, np.repeat(first, members) + within


_BOUNDED_ROWS = 1 << 13  # plans whose variants are made together
_REPLICAS, _STORED, _OFFLOAD = "zero_replicas", "stored_layers", "offload"


class BoundedRows(NamedTuple):
    """Rows that may fit, with what no cut of them beats."""

    rows: Rows
    peak_bytes: PlanFloats
    step_s: PlanFloats  # -inf where it was not computed

    def take(self, where: Chosen) -> "KeptBounds":
        """Return some of the rows."""
        return BoundedRows(self.rows.take(where), self.peak_bytes[where], self.step_s[where])


KeptBounds = Over[BoundedRows, "... kept"]


class VariantCounts(NamedTuple):
    """What a search did with variants."""

    priced: CandidateCounts
    left_s: float  # none that is undecided, for want of time, takes less; infinite if all are decided


def best_variants(
    source: PricedSpace, varied: Sequence[Choice], top: int, below: float
) -> tuple[Arrays, VariantCounts]:
    """Return all columns of the `top` feasible variants of smallest step time, and what was done with the others.

    Args:
        source: the plans whose variants are searched; they have the defaults of the choices `varied`.
        varied: the choices, in the order of `CROSSED`.
        top: how many to return.
        below: variants that take longer [s] may be missing.
    """
    source = source.of_keys(np.flatnonzero(key_bounds(source) <= below * (1.0 + ROUNDING)))
    priced = replace(source, problem=source.whole_problem)
    kept, counts = priced.no_rows(), CandidateCounts(0, 0)
    bounds = loose_bounds_of_any_recompute(source, source.loose_bound)
    groups = fewest_first(variant_groups(source, varied, bounds))
    for number, group in enumerate(groups):
        with suppress(OutOfTimeError):
            rows, _, least_s = group.within(below)
            positions, least_s = cuts_within(group.varied_source, rows, least_s, below * (1.0 + ROUNDING))
            columns, of_part = fastest_first(priced, rows.take(positions).take, least_s, top, below)
            kept, counts = leading_rows(joined([kept, columns]), top, ["point"]), counts.plus(of_part)
            below = min(below, float(kept["step_time_s"][-1])) if len(kept["point"]) == top else below
        if not seconds_left():  # which may have ended the search of this group
            return kept, VariantCounts(counts, min(float(left.loose.min(initial=np.inf)) for left in groups[number:]))
    return kept, VariantCounts(counts, np.inf)


@dataclass(frozen=True)
class VariantGroup:
    """Variants of the plans of a space that are bounded alike."""

    source: PricedSpace
    varied_source: PricedSpace  # with the values of the variants
    varied: Sequence[Choice]
    loose: PlanFloats  # bounds [s] of the variants of each plan

    @property
    def added_cost(self) -> float:
        """The least that the features of a variant cost more than those of its original."""
        searched = self.varied_source.problem.workload.searched
        unchanged, changed = zip(
            *(least_costs(choice, getattr(searched, choice.name)) for choice in self.varied), strict=True
        )
        return max(sum(unchanged), min(changed))

    @property
    def offloads(self) -> bool:
        """Whether the variants have another offload than their originals."""
        searched, usual = (problem.workload.searched for problem in (self.varied_source.problem, self.source.problem))
        return searched.offload != usual.offload

    @property
    def num_variants(self) -> int:
        """How many variants unlike placements have."""
        return self._made.num_unlike

    @cached_property
    def _made(self) -> Variants:
        space, searched = self.source.space, self.varied_source.problem.workload.searched
        return Variants(space.blocks, space.bounds, self.varied, searched)

    def within(
        self,
        most: float,
        of: Callable[[Chosen], Bool[np.ndarray, "chosen"]] | None = None,
        usable: float | None = None,
    ) -> KeptBounds:
        """Return variants that may take at most `most` [s] and fit; the others are left out.

        `of` says which plans have variants that are wanted, from their candidates; by default all. `usable` is the
        memory [bytes] that they may take, by default all there is. Where it is limited, no seconds are bounded: the
        caller looks at the variants of least memory first, and bounds the seconds of few.
        """
        most *= 1.0 + ROUNDING
        candidates = np.flatnonzero(self.loose <= most)
        candidates = candidates if of is None else candidates[of(candidates)]
        if not len(candidates):
            return BoundedRows(rows_at(self.source, candidates), np.zeros(0), np.zeros(0))
        varied_source = self.varied_source if usable is None else self.varied_source.with_memory(usable)
        originals = _Originals(self.source, varied_source, self._made, candidates, most)
        return originals.variants(bounded=usable is None)


def variant_groups(
    source: PricedSpace, varied: Sequence[Choice], bounds: tuple[PlanFloats, PlanFloats]
) -> Iterator[VariantGroup]:
    """Yield all variants of the plans of a space, which have the defaults of the choices `varied`.

    `bounds` are those of `loose_bounds_of_any_recompute`.
    """
    problem, (loose, without_recomputation) = source.whole_problem, bounds
    for values in _alike(problem, varied):
        searched = with_values(problem.workload.searched, values)
        varied_source = replace(source, problem=replace(problem, workload=replace(problem.workload, searched=searched)))
        yield VariantGroup(
            source, varied_source, varied, loose if searched.stored_layers == (0,) else without_recomputation
        )


def fewest_first(groups: Iterable[VariantGroup]) -> list[VariantGroup]:
    """Return groups with variants in the order of their sizes: few are bounded fast, and may leave out others."""
    return sorted((group for group in groups if group.num_variants), key=lambda group: group.num_variants)


def _alike(problem: Problem, varied: Sequence[Choice]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield values of choices whose variants are bounded alike: one offload, and stored layers in all or in none."""
    names, searched = [choice.name for choice in varied], problem.workload.searched
    stored = getattr(searched, _STORED) or tuple(range(problem.num_layers + 1))
    groups = [{_STORED: (0,)}, {_STORED: tuple(value for value in stored if value)}] if _STORED in names else [{}]
    for code in searched.offload if _OFFLOAD in names else (None,):
        of_offload = {} if code is None else {_OFFLOAD: (code,)}
        yield from (group | of_offload for group in groups)


@dataclass(frozen=True)
class Storing:
    """Bounds of the variants of a space that store activations of some layers, from the seconds of shard keys alone."""

    source: PricedSpace

    @cached_property
    def _seconds(self) -> StoringSeconds:
        return self.source.storing_seconds

    def least_s(self, rows: Rows) -> PlanFloats:
        """Return the seconds that no cut of a row is faster than."""
        choices = PipelineChoices.of(rows.choices)
        stored = rows.choices[_STORED] * choices.pp / self.source.problem.num_layers
        return self._of_shares(rows, choices, np.minimum(stored, 1.0))

    def least_of_any_s(self, rows: Rows) -> PlanFloats:
        """Return the seconds that no cut of a row is faster than, however many layers store their activations."""
        choices = PipelineChoices.of(rows.choices)
        searched, ones = self.source.problem.workload.searched, np.ones(len(rows.positions))
        shares = (0.0 * ones, self._seconds.turning_share(choices, searched), ones)
        return np.min([self._of_shares(rows, choices, share) for share in shares], axis=0)

    def _of_shares(self, rows: Rows, choices: PipelineChoices, stored: PlanFloats) -> PlanFloats:
        searched = self.source.problem.workload.searched
        offloads = np.isin(rows.choices[_OFFLOAD], offload_codes(ACTIVATIONS, searched))
        seconds = self._seconds.of_plans(rows.positions, choices, stored, offloads, searched)
        # Each plan has the seconds of its own, whatever it recomputes.
        bare = choices._replace(recompute=np.full_like(stored, NONE_CODE))
        searched = with_values(searched, {"recompute": (NONE_CODE,)})
        return self.source.loose_bound(seconds, np.arange(len(stored)), bare, searched)


@dataclass(frozen=True)
class _Originals:
    """Plans whose variants are searched."""

    source: PricedSpace
    varied_source: PricedSpace  # with the values of the variants
    variant_table: Variants
    candidates: Chosen  # plans of the source that may be fast enough
    most: float  # seconds of a step

    def variants(self, bounded: bool) -> KeptBounds:
        """Return variants that may be fast enough; bounds of their seconds are computed if they are to be `bounded`."""
        parts = [BoundedRows(rows_at(self.source, self.candidates[:0]), np.zeros(0), np.zeros(0))]
        for places, most_stored in _together(self._fast()):
            origin, columns = self.variant_table.of(places.placement)
            rows = _with(rows_of(self.source, places).take(origin), columns)
            storable = np.flatnonzero(rows.choices[_STORED] <= most_stored[origin])
            rows, origin = rows.take(storable), origin[storable]
            if self._stores:
                fast = np.flatnonzero(self._storing.least_s(rows) <= self.most)
                rows, origin = rows.take(fast), origin[fast]
            rows = rows.take(np.flatnonzero(self._promising(rows, origin)))
            memory = memory_bounds(self.varied_source, rows)
            fits = np.flatnonzero(memory.fits)
            part = BoundedRows(rows.take(fits), memory.peak_bytes[fits], np.full(len(fits), -np.inf))
            if bounded:
                part = part._replace(step_s=step_bounds(self.varied_source, part.rows))
            parts.append(part.take(np.flatnonzero(part.step_s <= self.most)))
        of_parts, peak_bytes, step_s = zip(*parts, strict=True)
        points, positions, choices = zip(*of_parts, strict=True)
        rows = Rows(np.concatenate(points), np.concatenate(positions), joined(choices))
        return BoundedRows(rows, np.concatenate(peak_bytes), np.concatenate(step_s))

    def _fast(self) -> Iterator[tuple[Places, PlanInts]]:
        """Yield the plans of which some variant may be fast enough and fit, and the most layers that these store."""
        searched, have = self.varied_source.problem.workload.searched, self.variant_table.count > 0
        for places, rows in parts_of(self.source, self.candidates, have):
            if len(searched.offload) == 1:  # else it is not varied, and each plan has its own
                rows = _with(rows, {_OFFLOAD: np.full(len(places.key), searched.offload[0])})
            if self._stores:
                rows, fast = self._with_most_stored(rows)
            else:
                fast = self._may_be_fast(rows)
            yield places.take(fast), rows.choices[_STORED][fast]

    @property
    def _stores(self) -> bool:
        return self.varied_source.problem.workload.searched.stored_layers != (0,)

    @cached_property
    def _storing(self) -> Storing:
        return Storing(self.varied_source)

    @property
    def _moves_activations(self) -> bool:
        return bool(offload_codes(ACTIVATIONS, self.varied_source.problem.workload.searched))

    def _promising(self, rows: Rows, origin: PlanInts) -> PlanBools:
        """Return which variants of the plans at `origin` may be fast enough, whatever their ZeRO replicas."""
        stored = rows.choices[_STORED]
        _, first, of_variant = np.unique(
            origin * (stored.max(initial=0) + 1) + stored, return_index=True, return_inverse=True
        )
        distinct = rows.take(first)
        distinct = _with(distinct, {_REPLICAS: np.ones_like(distinct.choices[_REPLICAS])})
        return self._may_be_fast(distinct)[of_variant]

    def _may_be_fast(self, rows: Rows) -> PlanBools:
        """Return which plans of one ZeRO replica may be fast enough and fit, with any replicas."""
        return may_be_fast(self.varied_source, rows, memory_bounds(self.varied_source, rows).fits, self.most)

    def _with_most_stored(self, rows: Rows) -> tuple[Rows, PlanBools]:
        """Return plans with the most layers that they may store, and which of them may be fast enough and fit.

        The bound of the memory is affine in these layers. Rounded up, they may take a little more memory than there is.
        """
        layers = self.varied_source.problem.num_layers // rows.choices["pp"]
        all_stored = _with(rows, {_STORED: np.maximum(layers, 1)})
        of_one = least_bytes(self.varied_source, _with(rows, {_STORED: np.ones_like(layers)}))
        of_all = least_bytes(self.varied_source, all_stored)
        room, more = most_bytes(self.varied_source, rows) - of_one, of_all - of_one
        share = np.divide(room, more, out=np.ones_like(room), where=more > np.maximum(room, 0.0))
        most = 1 + np.ceil(np.clip(share, 0.0, 1.0) * (layers - 1)).astype(np.int64)
        rows = _with(rows, {_STORED: most})
        if not self._moves_activations:
            return rows, may_be_fast(self.varied_source, rows, np.asarray(room >= 0), self.most)
        # Stored activations may be moved to the host more slowly than they are recomputed.
        return rows, (room >= 0) & (self._storing.least_of_any_s(rows) <= self.most)


def _together(parts: Iterable[tuple[Places, PlanInts]]) -> Iterator[tuple[Places, PlanInts]]:
    """Yield parts of plans and of a number of each as others, of `_BOUNDED_ROWS` plans."""
    of_parts = list(parts)
    if not of_parts:
        return
    places = Places(*map(np.concatenate, zip(*(places for places, _ in of_parts), strict=True)))
    numbers = np.concatenate([number for _, number in of_parts])
    for start in range(0, len(numbers), _BOUNDED_ROWS):
        part = slice(start, start + _BOUNDED_ROWS)
        yield places.take(part), numbers[part]


def _with(rows: Rows, columns: Mapping[str, PlanInts]) -> Rows:
    return rows._replace(choices={**rows.choices, **columns})
