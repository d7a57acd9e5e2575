"""The stages of the chains of many plans, side by side: what layers cause as a stage, and filled stages.

What a stage causes and what it needs grows with its layers, at either end of it. So for a bound of what each stage may
cause, filling the stages one after the other with as many layers as possible tells whether a cut keeps the bound
(chains-on-chains; Pinar and Aykanat, Fast optimal load balancing algorithms for 1D partitioning, 2004).

All functions run on NumPy, and compiled. Positions in a chain and numbers of stages are floats.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsx.cost import xp
from dsx.cost.choices import StageChoices
from dsx.cost.first_stage import FirstStage, first_stage
from dsx.cost.headroom import Room
from dsx.cost.pipeline import in_flight, through_stage_s
from dsx.cost.sends import Sends
from dsx.cost.stage_bytes import StageBytes, stage_bytes
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import Layers, Stack, layers_between, over_layers
from dsx.cost.step import mean_stage, sends_of
from dsx.pricing.optimal_cut import rounding
from dsx.space.codes import Searched
from dsx.space.critical_path import Passes

_BY_SLOPE = 4  # times that the end of a stage is guessed before it is found by halves
TIES = rounding(np.float64)


class Model(NamedTuple):
    """What chains have in common."""

    stack: Stack
    searched: Searched
    least_memory: bool  # whether a stage causes the bytes that it needs, not seconds

    @property
    def length(self) -> float:
        """The layers of a chain."""
        return float(self.stack.num_layers)


class Chains(NamedTuple):
    """The chains of N plans; leaves are [N], sequences have one for each kind of layer."""

    forward_s: Sequence[Any]
    backward_s: Sequence[Any]
    bytes_of: StageBytes
    usable: Room
    sends: Sends
    choices: StageChoices
    first: FirstStage | None  # None if it is not asked for


class Filled(NamedTuple):
    """A stage that is filled up to its limits, [N]."""

    count: Any  # layers
    own: Any  # what they cause; -inf without layers
    beyond: Any  # what they cause with one layer more; infinite where it may not have one, or does not fit


class Probe(NamedTuple):
    """Stages that are filled up to a bound, [N]."""

    reached: Any  # whether they hold all layers
    slowest: Any  # what the slowest of them causes
    beyond: Any  # the least that one of them causes with one layer more
    some_empty: Any  # whether one has no layer


def chains_of(costs: StageCosts, usable: Room, with_first: bool) -> Chains:
    """Return the chains of [N] plans with so much room.

    Only who cuts for time needs what first stages add to a step, which takes longer than all else.
    """
    none = xp.zeros_like(costs.choices.pp)
    mean = mean_stage(costs.stack, costs.choices, none)
    first = first_stage(costs) if with_first else None
    return Chains(
        *costs.passes_s, stage_bytes(costs), usable, sends_of(costs, mean), StageChoices.of(costs.choices), first
    )


def causes(model: Model, chains: Chains, stage: Any, begin: Any, end: Any) -> tuple[Any, ...]:
    """Return what the layers from `begin` to `end`, exclusive, cause as a stage; and the bytes that they need.

    These are of the GPU, then of the host if any plan offloads. With `least_memory` the first two are one, and all.
    """
    choices, searched, layers = chains.choices, model.searched, layers_between(model.stack, begin, end)
    position = xp.minimum(stage, choices.pp - 1.0)
    held = in_flight(position, choices, searched)
    needed = chains.bytes_of.peak(layers, held, model.stack, choices, searched)
    if model.least_memory:
        return (needed,)
    own = passes(chains, layers)
    after = passes(chains, layers_between(model.stack, end, xp.full_like(end, model.length)))
    whole = passes(chains, model.stack.totals())
    seconds = through_stage_s(position, own, after, whole, chains.sends, choices, searched)
    on_host = chains.bytes_of.on_host(layers, held)
    return (seconds, needed) if on_host is None else (seconds, needed, on_host)


def load_of(model: Model, chains: Chains, begin: Any, end: Any) -> Any:
    """Return the load of layers, of which stages get equal shares: seconds of a microbatch, or bytes without any."""
    layers = layers_between(model.stack, begin, end)
    if not model.least_memory:
        return passes(chains, layers).both
    none = xp.zeros_like(chains.choices.pp)
    return chains.bytes_of.peak(layers, none, model.stack, chains.choices, model.searched)


def filled(model: Model, chains: Chains, stage: Any, begin: Any, bound: Any, near: Any) -> Filled:
    """Fill a stage from `begin` [N] on up to a bound, so that one layer is left to each later stage.

    It is likely to have about `near` [N] layers. A stage that a plan does not have stays empty.
    """
    of_layers = functools.partial(values_from, model, chains, stage, begin)
    return most_layers(of_layers, limits_of(model, chains, bound), most_left(model, chains, stage, begin), near)


def probe(model: Model, chains: Chains, deepest: Any, bound: Any, first: Any, begin: Any) -> Probe:
    """Fill the stages from `first` on with the layers from `begin` on, both [N]; `deepest` is the most stages."""
    pp = chains.choices.pp

    def more(state: tuple[Any, ...]) -> Any:
        return state[0] < deepest

    def fill(state: tuple[Any, ...]) -> tuple[Any, ...]:
        stage, begin, near, slowest, beyond, some_empty = state
        there = (stage >= first) & (stage < pp)
        found = filled(model, chains, stage, xp.where(there, begin, model.length), bound, near)
        count = xp.where(there, found.count, 0.0)
        return (
            stage + 1.0,
            begin + count,
            xp.where(count > 0.0, count, near),
            xp.maximum(slowest, found.own),
            xp.minimum(beyond, found.beyond),
            some_empty | (there & (count == 0.0)),
        )

    never = xp.full_like(bound, np.inf)
    near = xp.ceil((model.length - begin) / (pp - first))
    state = first.min(), begin, near, -never, never, pp < 0.0
    _, begin, _, slowest, beyond, some_empty = xp.while_loop(more, fill, state)
    return Probe(begin == model.length, slowest, beyond, some_empty)


def most_left(model: Model, chains: Chains, stage: Any, begin: Any) -> Any:
    """Return [N] how many layers a stage may have that leaves one to each later stage; none where a plan lacks it."""
    pp = chains.choices.pp
    later = xp.maximum(pp - 1.0 - stage, 0.0)
    return xp.where(stage < pp, xp.maximum(model.length - later - begin, 0.0), 0.0)


def values_from(model: Model, chains: Chains, stage: Any, begin: Any, count: Any) -> tuple[Any, ...]:
    """Return what so many layers from `begin` on cause and need as a stage."""
    return causes(model, chains, stage, begin, begin + count)


def limits_of(model: Model, chains: Chains, bound: Any) -> tuple[Any, ...]:
    """Return the limits of what stages cause and need, if they may cause `bound`."""
    return (bound,) if model.least_memory else (bound, *room_of(chains))


def room_of(chains: Chains) -> tuple[Any, ...]:
    """Return the limits of the bytes that stages need, as `causes` lists them."""
    gpu, host = chains.usable
    return (gpu,) if chains.bytes_of.host_state is None else (gpu, host)


def passes(chains: Chains, layers: Layers) -> Passes:
    """Return the seconds of one microbatch on some layers."""
    return Passes(over_layers(layers, chains.forward_s), over_layers(layers, chains.backward_s))


class _Search(NamedTuple):
    number: Any
    at: Any  # [N] layers
    low: Any  # the least and the most that they may be
    high: Any
    values: Any  # [2, N] of them, and of one more


def most_layers(of_layers: Callable[[Any], tuple[Any, ...]], limits: Sequence[Any], most: Any, near: Any) -> Filled:
    """Return the largest number of layers [N], at most `most`, of which all values keep their limits.

    The values are nearly linear, so two neighbours tell where they reach their limits. They are part of the state of
    the loop: what a step computes of them is then computed once, where a compiler might repeat it for each use.
    """
    pair = np.array([[0.0], [1.0]])

    def keeps(search: _Search) -> tuple[Any, Any]:
        """Return whether the layers keep the limits, and one more."""
        kept = [value <= limit for value, limit in zip(search.values, limits, strict=True)]
        here, above = functools.reduce(operator.and_, kept)
        return here | (search.at <= 0.0), above & (search.at < most)

    def is_open(search: _Search) -> Any:
        here, above = keeps(search)
        return ~(here & ~above) & (search.low < search.high)

    def narrower(search: _Search) -> _Search:
        number, at, low, high, values = search
        here, above = keeps(search)
        low = xp.where(here, xp.where(above, at + 1.0, at), low)
        high = xp.where(here, xp.where(above, high, at), at - 1.0)
        rest = [(limit - here) / (above - here) for (here, above), limit in zip(values, limits, strict=True)]
        guess = at + xp.floor(functools.reduce(xp.minimum, rest))
        guess = xp.where((number < _BY_SLOPE) & (xp.abs(guess) < np.inf), guess, xp.floor(0.5 * (low + high)))
        at = xp.where(here & ~above, at, xp.clip(guess, low, high))
        return _Search(number + 1, at, low, high, of_layers(at + pair))

    at = xp.clip(near, 0.0, most)
    start = _Search(0 * most.astype("int32").min(), at, xp.zeros_like(most), most, of_layers(at + pair))
    found = xp.while_loop(lambda search: is_open(search).any(), narrower, start)
    (own, beyond), *others = found.values
    for (_, needed), limit in zip(others, limits[1:], strict=True):
        beyond = xp.where(needed <= limit, beyond, np.inf)
    return Filled(found.at, xp.where(found.at > 0.0, own, -np.inf), xp.where(found.at < most, beyond, np.inf))
