"""The most even of the optimal cuts of many plans, side by side (`dsx.pricing.optimal_cut` says which one that is).

Of the cuts that keep a bound, each stage from the first on gets the load nearest to an equal share of what remains. It
ends no earlier than where the later stages, filled from the end of the chain, begin.

All functions run on NumPy, and compiled.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dsx.cost import xp
from dsx.cost.stages import layers_between
from dsx.pricing.filled_stages import (
    TIES,
    Chains,
    Model,
    causes,
    limits_of,
    load_of,
    most_layers,
    most_left,
    room_of,
    values_from,
)


class EvenCut(NamedTuple):
    """The most even cuts that keep a bound."""

    ends: Any  # [L, N] the end of each stage
    earliest: Any  # [N] the least end of the first stage that lets the others keep the bound
    found: Any  # [N] whether there is one


class _Ends(NamedTuple):
    end: Any  # [N] of the first stage
    open: Any  # whether it may be one
    values: tuple[Any, ...]  # what a first stage causes, and needs
    best: tuple[Any, ...]


def even_cut(model: Model, chains: Chains, deepest: Any, bound: Any, most_first_s: Any) -> EvenCut:
    """Return the most even cuts that keep a bound, of those whose first stage adds at most `most_first_s` to the step.

    `deepest` is the most stages of a plan.
    """
    pp, index = chains.choices.pp, xp.asarray(deepest).astype("int32")
    limits = limits_of(model, chains, bound)
    begins = _first_begins(model, chains, deepest, bound)
    earliest = begins[1].astype(bound.dtype)
    first, found = _even_first(model, chains, bound, earliest, most_first_s)
    ends = xp.with_row(xp.full_like(begins[:-1], int(model.length)), 0 * index, first.astype(begins.dtype))
    state = 0 * index + 1, first, xp.maximum(first, 1.0), ends

    def more(state: tuple[Any, ...]) -> Any:
        return state[0] < index

    def even(state: tuple[Any, ...]) -> tuple[Any, ...]:
        number, begin, near, ends = state
        stage = number.astype(bound.dtype)
        fewest = xp.maximum(begins[number + 1].astype(bound.dtype) - begin, 1.0)
        most = most_left(model, chains, stage, begin)
        share = _nearest(model, chains, begin, xp.maximum(pp - stage, 1.0), most, near)
        # The least value is at most that of the slowest stage, up to rounding.
        most = xp.minimum(xp.maximum(share, fewest), most)
        count = most_layers(functools.partial(values_from, model, chains, stage, begin), limits, most, most).count
        end = xp.where(stage < pp, begin + count, model.length)
        return number + 1, end, xp.where(count > 0.0, count, near), xp.with_row(ends, number, end.astype(ends.dtype))

    *_, ends = xp.while_loop(more, even, state)
    return EvenCut(ends, earliest, found)


def least_step_s(model: Model, chains: Chains, deepest: Any, bound: Any, earliest: Any) -> Any:
    """Return [N] the least seconds of the slowest stage and of what the first stage adds, whose end is not `earliest`.

    The later stages cause at most `bound` if the first one ends no earlier. With more layers than keep the bound and
    one, it causes more and adds no less.
    """
    del deepest

    def visit(ends: _Ends) -> tuple[Any, ...]:
        seconds, *needed = ends.values
        step_s = xp.maximum(seconds, bound) + first_s(model, chains, ends.end)
        fits = ends.open
        for value, limit in zip(needed, room_of(chains), strict=True):
            fits = fits & (value <= limit)
        return (xp.minimum(ends.best[0], xp.where(fits, step_s, np.inf)),)

    (step_s,) = _visited(model, chains, bound, earliest, visit, (xp.full_like(bound, np.inf),))
    return step_s


def first_s(model: Model, chains: Chains, end: Any) -> Any:
    """Return the seconds that a first stage with the layers up to `end` adds to the end of a step."""
    if chains.first is None:
        return xp.zeros_like(end)
    return chains.first.added_s(layers_between(model.stack, xp.zeros_like(end), end), model.stack)


def _even_first(model: Model, chains: Chains, bound: Any, earliest: Any, most_first_s: Any) -> tuple[Any, Any]:
    """Return [N] the end of the first stage of the most even cut, and whether there is one."""
    none, limits = xp.zeros_like(bound), limits_of(model, chains, bound)
    whole = load_of(model, chains, none, none + model.length)

    def visit(ends: _Ends) -> tuple[Any, ...]:
        end, distance = ends.best
        here = xp.abs(load_of(model, chains, none, ends.end) - whole / chains.choices.pp)
        allowed = ends.open & (first_s(model, chains, ends.end) <= most_first_s)
        for value, limit in zip(ends.values, limits, strict=True):
            allowed = allowed & (value <= limit)
        nearer = allowed & (here < distance - TIES * whole)
        return xp.where(nearer, ends.end, end), xp.where(nearer, here, distance)

    end, distance = _visited(model, chains, bound, earliest, visit, (earliest, xp.full_like(bound, np.inf)))
    return end, distance < np.inf


def _visited(
    model: Model,
    chains: Chains,
    bound: Any,
    earliest: Any,
    visit: Callable[[_Ends], tuple[Any, ...]],
    best: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Visit the ends of a first stage from `earliest` on that keep the limits, and the next one; return the last best.

    What a stage causes is part of the state of the loop, so that it is computed once.
    """
    none, limits = xp.zeros_like(bound), limits_of(model, chains, bound)
    latest = most_left(model, chains, 0.0, none)

    def next_end(ends: _Ends) -> _Ends:
        kept = ends.open & (ends.end < latest)
        for value, limit in zip(ends.values, limits, strict=True):
            kept = kept & (value <= limit)
        end = xp.minimum(ends.end + 1.0, model.length)
        return _Ends(end, kept, causes(model, chains, 0.0, none, end), visit(ends))

    there = (earliest >= 1.0) & (earliest <= latest)
    start = _Ends(earliest, there, causes(model, chains, 0.0, none, earliest), best)
    return xp.while_loop(lambda ends: ends.open.any(), next_end, start).best


