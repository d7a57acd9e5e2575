"""A search of plans with even cuts: keys and choices through one compiled loop."""

import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.cost.step import Workload
from dsx.pricing.batch import Plans, costs, pad
from dsx.pricing.layers import power_of_two
from dsx.pricing.row_costs import Rows, step_choices, take_rows
from dsx.pricing.rows import Counts, result_rows
from dsx.search.blockwise.minima import Points
from dsx.search.blockwise.space_front import front
from dsx.search.blockwise.top_plans import Ranking, best
from dsx.search.priced_space import PricedSpace
from dsx.search.protocol import BlockRange, Progress, silent
from dsx.space.enumerate import Arrays


def _price(points: Points, point: Any, position: Any, choices: StepChoices, workload: Workload) -> StepCosts:
    layers = jax.tree.map(lambda leaf: take_rows(leaf, point, position), points.table)
    hardware, assumptions = jax.tree.map(lambda leaf: leaf[point], (points.hardware, points.assumptions))
    return costs(Plans(layers, choices, hardware, assumptions), workload)


_price_rows = jax.jit(_price)


class Blockwise:
    """A `dsx.search.protocol.Search` of plans with even cuts.

    Args:
        length: calls of `rows` are padded to it, so that they are compiled once; longer calls to a power of two.
    """

    def __init__(self, source: PricedSpace, length: int) -> None:
        self._source, self._length = source, length
        self._lock = threading.Lock()
        self._on_device: dict[Any, Any] = {}

    def best(
        self,
        top: int,
        per: Sequence[str] = (),
        objective: str = "step_time_s",
        blocks: BlockRange | None = None,
        progress: Progress = silent,
    ) -> tuple[Arrays, Counts]:
        """Return the best plans as `dsx.search.protocol.Search.best` says."""
        return best(self._source, Ranking(top, per, objective), self._range(blocks), progress)

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return the front as `dsx.search.protocol.Search.front` says."""
        return front(self._source, objectives, self._range(blocks), progress)

    def rows(self, device: Any, rows: Rows, feasible: bool) -> Arrays:
        """Return rows as `dsx.search.protocol.Search.rows` says."""
        source = self._source
        found = result_rows(source.problem, source.space.keys, rows, self._priced(device, rows))
        return {name: column[found["reject"] == 0] for name, column in found.items()} if feasible else found

    def _range(self, blocks: BlockRange | None) -> BlockRange:
        return blocks or (0, len(self._source.space.blocks))

    def _priced(self, device: Any, rows: Rows) -> StepCosts:
        problem, dtype = self._source.problem, self._source.dtype
        count = len(rows.positions)
        length = max(self._length, power_of_two(count))
        tiers = [tier.name for tier in problem.cluster.network.middle]
        with jax.enable_x64(self._source.float64), jax.default_device(device):
            priced = _price_rows(
                Points(self._on(device), problem.hardware, problem.assumptions),
                jnp.asarray(pad(rows.points, length), dtype=jnp.int32),
                jnp.asarray(pad(rows.positions, length), dtype=jnp.int32),
                step_choices(rows.choices, lambda column: jnp.asarray(pad(column, length).astype(dtype)), tiers),
                problem.workload,
            )
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], priced)

    def _on(self, device: Any) -> Any:
        """Return the layer costs on a device, which must be the default device, padded to a power of two."""
        source = self._source
        with self._lock:
            if device not in self._on_device:
                length = power_of_two(source.table[0].boundary_bytes.shape[-1])
                self._on_device[device] = jax.tree.map(
                    lambda leaf: jnp.asarray(pad(np.asarray(leaf), length).astype(source.dtype)), source.table
                )
            return self._on_device[device]
