"""The space as blocks: shard keys times the global choices that go with them.

What a layer costs depends on the shard key alone (strategy, microbatch size, model-parallel degrees and
their shares of a fast domain, panels); pipeline depth, data parallelism, batch and GPU count combine such
costs. A class is all that fits together: the same GPUs per replica, the same GPUs of a fast domain taken
by the key, and the same microbatch size. Within a class every key goes with every choice, so the space is
a list of rectangles and no candidate is ever a Python object (rules: arXiv 2410.00273, released code).

Every degree is any divisor that the GPU count allows; panels are the largest axis times a power of two.
Fast domains are filled as far as the GPU count allows (`dsx.space.rules.fill`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.graph.derived import DerivedLayer
from dsx.space.rules import MODEL_AXES, allowed, fill, placed

KEY_COLUMNS: tuple[str, ...] = (
    "strategy",
    "microbatch_size",
    "panels",
    *MODEL_AXES,
    *(f"{axis}_nvs" for axis in MODEL_AXES),
)
CHOICE_COLUMNS: tuple[str, ...] = ("num_gpus", "global_batch_size", "pp", "dp", "num_microbatches", "pp_nvs", "dp_nvs")

_SEQUENCES = CHOICE_COLUMNS.index("num_microbatches")

Arrays = dict[str, np.ndarray]
Filter = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is enumerated: the settings, and the filters of `fix:` and `limit:`."""

    num_gpus: tuple[int, ...]
    global_batch_size: tuple[int, ...]
    sequence_length: int
    num_layers: int
    nvs_size: int
    keep_keys: Filter
    keep_choices: Filter


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of candidates: [U] positions of keys in the key table, and G choices."""

    keys: np.ndarray  # [U]
    matrix: np.ndarray  # [len(CHOICE_COLUMNS), G]

    @property
    def choices(self) -> Arrays:
        """The choices by column, [G] each."""
        return dict(zip(CHOICE_COLUMNS, self.matrix, strict=True))

    @property
    def size(self) -> int:
        """Candidates in the block."""
        return len(self.keys) * self.matrix.shape[1]


def divisors(number: int) -> np.ndarray:
    """Return the divisors of a number in increasing order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return np.array(sorted({*small, *(number // d for d in small)}), dtype=np.int64)


def _all_divisors(numbers: Sequence[int]) -> np.ndarray:
    return np.unique(np.concatenate([divisors(number) for number in numbers]))


def _grid(*axes: np.ndarray) -> list[np.ndarray]:
    return [part.ravel() for part in np.meshgrid(*axes, indexing="ij")]


def shard_keys(layers: Sequence[tuple[DerivedLayer, Mapping[str, int]]], bounds: Bounds) -> Arrays:
    """Return the [U] key table of all strategies; `layers` has one (layer, dimensions) per strategy."""
    tables = [_strategy_keys(code, layer, dims, bounds) for code, (layer, dims) in enumerate(layers)]
    return {name: np.concatenate([table[name] for table in tables]) for name in KEY_COLUMNS}


def _strategy_keys(code: int, layer: DerivedLayer, dimensions: Mapping[str, int], bounds: Bounds) -> Arrays:
    axes = [axis for axis in MODEL_AXES if axis in layer.axes]
    degrees = _degrees(len(axes), bounds.num_gpus)
    table = {axis: np.ones(degrees.shape[1], dtype=np.int64) for axis in MODEL_AXES}
    table |= dict(zip(axes, degrees, strict=True))
    table["panels"] = np.ones_like(table["tp"])
    if layer.panelled:
        table = _with_panels(table, axes, max(dimensions.values()))
    table = _cross(table, "microbatch_size", _all_divisors(bounds.global_batch_size))
    table = _take(table, allowed(layer, dimensions, bounds.sequence_length, table))
    table = _with_shares(table, axes, bounds)
    table["strategy"] = np.full(len(table["tp"]), code, dtype=np.int64)
    return _take(table, bounds.keep_keys(table))


def _degrees(count: int, num_gpus: Sequence[int]) -> np.ndarray:
    """Return [count, N] degrees whose product divides one of the GPU counts."""
    choices = _all_divisors(num_gpus)
    degrees = np.ones((0, 1), dtype=np.int64)
    for _ in range(count):
        left, right = _grid(np.arange(degrees.shape[1]), choices)
        degrees = np.concatenate([degrees[:, left], right[None]])
        product = degrees.prod(axis=0)
        fits = np.zeros(len(product), dtype=bool)
        for number in num_gpus:
            fits |= number % product == 0
        degrees = degrees[:, fits]
    return degrees


def _with_panels(table: Arrays, axes: list[str], longest: int) -> Arrays:
    """Add the panels: the largest degree times powers of two, up to the longest dimension."""
    largest = np.max(np.stack([table[axis] for axis in axes]), axis=0)
    powers = 2 ** np.arange(int(np.log2(longest)) + 1, dtype=np.int64)
    crossed = _cross(table, "power", powers)
    crossed["panels"] = np.repeat(largest, len(powers)) * crossed.pop("power")
    return _take(crossed, crossed["panels"] <= longest)


def _with_shares(table: Arrays, axes: list[str], bounds: Bounds) -> Arrays:
    """Add, per axis, how many members of a group share a fast domain."""
    possible = _all_divisors([int(f) for f in np.unique(fill(np.array(bounds.num_gpus), bounds.nvs_size))])
    table = table | {f"{axis}_nvs": np.ones_like(table["tp"]) for axis in MODEL_AXES}
    for axis in axes:
        table = _cross({k: v for k, v in table.items() if k != f"{axis}_nvs"}, f"{axis}_nvs", possible)
        table = _take(table, (table[axis] % table[f"{axis}_nvs"] == 0) & (placed(table, MODEL_AXES) <= bounds.nvs_size))
    return table


def _cross(table: Arrays, name: str, values: np.ndarray) -> Arrays:
    """Return the table with every row repeated for each of `values`."""
    crossed = {key: np.repeat(column, len(values)) for key, column in table.items()}
    crossed[name] = np.tile(values, len(next(iter(table.values()))))
    return crossed


def _take(table: Arrays, where: np.ndarray) -> Arrays:
    return {key: column[where] for key, column in table.items()}


def blocks(keys: Arrays, bounds: Bounds) -> Iterator[Block]:
    """Yield the blocks of the space in a fixed order: classes of keys with their choices."""
    replica = np.prod(np.stack([keys[axis] for axis in MODEL_AXES]), axis=0)
    classes, members = np.unique(
        np.stack([replica, placed(keys, MODEL_AXES), keys["microbatch_size"]]), axis=1, return_inverse=True
    )
    order = np.argsort(members, kind="stable")
    ends = np.cumsum(np.bincount(members, minlength=classes.shape[1]))
    placements = _Placements(bounds)
    start = 0
    for (gpus, share, microbatch_size), end in zip(classes.T.tolist(), ends.tolist(), strict=True):
        positions = order[start:end]
        start = end
        choices = placements.choices(gpus, share, microbatch_size)
        if choices.shape[1]:
            yield Block(positions, choices)


class _Placements:
    """Makes the choices of a class; what classes share is kept."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.fills = dict(zip(bounds.num_gpus, fill(np.array(bounds.num_gpus), bounds.nvs_size).tolist(), strict=True))
        self.pipelines = divisors(bounds.num_layers)
        self._last: tuple[tuple[int, int], np.ndarray] | None = None

    def choices(self, gpus: int, share: int, microbatch_size: int) -> np.ndarray:
        """Return the choices for replicas of `gpus` model-parallel GPUs, `share` of them per fast domain."""
        if self._last is None or self._last[0] != (gpus, share):
            self._last = ((gpus, share), self._with_batches(gpus, share))
        table = self._last[1]
        made = table[:, np.flatnonzero(table[_SEQUENCES] % microbatch_size == 0)]
        made[_SEQUENCES] //= microbatch_size
        return made[:, self.bounds.keep_choices(dict(zip(CHOICE_COLUMNS, made, strict=True)))]

    def _with_batches(self, gpus: int, share: int) -> np.ndarray:
        """Cross the placements with the batch sizes that their dp divides.

        Where the microbatches will be counted, the rows hold the sequences of a replica.
        """
        table = self._placements(gpus, share)
        batches = np.array(self.bounds.global_batch_size, dtype=np.int64)
        table = _cross(table, "global_batch_size", batches)
        table = _take(table, table["global_batch_size"] % table["dp"] == 0)
        table["num_microbatches"] = table["global_batch_size"] // table["dp"]
        return np.stack([table[name] for name in CHOICE_COLUMNS])

    def _placements(self, gpus: int, share: int) -> Arrays:
        """Return num_gpus, pp, dp and their shares for one size of replica."""
        rows: list[Any] = []
        for number, domain in self.fills.items():
            if number % gpus or domain % share:
                continue
            rest = number // gpus
            pipelines = self.pipelines[rest % self.pipelines == 0]
            shares = divisors(domain // share)
            pp, pp_nvs = _grid(pipelines, shares)
            dp, dp_nvs = rest // pp, domain // share // pp_nvs
            good = (pp % pp_nvs == 0) & (dp % dp_nvs == 0)
            rows.append(np.stack([np.full_like(pp, number), pp, dp, pp_nvs, dp_nvs])[:, good])
        table = np.concatenate(rows, axis=1) if rows else np.zeros((5, 0), dtype=np.int64)
        return dict(zip(("num_gpus", "pp", "dp", "pp_nvs", "dp_nvs"), table, strict=True))
