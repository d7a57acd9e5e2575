"""A sweep: the whole space through a pipeline, and what `keep` asks for coming out as rows.

Enumeration, pricing and reduction overlap, and memory stays flat: rows exist only a chunk per device at a
time. Every candidate is priced; nothing is pruned before.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts
from dsx.search.best import Counts, best
from dsx.search.devices import map_over_devices
from dsx.search.pareto import front
from dsx.search.pricing import pad, price_keys, price_steps, step_choices
from dsx.search.problem import Problem
from dsx.search.rows import candidate_columns, cost_columns, no_rows, row_chunks
from dsx.search.space import Space
from dsx.space.enumerate import Arrays
from dsx.space.rules import MEMORY
from dsx.spec.keep import Keep, KeepPareto, KeepTop

_CHUNK = 1 << 18  # rows priced at once, and rows of a part

Chunk = tuple[np.ndarray, Arrays]


def _price(table: LayerCosts, positions: Any, choices: Any, workload: Any, hardware: Any, assumptions: Any) -> Any:
    layer = jax.tree.map(lambda leaf: leaf[..., positions], table)
    return price_steps(layer, choices, workload, hardware, assumptions)


_price_rows = jax.jit(_price)


class Sweep:
    """A run over a space; `counts` is whole when `rows` is used up."""

    def __init__(
        self,
        problem: Problem,
        space: Space,
        keep: Keep,
        precision: str,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.problem, self.space, self.keep = problem, space, keep
        self.wide = precision == "float64"
        self.precision, self.progress = precision, progress
        self.counts = Counts(0, 0)
        self._tables: dict[Any, LayerCosts] = {}

    def rows(self) -> Iterator[Arrays]:
        """Yield what is kept, all columns of a result set, a chunk at a time."""
        table = price_keys(self.problem, self.space.keys)
        if isinstance(self.keep, KeepTop):
            rows, self.counts = best(
                self.problem,
                self.space.keys,
                table,
                self.space.blocks(),
                self.keep.top,
                self.keep.per,
                self.precision,
                self.progress,
            )
            yield rows
        elif isinstance(self.keep, KeepPareto):
            yield self._front(table, self.keep.pareto)
        else:
            only_feasible = self.keep == "feasible"
            for rows in self._chunks(table):
                yield _where(rows, rows["reject"] == 0) if only_feasible else rows

    def _chunks(self, table: LayerCosts) -> Iterator[Arrays]:
        """Yield all candidates as rows of a result set."""
        # The only rule that an enumerated candidate can break.
        out_of_memory = 1 << self.problem.reasons.index(MEMORY)
        for (positions, choices), costs in self.priced_chunks(table):
            rows = candidate_columns(self.problem, self.space.keys, positions, choices) | cost_columns(costs)
            rows["reject"] = np.where(self._fits(costs), 0, out_of_memory)
            yield rows

    def _fits(self, costs: StepCosts) -> np.ndarray:
        return costs.peak_bytes <= self.problem.cluster.device.hbm_capacity

    def priced_chunks(self, table: LayerCosts) -> Iterator[tuple[Chunk, StepCosts]]:
        """Yield all candidates, as keys and choices, with their costs; `table` holds the layer costs."""

        def run(device: Any, chunk: Chunk) -> StepCosts:
            return self._priced(device, table, chunk)

        for chunk, costs in map_over_devices(run, row_chunks(self.space.blocks(), _CHUNK)):
            count, fitting = len(chunk[0]), int(np.count_nonzero(self._fits(costs)))
            self.counts = Counts(self.counts.candidates + count, self.counts.feasible + fitting)
            self.progress(count)
            yield chunk, costs

    def _priced(self, device: Any, table: LayerCosts, chunk: Chunk) -> StepCosts:
        positions, choices = chunk
        count = len(positions)
        kind = jnp.float64 if self.wide else jnp.float32
        with jax.enable_x64(self.wide), jax.default_device(device):
            if device not in self._tables:
                self._tables[device] = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=kind), table)
            costs = _price_rows(
                self._tables[device],
                jnp.asarray(pad(positions, _CHUNK), dtype=jnp.int32),
                step_choices(choices, lambda column: jnp.asarray(pad(column, _CHUNK), dtype=kind)),
                self.problem.workload,
                self.problem.hardware,
                self.problem.assumptions,
            )
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], costs)

    def _front(self, table: LayerCosts, objectives: Sequence[str]) -> Arrays:
        """Return the front of the feasible candidates: the front of the chunks' fronts."""
        kept: Arrays | None = None
        for rows in self._chunks(table):
            fresh = _where(rows, rows["reject"] == 0)
            joined = fresh if kept is None else {n: np.concatenate([kept[n], fresh[n]]) for n in kept}
            kept = _where(joined, front(_points(joined, objectives)))
        if kept is None:
            return no_rows(self.problem, self.space.keys)
        return _where(kept, np.lexsort(_points(kept, objectives).T[::-1]))


def smallest(problem: Problem, space: Space, progress: Callable[[int], None]) -> Arrays:
    """Return the candidate that needs least memory, whether it fits or not, as a single row."""
    least, found = np.inf, no_rows(problem, space.keys)
    table = price_keys(problem, space.keys)
    for (positions, choices), costs in Sweep(problem, space, "all", "float32", progress).priced_chunks(table):
        at = np.array([int(np.argmin(costs.peak_bytes))])
        if costs.peak_bytes[at[0]] < least:
            least = costs.peak_bytes[at[0]]
            found = candidate_columns(problem, space.keys, positions[at], _where(choices, at))
            found |= _where(cost_columns(costs), at)
    return found


def _points(rows: Arrays, objectives: Sequence[str]) -> np.ndarray:
    """Return the [N, D] objectives to minimise; one with a leading minus is maximised."""
    columns = [-rows[name[1:]] if name.startswith("-") else rows[name] for name in objectives]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


def _where(rows: Arrays, where: np.ndarray) -> Arrays:
    return {name: column[where] for name, column in rows.items()}
