"""The optimal cut of a chain of layers into stages, by two scans: the least maximum over all cuts, then the cut.

Stages are numbered from the end of the chain. Let V(s, i) be the least maximum of s stages over the layers i, i+1, ...

    V(s, i) = min over j of max(V(s-1, j+1), cost of the layers i..j as stage s)        V(0, N) = 0, else infinite

One scan over s = 1..S gives the answer for every number of stages. A second scan, from stage S down, follows the layers
at which the minima were found. The caller defines the cost of a segment on a stage. The maximum over stages may be of
anything (time of a microbatch, memory, parameters), and an infinite cost forbids a segment. `jax.vmap` maps both scans
over many costs. Costs are matrices over all segments, several for each plan that is cut side by side: about 1 kB times
the square of the layers, 1 GB for 1,000 layers. Not modelled: layers that do not form a chain.

A cut of a plan changes two parts of the step time (`dsx.cost.step`): the seconds of the pipeline, which are the largest
that one of its stages causes, and `first`, the reduction and the update of the first stage. What stage s of p causes
depends on its layers i..j, and on the layers after them (`dsx.schedules.closed_forms`). So the optimal cut attains

    min over j of max(T(0, 0..j), V(p - 1, j + 1)) + first(j)        with T(p - s, i..j) the cost in V(s, i)

over the chain of embedding, body and head. Each stage has at least one layer, and memory for its microbatches in
flight. If no cut fits, the optimal cut minimises the memory of the stage that needs most. Of several optimal cuts, one
with the fastest pipeline is taken. Of these, each stage from the first on gets the load nearest to an equal share of
the load that remains for it and the later stages. The shares are only about equal: an indivisible embedding or head
counts in the shares of the stages before it. Not covered: schedules in which a stage holds several segments.

The cost of a stage depends on its number of layers of each kind. These combinations are far fewer than the segments of
the chain. Rows are cut in tiles of plans with similar numbers of stages, so that the scan wastes few stages. All calls
have one shape and share what is compiled. Empty tiles are skipped. What a first stage adds to a step would be most of
what there is to compile, so NumPy computes it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dsx import arrays as xp
from dsx.arrays import Cuts, PerPlan, PlanBools
from dsx.cost.interval import Room, room
from dsx.cost.pipeline import in_flight, through_stage_s
from dsx.cost.stage import StageCosts
from dsx.cost.stages import Stack, Stage, layers_between, over_layers
from dsx.cost.step import Workload, sends_of
from dsx.pricing.compiled import COMPILER
from dsx.pricing.fill import rounding
from dsx.pricing.keys import KeyCosts
from dsx.pricing.problem import Plans, Problem, pad, stage_costs
from dsx.pricing.row_costs import Rows, plans_of
from dsx.records import Array, ArrayLike, Bool, Float, Int, tree_map
from dsx.schedules.closed_forms import Passes

Stages = TypeVar("Stages")


class Maxima(NamedTuple):
    """For s = 1..S stages over the layers i, i+1, ...: the least maximum, and the end of stage s."""

    least: Float[jax.Array, "*stages boundaries"]  # infinite where no cut is allowed
    last: Int[jax.Array, "*stages layers"]  # last layer of stage s


def least_maxima(
    cost: Callable[[Stages], jax.Array], stages: Stages, num_layers: ArrayLike, deepest: ArrayLike
) -> Maxima:
    """Scan over stages from the end of the chain.

    `cost` takes one entry of the leading axis of `stages` and returns its costs by last and first layer. The chain is
    the first `num_layers` layers; the others are padding. Stages past `deepest` are not computed and stay
    infinite; under vmap that saves time only if `deepest` is not mapped. A caller that needs `last` takes several times
    as long as one that drops it.
    """
    shape = jax.eval_shape(cost, tree_map(lambda leaf: leaf[0], stages))
    layers = jnp.arange(shape.shape[1] + 1)
    proper = layers[:-1, None] >= layers[None, :-1]

    def step(later: jax.Array, stage: Stages) -> tuple[jax.Array, jax.Array]:
        maxima = jnp.maximum(later[1:, None], jnp.where(proper, cost(stage), jnp.inf))
        least = jnp.concatenate([jnp.min(maxima, axis=0), jnp.full_like(later[:1], jnp.inf)])
        return least, jnp.argmin(maxima, axis=0).astype(jnp.int32)

    def skip(later: jax.Array, stage: Stages) -> tuple[jax.Array, jax.Array]:
        del stage
        return jnp.full_like(later, jnp.inf), jnp.zeros(shape.shape[1], jnp.int32)

    def scanned(later: jax.Array, numbered: tuple[jax.Array, Stages]) -> tuple[jax.Array, Maxima]:
        number, stage = numbered
        least, last = jax.lax.cond(number <= deepest, step, skip, later, stage)
        return least, Maxima(least, last)

    end = jnp.where(layers == num_layers, 0.0, jnp.inf).astype(shape.dtype)
    numbers = 1 + jnp.arange(jax.tree.leaves(stages)[0].shape[0])
    return jax.lax.scan(scanned, end, (numbers, stages))[1]


def first_layers(maxima: Maxima, num_stages: ArrayLike) -> Int[jax.Array, "*stages"]:
    """Return the first layer of each stage of the cut into `num_stages` stages, numbered from the end.

    Entries past `num_stages` are 0.
    """
    numbers = 1 + jnp.arange(maxima.last.shape[0])

    def step(first: jax.Array, numbered: tuple[jax.Array, Array]) -> tuple[jax.Array, jax.Array]:
        number, last = numbered
        following = jnp.where(number <= num_stages, last[jnp.minimum(first, last.shape[0] - 1)] + 1, first)
        return following.astype(jnp.int32), first

    return jax.lax.scan(step, jnp.int32(0), (numbers, maxima.last), reverse=True)[1]


_WIDTHS = (16, 32, 48, 64, 96)  # layers that a scan looks at, if the chain is longer


class Contents(NamedTuple):
    """The layers that a stage of a chain may hold, as combinations of kinds."""

    layers: Float[Array, "kinds combinations"]  # of each kind in each combination
    of_segment: Int[Array, "layers layers"]  # the combination of the layers i..j; their number where j < i


class Depths(NamedTuple):
    """The fewest and the most stages of plans that are cut side by side."""

    fewest: Int[Array, "*tiles"]
    deepest: Int[Array, "*tiles"]


_PerSegment = Float[Any, "*segments"]


class StageSegments(NamedTuple):
    """Layers of a chain as stages of one plan: combinations of layers, or segments by first and last layer."""

    load: _PerSegment  # seconds of a microbatch, or bytes
    forward: _PerSegment | None  # seconds of the forward of a microbatch; None where memory is minimised
    per_microbatch: Any  # added to the objective by each microbatch in flight; None if nothing is added
    max_in_flight: Any  # microbatches in flight that fit into memory; None if memory has no limit


@functools.lru_cache(maxsize=8)
def chain_contents(stack: Stack) -> Contents:
    """Return the contents of all segments of a model's chain, as NumPy arrays."""
    num_layers = int(stack.num_layers)
    first = np.arange(num_layers)
    with jax.enable_x64(True):
        layers = layers_between(stack, first[:, None].astype(float), first[None].astype(float) + 1)
    kinds = [np.broadcast_to(np.asarray(layers[kind]), (num_layers, num_layers)) for kind in sorted(layers)]
    proper = first[None] >= first[:, None]
    combinations, which = np.unique(np.stack(kinds)[:, proper], axis=1, return_inverse=True)
    of_segment = np.full(proper.shape, combinations.shape[1], dtype=np.int32)
    of_segment[proper] = which.ravel()
    return Contents(combinations, of_segment)


