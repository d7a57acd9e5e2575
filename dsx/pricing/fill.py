"""Filled stages of the chains of many plans side by side, and the most even of their optimal cuts.

What a stage causes and what it needs grows with its layers, at either end of it. So for a bound of what each stage may
cause, filling the stages one after the other with as many layers as possible tells whether a cut keeps the bound
(chains-on-chains; Pinar and Aykanat, Fast optimal load balancing algorithms for 1D partitioning, 2004).

Of the cuts that keep a bound, each stage from the first on gets the load nearest to an equal share of what remains
(`dsx.pricing.optimal_cut` says which cut that is). It ends no earlier than where the later stages, filled from the end
of the chain, begin.

All functions run on NumPy, and compiled for many plans. Positions in a chain and numbers of stages are floats. Plans of
a tile should be alike: each stage is filled until the last of them has its layers.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from dsx import arrays as xp
from dsx.arrays import Column, Mask, PerPlan, PlanFloats
from dsx.cost.context import ChosenPlans, StageChoices
from dsx.cost.cut_bounds import FirstStage, StageBytes, first_stage, stage_bytes
from dsx.cost.interval import Room
from dsx.cost.pipeline import in_flight, through_stage_s
from dsx.cost.sends import Sends
from dsx.cost.stage import StageCosts
from dsx.cost.stages import Layers, Stack, layers_between, over_layers
from dsx.cost.step import sends_of
from dsx.plans.enumerate import SearchedCodes
from dsx.records import Array, Bool, Float, Int
from dsx.schedules.closed_forms import Passes

Result = TypeVar("Result")
_BY_SLOPE = 4  # times that the end of a stage is guessed before it is found by halves


def rounding(dtype: DTypeLike) -> float:
    """Return the relative difference of sums that rounding alone may tell apart."""
    return 16.0 * float(np.finfo(dtype).eps)


TIES = rounding(np.float64)


class ChainModel(NamedTuple):
    """What chains have in common."""

    stack: Stack
    searched: SearchedCodes
    least_memory: bool  # whether a stage causes the bytes that it needs, not seconds

    @property
    def length(self) -> float:
        """The layers of a chain."""
        return float(self.stack.num_layers)


class Chains(NamedTuple):
    """The chains of plans; sequences have an array for each kind of layer."""

    forward_s: Sequence[PerPlan]
    backward_s: Sequence[PerPlan]
    bytes_of: StageBytes
    usable: Room
    sends: Sends
    choices: StageChoices
    first: FirstStage | None  # None if it is not asked for


class Filled(NamedTuple):
    """A stage of each plan that is filled up to its limits."""

    num_layers: Column
    caused: Column  # by these layers; -inf without layers
    next_caused: Column  # what they cause with one layer more; infinite where it may not have one, or does not fit


class Probe(NamedTuple):
    """Stages of each plan that are filled up to a bound."""

    reached: Mask  # whether they hold all layers
    slowest: Column  # what the slowest of them causes
    least_next: Column  # the least that one of them causes with one layer more
    some_empty: Mask  # whether one has no layer


def chains_of(costs: StageCosts, usable: Room, with_first: bool) -> Chains:
    """Return the chains of plans with so much room.

    Only who cuts for time needs what first stages add to a step, which takes longer than all else.
    """
    mean = costs.stack.mean_stage(costs.choices.pp, xp.zeros_like(costs.choices.pp))
    first = first_stage(costs) if with_first else None
    return Chains(
        *costs.passes_s, stage_bytes(costs), usable, sends_of(costs, mean), StageChoices.of(costs.choices), first
    )


def causes(model: ChainModel, chains: Chains, stage: PerPlan, begin: PerPlan, end: PerPlan) -> tuple[PerPlan, ...]:
    """Return what the layers from `begin` to `end`, exclusive, cause as a stage; and the bytes that they need.

    These are of the GPU, then of the host if any plan offloads. With `least_memory` the first two are one, and all.
    """
    plans, layers = ChosenPlans(chains.choices, model.searched), layers_between(model.stack, begin, end)
    position = xp.minimum(stage, plans.choices.pp - 1.0)
    held = in_flight(position, plans)
    needed = chains.bytes_of.peak(layers, held, model.stack, plans)
    if model.least_memory:
        return (needed,)
    on_stage = passes(chains, layers)
    on_later = passes(chains, layers_between(model.stack, end, xp.full_like(end, model.length)))
    on_all = passes(chains, model.stack.totals())
    seconds = through_stage_s(position, on_stage, on_later, on_all, chains.sends, plans)
    on_host = chains.bytes_of.on_host(layers, held)
    return (seconds, needed) if on_host is None else (seconds, needed, on_host)


def load_of(model: ChainModel, chains: Chains, begin: PerPlan, end: PerPlan) -> PerPlan:
    """Return the load of layers, of which stages get equal shares: seconds of a microbatch, or bytes without any."""
    layers = layers_between(model.stack, begin, end)
    if not model.least_memory:
        return passes(chains, layers).both
    no_microbatch = xp.zeros_like(chains.choices.pp)
    return chains.bytes_of.peak(layers, no_microbatch, model.stack, ChosenPlans(chains.choices, model.searched))


def probe(model: ChainModel, chains: Chains, deepest: PerPlan, bound: Column, first: Column, begin: Column) -> Probe:
    """Fill the stages from `first` on with the layers from `begin` on; `deepest` is the most stages.

    Each stage gets as many layers as keep the bound, so that one layer is left to each later stage. A stage that a plan
    does not have stays empty.
    """
    pp, limits = chains.choices.pp, limits_of(model, chains, bound)

    def more(state: tuple[Array, ...]) -> Array:
        return state[0] < deepest

    def fill(state: tuple[Array, ...]) -> tuple[Array, ...]:
        stage, begin, near, slowest, least_next, some_empty = state
        exists = (stage >= first) & (stage < pp)
        start = xp.where(exists, begin, model.length)
        most = most_left(model, chains, stage, start)
        filled = most_layers(lambda count: causes(model, chains, stage, start, start + count), limits, most, near)
        count = xp.where(exists, filled.num_layers, 0.0)
        return (
            stage + 1.0,
            begin + count,
            xp.where(count > 0.0, count, near),
            xp.maximum(slowest, filled.caused),
            xp.minimum(least_next, filled.next_caused),
            some_empty | (exists & (count == 0.0)),
        )

    never = xp.full_like(bound, np.inf)
    near = xp.ceil((model.length - begin) / (pp - first))
    state = first.min(), begin, near, -never, never, pp < 0.0
    _, begin, _, slowest, least_next, some_empty = xp.while_loop(more, fill, state)
    return Probe(begin == model.length, slowest, least_next, some_empty)


def most_left(model: ChainModel, chains: Chains, stage: PerPlan, begin: Column) -> Column:
    """Return how many layers a stage may have that leaves one to each later stage; none where a plan lacks it."""
    pp = chains.choices.pp
    later = xp.maximum(pp - 1.0 - stage, 0.0)
    return xp.where(stage < pp, xp.maximum(model.length - later - begin, 0.0), 0.0)


def limits_of(model: ChainModel, chains: Chains, bound: PerPlan) -> tuple[PerPlan, ...]:
    """Return the limits of what stages cause and need, if they may cause `bound`."""
    return (bound,) if model.least_memory else (bound, *room_of(chains))


def room_of(chains: Chains) -> tuple[PerPlan, ...]:
    """Return the limits of the bytes that stages need, as `causes` lists them."""
    gpu, host = chains.usable
    return (gpu,) if chains.bytes_of.host_state is None else (gpu, host)


def passes(chains: Chains, layers: Layers) -> Passes:
    """Return the seconds of one microbatch on some layers."""
    return Passes(over_layers(layers, chains.forward_s), over_layers(layers, chains.backward_s))


class _FillSearch(NamedTuple):
    number: Int[Array, ""]
    at: Column  # layers
    low: Column  # the least and the most that they may be
    high: Column
    values: tuple[Float[Any, "2 *#plans"], ...]  # of them, and of one more


def most_layers(
    of_layers: Callable[[Array], tuple[PerPlan, ...]], limits: Sequence[PerPlan], most: Column, near: Column
) -> Filled:
    """Return the largest number of layers, at most `most` and likely about `near`, that keeps all values' limits.

    The values are nearly linear, so two neighbours tell where they reach their limits. They are part of the state of
    the loop: what a step computes of them is then computed once, where a compiler might repeat it for each use.
    """
    pair = np.array([[0.0], [1.0]])

    def keeps(search: _FillSearch) -> tuple[Array, Array]:
        """Return whether the layers keep the limits, and one more."""
        kept = [value <= limit for value, limit in zip(search.values, limits, strict=True)]
        at, above = functools.reduce(operator.and_, kept)
        return at | (search.at <= 0.0), above & (search.at < most)

    def is_open(search: _FillSearch) -> Array:
        keeps_at, keeps_above = keeps(search)
        return ~(keeps_at & ~keeps_above) & (search.low < search.high)

    def narrower(search: _FillSearch) -> _FillSearch:
        number, at, low, high, values = search
        keeps_at, keeps_above = keeps(search)
        low = xp.where(keeps_at, xp.where(keeps_above, at + 1.0, at), low)
        high = xp.where(keeps_at, xp.where(keeps_above, high, at), at - 1.0)
        steps = [(limit - value) / (above - value) for (value, above), limit in zip(values, limits, strict=True)]
        guess = at + xp.floor(functools.reduce(xp.minimum, steps))
        guess = xp.where((number < _BY_SLOPE) & (xp.abs(guess) < np.inf), guess, xp.floor(0.5 * (low + high)))
        at = xp.where(keeps_at & ~keeps_above, at, xp.clip(guess, low, high))
        return _FillSearch(number + 1, at, low, high, of_layers(at + pair))

    at = xp.clip(near, 0.0, most)
    start = _FillSearch(0 * most.astype("int32").min(), at, xp.zeros_like(most), most, of_layers(at + pair))
    _, at, _, _, ((caused, next_caused), *needed) = xp.while_loop(lambda search: is_open(search).any(), narrower, start)
    for (_, next_needed), limit in zip(needed, limits[1:], strict=True):
        next_caused = xp.where(next_needed <= limit, next_caused, np.inf)
    return Filled(at, xp.where(at > 0.0, caused, -np.inf), xp.where(at < most, next_caused, np.inf))


class EvenCut(NamedTuple):
    """The most even cuts that keep a bound."""

    ends: Int[Array, "layers plans"]  # the end of each stage
    earliest: Float[Array, "plans"]  # the least end of the first stage that lets the others keep the bound
    exists: Bool[Array, "plans"]  # whether there is one


class _Ends(NamedTuple):
    end: Column  # of the first stage
    open: Mask  # whether it may be one
    values: tuple[PerPlan, ...]  # what a first stage causes, and needs
    best: tuple[Array, ...]


def even_cut(model: ChainModel, chains: Chains, deepest: PerPlan, bound: Column, most_first_s: PerPlan) -> EvenCut:
    """Return the most even cuts that keep a bound, of those whose first stage adds at most `most_first_s` to the step.

    `deepest` is the most stages of a plan.
    """
    pp, index = chains.choices.pp, xp.asarray(deepest).astype("int32")
    limits = limits_of(model, chains, bound)
    begins = _first_begins(model, chains, deepest, bound)
    earliest = begins[1].astype(bound.dtype)
    first, exists = _even_first(model, chains, bound, earliest, most_first_s)
    ends = xp.with_row(xp.full_like(begins[:-1], int(model.length)), 0 * index, first.astype(begins.dtype))
    state = 0 * index + 1, first, xp.maximum(first, 1.0), ends

    def more(state: tuple[Array, ...]) -> Array:
        return state[0] < index

    def even(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, begin, near, ends = state
        stage = number.astype(bound.dtype)
        fewest = xp.maximum(begins[number + 1].astype(bound.dtype) - begin, 1.0)
        most = most_left(model, chains, stage, begin)
        share = _nearest(model, chains, begin, xp.maximum(pp - stage, 1.0), most, near)
        # The least value is at most that of the slowest stage, up to rounding.
        most = xp.minimum(xp.maximum(share, fewest), most)
        filled = most_layers(lambda count: causes(model, chains, stage, begin, begin + count), limits, most, most)
        count = filled.num_layers
        end = xp.where(stage < pp, begin + count, model.length)
        return number + 1, end, xp.where(count > 0.0, count, near), xp.with_row(ends, number, end.astype(ends.dtype))

    *_, ends = xp.while_loop(more, even, state)
    return EvenCut(ends, earliest, exists)


def least_step_s(model: ChainModel, chains: Chains, deepest: PerPlan, bound: Column, earliest: Column) -> Column:
    """Return the least seconds of the slowest stage and of what the first stage adds, whose end is not `earliest`.

    The later stages cause at most `bound` if the first one ends no earlier. With more layers than keep the bound and
    one, it causes more and adds no less.
    """
    del deepest

    def visit(ends: _Ends) -> tuple[Array, ...]:
        seconds, *needed = ends.values
        step_s = xp.maximum(seconds, bound) + first_s(model, chains, ends.end)
        fits = ends.open
        for value, limit in zip(needed, room_of(chains), strict=True):
            fits = fits & (value <= limit)
        return (xp.minimum(ends.best[0], xp.where(fits, step_s, np.inf)),)

    (step_s,) = _visited(model, chains, bound, earliest, visit, (xp.full_like(bound, np.inf),))
    return step_s


def first_s(model: ChainModel, chains: Chains, end: PerPlan) -> PerPlan:
    """Return the seconds that a first stage with the layers up to `end` adds to the end of a step."""
    if chains.first is None:
        return xp.zeros_like(end)
    return chains.first.added_s(layers_between(model.stack, xp.zeros_like(end), end), model.stack)


def _even_first(
    model: ChainModel, chains: Chains, bound: Column, earliest: Column, most_first_s: PerPlan
) -> tuple[Column, Mask]:
    """Return the end of the first stage of the most even cut, and whether there is one."""
    start, limits = xp.zeros_like(bound), limits_of(model, chains, bound)
    of_chain = load_of(model, chains, start, start + model.length)

    def visit(ends: _Ends) -> tuple[Array, ...]:
        end, distance = ends.best
        from_share = xp.abs(load_of(model, chains, start, ends.end) - of_chain / chains.choices.pp)
        allowed = ends.open & (first_s(model, chains, ends.end) <= most_first_s)
        for value, limit in zip(ends.values, limits, strict=True):
            allowed = allowed & (value <= limit)
        nearer = allowed & (from_share < distance - TIES * of_chain)
        return xp.where(nearer, ends.end, end), xp.where(nearer, from_share, distance)

    end, distance = _visited(model, chains, bound, earliest, visit, (earliest, xp.full_like(bound, np.inf)))
    return end, distance < np.inf


def _visited(
    model: ChainModel,
    chains: Chains,
    bound: Column,
    earliest: Column,
    visit: Callable[[_Ends], tuple[Array, ...]],
    best: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Visit the ends of a first stage from `earliest` on that keep the limits, and the next one; return the last best.

    What a stage causes is part of the state of the loop, so that it is computed once.
    """
    begin, limits = xp.zeros_like(bound), limits_of(model, chains, bound)
    latest = most_left(model, chains, 0.0, begin)

    def next_end(ends: _Ends) -> _Ends:
        kept = ends.open & (ends.end < latest)
        for value, limit in zip(ends.values, limits, strict=True):
            kept = kept & (value <= limit)
        end = xp.minimum(ends.end + 1.0, model.length)
        return _Ends(end, kept, causes(model, chains, 0.0, begin, end), visit(ends))

    exists = (earliest >= 1.0) & (earliest <= latest)
    start = _Ends(earliest, exists, causes(model, chains, 0.0, begin, earliest), best)
    return xp.while_loop(lambda ends: ends.open.any(), next_end, start).best


