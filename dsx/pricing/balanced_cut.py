"""Balanced cuts of plans with several chunks per stage: the least largest chunk, and stages as equal as it leaves them.

Chunk c of stage i is interval c p + i of the chain (embedding, body, head), of at least one layer. Two steps:

* The least seconds T of the largest chunk. Only sums of layers count, so a fill is exact: each chunk in turn takes as
  many layers as a bound allows. A fill that succeeds attains an upper bound of T; of one that fails, the smallest chunk
  with one more layer is a lower bound. They meet at a value that a cut has.
* Of the cuts that keep T, each chunk in turn gets what is nearest to an equal share of what its stage lacks of the mean
  stage, and leaves the later chunks no more than they can hold.

Without the bound T the second step balances stages alone. Neither cut need be the optimal one: the critical path of
interleaved 1F1B depends on more than chunks and stages (`dsx.space.critical_path`), and memory does not enter.
`benchmarks/balanced_cuts.py` compares the better of them with all cuts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stack
from dsx.space.limits import Limits

_ROUNDING = 1e-12  # a sum of layers in another order may be larger by this
_WHOLE = 1e-9  # numbers of layers closer to an integer are it


class Chain(NamedTuple):
    """The chains of N plans of one model: R runs of equal layers, first to last.

    Its methods take and return [N] arrays.
    """

    counts: np.ndarray  # [R]
    seconds: np.ndarray  # [R, N] seconds of a microbatch on one layer

    @property
    def num_layers(self) -> float:
        """Layers of the chain."""
        return float(self.counts.sum())

    def before(self, layers: np.ndarray) -> np.ndarray:
        """Return the seconds of the first `layers` layers."""
        begin, found = 0.0, np.zeros_like(layers)
        for count, seconds in zip(self.counts, self.seconds, strict=True):
            found = found + np.minimum(np.maximum(layers - begin, 0.0), count) * seconds
            begin = begin + count
        return found

    def within(self, seconds: np.ndarray) -> np.ndarray:
        """Return how many of the first layers take `seconds`, with the fraction of the last one."""
        begin, found = np.zeros_like(seconds), np.zeros_like(seconds)
        for count, of_layer in zip(self.counts, self.seconds, strict=True):
            found = found + np.minimum(np.maximum((seconds - begin) / of_layer, 0.0), count)
            begin = begin + count * of_layer
        return found


class _Fill(NamedTuple):
    boundaries: np.ndarray  # [K + 1, N] of the chunks; after the last one the last boundary
    largest: np.ndarray  # [N] seconds of the largest chunk
    exceeded: np.ndarray  # [N] seconds of the smallest chunk with the layer that the bound kept out


def chain_of(stack: Stack, seconds: Sequence[PerPlan]) -> Chain:
    """Return the chains of plans from the [N] seconds of a microbatch on a layer of each kind.

    Kinds that alternate count as their mix.
    """
    inner = zip(stack.segments, stack.counts, strict=True)
    runs = [*[((kind,), (1.0,)) for kind in stack.first], *inner, *[((kind,), (1.0,)) for kind in stack.last]]
    of_layers = [
        sum(count * seconds[kind] for kind, count in zip(kinds, counts, strict=True)) / sum(counts)
        for kinds, counts in runs
    ]
    return Chain(np.array([sum(counts) for _, counts in runs]), np.stack(np.broadcast_arrays(*of_layers)))


def balanced_cuts(chain: Chain, pp: np.ndarray, vpp: np.ndarray, largest_s: np.ndarray) -> np.ndarray:
    """Return the [N, L + 1] boundaries of the chunks of N plans; those after the last chunk are L.

    No chunk takes longer than `largest_s`, which some cut keeps. Every plan has at least as many layers as chunks.
    """
    chunks = (pp * vpp).astype(np.float64)
    allowed = largest_s * (1.0 + _ROUNDING)
    earliest = _earliest(chain, chunks, allowed)
    held, of_stage = _held_at_first(chain, pp, vpp), _share_s(chain, pp, vpp)
    plan, start = np.arange(len(pp)), np.zeros_like(chunks)
    found = np.full((int(chain.num_layers) + 1, len(pp)), int(chain.num_layers))
    for chunk in range(int(chunks.max(initial=0))):
        found[chunk] = start
        stage, rounds = chunk % pp, np.maximum(vpp - chunk // pp, 1)
        begin = chain.before(start)
        share = (of_stage - held[stage, plan]) / rounds
        low = np.maximum(earliest[chunk + 1], start + 1.0)
        most = np.minimum(_farthest(chain, begin + allowed), chain.num_layers - (chunks - chunk - 1.0))
        below = np.floor(chain.within(begin + share) + _WHOLE)
        nearer = chain.before(below + 1.0) - begin - share < begin + share - chain.before(below)
        stop = np.where(
            chunk < chunks, np.minimum(np.maximum(below + nearer, low), np.maximum(most, low)), chain.num_layers
        )
        held[stage, plan] += chain.before(stop) - begin
        start = stop
    return found.T


def _held_at_first(chain: Chain, pp: np.ndarray, vpp: np.ndarray) -> np.ndarray:
    """Return the seconds [S, N] of the layers that stages hold in any cut: the last one the last layer."""
    held = np.zeros((int(pp.max(initial=1)), len(pp)))
    held[pp - 1, np.arange(len(pp))] = np.where(vpp > 1, chain.seconds[-1], 0.0)
    return held


def _share_s(chain: Chain, pp: np.ndarray, vpp: np.ndarray) -> np.ndarray:
    """Return the seconds of an equal share of the chain, of the other stages if the last layer leaves them less."""
    whole = chain.before(np.full(len(pp), chain.num_layers))
    forced = chain.seconds[-1] + (vpp - 1) * chain.seconds.min(axis=0)
    return np.where(forced > whole / pp, (whole - forced) / np.maximum(pp - 1, 1), whole / pp)


def least_largest_chunk_s(chain: Chain, chunks: np.ndarray) -> np.ndarray:
    """Return the least seconds [N] of the largest of `chunks` [N] chunks of at least one layer each, over all cuts."""
    mean = chain.before(np.full_like(chunks, chain.num_layers)) / chunks
    low = np.maximum(mean, chain.seconds.max(axis=0))
    high = np.full_like(low, np.inf)
    bound = low
    number = 0
    while (high > low * (1.0 + _ROUNDING)).any():
        fill = _fill(chain, chunks, bound)
        kept = fill.boundaries[-1] >= chain.num_layers
        high = np.where(kept, np.minimum(high, fill.largest), high)
        low = np.where(kept & (bound <= low), high, np.where(kept, low, np.maximum(low, fill.exceeded)))
        number += 1
        # The least value is mostly next to the lower bound; halves end the search where it is not.
        between = (number % 3 == 2) & np.isfinite(high)
        bound = np.where(between, 0.5 * (low + np.where(between, high, low)), np.minimum(low, high))
    return high


def _fill(chain: Chain, chunks: np.ndarray, bound: np.ndarray) -> _Fill:
    """Fill each chunk as far as the bound allows, and one layer is left for each later chunk."""
    allowed = bound * (1.0 + _ROUNDING)
    start, boundaries = np.zeros_like(chunks), [np.zeros_like(chunks)]
    largest, exceeded = np.zeros_like(bound), np.full_like(bound, np.inf)
    for chunk in range(int(chunks.max(initial=0))):
        begin, most = chain.before(start), chain.num_layers - np.maximum(chunks - chunk - 1.0, 0.0)
        stop = np.where(chunk < chunks, np.minimum(_farthest(chain, begin + allowed), most), start)
        largest = np.maximum(largest, chain.before(stop) - begin)
        over = (chunk < chunks) & (stop < most)
        exceeded = np.where(over, np.minimum(exceeded, chain.before(stop + 1.0) - begin), exceeded)
        start = stop
        boundaries.append(stop)
    return _Fill(np.stack(boundaries), largest, exceeded)


def _earliest(chain: Chain, chunks: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the earliest boundaries [K + 1, N] from which the later chunks hold all remaining layers."""
    stop = np.full_like(chunks, chain.num_layers)
    found = [stop]
    for chunk in reversed(range(int(chunks.max(initial=0)))):
        fewest = np.ceil(chain.within(chain.before(stop) - allowed) - _WHOLE)
        stop = np.where(chunk < chunks, np.maximum(fewest, chunk), stop)
        found.append(stop)
    return np.stack(found[::-1])


def _farthest(chain: Chain, seconds: np.ndarray) -> np.ndarray:
    """Return how many of the first layers are done within `seconds`."""
    return np.floor(chain.within(seconds) + _WHOLE)


def even_cuts(limits: Limits, pp: np.ndarray, vpp: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the [N, L + 1] boundaries of even cuts, and which plans have one (`dsx.cost.stages`)."""
    chain, chunks = limits.chain, (pp * vpp)[:, None]
    counted = (chain.body % chunks != 0).astype(np.int64)  # layers that embedding and head count as
    number = np.arange(chain.num_layers + 1)
    inner = chain.first - counted + number * ((chain.body + 2 * counted) // chunks)
    cuts = np.where(number == 0, 0, np.where(number < chunks, inner, chain.num_layers))
    return cuts, limits.divides(pp * vpp)