def _first_begins(model: Model, chains: Chains, deepest: Any, bound: Any) -> Any:
    """Return [L + 1, N] the first layer of each stage if later ones are filled from the end of the chain.

    Each earlier stage keeps a layer.
    """
    limits, pp = limits_of(model, chains, bound), chains.choices.pp
    end = xp.full_like(bound, model.length)

    def more(state: tuple[Any, ...]) -> Any:
        return state[0] > 0

    def fill(state: tuple[Any, ...]) -> tuple[Any, ...]:
        number, end, near, begins = state
        number = number - 1
        stage = number.astype(bound.dtype)
        most = xp.where(stage < pp, xp.maximum(end - stage, 0.0), 0.0)

        def of_layers(count: Any) -> tuple[Any, ...]:
            return causes(model, chains, stage, end - count, end)

        count = most_layers(of_layers, limits, most, near).count
        begin = end - count
        return (
            number,
            begin,
            xp.where(count > 0.0, count, near),
            xp.with_row(begins, number, begin.astype(begins.dtype)),
        )

    # Small numbers: memory that is new to the process takes as long as the fills of a tile.
    table = xp.full_like(
        xp.broadcast_to(bound, (int(model.length) + 1, *bound.shape)), int(model.length), dtype="int16"
    )
    state = xp.asarray(deepest).astype("int32"), end, xp.ceil(model.length / pp), table
    return xp.while_loop(more, fill, state)[-1]


def _nearest(model: Model, chains: Chains, begin: Any, stages: Any, most: Any, near: Any) -> Any:
    """Return [N] the number of the layers from `begin` on that are nearest to an equal share of them."""

    def load(count: Any) -> Any:
        return load_of(model, chains, begin, begin + count)

    whole = load(model.length - begin)
    share = whole / stages
    below = most_layers(lambda count: (load(count),), (share,), most, near).count
    of_below, of_above = (xp.abs(load(xp.maximum(count, 0.0)) - share) for count in (below, below + 1.0))
    return xp.where(of_below <= of_above + TIES * whole, below, below + 1.0)