def _first_begins(
    model: ChainModel, chains: Chains, deepest: PerPlan, bound: Column
) -> Int[Array, "{int(model.length)+1} plans"]:
    """Return the first layer of each stage if later ones are filled from the end of the chain.

    Each earlier stage keeps a layer.
    """
    limits, pp = limits_of(model, chains, bound), chains.choices.pp
    end = xp.full_like(bound, model.length)

    def more(state: tuple[Array, ...]) -> Array:
        return state[0] > 0

    def fill(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, end, near, begins = state
        number = number - 1
        stage = number.astype(bound.dtype)
        most = xp.where(stage < pp, xp.maximum(end - stage, 0.0), 0.0)
        filled = most_layers(lambda count: causes(model, chains, stage, end - count, end), limits, most, near)
        count = filled.num_layers
        begin = end - count
        begins = xp.with_row(begins, number, begin.astype(begins.dtype))
        return number, begin, xp.where(count > 0.0, count, near), begins

    # Small numbers: memory that is new to the process takes as long as the fills of a tile.
    table = xp.full_like(
        xp.broadcast_to(bound, (int(model.length) + 1, *bound.shape)), int(model.length), dtype="int16"
    )
    state = xp.asarray(deepest).astype("int32"), end, xp.ceil(model.length / pp), table
    return xp.while_loop(more, fill, state)[-1]


def _nearest(model: ChainModel, chains: Chains, begin: Column, stages: Column, most: Column, near: Column) -> Column:
    """Return the number of the layers from `begin` on that are nearest to an equal share of them."""

    def load(count: Array) -> PerPlan:
        return load_of(model, chains, begin, begin + count)

    remaining = load(model.length - begin)
    share = remaining / stages
    below = most_layers(lambda count: (load(count),), (share,), most, near).num_layers
    of_below, of_above = (xp.abs(load(xp.maximum(count, 0.0)) - share) for count in (below, below + 1.0))
    return xp.where(of_below <= of_above + TIES * remaining, below, below + 1.0)


@dataclass(frozen=True)
class Fills:
    """Calls functions that fill the stages of chains; with `compiled` they are compiled for many chains."""

    model: ChainModel
    compiled: bool

    def __call__(self, function: Callable[..., Result], chains: Chains, *arguments: PlanFloats) -> Result:
        """Return what `probe`, `even_cut` or `least_step_s` does for chains and its arguments after `deepest`."""
        if self.compiled and len(arguments[0]):
            from dsx.pricing.compiled import of_chain_tiles

            return of_chain_tiles(function, self.model, chains, arguments)
        return function(self.model, chains, chains.choices.pp.max(initial=1.0), *arguments)
