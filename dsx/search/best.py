"""The best plans of a space: tiles through the hot loop, then the winners' rows priced again.

The k best of a group lie among the k rows of one key whose minima are smallest, so only those rows are
kept while the space streams by, and priced again in float64 with every column at the end. A few more than
k are kept, since float32 may order near-ties differently.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.layer import LayerCosts
from dsx.search.devices import map_over_devices
from dsx.search.minima import Tiles, minima
from dsx.search.pricing import pad_table, price_rows, step_choices
from dsx.search.problem import Problem
from dsx.search.rows import candidate_columns, cost_columns
from dsx.search.tiles import PADDING, Batch, batches
from dsx.space.enumerate import CHOICE_COLUMNS, KEY_COLUMNS, Arrays, Block

_SLACK = 4
_RUNS = 512  # runs whose rows are priced in full at once


@dataclass(frozen=True, slots=True)
class Counts:
    """Candidates priced, and those that fit."""

    candidates: int
    feasible: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """M runs of choices of one key each that may hold a winner, with the smallest step time of each."""

    minimum: np.ndarray  # [M]
    key: np.ndarray  # [M]
    choices: np.ndarray  # [len(CHOICE_COLUMNS), M, C]
    length: np.ndarray  # [M]

    def take(self, where: np.ndarray) -> "_Kept":
        return _Kept(self.minimum[where], self.key[where], self.choices[:, where], self.length[where])

    def with_others(self, other: "_Kept") -> "_Kept":
        return _Kept(
            np.concatenate([self.minimum, other.minimum]),
            np.concatenate([self.key, other.key]),
            np.concatenate([self.choices, other.choices], axis=1),
            np.concatenate([self.length, other.length]),
        )


def _nothing() -> _Kept:
    no_rows = np.zeros(0, dtype=np.int64)
    return _Kept(np.zeros(0), no_rows, np.zeros((len(CHOICE_COLUMNS), 0, 1), dtype=np.int32), no_rows)


def best(
    problem: Problem,
    keys: Arrays,
    table: LayerCosts,
    blocks: Iterable[Block],
    top: int,
    per: Sequence[str] = (),
    precision: str = "float64",
    progress: Callable[[int], None] = lambda rows: None,
) -> tuple[Arrays, Counts]:
    """Return all columns of the `top` candidates of smallest step time in each group of equal `per` columns.

    `table` holds the layer costs of the key table in float64. Rows come sorted by group and step time.
    `progress` is told the number of candidates after each batch.
    """
    # Columns that are not searched are the same everywhere and split nothing.
    per = [name for name in per if name in (*KEY_COLUMNS, *CHOICE_COLUMNS)]
    wide = precision == "float64"
    tables: dict[Any, LayerCosts] = {}

    def run(device: Any, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(wide), jax.default_device(device):
            if device not in tables:
                tables[device] = jax.tree.map(lambda leaf: _floats(pad_table(leaf), wide), table)
            columns = dict(zip(CHOICE_COLUMNS, batch.choices, strict=True))
            time, feasible = minima(
                tables[device],
                step_choices(columns, lambda column: _floats(column, wide)),
                Tiles(*(jnp.asarray(part, dtype=jnp.int32) for part in (batch.keys, batch.start, batch.length))),
                problem.workload,
                problem.hardware,
                problem.assumptions,
                batch.shape.choices,
            )
            return np.asarray(time, dtype=np.float64), np.asarray(feasible, dtype=np.int64)

    kept = _nothing()
    candidates = feasible = 0
    grouped = [name for name in per if name in CHOICE_COLUMNS]
    for batch, (time, fitting) in map_over_devices(run, batches(blocks, grouped)):
        candidates += batch.candidates
        feasible += int(fitting[batch.keys != PADDING].sum())
        fresh = _contenders(batch, time, keys, per, top)
        kept = fresh if not len(kept.key) else kept.with_others(fresh)
        kept = kept.take(_leading(keys, per, kept.key, kept.choices[:, :, 0], kept.minimum, top))
        progress(batch.candidates)
    return _winners(problem, keys, table, kept, top, per), Counts(candidates, feasible)


def _contenders(batch: Batch, time: np.ndarray, keys: Arrays, per: Sequence[str], top: int) -> _Kept:
    """Return the runs of a batch that may hold a winner of their group."""
    tile, slot = np.nonzero((batch.keys != PADDING) & np.isfinite(time))
    minimum, key, start = time[tile, slot], batch.keys[tile, slot], batch.start[tile]
    chosen = _leading(keys, per, key, batch.choices[:, start], minimum, top)
    within = np.minimum(np.arange(batch.shape.choices), batch.length[tile][chosen][:, None] - 1)
    choices = batch.choices[:, start[chosen][:, None] + within]
    return _Kept(minimum[chosen], key[chosen], choices, batch.length[tile][chosen])


def _floats(leaf: Any, wide: bool) -> jax.Array:
    return jnp.asarray(np.asarray(leaf), dtype=jnp.float64 if wide else jnp.float32)


def _leading(
    keys: Arrays, per: Sequence[str], key: np.ndarray, first: np.ndarray, minimum: np.ndarray, top: int
) -> np.ndarray:
    """Return the positions of the smallest minima of each group, a few more than `top`.

    A row's group follows from its key and from its first choice, a column of `first`.
    """
    groups = [keys[name][key] if name in KEY_COLUMNS else first[CHOICE_COLUMNS.index(name)] for name in per]
    order = np.lexsort((minimum, *groups))
    return order[_rank_in_group([column[order] for column in groups], len(order)) < top + _SLACK]


def _rank_in_group(groups: list[np.ndarray], count: int) -> np.ndarray:
    """Return each row's rank among the rows of equal columns that it is sorted with."""
    starts = np.zeros(count, dtype=bool)
    starts[:1] = True
    for column in groups:
        starts[1:] |= column[1:] != column[:-1]
    position = np.arange(count)
    return position - np.maximum.accumulate(np.where(starts, position, 0))


