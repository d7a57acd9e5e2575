"""The hot loop on devices: it prices tiles, one bundle at a time, and returns only the values that the search needs.

`lax.scan` runs over bundles of tiles. The same function prices a tile and a single plan. Little leaves the loop: for
the best plans the minimum of each key and slice, or the objective of each candidate if groups are many; for a front a
mask of candidates that may be on it. So XLA fuses the whole cost model into one loop and drops all unused columns. (An
argmin would be several times slower on a CPU; the winners are priced once more instead.) `vmap` runs the loop over
hardware points. The data of a search is put on each device once.

A search with limits runs in waves: the results of each limit what the next ones look at. Segments of choices that can
have no plan within the limits are left out before their plans are made. A bound of the plans of a segment has, for each
column of its block's keys, the smallest value of any of them, and the smallest batch. Placements that differ only in
what bounds do not depend on share them.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dsx.config.cluster_file import Cluster
from dsx.cost.context import Assumptions, PipelineChoices, StepChoices, StepCosts
from dsx.cost.cut_bounds import KeySeconds
from dsx.cost.interval import room
from dsx.cost.layer import BY_MODE, COMM_COLUMN, PASSES, TUPLES, LayerCosts, PassCosts
from dsx.cost.offload import uses_host
from dsx.cost.step import Workload, step_costs
from dsx.plans.blocks import ChoiceSegments
from dsx.plans.choices import PLACEMENT_COLUMNS, SEARCHED_COLUMNS
from dsx.pricing.keys import power_of_two
from dsx.pricing.row_costs import Rows
from dsx.records import Array, Bool, Float, Int, Over, Shaped, make_pytrees, positive_columns, record
from dsx.schedules.schedules import SCHEDULES
from dsx.search.ranking import BlockRange
from dsx.search.spaces import PricedSpace
from dsx.search.tiles.tiles import (
    BUNDLES,
    CHOICES,
    KEYS,
    PADDING,
    TILES,
    Chunk,
    Groups,
    KeyRows,
    dense_codes,
    joined_segments,
    make_chunk,
)

_Ints = Int[np.ndarray, "*#plans"]
# Columns of a placement that the bounds depend on.
_READ = ("pp", "dp", "vpp", "schedule", "recompute")


class SegmentLimits:
    """The segments of a space that may have a plan within the limits of its group.

    Args:
        groups: the groups of the search.
    """

    def __init__(self, source: PricedSpace, groups: Groups) -> None:
        self._blocks, self._groups = source.space.blocks, groups
        self._searched, self._bound = source.problem.workload.searched, source.loose_bound
        keys, first = self._blocks.keys, self._blocks.first_key[:-1]
        self._seconds = [  # the smallest of the keys of each block, [values, B]
            KeySeconds(*(np.minimum.reduceat(of_keys[:, keys], first, axis=1) for of_keys in source.key_seconds(point)))
            for point in range(source.problem.num_points)
        ]
        self._columns = source.space.blocks.placements
        self._kinds = functools.cache(self._kinds_of)
        # The precision of the search decides how far its values may be below exact ones.
        self._slack = 1.0 - (1e-9 if source.float64 else 1e-4)

    def lower(self, limits: Float[np.ndarray, "limits"]) -> None:
        """Set the most seconds of a plan of each group at each hardware point."""
        # Keys of a block may be of several groups: the loosest limit counts.
        self._limits = limits.reshape(len(self._seconds), -1, self._groups.choices).max(axis=1)
        self._loosest = self._limits.reshape(len(self._seconds), -1, self._groups.batches).max(axis=-1)

    def segments(self, low: int, high: int) -> ChoiceSegments:
        """Return the segments of the blocks from `low` up to `high` that may have a plan within the limits."""
        segments = self._blocks.segments(low, high, self._may_be_within)
        if not self._groups.splits_slices:
            return segments
        segments = segments.per_choice()
        batch, code = self._blocks.batches[segments.first], self._groups.of_segments(self._blocks, segments)
        choices = self._choices(segments.placement, batch, segments.block)
        return segments.take(self._within(segments.block, choices, self._limits[:, code]))

    def _may_be_within(
        self, blocks: Int[np.ndarray, "blocks"], placements: slice
    ) -> Bool[np.ndarray, "blocks placements"]:
        """Return whether blocks times the placements of a slice may have a plan within the limits."""
        first, kind = self._kinds(placements.start, placements.stop)
        batch = self._blocks.least_batches(blocks, first)
        choices = self._choices(first[None], batch, blocks[:, None])
        code = self._groups.of_placements(first) // self._groups.batches
        return self._within(blocks[:, None], choices, self._loosest[:, None, code])[:, kind]

    def _kinds_of(self, start: int, stop: int) -> tuple[Int[np.ndarray, "kinds"], Int[np.ndarray, "{stop-start}"]]:
        """Return the first of the placements of a range for each kind that bounds tell apart, and the kind of each."""
        placements = np.arange(start, stop)
        columns = [self._columns[PLACEMENT_COLUMNS.index(name), placements] for name in _READ]
        kind = dense_codes([self._groups.of_placements(placements), *columns], len(placements))
        _, first = np.unique(kind, return_index=True)
        return placements[first], kind

    def _choices(self, placement: _Ints, batch: _Ints, block: _Ints) -> PipelineChoices:
        """Return choices that broadcast; where there is no batch, they have no microbatch."""
        size = self._blocks.microbatch_size[block]
        return PipelineChoices.of(self._blocks.choices_at(placement, batch, size, PipelineChoices._fields))

    def _within(
        self, block: _Ints, choices: PipelineChoices, limits: Float[np.ndarray, "points *#plans"]
    ) -> Bool[np.ndarray, "*#plans"]:
        """Return whether choices with blocks may be within `limits` at any hardware point."""
        bounds = [self._bound(seconds, block, choices, self._searched) for seconds in self._seconds]
        return np.logical_or.reduce([bound * self._slack <= limit for bound, limit in zip(bounds, limits, strict=True)])


_FIRST, _GROWTH = 4, 3  # ranges of the first wave, and how much larger each wave is than the one before


def waves(ranges: Sequence[BlockRange]) -> Iterator[Sequence[BlockRange]]:
    """Yield all ranges of blocks in waves, a few ranges at first.

    They come in a mixed order, so that the first ones are like the others. The order, and so what the limits of a wave
    are, does not depend on the devices.
    """
    order = np.random.default_rng(0).permutation(len(ranges))
    start, size = 0, _FIRST
    while start < len(ranges):
        yield [ranges[number] for number in order[start : start + size]]
        start, size = start + size, size * _GROWTH


# Fields of layer costs that are None if they equal those of the first kind.
SHARED = ("group_size", "group_share", "group_ep", "group_outer", "rank_placement")

# Registers of 512 bits where the processor has them; XLA's default is 256. The larger of two numbers is one instruction
# if it loses a NaN that only the second one has; padding is NaN in all stages.
_COMPILER = {"xla_cpu_prefer_vector_width": 512, "xla_cpu_enable_fast_min_max": True}
if jax.__version_info__ < (0, 11):
    # The emitter that XLA had before its fusion emitters compiles in half the time. Its code is a tenth faster with the
    # formulas of the set `default`, and a tenth slower with the few of arXiv 2410.00273.
    _COMPILER["xla_cpu_use_fusion_emitters"] = False

make_pytrees()

OfPoint = TypeVar("OfPoint")
Result = TypeVar("Result")


@record
class Slices:
    """The slices of the choices of a chunk; padding slices are empty."""

    choices: Over[StepChoices, "... slices width"]
    length: Int[Array, "slices"]


@record
class ChunkColumns:
    """The choices of a `dsx.search.tiles.tiles.Chunk` and its slices, padded."""

    placement: Int[Array, "choices"]
    global_batch_size: Float[Array, "choices"]
    start: Int[Array, "slices"]
    length: Int[Array, "slices"]
    microbatch_size: Float[Array, "slices"]


@record
class Tiles:
    """Bundles of tiles, or one of them; see `dsx.search.tiles.tiles.Chunk`."""

    row: Int[Array, "*bundles tiles"]
    slices: Int[Array, "*bundles tiles"]  # an empty slice for a padding tile


@record
class Points:
    """The data that differ between hardware points. All leaves begin with these."""

    table: Over[tuple[LayerCosts, ...], ""]  # of each layer kind, with keys or with rows of them
    hardware: Cluster
    assumptions: Assumptions


@record
class Common:
    """The data that all tiles and points share."""

    keys: dict[str, Float[jax.Array, "rows slots"]]  # the columns of the key that are objectives, as floats
    workload: Workload


# By column; one of several tiers is a tuple, and one of a single value has it once.
Placements = dict[str, Float[jax.Array, "#placements"] | tuple[Float[jax.Array, "#placements"], ...]]


@functools.partial(jax.jit, static_argnames="width")
def make_slices(placements: Placements, chunk: ChunkColumns, width: int) -> Slices:
    """Return the slices of a chunk with `width` choices each."""
    start, length = chunk.start[:, None], chunk.length[:, None]
    position = jnp.arange(width, dtype=start.dtype)[None]
    choice = jnp.maximum(start + jnp.minimum(position, length - 1), jnp.zeros_like(start))
    place, batch = chunk.placement[choice], chunk.global_batch_size[choice]
    columns = jax.tree.map(
        lambda column: column[place] if len(column) > 1 else jnp.broadcast_to(column, place.shape), placements
    )
    microbatches = jnp.round(batch / (columns["dp"] * chunk.microbatch_size[:, None]))
    return Slices(StepChoices(**columns, global_batch_size=batch, num_microbatches=microbatches), chunk.length)


def _priced(
    point: Points, common: Common, slices: Slices, tile: Tiles
) -> tuple[
    Over[StepCosts, "... #tiles #slots #width"],
    Over[StepChoices, "... #tiles 1 #width"],
    Bool[Array, "tiles slots width"],
]:
    """Return the costs of a bundle, its choices, and the mask of feasible candidates."""
    choices = jax.tree.map(lambda column: column[tile.slices][:, None], slices.choices)
    # What follows from a fixed choice is computed when the code is compiled.
    values = {name: getattr(common.workload.searched, name) for name in SEARCHED_COLUMNS}
    fixed = {name: codes[0] for name, codes in values.items() if len(codes) == 1 and hasattr(choices, name)}
    choices = replace(choices, **{name: jnp.full_like(choices.pp, code) for name, code in fixed.items()})
    table = jax.tree.map(lambda leaf: leaf[..., tile.row, :, None], point.table)
    kinds = [
        replace(kind, **{name: getattr(table[0], name) for name in SHARED if getattr(kind, name) is None})
        for kind in table
    ]
    costs = step_costs(kinds, choices, common.workload, point.hardware, point.assumptions)
    position = jnp.arange(slices.choices.pp.shape[-1], dtype=jnp.int32)[None]
    real = position < slices.length[tile.slices][:, None]
    usable = room(point.hardware, point.assumptions, choices.num_gpus)
    fits = usable.holds(costs) if uses_host(common.workload.searched) else costs.peak_bytes <= usable.gpu
    return costs, choices, fits & real[:, None]


def _scan(bundle: Callable[[OfPoint, Tiles], Result], points: OfPoint, slices: Slices, tiles: Tiles) -> Result:
    """Return the results of `bundle` at each point for each bundle, and zeros for a bundle that is all padding.

    `points` has what `bundle` takes of each point, and its leaves begin with these, like the results.
    """
    # Compiled as a function of its own it is traced once; a `vmap` of the loop would trace it four times.
    at_points = jax.jit(jax.vmap(bundle, in_axes=(0, None)), inline=True)
    shapes = jax.eval_shape(at_points, points, jax.tree.map(lambda leaf: leaf[0], tiles))

    def step(carry: None, tile: Tiles) -> tuple[None, Result]:
        def nothing(tile: Tiles) -> Result:
            del tile
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        real = slices.length[tile.slices[0]] > 0
        return carry, jax.lax.cond(real, functools.partial(at_points, points), nothing, tile)

    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), jax.lax.scan(step, None, tiles)[1])


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def minima(
    points: Points, common: Common, slices: Slices, tiles: Tiles, objective: str
) -> tuple[Float[jax.Array, "points *bundles tiles slots"], Float[jax.Array, "points *bundles tiles slots"]]:
    """Return the smallest feasible `objective` of each key and slice, and the number of its feasible candidates.

    The minimum is infinite if no candidate is feasible, and zero in a bundle that is all padding.
    """

    def bundle(point: Points, tile: Tiles) -> tuple[jax.Array, jax.Array]:
        costs, _, feasible = _priced(point, common, slices, tile)
        value = getattr(costs, objective)
        value = jnp.where(feasible, value, jnp.full_like(value, jnp.inf))
        # Without the barrier XLA fuses the cost model into both reductions and evaluates it twice.
        value = jax.lax.optimization_barrier(value)
        return value.min(axis=-1), (value < jnp.inf).astype(value.dtype).sum(axis=-1)

    return _scan(bundle, points, slices, tiles)


@functools.partial(jax.jit, static_argnames="objective", compiler_options=_COMPILER)
def values(
    points: Points, point: Int[Array, ""], common: Common, slices: Slices, tiles: Tiles, objective: str
) -> tuple[Float[jax.Array, "*bundles tiles slots width"], Int[jax.Array, "*bundles"]]:
    """Return the `objective` of each candidate at one point, and the number of feasible candidates.

    The objective is infinite for a candidate that is not feasible, and zero in a bundle that is all padding.
    """

    def bundle(point: Points, tile: Tiles) -> tuple[jax.Array, jax.Array]:
        costs, _, feasible = _priced(point, common, slices, tile)
        value = getattr(costs, objective)
        return jnp.where(feasible, value, jnp.full_like(value, jnp.inf)), feasible.sum(dtype=jnp.int32)

    results = _scan(bundle, jax.tree.map(lambda leaf: leaf[point][None], points), slices, tiles)
    return jax.tree.map(lambda leaf: leaf[0], results)


@dataclass(frozen=True, slots=True)
class FrontObjective:
    """A column of a front: minimised, or maximised."""

    column: str
    maximised: bool

    @property
    def is_integer(self) -> bool:
        """Whether its values are whole numbers, which float32 represents exactly."""
        return self.column not in StepCosts.__dataclass_fields__

    @property
    def never_ties(self) -> bool:
        """Whether the margin separates worse from equal values. Zero and whole numbers have no margin."""
        return self.column in _POSITIVE


_POSITIVE = positive_columns(StepCosts)
# The rounding of float32. Candidates within it of the front are kept, and compared in float64 later.
_MARGIN = 1e-5
# The exposed reduction is a difference of nearly equal times, once per layer.
_MARGINS = {"dp_comm_s": 1e-3}


@functools.partial(jax.jit, static_argnames="objectives", compiler_options=_COMPILER)
def undominated(
    points: Points,
    common: Common,
    slices: Slices,
    tiles: Tiles,
    references: Float[Array, "points references objectives"],
    objectives: tuple[FrontObjective, ...],
) -> tuple[Bool[Array, "points *bundles tiles slots width"], Int[Array, "points *bundles"]]:
    """Return the mask of feasible candidates that no reference dominates, and the number of feasible candidates.

    `references` are points of objectives to minimise, infinite if there are fewer. A candidate within rounding of a
    reference counts as undominated.
    """

    def bundle(at_point: tuple[Points, Array], tile: Tiles) -> tuple[Array, Array]:
        point, references = at_point
        costs, choices, feasible = _priced(point, common, slices, tile)
        dominated = jnp.zeros_like(feasible)
        bounds = [_bound(objective, common, tile, costs, choices) for objective in objectives]
        for reference in range(references.shape[0] if objectives else 0):
            values = references[reference]
            beats = functools.reduce(jnp.logical_and, [bound >= values[d] for d, bound in enumerate(bounds)])
            if not any(objective.never_ties for objective in objectives):
                beats &= functools.reduce(jnp.logical_or, [bound > values[d] for d, bound in enumerate(bounds)])
            dominated |= beats
        return feasible & ~dominated, feasible.sum(dtype=jnp.int32)

    return _scan(bundle, (points, references), slices, tiles)


def _bound(
    objective: FrontObjective, common: Common, tile: Tiles, costs: StepCosts, choices: StepChoices
) -> Float[jax.Array, "#tiles #slots #width"]:
    """Return the largest value of a reference that still dominates each candidate in this objective."""
    name, sign = objective.column, -1.0 if objective.maximised else 1.0
    if name in common.keys:
        return sign * common.keys[name][tile.row][..., None]
    if objective.is_integer:
        return sign * getattr(choices, name)
    value = sign * getattr(costs, name)
    return value - _MARGINS.get(name, _MARGIN) * jnp.abs(value)


# The padded choices and slices of a chunk, unless it has more: nearly all chunks have one shape.
_CHOICES, _SLICES = 1 << 17, 1 << 12
# Columns of a layer that neither the time nor the memory of a step depends on, unless a schedule hides one.
_PARTS = ("compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s")


_RowCosts = Over[LayerCosts, "points ... #rows #slots | None"]


class HotLoop:
    """A space ready for the hot loop, at all hardware points of its problem.

    Args:
        groups: a slice has choices of one of these groups.
        columns: the costs and the columns of the key that the search needs.
    """

    def __init__(self, source: PricedSpace, groups: Groups, columns: Sequence[str]) -> None:
        self.problem, self.blocks, self.groups = source.problem, source.space.blocks, groups
        self.rows = KeyRows(self.blocks)
        self._dtype = source.dtype
        keys = source.space.keys
        self._columns = {name: keys[name] for name in columns if name in keys}
        self._table, self._needed = source.table, {*columns}
        overlaps = [SCHEDULES[code].overlap for code in source.problem.workload.searched.schedule]
        self._overlapped = {COMM_COLUMN[axis] for overlap in overlaps if overlap for axis in overlap.axes}
        self._devices: dict[object, tuple[Points, Common, Placements]] = {}
        self._lock = threading.Lock()
        self._rows: tuple[tuple[LayerCosts, ...], dict[str, np.ndarray]] | None = None

    def chunks(self, ranges: Iterable[BlockRange], limits: SegmentLimits | None = None) -> Iterator[Chunk]:
        """Yield the chunks of ranges of blocks, or of those segments of them that limits leave."""
        segments = limits.segments if limits else self.blocks.segments
        for of_chunk in joined_segments(segments(*blocks) for blocks in ranges):
            yield make_chunk(self.blocks, self.rows, self.groups, of_chunk)

    def calls(self, device: object, chunk: Chunk) -> Iterator[tuple[slice, Points, Common, Slices, Tiles]]:
        """Yield, for each call of a chunk, the range of its tiles and the arguments on a device.

        The device must be the default device, and `enable_x64` must match the precision of the search.
        """
        points, common, placements = self._on(device)
        # At least one slice is empty, for tiles that are padding.
        num_slices = max(_SLICES, power_of_two(len(chunk.length) + 1))
        num_choices = max(_CHOICES, power_of_two(len(chunk.placement)))
        slices = make_slices(
            placements,
            ChunkColumns(
                placement=_filled(chunk.placement, num_choices),
                global_batch_size=_filled(chunk.global_batch_size, num_choices).astype(self._dtype),
                start=_filled(chunk.start, num_slices),
                length=_filled(chunk.length, num_slices),
                microbatch_size=_filled(chunk.microbatch_size, num_slices).astype(self._dtype),
            ),
            CHOICES,
        )
        size = BUNDLES * TILES
        for start in range(0, len(chunk.row), size):
            of_call = slice(start, min(start + size, len(chunk.row)))
            row = _filled(chunk.row[of_call], size).reshape(BUNDLES, TILES)
            of_tile = _filled(chunk.slices[of_call], size, num_slices - 1).reshape(BUNDLES, TILES)
            yield of_call, points, common, slices, Tiles(row=row, slices=of_tile)

    def candidates(
        self, chunk: Over[Chunk, "..."], tiles: slice, mask: Bool[np.ndarray, "points bundles tiles slots width"]
    ) -> Rows:
        """Return the candidates of some tiles of a chunk that a mask selects."""
        count = tiles.stop - tiles.start
        where = np.flatnonzero(mask.reshape(len(mask), -1, KEYS, CHOICES)[:, :count])
        point, tile, slot, position = np.unravel_index(where, (len(mask), count, KEYS, CHOICES))
        tile = tile + tiles.start
        key = self.rows.keys[chunk.row[tile], slot].astype(np.int64)
        chosen_slice = chunk.slices[tile]
        choice = chunk.start[chosen_slice] + position
        choices = self.blocks.choices_at(
            chunk.placement[choice],
            chunk.global_batch_size[choice],
            chunk.microbatch_size[chosen_slice].astype(np.int64),
        )
        return Rows(point, key, choices)

    def _on(self, device: object) -> tuple[Points, Common, Placements]:
        """Return the data on a device; the first call puts it there."""
        with self._lock:
            if self._rows is None:
                self._rows = self._in_rows()
            if device not in self._devices:
                table, keys = self._rows
                points = Points(
                    table=jax.tree.map(jnp.asarray, table),
                    hardware=self.problem.hardware,
                    assumptions=self.problem.assumptions,
                )
                keys = {name: jnp.asarray(column) for name, column in keys.items()}
                workload = self.problem.workload
                workload = replace(workload, stack=replace(workload.stack, divided=self.blocks.divided))
                common = Common(keys=keys, workload=workload)
                columns = self.blocks.placements.astype(self._dtype)
                padded = np.pad(columns, ((0, 0), (0, power_of_two(columns.shape[1]) - columns.shape[1])), mode="edge")
                table_of = dict(zip(PLACEMENT_COLUMNS, map(jnp.asarray, padded), strict=True))
                searched = self.problem.workload.searched
                # A fixed choice is one number, which is not looked up for every choice.
                fixed = {name for name in SEARCHED_COLUMNS if len(getattr(searched, name)) == 1}
                placements: Placements = {
                    name: column[:1] if name in fixed else column for name, column in table_of.items()
                }
                for axis in ("pp", "dp"):
                    names = [f"{axis}_{tier.name}" for tier in self.problem.cluster.network.middle]
                    shares = [
                        _filled(self.blocks.outer[name].astype(self._dtype), padded.shape[1], 1) for name in names
                    ]
                    placements[f"{axis}_outer"] = tuple(map(jnp.asarray, shares))
                self._devices[device] = points, common, placements
            return self._devices[device]

    def _in_rows(self) -> tuple[tuple[_RowCosts, ...], dict[str, Float[np.ndarray, "rows slots"]]]:
        """Return the layer costs and the columns of the keys in rows, padded to a power of two.

        So spaces of similar size share the compiled code. Columns that no result needs have one number.
        """
        count = len(self.rows.keys)
        at = np.zeros((power_of_two(count), self.rows.keys.shape[1]), dtype=np.int64)
        at[:count] = self.rows.keys
        parts = set(_PARTS) - self._needed - self._overlapped

        def in_rows(costs: LayerCosts | PassCosts, name: str) -> Any:
            if name in ("modes", "lacked"):
                return getattr(costs, name)
            if name == "without":
                sets = getattr(costs, name)
                return tuple(PassCosts(**{field: in_rows(passes, field) for field in PASSES}) for passes in sets)
            if name in TUPLES:
                return tuple(np.asarray(leaf, dtype=self._dtype)[..., at] for leaf in getattr(costs, name))
            leaf = np.asarray(getattr(costs, name), dtype=self._dtype)
            if name in BY_MODE:
                # One array per mode: modes of recomputation that no plan of the search has are not even read.
                return tuple(leaf[:, mode][..., at] for mode in range(leaf.shape[1]))
            if name == "weight_bytes":
                # Padding after the last key of a block never fits, however large the memory.
                return np.where(at == PADDING, np.array(np.nan, dtype=self._dtype), leaf[..., at])
            return leaf[..., :1, None] if name in parts else leaf[..., at]

        first, *_ = self._table
        table: list[LayerCosts] = []
        for costs in self._table:
            fields = {name: in_rows(costs, name) for name in LayerCosts.__dataclass_fields__}
            for name in SHARED:
                # If the same ranks hold the weights of both kinds, the costs of their collectives are derived once.
                if costs is not first and jax.tree.all(
                    jax.tree.map(np.array_equal, getattr(costs, name), getattr(first, name))
                ):
                    fields[name] = None
            table.append(LayerCosts(**fields))
        return tuple(table), {name: column[at].astype(self._dtype) for name, column in self._columns.items()}


def _filled(column: Shaped[np.ndarray, "_ *of"], length: int, value: int = 0) -> Shaped[np.ndarray, "{length} *of"]:
    """Return the column, padded with `value`."""
    padded = np.full((length, *column.shape[1:]), value, dtype=column.dtype)
    padded[: len(column)] = column
    return padded
