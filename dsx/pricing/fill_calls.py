"""Fills of the stages of many plans (`dsx.pricing.filled_stages`): on NumPy, or compiled for many plans.

Plans of a tile should be alike: each stage is filled until the last of them has its layers.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.pricing import even_cut, filled_stages
from dsx.pricing.even_cut import EvenCut
from dsx.pricing.filled_stages import Chains, Model, Probe
from dsx.pricing.tiles import COMPILER, TILE, compiled_in, joined, padded

_SMALL = 1 << 8  # plans of a tile if only a few are left
_jit = functools.partial(jax.jit, static_argnums=0, compiler_options=COMPILER)
_probe, _even_cut, _least_step_s = map(_jit, (filled_stages.probe, even_cut.even_cut, even_cut.least_step_s))


@dataclass(frozen=True)
class Fills:
    """Fills the stages of chains; with `compiled` those of many of them compiled."""

    model: Model
    compiled: bool

    def probe(self, chains: Chains, bound: np.ndarray, first: np.ndarray, begin: np.ndarray) -> Probe:
        """Fill stages as `filled_stages.probe` does."""
        return self._called(filled_stages.probe, _probe, chains, bound, first, begin)

    def even_cut(self, chains: Chains, bound: np.ndarray, most_first_s: np.ndarray) -> EvenCut:
        """Cut as `dsx.pricing.even_cut.even_cut` does."""
        return self._called(even_cut.even_cut, _even_cut, chains, bound, most_first_s)

    def least_step_s(self, chains: Chains, bound: np.ndarray, earliest: np.ndarray) -> np.ndarray:
        """Return what `dsx.pricing.even_cut.least_step_s` does."""
        return self._called(even_cut.least_step_s, _least_step_s, chains, bound, earliest)

    def _called(self, plain: Any, compiled: Any, chains: Chains, *given: np.ndarray) -> Any:
        count = len(given[0])
        if not self.compiled or not count:
            return plain(self.model, chains, chains.choices.pp.max(initial=1.0), *given)
        tiles: list[Any] = []
        with compiled_in(True):
            start = 0
            while start < count:
                size = TILE if count - start > _SMALL * 4 else _SMALL
                of_tile, given_of_tile = padded((chains, given), slice(start, start + size), size)
                tiles.append(compiled(self.model, of_tile, of_tile.choices.pp.max(), *given_of_tile))
                start += size
        return joined(tiles, count)
