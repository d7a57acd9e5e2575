"""A space with the layer costs of its shard keys: what every search streams through."""

from dataclasses import dataclass, replace

import jax
import numpy as np

from dsx.cost.cut_bounds import KeySeconds, LooseBound, key_seconds, least_even_s, least_passes_s
from dsx.pricing.cut_probe import may_take
from dsx.pricing.cuts import price_best_cuts
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import no_rows, priced_rows, result_rows
from dsx.search.space import Space
from dsx.space.enumerate import Arrays, take
from dsx.space.limits import EVEN


@dataclass(frozen=True, slots=True)
class PricedSpace:
    """A space of a problem with its layer costs, and the precision of a search through it."""

    problem: Problem
    space: Space
    table: KeyCosts  # [H, U] layer costs of the key table, in float64
    precision: str  # "float32" or "float64"
    whole: Problem | None = None  # with all values of the choices that are searched last; None: `problem` has them

    @property
    def whole_problem(self) -> Problem:
        """The problem with all searched values of the choices that are searched last."""
        return self.whole or self.problem

    @property
    def float64(self) -> bool:
        """Whether the search runs in float64; otherwise it runs in float32."""
        return self.precision == "float64"

    @property
    def dtype(self) -> type:
        """The NumPy type of the search."""
        return np.float64 if self.float64 else np.float32

    def of_keys(self, where: np.ndarray) -> "PricedSpace":
        """Return the space of some of the shard keys."""
        table = jax.tree.map(lambda leaf: np.asarray(leaf)[..., where], self.table)
        return replace(self, space=self.space.of_keys(take(self.space.keys, where)), table=table)

    def with_memory(self, usable: float) -> "PricedSpace":
        """Return the space on GPUs of which a plan may take `usable` [bytes]."""

        def limited(problem: Problem) -> Problem:
            capacity = np.array([usable * (1.0 + problem.assumptions_spec.memory_margin)])
            device = replace(problem.hardware.device, hbm_capacity=capacity)
            return replace(problem, hardware=replace(problem.hardware, device=device))

        return replace(self, problem=limited(self.problem), whole=self.whole and limited(self.whole))

    @property
    def with_even_cuts(self) -> "PricedSpace":
        """The space with even cuts, and with all values of the choices that are searched last."""
        return replace(self, problem=self.whole_problem.with_partition(EVEN), whole=None)

    def priced_rows(self, rows: Rows) -> Arrays:
        """Return all columns of [N] rows, priced in float64."""
        return priced_rows(self.problem, self.space.keys, self.table, rows)

    def fastest_rows(self, rows: Rows) -> Arrays:
        """Return all columns of [N] rows, priced in float64, each with the fastest cut that fits.

        What a row that fits with no cut costs is undefined.
        """
        if not self.problem.optimal_cuts:
            return self.priced_rows(rows)
        # What is compiled for all values serves the search of the variants too.
        priced = price_best_cuts(self.whole_problem, self.table, rows, "fastest")
        return result_rows(self.problem, self.space.keys, rows, priced.costs, priced.cuts)

    def may_take(self, rows: Rows, most_s: np.ndarray) -> np.ndarray:
        """Return which of [N] rows may fit and take at most `most_s` [N] seconds, by a probe where cuts are optimal."""
        found = np.ones(len(most_s), dtype=bool)
        if self.problem.optimal_cuts:
            probed = np.flatnonzero((rows.choices["vpp"] == 1) & (most_s < np.inf))
            found[probed] = may_take(self.whole_problem, self.table, rows.take(probed), most_s[probed])
        return found

    def key_seconds(self, point: int = 0) -> KeySeconds:
        """Return the seconds of a microbatch of all shard keys at a hardware point."""
        workload = self.problem.workload
        return key_seconds(
            jax.tree.map(lambda leaf: np.asarray(leaf)[point], self.table), workload.stack, workload.searched
        )

    @property
    def loose_bound(self) -> LooseBound:
        """The bound of step times from the seconds of shard keys alone."""
        return least_passes_s if self.problem.optimal_cuts else least_even_s

    def no_rows(self) -> Arrays:
        """Return the columns of `priced_rows` without any row."""
        return no_rows(self.problem, self.space.keys)
