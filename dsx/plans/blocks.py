"""The space as blocks: each is the product of some shard keys and some choices.

What a layer costs depends on the shard key alone. Pipeline depth, data parallelism, batch and GPU count combine layer
costs. The keys of a block have the same GPUs per replica, take the same GPUs of a fast domain, have ep groups that span
the same number of replicas, and have the same microbatch size. Each key of a block goes with each of its choices. Thus
the space is a list of rectangles, and no candidate is ever a Python object. Where a framework does not run every choice
with every key, the keys of a block are also those that go with the same choices (`dsx.plans.frameworks`).

The choices of a block are a product too: a placement (GPU count, pipeline, replicas and their shares of a fast domain)
times the batch sizes that dp times the microbatch size divides. Only the factors are stored, once for all blocks that
share them. Any range of candidates can be made without the candidates before it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsx.plans.choices import CHOICE_COLUMNS, CROSSED, PLACEMENT_COLUMNS
from dsx.plans.enumerate import BOXES, Arrays, Kept, Keys, SearchedCodes, SpaceBounds, changes, cross, grid, take
from dsx.plans.experts import REPLICA_AXES, ep_constraints
from dsx.plans.frameworks import Boxes, Filter
from dsx.plans.placement import (
    ORDERS,
    Replica,
    axes_in,
    choice_shares,
    distinct_order,
    divisors,
    ep_ranks_adjacent,
    even_shares,
    fills_nodes,
    in_a_row,
    in_order,
    lies_consecutively,
    rank_order_shares,
    replica_of,
    shares_of,
    uneven_shares,
)
from dsx.plans.rules import RULES, Limits, fills, least_microbatches, may_lie_unevenly, microbatch_groups
from dsx.records import Bool, Int, Shaped
from dsx.schedules.schedules import SCHEDULES
from dsx.units import LARGEST_COUNT

_BOTH = ("", "_nvs")  # a degree and its share
_NO_PLACEMENTS = np.zeros((len(PLACEMENT_COLUMNS), 0), dtype=np.int64)
# Whether blocks times the placements of a slice are taken.
Taken = Callable[[Int[np.ndarray, "blocks"], slice], Bool[np.ndarray, "blocks placements"]]
_Placements = Int[np.ndarray, "columns placements"]
_OfPlacements = Bool[np.ndarray, "placements"]
_PerSegment = Int[np.ndarray, "segments"]


@dataclass(frozen=True, slots=True)
class ChoiceSegments:
    """The choices of some blocks as segments: a segment is one placement times a range of batch sizes.

    The choices of all segments in order are the choices of the blocks.
    """

    block: _PerSegment
    placement: _PerSegment  # column of `Blocks.placements`
    first: _PerSegment  # first batch size, a position in `Blocks.batches`
    length: _PerSegment  # number of batch sizes

    def take(self, where: Shaped[np.ndarray, "chosen"] | slice) -> "ChoiceSegments":
        """Return some of the segments."""
        return ChoiceSegments(self.block[where], self.placement[where], self.first[where], self.length[where])

    @staticmethod
    def together(parts: "Sequence[ChoiceSegments]") -> "ChoiceSegments":
        """Return the segments of several parts as one."""
        names = ChoiceSegments.__dataclass_fields__
        return ChoiceSegments(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def per_choice(self) -> "ChoiceSegments":
        """Return one segment per choice."""
        block, placement = (np.repeat(column, self.length) for column in (self.block, self.placement))
        return ChoiceSegments(block, placement, self.positions(), np.ones_like(block))

    def positions(self) -> Int[np.ndarray, "choices"]:
        """Return the position in `Blocks.batches` of the batch size of each choice."""
        skipped = np.cumsum(self.length) - self.length
        return np.repeat(self.first - skipped, self.length) + np.arange(self.length.sum())


class Places(NamedTuple):
    """The places of candidates in some blocks."""

    block: Int[np.ndarray, "plans"]
    key: Int[np.ndarray, "plans"]  # position in the key table
    placement: Int[np.ndarray, "plans"]  # column of `Blocks.placements`
    global_batch_size: Int[np.ndarray, "plans"]

    def take(self, where: Shaped[np.ndarray, "chosen"] | slice) -> "Places":
        """Return some of the places."""
        return Places(*(column[where] for column in self))


_Choices = Int[np.ndarray, "*#plans"]
_Rows = tuple[Int[np.ndarray, "plans"], dict[str, Int[np.ndarray, "plans"]]]


class Blocks:
    """All B blocks of a space, in a fixed order.

    Attributes:
        keys: positions in the key table, in the order of the blocks.
        first_key: [B+1] position in `keys` of the first key of each block, and the end.
        microbatch_size: [B] sequences of a microbatch.
        num_choices: [B] choices of a block.
        first_candidate: [B+1] first candidate of each block, and the end.
        placements: [len(PLACEMENT_COLUMNS), P] placements, sorted by kind of replica.
        ep_replicas: [P] replicas that the ep groups of the keys of a placement span.
        boxes: [P] boxes of the framework that have the keys of a placement, as bits.
        outer: {<axis>_<tier>: [P]} stages and replicas in a unit of each tier between fast domain and outermost tier.
        divided: whether the chunks of all pipelines divide the body layers, without embedding and head.
        batches: ranges of batch sizes, one for each product of dp and microbatch size that divides them.
    """

    def __init__(self, keys: Keys, bounds: SpaceBounds) -> None:
        size, share, _ = replica_of(keys)
        nested = ep_constraints(keys, bounds.expert_axes, bounds.limits.nvs_size if bounds.uneven else None)
        # Without a framework, all keys are in its first box.
        boxes = keys[BOXES] if BOXES in keys else np.ones_like(size)
        replicas = np.stack([size, share, *nested, boxes, _lying(keys, bounds)])
        order = np.lexsort((keys["microbatch_size"], *replicas[::-1]))
        ordered, microbatch_size = replicas[:, order], keys["microbatch_size"][order]
        begins = np.flatnonzero(changes(*ordered, microbatch_size))
        of_block, microbatch_size = ordered[:, begins], microbatch_size[begins]
        first_blocks = np.flatnonzero(changes(*of_block))
        kinds = [_ReplicaKind(*kind) for kind in of_block[:, first_blocks].T.tolist()]
        of_replicas = functools.cache(functools.partial(_ReplicaPlacements.of, bounds))
        tables = [of_replicas(kind.ranks, kind.share, kind.boxes, kind.lying).of_kind(kind) for kind in kinds]
        self.placements = np.concatenate([_NO_PLACEMENTS, *tables], axis=1)
        counts = [table.shape[1] for table in tables]
        self.ep_replicas = np.repeat(np.array([kind.spanned for kind in kinds], dtype=np.int64), counts)
        self.boxes = np.repeat(np.array([kind.boxes for kind in kinds], dtype=np.int64), counts)
        self.outer: Arrays = {}  # by column ``<axis>_<tier>``
        columns = [dict(zip(PLACEMENT_COLUMNS, table, strict=True)) for table in tables]
        for name, unit in zip(bounds.tiers, bounds.units, strict=True):
            replicas_of_kinds = [Replica(kind.ranks, kind.share, bool(kind.lying & _EVEN)) for kind in kinds]
            parts = [choice_shares(*of_kind, unit) for of_kind in zip(columns, replicas_of_kinds, strict=True)]
            for axis in ("pp", "dp"):
                self.outer[f"{axis}_{name}"] = np.concatenate([_NO_PLACEMENTS[0], *(part[axis] for part in parts)])
        chunks = self.placements[PLACEMENT_COLUMNS.index("pp")] * self.placements[PLACEMENT_COLUMNS.index("vpp")]
        self.divided = bool((bounds.limits.num_layers % chunks == 0).all())
        self._first_placement = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._replica = np.cumsum(np.isin(np.arange(len(begins)), first_blocks)) - 1  # [B] kind of replica
        self._make_batches(microbatch_size, bounds)

        num_keys = np.diff(np.concatenate([begins, [len(order)]]))
        num_choices = self._num_choices_of_kinds()[self._microbatch, self._replica]
        used = num_choices > 0
        self.keys = order[np.repeat(used, num_keys)]
        self.first_key = np.concatenate([[0], np.cumsum(num_keys[used])])
        self.microbatch_size = microbatch_size[used]
        self.num_choices = num_choices[used]
        self.first_candidate = np.concatenate([[0], np.cumsum(num_keys[used] * num_choices[used])])
        self._replica, self._microbatch = self._replica[used], self._microbatch[used]

    def __len__(self) -> int:
        return len(self.num_choices)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return int(self.first_candidate[-1])

    def _make_batches(self, microbatch_size: Int[np.ndarray, "blocks"], bounds: SpaceBounds) -> None:
        """Make the ranges of batch sizes, and the tables that find the range of a microbatch size and a dp."""
        sizes, self._microbatch = np.unique(microbatch_size, return_inverse=True)
        names = ("dp", "pp", "vpp", "schedule")
        dp, pp, vpp, schedule = (self.placements[PLACEMENT_COLUMNS.index(name)] for name in names)
        group = np.where(pp > 1, microbatch_groups(pp, vpp, schedule), 1)
        least = least_microbatches(pp, schedule)
        # As one number each they are sorted ten times as fast.
        spans = int(group.max(initial=0)) + 1, int(least.max(initial=0)) + 1
        _, first, self._dp = np.unique(
            (dp * spans[0] + group) * spans[1] + least, return_index=True, return_inverse=True
        )
        degrees, *needed = dp[first], group[first], least[first]
        sequences = sizes[:, None] * degrees
        divisors = np.stack([sequences, *(np.broadcast_to(number, sequences.shape) for number in needed)])
        unique, where = np.unique(divisors.reshape(3, -1), axis=1, return_inverse=True)
        batch = np.array(bounds.global_batch_size, dtype=np.int64)
        ranges: list[np.ndarray] = []
        for of_all, group_size, fewest in unique.T.tolist():  # `of_all`: sequences of a microbatch of all replicas
            fits = batch[(batch % (of_all * group_size) == 0) & (batch >= of_all * fewest)]
            columns = {"global_batch_size": fits, "num_microbatches": fits // of_all}
            ranges.append(fits[bounds.keep_choices(columns)])
        self.batches = np.concatenate([*ranges, np.zeros(0, dtype=np.int64)])
        lengths = np.array([len(batches) for batches in ranges], dtype=np.int64)
        where = where.reshape(len(sizes), len(degrees))
        self._num_batches, self._first_batch = lengths[where], (np.cumsum(lengths) - lengths)[where]
        self._least_batch = np.array([batches.min(initial=LARGEST_COUNT) for batches in ranges], dtype=np.int64)[where]

    def _num_choices_of_kinds(self, weights: Int[np.ndarray, "placements"] | None = None) -> np.ndarray:
        """Return the number of choices of each microbatch size and kind of replica, [sizes, kinds].

        A placement counts `weights` times, by default once.
        """
        counts, num_degrees = np.diff(self._first_placement), self._num_batches.shape[1]
        cells = np.repeat(np.arange(len(counts)) * num_degrees, counts) + self._dp
        of_degrees = np.bincount(cells, weights, minlength=len(counts) * num_degrees)
        return self._num_batches @ of_degrees.astype(np.int64).reshape(len(counts), num_degrees).T

    def _placements_of(self, kind: int) -> slice:
        return slice(self._first_placement[kind], self._first_placement[kind + 1])

    def segments(self, low: int, high: int, taken: Taken | None = None) -> ChoiceSegments:
        """Return the choices of the blocks from `low` up to `high`, in the order of the blocks.

        With `taken`, they are only those segments that it returns True for.
        """
        parts: list[list[np.ndarray]] = []
        for kind in np.unique(self._replica[low:high]).tolist():
            blocks = low + np.flatnonzero(self._replica[low:high] == kind)
            placements = self._placements_of(kind)
            table = np.ix_(self._microbatch[blocks], self._dp[placements])
            length = self._num_batches[table]
            row, column = np.nonzero(length > 0 if taken is None else (length > 0) & taken(blocks, placements))
            first = self._first_batch[table][row, column]
            parts.append([blocks[row], column + placements.start, first, length[row, column]])
        if not parts:
            parts.append([_NO_PLACEMENTS[0]] * 4)
        return ChoiceSegments(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def least_batches(
        self, blocks: Int[np.ndarray, "blocks"], placements: Int[np.ndarray, "placements"]
    ) -> Int[np.ndarray, "blocks placements"]:
        """Return the smallest batch size of some blocks times some placements; 0 where there is none."""
        table = np.ix_(self._microbatch[blocks], self._dp[placements])
        return np.where(self._num_batches[table] > 0, self._least_batch[table], 0)

    def choices(self, segments: ChoiceSegments, names: Sequence[str] | None = None) -> Arrays:
        """Return the choices of segments as columns, or those of them in `names`."""
        return self.choices_at(
            np.repeat(segments.placement, segments.length),
            self.batches[segments.positions()],
            np.repeat(self.microbatch_size[segments.block], segments.length),
            names,
        )

    def choices_at(
        self, placement: _Choices, batch: _Choices, microbatch_size: _Choices, names: Sequence[str] | None = None
    ) -> dict[str, _Choices]:
        """Return choices as columns, or those of them in `names`; `placement` has positions in `placements`."""
        number = {name: position for position, name in enumerate(PLACEMENT_COLUMNS)}

        def column(name: str) -> _Choices:
            if name == "global_batch_size":
                return batch
            if name == "num_microbatches":
                return batch // (self.placements[number["dp"], placement] * microbatch_size)
            return (self.placements[number[name]] if name in number else self.outer[name])[placement]

        return {name: column(name) for name in names or (*CHOICE_COLUMNS, *self.outer)}

    def rows(self, start: int, stop: int, names: Sequence[str] | None = None) -> _Rows:
        """Return (positions in the key table, choices) of the candidates from `start` up to `stop`.

        Within a block, all choices of a key come before those of the next key. With `names`, the choices are only those
        columns.
        """
        low = int(np.searchsorted(self.first_candidate, start, side="right")) - 1
        high = int(np.searchsorted(self.first_candidate, stop, side="left"))
        segments = self.segments(low, high)
        first_choice = np.concatenate([[0], np.cumsum(self.num_choices[low:high])])
        begins = np.maximum(self.first_candidate[low:high], start)
        ends = np.minimum(self.first_candidate[low + 1 : high + 1], stop)
        block = np.repeat(np.arange(low, high), ends - begins)
        within = np.arange(start, stop) - self.first_candidate[block]
        key, choice = np.divmod(within, self.num_choices[block])
        choice += first_choice[block - low]
        return self.keys[self.first_key[block] + key], take(self.choices(segments, names), choice)

    def rows_at(self, candidates: Int[np.ndarray, "plans"]) -> _Rows:
        """Return (positions in the key table, choices) of any candidates; `rows` is faster for a range."""
        return self.rows_of(self.places_of(candidates))

    def rows_of(self, places: "Places") -> _Rows:
        """Return (positions in the key table, choices) of the candidates at some places."""
        microbatch_size = self.microbatch_size[places.block]
        return places.key, self.choices_at(places.placement, places.global_batch_size, microbatch_size)

    def size_with(self, weights: Int[np.ndarray, "placements"]) -> int:
        """Return the number of candidates where each placement counts `weights` times."""
        of_blocks = self._num_choices_of_kinds(weights)[self._microbatch, self._replica]
        return int(of_blocks @ np.diff(self.first_key))

    def places_of(self, candidates: Int[np.ndarray, "plans"]) -> "Places":
        """Return the places of any candidates in the blocks."""
        block = np.searchsorted(self.first_candidate, candidates, side="right") - 1
        key, choice = np.divmod(candidates - self.first_candidate[block], self.num_choices[block])
        placement, batch = np.zeros_like(choice), np.zeros_like(choice)
        order = np.argsort(self._replica[block], kind="stable")  # linear for sorted candidates
        for at in np.split(order, np.flatnonzero(changes(self._replica[block[order]]))[1:]) if len(order) else ():
            kind = int(self._replica[block[at[0]]])
            first, last = np.searchsorted(self._replica, (kind, kind + 1))
            used = np.zeros(last - first, dtype=bool)
            used[block[at] - first] = True
            table = np.ix_(self._microbatch[first:last][used], self._dp[self._placements_of(kind)])
            counts = self._num_batches[table]
            ends = np.cumsum(counts).reshape(counts.shape)
            row = (np.cumsum(used) - 1)[block[at] - first]
            of_row = choice[at] + (ends[:, -1] - counts.sum(axis=1))[row]
            cell = np.searchsorted(ends.ravel(), of_row, side="right")
            row, column = np.divmod(cell, counts.shape[1])
            begins = ends[row, column] - counts[row, column]
            placement[at] = column + self._first_placement[kind]
            batch[at] = self.batches[self._first_batch[table][row, column] + of_row - begins]
        return Places(block, self.keys[self.first_key[block] + key], placement, batch)


_EVEN, _PART, _IN_ORDER, _IN_A_ROW = 1, 2, 4, 8


class _ReplicaKind(NamedTuple):
    """What the keys of some blocks have in common besides their microbatch size."""

    ranks: int  # model-parallel GPUs
    share: int  # of them in a fast domain
    # What their ep groups require (`dsx.plans.experts.ep_constraints`).
    spanned: int
    wide: int
    near: int
    in_row: int
    boxes: int  # that have the keys, as bits
    lying: int  # as `_lying`


@dataclass(frozen=True, slots=True)
class _ReplicaPlacements:
    """The placements of replicas of some GPUs in some boxes, and what of each holds whatever ep groups require."""

    table: _Placements
    columns: Arrays
    otherwise: bool  # as in Limits
    tell: _OfPlacements  # whether shares tell how many members of an ep group a domain has
    first: _OfPlacements  # whether it is the first of those that differ in order alone
    distinct: _OfPlacements  # whether its order has an effect, if it may lay ep groups
    laid: _OfPlacements  # whether domains have ranks as limits want
    fill: _OfPlacements  # whether nodes are filled as limits want

    @classmethod
    def of(cls, bounds: SpaceBounds, ranks: int, share: int, boxes: int, lying: int) -> "_ReplicaPlacements":
        """Return the placements of replicas of `ranks` GPUs, `share` of them in a fast domain."""
        table, limits = _replica_placements(bounds, ranks, share, boxes, lying), bounds.limits
        columns = dict(zip(PLACEMENT_COLUMNS, table, strict=True))
        even = (lying & _EVEN > 0) & even_shares(columns, ("pp", "dp"))
        # Where a domain has as many ranks as the shares multiply to, they tell the members of an ep group there.
        tell = even | ((lying & _PART > 0) & (columns["pp_nvs"] * columns["dp_nvs"] == 1))
        if ranks == share:
            of_replica = {f"{axis}{part}": ranks if axis == "tp" else 1 for axis in REPLICA_AXES for part in _BOTH}
            tell |= lies_consecutively(columns | of_replica, columns["num_gpus"])
        replica = Replica(ranks, share, bool(lying & _EVEN))
        distinct = distinct_order(columns, bounds.searched.order, replica, bounds.units)
        laid = ~even | _in_a_row(columns, ranks == share, lying) if limits.in_rank_order else np.ones_like(even)
        fill = np.ones_like(even) if limits.node_size == 1 else _fill_nodes(columns, ranks, share, lying, limits)
        # The order comes last of the choices.
        return cls(table, columns, limits.otherwise, tell, changes(*table[:-1]), distinct, laid, fill)

    def of_kind(self, kind: "_ReplicaKind") -> _Placements:
        """Return the placements of one kind of replica."""
        nested = zero_replicas_of_whole_groups(self.columns, kind.spanned)
        if (kind.wide, kind.near, kind.in_row) != (1, 1, 1):
            near = np.gcd(kind.wide, self.columns["dp_nvs"]) == kind.near
            nested &= np.where(self.tell, near, kind.in_row == 1)
        adjacent = ep_ranks_adjacent(self.columns["order"], kind.spanned)
        distinct = self.distinct & adjacent
        # Where the order decides how groups lie, not every order has a placement.
        only = self.first & adjacent
        any_way = nested & (distinct | only)
        # Where the first order does not lay groups as limits want, another one may.
        only = only | (~self.first & ~np.roll(self.laid, 1) & adjacent)
        kept = nested & self.laid & (distinct | only) & self.fill
        if self.otherwise:
            instead = np.roll(kept & ~distinct & ~self.first, -1)  # whether the next row is the same in another order
            kept = any_way & ~kept & ~instead
        return self.table[:, kept]


def _in_a_row(columns: Arrays, in_domain: bool, lying: int) -> Bool[np.ndarray, "plans"]:
    """Return which placements whose shares divide their degrees have consecutive ranks in a domain.

    `in_domain` says whether the ranks of a replica are in one domain.
    """
    replicas_first = columns["order"] == 0
    first, near = (np.where(replicas_first, columns[f"dp{part}"], columns[f"pp{part}"]) for part in _BOTH)
    far = np.where(replicas_first, columns["pp_nvs"], columns["dp_nvs"])
    return (lying & _IN_A_ROW > 0) & (((near == 1) | in_domain) & ((far == 1) | in_domain & (near == first)))


def _fill_nodes(columns: Arrays, ranks: int, share: int, lying: int, limits: Limits) -> Bool[np.ndarray, "plans"]:
    """Return which placements of replicas fill nodes as limits want."""
    number = columns["num_gpus"]
    used = share * columns["pp_nvs"] * columns["dp_nvs"]
    fill = np.asarray(fills_nodes(number, used, limits.node_size, limits.nvs_size))
    for order, name in enumerate(ORDERS) if lying & _IN_ORDER else ():
        axes = axes_in(name)[len(REPLICA_AXES) :]
        degrees, shares = {axis: columns[axis] for axis in axes}, shares_of(columns, axes)
        fill |= in_order(degrees, shares, limits.nvs_size, number, ranks, share) & (columns["order"] == order)
    return fill


def _lying(keys: Keys, bounds: SpaceBounds) -> Int[np.ndarray, "keys"]:
    """Return how the groups of keys lie on fast domains, as bits.

    Shares divide their degrees; or consecutive ranks cut a group of the axes of a replica into uneven parts, as many in
    a domain as the shares multiply to; or they are those of ranks that fill domain after domain. Where limits want
    consecutive ranks alone, a bit says whether shares that divide their degrees are of these.
    """
    limits = bounds.limits
    degrees = {axis: keys[axis] for axis in REPLICA_AXES}
    shares = shares_of(keys, REPLICA_AXES)
    uneven = bounds.uneven
    row = in_a_row(keys) if uneven or limits.in_rank_order else np.False_
    row_bit = row * _IN_A_ROW if limits.in_rank_order else 0
    if not uneven:
        return np.full_like(keys["tp"], _EVEN) + row_bit
    even, by_rank = even_shares(keys, REPLICA_AXES), in_order(degrees, shares, limits.nvs_size)
    part, stride = np.zeros_like(even), np.ones_like(keys["tp"])
    for axis, share in shares.items():
        stride = stride * degrees[axis]
        part |= (degrees[axis] % share != 0) & (stride > limits.nvs_size)  # else the group fits into a domain
    return even * _EVEN + (part & row) * _PART + by_rank * _IN_ORDER + row_bit


def _replica_placements(bounds: SpaceBounds, replica: int, share: int, boxes: int, lying: int) -> _Placements:
    """Return the placements of replicas of some GPUs in some boxes, whatever their ep groups require."""
    tables = [_NO_PLACEMENTS]
    limits, kept = bounds.limits, _Kept(bounds.keep_choices, bounds.boxes, boxes)
    for number in bounds.num_gpus:
        if number % replica:
            continue
        ranks = number // replica
        rooms = tuple(domain // share for domain in fills(number, limits) if domain % share == 0)
        rooms = rooms if lying & _EVEN else ()
        ways: list[tuple[Limits, _Laid | None]] = [(replace(limits, nvs_size=room), None) for room in rooms]
        ways += [(limits, _Laid(replica, share, lying, rooms))] if may_lie_unevenly(number, limits) else []
        for of_domain, laid in ways:
            replicas = stages_and_replicas(ranks, of_domain, bounds.searched, kept, laid)
            tables.append(np.concatenate([np.full_like(replicas[:1], number), replicas]))
    table = np.concatenate(tables, axis=1)
    return table[:, bounds.keep_choices(dict(zip(PLACEMENT_COLUMNS, table, strict=True)))]


class _Laid(NamedTuple):
    """Replicas whose ranks follow each other."""

    replica: int  # GPUs
    share: int  # of them in a fast domain
    lying: int  # as `_lying`
    rooms: tuple[int, ...]  # the shares of stages times replicas that placements with divisors have


class _Kept(NamedTuple):
    """Which placements a search keeps."""

    choices: Filter
    boxes: Boxes
    of_keys: int  # the boxes that have the keys

    def mask(self, table: Arrays) -> Bool[np.ndarray, "plans"]:
        """Return the mask of the rows that are kept, as far as their columns tell."""
        return self.choices(table) & self.boxes.keep(self.of_keys, table)


@functools.lru_cache(maxsize=4096)
def stages_and_replicas(
    ranks: int, limits: Limits, searched: SearchedCodes, kept: _Kept, laid: _Laid | None = None
) -> Int[np.ndarray, "columns placements"]:
    """Return the ways to have `ranks` stages times replicas, of those kept: columns of a placement after num_gpus.

    The fast domain of `limits` has room for so many of them, or for GPUs that consecutive ranks take.
    """
    pipelines = limits.stage_counts
    if any(SCHEDULES[code].uneven_stages for code in searched.schedule):
        pipelines = np.arange(1, limits.max_stages + 1)
    pipelines = pipelines[ranks % pipelines == 0]
    if laid is None:
        pp, pp_nvs = grid(pipelines, divisors(limits.nvs_size))
        table = {"pp": pp, "dp": ranks // pp, "pp_nvs": pp_nvs, "dp_nvs": limits.nvs_size // pp_nvs}
        table = take(table, even_shares(table, ("pp", "dp")))
    else:
        table = _laid_placements(pipelines, ranks // pipelines, limits.nvs_size, laid, searched.order)
    # One choice at a time: the rules leave few of its values for each row before it.
    for choice in CROSSED:
        values = np.array(getattr(searched, choice.name))
        if choice.tried and not len(values):
            values = choice.tried(limits.tried_layers, ranks)
        table = cross(table, choice.name, values)
        for rule in RULES:
            if choice.name in rule.reads and table.keys() >= {*rule.reads}:
                table = take(table, rule.holds(table, limits))
        if choice.no_effect:
            table = take(table, np.logical_not(choice.no_effect(table)) | (table[choice.name] == values[0]))
        table = take(table, kept.mask(table))
    if laid is not None:
        table = take(table, table["orders"] >> table["order"] & 1 == 1)
    placements = np.stack([table[name] for name in PLACEMENT_COLUMNS[1:]])
    placements.flags.writeable = False  # the cache shares it
    return placements


def _laid_placements(
    pp: Int[np.ndarray, "plans"], dp: Int[np.ndarray, "plans"], size: int, laid: _Laid, orders: Sequence[int]
) -> Kept:
    """Return the pipelines and replicas of consecutive ranks, with `orders`, the orders that lay them so, as bits.

    Those with divisors of the degrees, of which `_Laid` has the rooms, are left out.
    """
    parts: list[Arrays] = []
    degrees, ones = {"pp": pp, "dp": dp}, np.ones_like(pp)
    for order in orders:
        inner, outer = axes_in(ORDERS[order])[len(REPLICA_AXES) :]
        table = degrees | {"orders": np.full_like(pp, 1 << order)}
        if laid.lying & _PART:
            parts.append(table | {"pp_nvs": ones, "dp_nvs": ones})
        if laid.lying & _IN_ORDER:
            chain = {axis: degrees[axis] for axis in (inner, outer)}
            by_rank = rank_order_shares(chain, size, laid.replica * pp * dp, laid.replica, laid.share)
            parts.append(table | {f"{axis}_nvs": share for axis, share in by_rank.items()})
        if laid.share == laid.replica <= size:
            room = size // laid.replica
            outer_room = room // degrees[inner]
            for axis, share in ((inner, np.full_like(pp, room)), (outer, outer_room)):
                rows = np.flatnonzero((degrees[axis] > share) & ((axis == inner) | (outer_room > 0)))
                alone = (degrees[outer][rows] == 1) | (axis == outer)
                at, share = uneven_shares(degrees[axis][rows], share[rows], alone)
                part = take(table, rows[at])
                first = part[inner] if axis == outer else share
                parts.append(part | {f"{inner}_nvs": first, f"{outer}_nvs": share if axis == outer else ones[at]})
    names = ("pp", "dp", "pp_nvs", "dp_nvs")
    table = {name: np.concatenate([part[name] for part in parts] or [dp[:0]]) for name in (*names, "orders")}
    columns, which = np.unique(np.stack([table[name] for name in names]), axis=1, return_inverse=True)
    unique = dict(zip(names, columns, strict=True)) | {"orders": np.zeros_like(columns[0])}
    np.bitwise_or.at(unique["orders"], which.ravel(), table["orders"])
    in_rooms = np.isin(unique["pp_nvs"] * unique["dp_nvs"], laid.rooms)
    return take(unique, np.logical_not(even_shares(unique, ("pp", "dp")) & in_rooms))


def zero_replicas_of_whole_groups(
    columns: Arrays, ep_replicas: Int[np.ndarray, "plans"] | int
) -> Bool[np.ndarray, "plans"]:
    """Return where each ZeRO replica has whole ep groups, so that it holds each expert the same number of times."""
    return columns["dp"] % (ep_replicas * columns["zero_replicas"]) == 0
