"""The optimal cut of a chain of layers into stages, by two scans: the least maximum over all cuts, then the cut.

Stages are numbered from the end of the chain. Let V(s, i) be the least maximum of s stages over the layers i, i+1, ...

    V(s, i) = min over j of max(V(s-1, j+1), cost of the layers i..j as stage s)        V(0, N) = 0, else infinite

One scan over s = 1..S gives the answer for every number of stages. A second scan, from stage S down, follows the layers
at which the minima were found. The caller defines the cost of a segment on a stage. The maximum over stages may be of
anything (time of a microbatch, memory, parameters), and an infinite cost forbids a segment. `jax.vmap` maps both scans
over many costs. Not modelled: layers that do not form a chain.

Costs are matrices over all segments, several for each plan that is cut side by side. So memory grows with the square of
the layers: about 1 kB times the square, 1 GB for 1,000 layers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dsx.errors import SpecError

MAX_LAYERS = 1024  # of a chain that is cut optimally: one or two gigabytes, and tens of seconds


def check_length(num_layers: int, what: str, cure: str) -> None:
    """Raise SpecError if the chain `what` is too long to be cut optimally; `cure` says what to do instead."""
    if num_layers > MAX_LAYERS:
        raise SpecError(
            f"{what} has {num_layers:,} layers, but an optimal cut takes at most {MAX_LAYERS:,}: its memory grows with "
            f"the square of the layers; {cure}"
        )


class Maxima(NamedTuple):
    """For s = 1..S stages over the layers i, i+1, ...: the least maximum, and the end of stage s."""

    least: Any  # [S, N + 1]; infinite where no cut is allowed
    last: Any  # [S, N] last layer of stage s


def least_maxima(cost: Callable[[Any], Any], stages: Any, num_layers: Any, deepest: Any) -> Maxima:
    """Scan over stages from the end of the chain.

    `cost` takes one entry of the leading axis of `stages` [S] and returns its [N, N] costs by last and first layer. The
    chain is the first `num_layers` of N layers; the others are padding. Stages past `deepest` are not computed and stay
    infinite; under vmap that saves time only if `deepest` is not mapped. A caller that needs `last` takes several times
    as long as one that drops it.
    """
    shape = jax.eval_shape(cost, jax.tree.map(lambda leaf: leaf[0], stages))
    layers = jnp.arange(shape.shape[1] + 1)
    proper = layers[:-1, None] >= layers[None, :-1]

    def step(after: Any, stage: Any) -> tuple[Any, Any]:
        maxima = jnp.maximum(after[1:, None], jnp.where(proper, cost(stage), jnp.inf))
        least = jnp.concatenate([jnp.min(maxima, axis=0), jnp.full_like(after[:1], jnp.inf)])
        return least, jnp.argmin(maxima, axis=0).astype(jnp.int32)

    def skip(after: Any, stage: Any) -> tuple[Any, Any]:
        del stage
        return jnp.full_like(after, jnp.inf), jnp.zeros(shape.shape[1], jnp.int32)

    def scanned(after: Any, numbered: Any) -> tuple[Any, Any]:
        number, stage = numbered
        least, last = jax.lax.cond(number <= deepest, step, skip, after, stage)
        return least, Maxima(least, last)

    end = jnp.where(layers == num_layers, 0.0, jnp.inf).astype(shape.dtype)
    numbers = 1 + jnp.arange(jax.tree.leaves(stages)[0].shape[0])
    return jax.lax.scan(scanned, end, (numbers, stages))[1]


def first_layers(maxima: Maxima, num_stages: Any) -> Any:
    """Return [S] the first layer of each stage of the cut into `num_stages` stages, numbered from the end.

    Entries past `num_stages` are 0.
    """
    numbers = 1 + jnp.arange(maxima.last.shape[0])

    def step(first: Any, numbered: Any) -> tuple[Any, Any]:
        number, last = numbered
        following = jnp.where(number <= num_stages, last[jnp.minimum(first, last.shape[0] - 1)] + 1, first)
        return following.astype(jnp.int32), first

    return jax.lax.scan(step, jnp.int32(0), (numbers, maxima.last), reverse=True)[1]