def boundaries(
    costs: StageCosts,
    contents: Contents,
    usable: Room,
    depths: Depths,
    first_s: Float[Array, "layers"] | None,
    least_memory: bool,
) -> tuple[Int[jax.Array, "layers+1"], Bool[jax.Array, ""]]:
    """Return the boundaries of the optimal cut of one plan, whose costs are scalars, and whether it fits.

    Boundaries after the last stage are its end. `depths` bound the stages of the plan; under vmap all plans share them.
    `first_s` is `of_first_stage_s`; with `least_memory` it is None, and the result is the cut of least memory,
    whether it fits or not.
    """
    choices = costs.choices
    num_stages = choices.pp.astype(jnp.int32)
    chain = _chain(costs, contents, usable, least_memory)
    ties = rounding(chain.load.dtype)
    num_layers = contents.of_segment.shape[0]
    of_model, later = _after(chain)

    def in_flight_on(stage: Array) -> PerPlan:
        """Return the microbatches in flight on a stage; stages count from the end, the last one is 1."""
        return in_flight(choices.pp - stage.astype(choices.pp.dtype), costs)

    sends = sends_of(costs, costs.stack.mean_stage(choices.pp, jnp.zeros_like(choices.pp)))

    def objective(segments: StageSegments, later: tuple[Array, Array], stage: Array) -> jax.Array:
        """Return what segments cause as stage `stage` from the end, infinite where they do not fit."""
        held = in_flight_on(stage)
        if segments.forward is None:
            return segments.load + held * segments.per_microbatch
        # There is no such segment where the load is infinite; its backward stays a number.
        backward = jnp.where(jnp.isfinite(segments.load), segments.load - segments.forward, jnp.inf)
        position = choices.pp - stage.astype(choices.pp.dtype)
        passes = Passes(segments.forward, backward)
        seconds = through_stage_s(position, passes, Passes(*later), of_model, sends, costs)
        # The closed form of a segment that does not exist is no number.
        return jnp.where((segments.max_in_flight >= held) & jnp.isfinite(backward), seconds, jnp.inf)

    def forward(width: int, stage: Array, least: Array) -> Array:
        # The stage begins among the last `width` layers that leave one layer to each later stage.
        begin = jnp.maximum(num_layers - stage - width + 1, 0)
        segments = tree_map(lambda matrix: jax.lax.dynamic_slice(matrix, (begin, begin), (width, width)), chain)
        following = tree_map(lambda values: jax.lax.dynamic_slice(values, (begin + 1,), (width,))[None], later)
        least_later = jax.lax.dynamic_slice(least, (stage - 1, begin + 1), (1, width))
        worst = jnp.maximum(objective(segments, following, stage), least_later).min(axis=1)
        return jax.lax.dynamic_update_slice(least, worst[None], (stage, begin))

    def scan(width: int, least: Array) -> Array:
        return jax.lax.fori_loop(1, depths.deepest, functools.partial(forward, width), least)

    least = jnp.full((num_layers + 1, num_layers + 1), jnp.inf, chain.load.dtype).at[0, -1].set(0.0)
    widths = [*(width for width in _WIDTHS if width < num_layers), num_layers]
    # A stage has at most num_layers - num_stages + 1 layers.
    narrow = sum((num_layers - depths.fewest + 1 > width).astype(jnp.int32) for width in widths[:-1])
    least = jax.lax.switch(narrow, [functools.partial(scan, width) for width in widths], least)

    def from_layer(layer: Array, stage: Array) -> Array:
        """Return [N] the objective of the worst stage from `layer` on, by the last layer of the first of them."""
        alone = tree_map(lambda matrix: matrix[layer], chain)
        return jnp.maximum(objective(alone, tree_map(lambda values: values[1:], later), stage), least[stage - 1, 1:])

    def end_of(layer: Array, num_stages: Array, allowed: Array) -> jax.Array:
        """Return the end of the first of `num_stages` stages: the allowed one nearest to an equal share."""
        alone = chain.load[layer]
        distance = jnp.where(allowed, jnp.abs(alone - alone[-1] / num_stages.astype(alone.dtype)), jnp.inf)
        return 1 + jnp.argmax(distance <= distance.min() + ties * alone[-1]).astype(jnp.int32)

    worst = from_layer(jnp.int32(0), num_stages)
    step = worst
    if first_s is not None:
        step = worst + first_s
    # Compared values must be computed once: a copy that the compiler fuses elsewhere may round differently.
    worst, step = jax.lax.optimization_barrier((worst, jnp.where(jnp.isfinite(worst), step, jnp.inf)))

    def backward(index: Array, cut: jax.Array) -> jax.Array:
        remaining, layer = num_stages - index, jnp.minimum(cut[index], num_layers - 1)
        at_least_one = jnp.maximum(remaining, 1)
        worst = jax.lax.optimization_barrier(from_layer(layer, at_least_one))
        # The least value is at most that of the slowest stage, up to rounding.
        end = end_of(layer, at_least_one, worst <= jnp.maximum(slowest, worst.min()))
        # Boundaries after the last stage of a plan are the end of the chain.
        return cut.at[index + 1].set(jnp.where(remaining > 0, end, num_layers))

    equal = jnp.where(step <= step.min() * (1.0 + ties), worst, jnp.inf)
    slowest = equal.min() * (1.0 + ties)
    end = end_of(jnp.int32(0), num_stages, equal <= slowest)
    cut = jnp.full(num_layers + 1, num_layers, jnp.int32).at[0].set(0).at[1].set(end)
    cut = jax.lax.fori_loop(1, depths.deepest, backward, cut)
    return cut, jnp.isfinite(step).any()


