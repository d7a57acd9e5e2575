"""The best cut of the layers of a plan into its pipeline stages: a scan over stages from the end, and one back.

Of a step's time (`dsx.cost.step`) a cut changes the slowest stage, which m - 1 microbatches wait for, and the reduction
and the update of the first stage, `first`. So the cut that is best for a plan of p stages is that of

    min over j of (m - 1) * max(load(0..j), V(p - 1, j + 1)) + first(j)
    V(s, i) = min over j of max(load(i..j), V(s - 1, j + 1))                V(0, n) = 0, else infinite

with V(s, i) the least load of the slowest of s stages over the layers i..n-1 of the chain (embedding, body, head), each
stage with at least one of them and with memory for the microbatches that it has in flight. Where no cut fits, the best
is the one whose worst stage needs least memory. Of equally good cuts it is one with the least load of the slowest
stage (a single microbatch waits for none). Of those each stage, from the first one on, gets what comes nearest to an
equal share of the load that is left to it and the stages behind it. The shares are about equal, and not more: an
embedding or a head that cannot be divided counts in the share of the stages in front of it.

What a stage costs depends on how many layers of each kind it has, which are far fewer than segments of the chain.
Not covered: schedules in which a stage holds several pieces of the chain.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.pipeline import in_flight
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import Stack, Stage, layers_between

_WIDTHS = (16, 32, 48, 64, 96)  # layers among which a scan seeks, where the whole chain is longer


class Contents(NamedTuple):
    """What stages of a chain of N layers may hold: C combinations of K kinds.

    Attributes:
        layers: [K, C] layers of each kind.
        of_segment: [N, N] the combination of the layers i..j; C where j < i.
    """

    layers: Any
    of_segment: Any


class Depths(NamedTuple):
    """Stages of some plans that are cut side by side: at least, and at most."""

    fewest: Any
    deepest: Any


class _Chain(NamedTuple):
    """All segments of the chain of one plan, each [N, N]: the first layer, the last one."""

    wanted: Any  # what the worst stage is to have little of; infinite where there is no such segment
    per_microbatch: Any  # more of it with each microbatch in flight; None where there is never more
    most: Any  # microbatches in flight that leave memory for it; None where memory has no limit


@functools.lru_cache(maxsize=8)
def contents(stack: Stack) -> Contents:
    """Return the contents of the segments of a model's chain, as NumPy arrays."""
    num_layers = int(stack.num_layers)
    first = np.arange(num_layers)
    with jax.enable_x64(True):
        layers = layers_between(stack, first[:, None].astype(float), first[None].astype(float) + 1)
    kinds = [np.broadcast_to(np.asarray(layers[kind]), (num_layers, num_layers)) for kind in sorted(layers)]
    proper = first[None] >= first[:, None]
    made, which = np.unique(np.stack(kinds)[:, proper], axis=1, return_inverse=True)
    of_segment = np.full(proper.shape, made.shape[1], dtype=np.int32)
    of_segment[proper] = which.ravel()
    return Contents(made, of_segment)


