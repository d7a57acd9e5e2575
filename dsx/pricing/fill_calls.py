"""Fills of the stages of many plans (`dsx.pricing.filled_stages`): on NumPy, or compiled for many plans.

Compiled, plans are filled in tiles of one size, so that everything is compiled once. Plans of a tile should be alike:
each stage is filled until the last of them has its layers.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dsx.pricing import filled_stages
from dsx.pricing.batch import pad
from dsx.pricing.filled_stages import Chains, EvenCut, Model, Probe

_TILES = 1 << 8, 1 << 11  # plans side by side: the numbers of their chains fit into the cache of a core
# Registers of 512 bits where the processor has them; XLA's default is 256.
_COMPILER = {"xla_cpu_prefer_vector_width": 512}
_jit = functools.partial(jax.jit, static_argnums=0, compiler_options=_COMPILER)
_probe, _even_cut = _jit(filled_stages.probe), _jit(filled_stages.even_cut)


@dataclass(frozen=True)
class Fills:
    """Fills the stages of chains; with `compiled` those of many of them compiled."""

    model: Model
    compiled: bool

    def probe(self, chains: Chains, bound: np.ndarray, first: np.ndarray, begin: np.ndarray) -> Probe:
        """Fill stages as `filled_stages.probe` does."""
        return self._called(filled_stages.probe, _probe, chains, bound, first, begin)

    def even_cut(self, chains: Chains, bound: np.ndarray, first: np.ndarray, begin: np.ndarray) -> EvenCut:
        """Cut as `filled_stages.even_cut` does."""
        return self._called(filled_stages.even_cut, _even_cut, chains, bound, first, begin)

    def _called(self, plain: Any, compiled: Any, chains: Chains, *given: np.ndarray) -> Any:
        count = len(given[0])
        if not self.compiled:
            return plain(self.model, chains, chains.choices.pp.max(initial=1.0), *given)
        found: list[Any] = []
        with jax.enable_x64(True):
            start = 0
            while start < count:
                size = _TILES[count - start > 4 * _TILES[0]]
                here = slice(start, start + size)
                tile = jax.tree.map(lambda leaf: pad(leaf[..., here], size), (chains, given))
                found.append(compiled(self.model, tile[0], tile[0].choices.pp.max(), *tile[1]))
                start += size
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1)[..., :count], *found)