def _segments(
    costs: StageCosts, layers: Float[Array, "kinds combinations"], usable: Room, least_memory: bool
) -> StageSegments:
    """Return what combinations of layers cost as a stage of one plan."""
    stages = _stage(layers)
    largest = in_flight(xp.zeros_like(costs.choices.pp), costs)
    counts = (xp.zeros_like(largest), largest)
    empty, full = (costs.memory(stages, count).peak_bytes for count in counts)
    if least_memory:
        return StageSegments(empty, None, (full - empty) / largest, None)
    max_in_flight = _max_in_flight(empty, (full - empty) / largest, usable.gpu)
    if costs.uses_host:
        empty, full = (costs.host_bytes(stages, count) for count in counts)
        max_in_flight = xp.minimum(max_in_flight, _max_in_flight(empty, (full - empty) / largest, usable.host))
    forward_s, _ = costs.passes_s
    return StageSegments(costs.load_s(stages), over_layers(stages.layers, forward_s), None, max_in_flight)


def _max_in_flight(empty: PerPlan, per_microbatch: PerPlan, usable: PerPlan) -> PerPlan:
    """Return the microbatches in flight that fit, from the bytes without any and those of each."""
    growing, unlimited = per_microbatch > 0, xp.full_like(empty, np.inf)
    most = (usable - empty) / xp.where(growing, per_microbatch, xp.ones_like(empty))
    return xp.where(growing, most, xp.where(empty <= usable, unlimited, -unlimited))


