"""The hot loop on devices: the data of a search, put on each device once, and its tiles call by call."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.layer import BY_MODE, COMM_COLUMN, PASSES, TUPLES, LayerCosts, PassCosts
from dsx.pricing.layers import KeyCosts, power_of_two
from dsx.pricing.row_costs import Rows
from dsx.search.blockwise.minima import SHARED, ChunkColumns, Common, Points, Slices, Tiles, make_slices
from dsx.search.blockwise.segment_limits import SegmentLimits
from dsx.search.blockwise.tiles import (
    BUNDLES,
    CHOICES,
    KEYS,
    PADDING,
    TILES,
    Chunk,
    Groups,
    KeyRows,
    joined_segments,
    make_chunk,
)
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import BlockRange
from dsx.space.choices import PLACEMENT_COLUMNS, SEARCHED_COLUMNS
from dsx.space.schedules import SCHEDULES

# The padded choices and slices of a chunk, unless it has more: nearly all chunks have one shape.
_CHOICES, _SLICES = 1 << 17, 1 << 12
# Columns of a layer that neither the time nor the memory of a step depends on, unless a schedule hides one.
_PARTS = ("compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s")


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
        self._devices: dict[Any, tuple[Points, Common, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._rows: tuple[KeyCosts, dict[str, np.ndarray]] | None = None

    def chunks(self, ranges: Iterable[BlockRange], limits: SegmentLimits | None = None) -> Iterator[Chunk]:
        """Yield the chunks of ranges of blocks, or of those segments of them that limits leave."""
        found = limits.segments if limits else self.blocks.segments
        for of_chunk in joined_segments(found(*blocks) for blocks in ranges):
            yield make_chunk(self.blocks, self.rows, self.groups, of_chunk)

    def calls(self, device: Any, chunk: Chunk) -> Iterator[tuple[slice, Points, Common, Slices, Tiles]]:
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
            here = slice(start, min(start + size, len(chunk.row)))
            row = _filled(chunk.row[here], size).reshape(BUNDLES, TILES)
            of_tile = _filled(chunk.slices[here], size, num_slices - 1).reshape(BUNDLES, TILES)
            yield here, points, common, slices, Tiles(row=row, slices=of_tile)

    def candidates(self, chunk: Chunk, tiles: slice, wanted: np.ndarray) -> Rows:
        """Return the candidates of some tiles of a chunk that the mask `wanted` [H, T, S, KEYS, CHOICES] selects."""
        count = tiles.stop - tiles.start
        where = np.flatnonzero(wanted.reshape(len(wanted), -1, KEYS, CHOICES)[:, :count])
        point, tile, slot, position = np.unravel_index(where, (len(wanted), count, KEYS, CHOICES))
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

    def _on(self, device: Any) -> tuple[Points, Common, dict[str, Any]]:
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
                placements: dict[str, Any] = table_of | {name: table_of[name][:1] for name in table_of if name in fixed}
                for axis in ("pp", "dp"):
                    names = [f"{axis}_{tier.name}" for tier in self.problem.cluster.network.middle]
                    shares = [
                        _filled(self.blocks.outer[name].astype(self._dtype), padded.shape[1], 1) for name in names
                    ]
                    placements[f"{axis}_outer"] = tuple(map(jnp.asarray, shares))
                self._devices[device] = points, common, placements
            return self._devices[device]

    def _in_rows(self) -> tuple[KeyCosts, dict[str, np.ndarray]]:
        """Return the layer costs and the columns of the keys in rows, padded to a power of two.

        So spaces of similar size share the compiled code.
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
                return tuple(PassCosts(**{own: in_rows(passes, own) for own in PASSES}) for passes in sets)
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
                if costs is not first and _same(getattr(costs, name), getattr(first, name)):
                    fields[name] = None
            table.append(LayerCosts(**fields))
        return tuple(table), {name: column[at].astype(self._dtype) for name, column in self._columns.items()}


def _same(some: Any, others: Any) -> bool:
    """Return whether two fields of layer costs, each an array or a tuple of arrays, are equal."""
    return jax.tree.all(jax.tree.map(np.array_equal, some, others))


def _filled(column: np.ndarray, length: int, value: int = 0) -> np.ndarray:
    """Return the column, padded with `value`."""
    made = np.full((length, *column.shape[1:]), value, dtype=column.dtype)
    made[: len(column)] = column
    return made