def _winners(problem: Problem, keys: Arrays, table: LayerCosts, kept: _Kept, top: int, per: Sequence[str]) -> Arrays:
    """Price the kept rows in full and return the best of each group."""
    parts = [
        _best_rows(problem, keys, table, kept.take(np.arange(start, min(start + _RUNS, len(kept.key)))), top, per)
        for start in range(0, max(1, len(kept.key)), _RUNS)
    ]
    rows = _leading_rows({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, top, per)
    return rows | {"reject": np.zeros(len(rows["candidate"]), dtype=np.int64)}


def _best_rows(problem: Problem, keys: Arrays, table: LayerCosts, kept: _Kept, top: int, per: Sequence[str]) -> Arrays:
    """Price all rows of some runs and return the feasible best of each group."""
    width = kept.choices.shape[2]
    real = (np.arange(width)[None] < kept.length[:, None]).ravel()
    positions = np.repeat(kept.key, width)[real]
    choices = {name: column.ravel()[real] for name, column in zip(CHOICE_COLUMNS, kept.choices, strict=True)}
    costs = price_rows(problem, table, positions, choices)
    rows = candidate_columns(problem, keys, positions, choices) | cost_columns(costs)
    fits = costs.peak_bytes <= problem.cluster.device.hbm_capacity
    return _leading_rows({name: column[fits] for name, column in rows.items()}, top, per)


def _leading_rows(rows: Arrays, top: int, per: Sequence[str]) -> Arrays:
    """Return the rows of smallest step time of each group, sorted by group and step time."""
    order = np.lexsort((rows["candidate"], rows["step_time_s"], *(rows[name] for name in reversed(per))))
    rows = {name: column[order] for name, column in rows.items()}
    leading = _rank_in_group([rows[name] for name in per], len(order)) < top
    return {name: column[leading] for name, column in rows.items()}