def boundaries(costs: StageCosts, held: Contents, hbm_capacity: Any, depths: Depths, least_memory: bool) -> Any:
    """Return the [N + 1] boundaries of the best cut of one plan, whose costs are scalars, and whether it fits.

    Those behind its last stage are N. `depths` hold between them the stages of the plan; under vmap all share them.
    With `least_memory` the cut is the one that needs least, whether it fits or not.
    """
    choices = costs.choices
    num_stages = choices.pp.astype(jnp.int32)
    chain = _chain(costs, held, hbm_capacity, least_memory)
    num_layers = held.of_segment.shape[0]

    def flying(stage: Any) -> Any:
        """Return the microbatches in flight on a stage, counted from the end, the last one 1."""
        return in_flight(choices.pp - stage.astype(choices.pp.dtype), choices, costs.known)

    def forward(width: int, stage: Any, least: Any) -> Any:
        # The stage begins among the last `width` layers that leave one to each stage behind it.
        begin = jnp.maximum(num_layers - stage - width + 1, 0)
        here = jax.tree.map(lambda matrix: jax.lax.dynamic_slice(matrix, (begin, begin), (width, width)), chain)
        behind = jax.lax.dynamic_slice(least, (stage - 1, begin + 1), (1, width))
        worst = jnp.maximum(_limited(here, flying(stage)), behind).min(axis=1)
        return jax.lax.dynamic_update_slice(least, worst[None], (stage, begin))

    def scan(width: int, least: Any) -> Any:
        return jax.lax.fori_loop(1, depths.deepest, functools.partial(forward, width), least)

    least = jnp.full((num_layers + 1, num_layers + 1), jnp.inf, chain.wanted.dtype).at[0, -1].set(0.0)
    widths = [*(width for width in _WIDTHS if width < num_layers), num_layers]
    # A stage has as many layers as there are more than stages, and one, at most.
    narrow = sum((num_layers - depths.fewest + 1 > width).astype(jnp.int32) for width in widths[:-1])
    least = jax.lax.switch(narrow, [functools.partial(scan, width) for width in widths], least)

    def from_layer(layer: Any, stage: Any) -> Any:
        """Return [N] the worst of the stages from `layer` on, by where the first of them ends."""
        alone = jax.tree.map(lambda matrix: matrix[layer], chain)
        return jnp.maximum(_limited(alone, flying(stage)), least[stage - 1, 1:])

    def end_of(layer: Any, left: Any, allowed: Any) -> Any:
        """Return where the first of the stages that are left ends: at an allowed place, near an equal share."""
        alone = chain.wanted[layer]
        distance = jnp.abs(alone - alone[-1] / left.astype(alone.dtype))
        return 1 + jnp.argmin(jnp.where(allowed, distance, jnp.inf)).astype(jnp.int32)

    worst = from_layer(jnp.int32(0), num_stages)
    step = worst if least_memory else (choices.num_microbatches - 1.0) * worst + _of_first_stage_s(costs, held)
    # What is compared must be computed once: a copy that the compiler fuses elsewhere may be rounded otherwise.
    worst, step = jax.lax.optimization_barrier((worst, jnp.where(jnp.isfinite(worst), step, jnp.inf)))

    def backward(index: Any, cut: Any) -> Any:
        left, layer = num_stages - index, jnp.minimum(cut[index], num_layers - 1)
        behind = jnp.maximum(left, 1)
        here = jax.lax.optimization_barrier(from_layer(layer, behind))
        # The least of these is at most the slowest stage, but for rounding.
        end = end_of(layer, behind, here <= jnp.maximum(slowest, here.min()))
        # Of a plan that has no such stage any more, every boundary is the end of the chain.
        return cut.at[index + 1].set(jnp.where(left > 0, end, num_layers))

    equal = jnp.where(step == step.min(), worst, jnp.inf)
    slowest = equal.min()
    end = end_of(jnp.int32(0), num_stages, equal == slowest)
    cut = jnp.full(num_layers + 1, num_layers, jnp.int32).at[0].set(0).at[1].set(end)
    cut = jax.lax.fori_loop(1, depths.deepest, backward, cut)
    return cut, jnp.isfinite(step).any()


def _chain(costs: StageCosts, held: Contents, hbm_capacity: Any, least_memory: bool) -> _Chain:
    alike = _stage(held.layers)
    largest = in_flight(jnp.zeros_like(costs.choices.pp), costs.choices, costs.known)
    none, full = (costs.memory(alike, count).peak_bytes for count in (jnp.zeros_like(largest), largest))
    per_microbatch = (full - none) / largest

    def of_segments(values: Any) -> Any:
        return jnp.concatenate([values, jnp.full_like(values[:1], jnp.inf)])[held.of_segment]

    if least_memory:
        return _Chain(of_segments(none), of_segments(per_microbatch), None)
    growing = per_microbatch > 0
    most = (hbm_capacity - none) / jnp.where(growing, per_microbatch, jnp.ones_like(none))
    most = jnp.where(growing, most, jnp.where(none <= hbm_capacity, jnp.inf, -jnp.inf))
    return _Chain(of_segments(costs.load_s(alike)), None, of_segments(most))


def _limited(chain: _Chain, microbatches: Any) -> Any:
    """Return what segments have with so many microbatches in flight, infinite where they do not fit."""
    wanted = chain.wanted
    if chain.per_microbatch is not None:
        wanted = wanted + microbatches * chain.per_microbatch
    return (
        wanted if chain.most is None else jnp.where(chain.most >= microbatches, wanted, jnp.full_like(wanted, jnp.inf))
    )


def _of_first_stage_s(costs: StageCosts, held: Contents) -> Any:
    """Return [N] what a first stage adds to the end of a step, by its last layer."""
    first = _stage(held.layers[:, held.of_segment[0]])
    return sum(costs.at_end_s(first))


def _stage(layers: Any) -> Stage:
    return Stage(jnp.zeros_like(layers[0]), dict(enumerate(layers)), even=False)