def _chain(costs: StageCosts, contents: Contents, usable: Room, least_memory: bool) -> StageSegments:
    """Return all segments of the chain of one plan by first and last layer; infinite where there is none."""

    def of_segments(values: Array) -> Array:
        return jnp.concatenate([values, jnp.full_like(values[:1], jnp.inf)])[contents.of_segment]

    return tree_map(of_segments, _segments(costs, contents.layers, usable, least_memory))


def _after(chain: StageSegments) -> tuple[Passes, tuple[Float[Array, "boundaries"], Float[Array, "boundaries"]]]:
    """Return the passes of a microbatch through the chain, and forward and backward from each layer on."""
    if chain.forward is None:
        return Passes(0.0, 0.0), (jnp.zeros(len(chain.load) + 1), jnp.zeros(len(chain.load) + 1))
    forward, load = (jnp.append(part[:, -1], 0.0) for part in (chain.forward, chain.load))
    return Passes(forward[0], load[0] - forward[0]), (forward, load - forward)


def of_first_stage_s(costs: StageCosts, contents: Contents) -> Float[ArrayLike, "layers *plans"]:
    """Return the seconds that a first stage adds to the end of a step, by its last layer."""
    ends = contents.layers[:, contents.of_segment[0]]
    first = _stage(ends.reshape(*ends.shape, *[1] * np.ndim(costs.choices.pp)))
    return sum(costs.reduction_and_update_s(first))


