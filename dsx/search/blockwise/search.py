"""A search of plans with even stages: blocks of keys and choices through one compiled loop."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.pricing.batch import Plans, costs, pad
from dsx.pricing.layers import Kinds, power_of_two
from dsx.pricing.plans import rows_of, step_choices
from dsx.pricing.problem import Problem
from dsx.pricing.rows import Counts, Where, result_rows
from dsx.search.blockwise.best import best
from dsx.search.blockwise.front import front
from dsx.search.protocol import BlockRange, Progress, silent
from dsx.search.space import Space
from dsx.space.enumerate import Arrays


def _price(
    table: Any, points: Any, positions: Any, choices: Any, workload: Any, hardware: Any, assumptions: Any
) -> Any:
    layer = jax.tree.map(lambda leaf: rows_of(leaf, points, positions), table)
    hardware, assumptions = jax.tree.map(lambda leaf: leaf[points], (hardware, assumptions))
    return costs(Plans(layer, choices, hardware, assumptions), workload)


_price_rows = jax.jit(_price)


class Blockwise:
    """A `dsx.search.protocol.Search` of plans with even stages.

    Args:
        table: [H, U] layer costs of the key table, in float64.
        length: what calls of `rows` are padded to, so that they are compiled once; longer ones to a power of two.
    """

    def __init__(self, problem: Problem, space: Space, table: Kinds, precision: str, length: int) -> None:
        self._problem, self._space, self._table = problem, space, table
        self._precision, self._length = precision, length
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
        """Return what `dsx.search.protocol.Search.best` says."""
        of = (self._problem, self._space, self._table, self._precision)
        return best(*of, top, per, objective, self._range(blocks), progress)

    def front(
        self, objectives: Sequence[str], blocks: BlockRange | None = None, progress: Progress = silent
    ) -> tuple[Arrays, Counts]:
        """Return what `dsx.search.protocol.Search.front` says."""
        of = (self._problem, self._space, self._table, self._precision)
        return front(*of, objectives, self._range(blocks), progress)

    def rows(self, device: Any, where: Where, feasible: bool) -> Arrays:
        """Return what `dsx.search.protocol.Search.rows` says."""
        rows = result_rows(self._problem, self._space.keys, *where, self._priced(device, *where))
        return {name: column[rows["reject"] == 0] for name, column in rows.items()} if feasible else rows

    def _range(self, blocks: BlockRange | None) -> BlockRange:
        return blocks or (0, len(self._space.blocks))

    @property
    def _kind(self) -> type:
        return np.float64 if self._precision == "float64" else np.float32

    def _priced(
        self, device: Any, points: np.ndarray, positions: np.ndarray, choices: Mapping[str, np.ndarray]
    ) -> StepCosts:
        problem, kind = self._problem, self._kind
        length = max(self._length, power_of_two(len(positions)))
        tiers = [tier.name for tier in problem.cluster.network.middle]
        with jax.enable_x64(kind is np.float64), jax.default_device(device):
            priced = _price_rows(
                self._on(device),
                jnp.asarray(pad(points, length), dtype=jnp.int32),
                jnp.asarray(pad(positions, length), dtype=jnp.int32),
                step_choices(choices, lambda column: jnp.asarray(pad(column, length).astype(kind)), tiers),
                problem.workload,
                problem.hardware,
                problem.assumptions,
            )
            return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(positions)], priced)

    def _on(self, device: Any) -> Any:
        """Return the layer costs on a device, the default one, padded to a power of two."""
        with self._lock:
            if device not in self._on_device:
                length = power_of_two(self._table[0].boundary_bytes.shape[-1])
                self._on_device[device] = jax.tree.map(
                    lambda leaf: jnp.asarray(pad(np.asarray(leaf), length).astype(self._kind)), self._table
                )
            return self._on_device[device]
