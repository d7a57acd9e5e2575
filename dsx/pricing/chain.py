"""The least maximum over all ways to cut a chain of layers into stages, and the cuts: two scans.

Stages are numbered from the end of the chain. With V(s, i) the least maximum of s stages over the layers i, i+1, ...

    V(s, i) = min over j of max(V(s-1, j+1), cost of the layers i..j as stage s)        V(0, N) = 0, else infinite

so one scan over s = 1..S has the answer for every number of stages. A second scan, from stage S down, follows the
layers at which the minima were found. What a segment costs, and on which stage it may stand, is the caller's: any
maximum over stages will do (the time of a microbatch, memory, parameters), and an infinite cost forbids a segment.
Both scans can be mapped over any number of costs by `jax.vmap`. Not modelled: layers that are no chain.

Costs are matrices over all segments, several of them for each of the plans that are cut side by side, so memory grows
with the square of the layers: about 1 kB per square, 1 GB for 1,000 layers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dsx.errors import SpecError

MOST_LAYERS = 1024  # of a chain that is cut optimally: a gigabyte or two, and tens of seconds


def check_length(num_layers: int, what: str, cure: str) -> None:
    """Raise SpecError for a chain, called `what`, that is too long to be cut optimally; `cure` says what to do."""
    if num_layers > MOST_LAYERS:
        raise SpecError(
            f"{what} has {num_layers:,} layers, and at most {MOST_LAYERS:,} are cut optimally: the memory of that "
            f"grows with their square; {cure}"
        )


class Maxima(NamedTuple):
    """For s = 1..S stages over the layers i, i+1, ...: the least maximum, and where stage s then ends."""

    least: Any  # [S, N + 1]; infinite where no cut is allowed
    last: Any  # [S, N] last layer of stage s


def least_maxima(cost: Callable[[Any], Any], stages: Any, num_layers: Any, deepest: Any) -> Maxima:
    """Scan over stages from the end.

    `cost` takes what a stage is, one entry of the leading axis of `stages` [S], and returns [N, N] costs: the last
    layer, the first layer. The chain is the first `num_layers` of N layers, the others are padding. Stages past
    `deepest` are not computed (infinite); under vmap that saves time only if `deepest` is not mapped. Compiled with a
    caller that does not use `last`, it costs nothing; with it the scan takes several times as long.
    """
    shape = jax.eval_shape(cost, jax.tree.map(lambda leaf: leaf[0], stages))
    layers = jnp.arange(shape.shape[1] + 1)
    proper = layers[:-1, None] >= layers[None, :-1]

    def step(behind: Any, stage: Any) -> tuple[Any, Any]:
        maxima = jnp.maximum(behind[1:, None], jnp.where(proper, cost(stage), jnp.inf))
        least = jnp.concatenate([jnp.min(maxima, axis=0), jnp.full_like(behind[:1], jnp.inf)])
        return least, jnp.argmin(maxima, axis=0).astype(jnp.int32)

    def skip(behind: Any, stage: Any) -> tuple[Any, Any]:
        del stage
        return jnp.full_like(behind, jnp.inf), jnp.zeros(shape.shape[1], jnp.int32)

    def scanned(behind: Any, numbered: Any) -> tuple[Any, Any]:
        number, stage = numbered
        least, last = jax.lax.cond(number <= deepest, step, skip, behind, stage)
        return least, Maxima(least, last)

    end = jnp.where(layers == num_layers, 0.0, jnp.inf).astype(shape.dtype)
    numbers = 1 + jnp.arange(jax.tree.leaves(stages)[0].shape[0])
    return jax.lax.scan(scanned, end, (numbers, stages))[1]


def first_layers(maxima: Maxima, num_stages: Any) -> Any:
    """Return [S] the first layer of each stage, numbered from the end, of the cut into `num_stages` stages.

    Entries past `num_stages` are 0.
    """
    numbers = 1 + jnp.arange(maxima.last.shape[0])

    def step(first: Any, numbered: Any) -> tuple[Any, Any]:
        number, last = numbered
        following = jnp.where(number <= num_stages, last[jnp.minimum(first, last.shape[0] - 1)] + 1, first)
        return following.astype(jnp.int32), first

    return jax.lax.scan(step, jnp.int32(0), (numbers, maxima.last), reverse=True)[1]
