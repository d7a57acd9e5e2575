"""Blocks cut into tiles of one shape, and tiles gathered into batches of one shape.

A tile is K keys times a run of up to C choices. Runs never cross the border of a group, so the minimum of a
tile's row belongs to one group. Batches hold a fixed number of tiles and of choices, padding included
(fewer where one batch holds the whole space): everything that consumes them is compiled once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.space.enumerate import CHOICE_COLUMNS, Block

_CELLS = 1 << 23  # candidates of one batch, padding included
_CHOICES = 1 << 18  # choices of one batch
_KEYS_PER_TILE = (1, 8, 32)
_CHOICES_PER_TILE = (32, 256, 1024)
PADDING = -1


@dataclass(frozen=True, slots=True)
class TileShape:
    """Keys and choices of one tile."""

    keys: int
    choices: int


@dataclass(frozen=True, slots=True)
class Batch:
    """T tiles over N choices."""

    shape: TileShape
    keys: np.ndarray  # [T, K] positions in the key table; PADDING where there is none
    start: np.ndarray  # [T]
    length: np.ndarray  # [T]; 0 for a tile that is padding
    choices: np.ndarray  # [len(CHOICE_COLUMNS), N]

    @property
    def candidates(self) -> int:
        """Candidates of the batch, without padding."""
        return int(((self.keys != PADDING).sum(axis=1) * self.length).sum())


def batches(blocks: Iterable[Block], group_by: Sequence[str]) -> Iterator[Batch]:
    """Yield the batches of a space; runs of choices have equal `group_by` columns."""
    runs = ((block.keys, *_runs(block, group_by)) for block in blocks)
    ahead = [run for _, run in zip(range(256), runs, strict=False)]
    if not ahead:
        return
    shape = TileShape(
        _fitting(_KEYS_PER_TILE, np.array([len(keys) for keys, _, _ in ahead])),
        _fitting(_CHOICES_PER_TILE, np.concatenate([np.diff(borders) for _, _, borders in ahead])),
    )
    pending = _Pending(shape)
    alone = True
    for entries in (ahead, runs):
        for keys, choices, borders in entries:
            for part in _parts(keys, choices, borders, shape):
                if not pending.holds(*part):
                    yield pending.batch(_tiles(shape), _CHOICES)
                    pending, alone = _Pending(shape), False
                pending.add(*part)
    if alone:
        # A space that one batch holds is padded to the next power of two, not to a whole batch.
        yield pending.batch(_power_of_two(pending.tiles), _power_of_two(pending.num_choices + shape.choices))
    else:
        yield pending.batch(_tiles(shape), _CHOICES)


def _power_of_two(count: int) -> int:
    return 1 << max(6, (count - 1).bit_length())


def _runs(block: Block, group_by: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the choices sorted by group, and the borders between groups."""
    choices = block.matrix
    count = choices.shape[1]
    if not group_by:
        return choices, np.array([0, count])
    rows = [CHOICE_COLUMNS.index(name) for name in group_by]
    choices = choices[:, np.lexsort(choices[rows])]
    changes = (choices[rows, 1:] != choices[rows, :-1]).any(axis=0)
    return choices, np.concatenate([[0], np.flatnonzero(changes) + 1, [count]])


def _fitting(sizes: tuple[int, ...], counts: np.ndarray) -> int:
    """Return the size that a typical count fills best: the first that holds it, or the largest."""
    typical = float(np.median(counts))
    return next((size for size in sizes if size >= typical), sizes[-1])


def _parts(
    keys: np.ndarray, choices: np.ndarray, borders: np.ndarray, shape: TileShape
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (tiled keys, choices, starts, lengths) of a block, in parts that a batch can hold."""
    tall = -(-len(keys) // shape.keys)
    tiled = np.full((tall, shape.keys), PADDING)
    tiled.ravel()[: len(keys)] = keys
    sizes = np.diff(borders)
    pieces = -(-sizes // shape.choices)
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(borders[:-1], pieces) + within * shape.choices
    lengths = np.minimum(np.repeat(borders[1:], pieces) - starts, shape.choices)
    most = _tiles(shape)
    keys_at_once = min(tall, most)
    runs_at_once = max(1, min(most // keys_at_once, (_CHOICES // shape.choices) - 1))
    for low in range(0, len(starts), runs_at_once):
        high = min(low + runs_at_once, len(starts))
        first, last = starts[low], starts[high - 1] + lengths[high - 1]
        for row in range(0, tall, keys_at_once):
            yield (
                tiled[row : row + keys_at_once],
                choices[:, first:last],
                starts[low:high] - first,
                lengths[low:high],
            )


def _tiles(shape: TileShape) -> int:
    return max(1, _CELLS // (shape.keys * shape.choices))


class _Pending:
    """Tiles that wait for a full batch."""

    def __init__(self, shape: TileShape) -> None:
        self.shape = shape
        self.keys: list[np.ndarray] = []
        self.starts: list[np.ndarray] = []
        self.lengths: list[np.ndarray] = []
        self.choices: list[np.ndarray] = []
        self.tiles = self.num_choices = 0

    def holds(self, keys: np.ndarray, choices: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> bool:
        """Return whether the part still fits; the last tile's run may reach beyond the choices."""
        del lengths
        room = _CHOICES - self.shape.choices
        return (
            self.tiles + len(keys) * len(starts) <= _tiles(self.shape) and self.num_choices + choices.shape[1] <= room
        )

    def add(self, keys: np.ndarray, choices: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        self.keys.append(np.repeat(keys, len(starts), axis=0))
        self.starts.append(np.tile(starts + self.num_choices, len(keys)))
        self.lengths.append(np.tile(lengths, len(keys)))
        self.choices.append(choices)
        self.tiles += len(keys) * len(starts)
        self.num_choices += choices.shape[1]

    def batch(self, count: int, num_choices: int) -> Batch:
        """Return the tiles as a batch, padded to `count` tiles and `num_choices` choices."""
        keys = np.full((count, self.shape.keys), PADDING)
        start, length = np.zeros((2, count), dtype=np.int64)
        choices = np.ones((len(CHOICE_COLUMNS), num_choices), dtype=np.int32)
        keys[: self.tiles] = np.concatenate(self.keys)
        start[: self.tiles] = np.concatenate(self.starts)
        length[: self.tiles] = np.concatenate(self.lengths)
        choices[:, : self.num_choices] = np.concatenate(self.choices, axis=1)
        return Batch(self.shape, keys, start, length, choices)