def _stage(layers: Float[Array, "kinds *combinations"]) -> Stage:
    return Stage(jnp.zeros_like(layers[0]), dict(enumerate(layers)), even=False)


TILE = 16  # plans side by side: their segments fit into the cache of a core
_TILES = 64  # of a call


def scanned_cuts(
    problem: Problem, table: KeyCosts, rows: Rows, dtype: type, least_memory: bool
) -> tuple[Cuts, PlanBools]:
    """Return the optimal cuts of rows, and which of them fit.

    The cut of a row that fits with none is arbitrary. With `least_memory` it is the one of least memory for all rows.
    """
    contents = chain_contents(problem.workload.stack)
    contents = Contents(contents.layers.astype(dtype), contents.of_segment)
    order = np.argsort(rows.choices["pp"], kind="stable")
    float64 = dtype is np.float64
    no_cuts = np.zeros((0, contents.of_segment.shape[0] + 1), np.int32)
    parts: list[tuple[np.ndarray, np.ndarray]] = [(no_cuts, np.zeros(0, dtype=bool))]
    length = TILE * _TILES
    for start in range(0, len(order), length):
        of_call = order[start : start + length]
        with jax.enable_x64(float64):
            padded = rows.take(pad(of_call, length))
            plans, workload = plans_of(problem, table, padded, dtype)
            stages = padded.choices["pp"].reshape(-1, TILE).astype(np.int32)
            depths = Depths(stages.min(axis=1), stages.max(axis=1))
            filled_tiles = np.int32(-(-len(of_call) // TILE))
            first_s = None
            if not least_memory:
                alone, _ = plans_of(problem, table, rows.take(of_call), dtype)
                first_s = pad(_first_s(alone, workload, contents), length)
            call = _CallTiles(plans, depths, first_s, filled_tiles)
            cuts, fits = _best_cuts(call, workload, contents, least_memory)
        parts.append((np.asarray(cuts)[: len(of_call)], np.asarray(fits)[: len(of_call)]))
    back = np.argsort(order, kind="stable")
    cuts, fits = (np.concatenate(columns)[back] for columns in zip(*parts, strict=True))
    return cuts, fits


@xp.unchecked
def _first_s(plans: Plans, workload: Workload, contents: Contents) -> Float[np.ndarray, "layers plans"]:
    return np.asarray(of_first_stage_s(stage_costs(plans, workload), contents))


class _CallTiles(NamedTuple):
    """The tiles of a call."""

    plans: Plans
    depths: Depths
    first_s: Float[Array, "layers plans"] | None  # as `of_first_stage_s`
    filled_tiles: np.int32  # the others are padding


@functools.partial(jax.jit, static_argnames="least_memory", compiler_options=COMPILER)
def _best_cuts(
    call: _CallTiles, workload: Workload, contents: Contents, least_memory: bool
) -> tuple[Int[jax.Array, "plans layers+1"], Bool[jax.Array, "plans"]]:
    def best(plan: Plans, first_s: Array | None, stages: Depths) -> tuple[jax.Array, jax.Array]:
        usable = room(plan.cluster, plan.assumptions, plan.choices.num_gpus)
        return boundaries(stage_costs(plan, workload), contents, usable, stages, first_s, least_memory)

    @jax.jit  # traced once for its shapes and its values
    def tile(*of_tile: Any) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(best, in_axes=(-1, -1, None))(*of_tile)

    def empty(*of_tile: Any) -> tuple[jax.Array, jax.Array]:
        return tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(tile, *of_tile))

    def filled(numbered: tuple[jax.Array, tuple[object, ...]]) -> tuple[jax.Array, jax.Array]:
        number, of_tile = numbered
        return jax.lax.cond(number < call.filled_tiles, tile, empty, *of_tile)

    # The rows of a tile are the last axis. The tiles become the first axis, which `map` runs over.
    tiles = tree_map(
        lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], -1, TILE), -2, 0), (call.plans, call.first_s)
    )
    of_tiles = jax.lax.map(filled, (jnp.arange(_TILES, dtype=jnp.int32), (*tiles, call.depths)))
    return tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), of_tiles)
