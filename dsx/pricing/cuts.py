"""Best cuts of rows, and result rows: candidates as columns, from keys, choices and costs.

A row with one chunk per stage has its optimal cut (`dsx.pricing.optimal_cut`). One with several has the best of three:
balanced chunks, balanced stages, and the even cut. Chunk c of stage i is interval c p + i of the chain (embedding,
body, head), of at least one layer. Balanced cuts are made in two steps:

* The least seconds T of the largest chunk. Only sums of layers count, so a fill is exact: each chunk in turn takes as
  many layers as a bound allows. A fill that succeeds attains an upper bound of T; of one that fails, the smallest chunk
  with one more layer is a lower bound. They meet at a value that a cut has.
* Of the cuts that keep T, each chunk in turn gets what is nearest to an equal share of what its stage lacks of the mean
  stage, and leaves the later chunks no more than they can hold.

Without the bound T the second step balances stages alone. Neither cut need be the optimal one: the critical path of
interleaved 1F1B depends on more than chunks and stages (`dsx.schedules.closed_forms`), and memory does not enter.
`benchmarks/balanced_cuts.py` compares the better of them with all cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Cuts, PerPlan, PlanBools, PlanFloats, PlanInts, Rounds
from dsx.config.model_file import has_experts
from dsx.cost.context import StepCosts
from dsx.cost.cut_bounds import ROUNDING, CutBounds
from dsx.cost.interval import Room, StepInterval, plan_facts, room, sources_like, step_interval, thinness
from dsx.cost.stages import Stack
from dsx.cost.step import Workload, pipeline_at
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import NUM_STAGES, in_every_pass
from dsx.plans.choices import CHOICE_COLUMNS, CODES, KEY_COLUMNS
from dsx.plans.enumerate import Arrays, Keys, candidate_ids, distinct_rows
from dsx.plans.layer_layout import LAYOUT, starts
from dsx.plans.rules import Limits
from dsx.plans.violations import HOST_MEMORY, MEMORY
from dsx.pricing.keys import KeyCosts
from dsx.pricing.probe import probed_cuts
from dsx.pricing.problem import Plans, Problem, none_priced, price, stage_costs
from dsx.pricing.row_costs import MANY, PlanCosts, Rows, machines, plans_of, price_rows
from dsx.records import Float, Int, Over, tree_map

_ROUNDING = 1e-12  # a sum of layers in another order may be larger by this
_WHOLE = 1e-9  # numbers of layers closer to an integer are it


@dataclass(frozen=True)
class RunChains:
    """The chains of plans of one model: runs of equal layers, first to last."""

    counts: Float[np.ndarray, "runs"]
    seconds: Float[np.ndarray, "runs plans"]  # of a microbatch on one layer

    @property
    def num_layers(self) -> float:
        """Layers of the chain."""
        return float(self.counts.sum())

    def before(self, layers: PlanFloats) -> PlanFloats:
        """Return the seconds of the first `layers` layers."""
        of_runs = np.minimum(np.maximum(layers - self._first_layers, 0.0), self.counts[:, None])
        return (of_runs * self.seconds).sum(axis=0)

    def within(self, seconds: PlanFloats) -> PlanFloats:
        """Return how many of the first layers take `seconds`, with the fraction of the last one."""
        of_runs = np.maximum((seconds - self._first_seconds) / self.seconds, 0.0)
        return np.minimum(of_runs, self.counts[:, None]).sum(axis=0)

    @cached_property
    def _first_layers(self) -> Float[np.ndarray, "runs 1"]:
        """Layers before each run."""
        return (np.cumsum(self.counts) - self.counts)[:, None]

    @cached_property
    def _first_seconds(self) -> Float[np.ndarray, "runs plans"]:
        """Seconds before each run."""
        of_runs = self.counts[:, None] * self.seconds
        return np.concatenate([np.zeros_like(of_runs[:1]), np.cumsum(of_runs[:-1], axis=0)])


class _Fill(NamedTuple):
    boundaries: Float[np.ndarray, "boundaries plans"]  # of the chunks; after the last one the last boundary
    largest: PlanFloats  # seconds of the largest chunk
    exceeded: PlanFloats  # seconds of the smallest chunk with the layer that the bound kept out


def chain_of(stack: Stack, seconds: Sequence[PerPlan]) -> RunChains:
    """Return the chains of plans from the seconds of a microbatch on a layer of each kind.

    Kinds that alternate count as their mix.
    """
    inner = zip(stack.segments, stack.counts, strict=True)
    runs = [*[((kind,), (1.0,)) for kind in stack.first], *inner, *[((kind,), (1.0,)) for kind in stack.last]]
    of_layers = [
        sum(count * seconds[kind] for kind, count in zip(kinds, counts, strict=True)) / sum(counts)
        for kinds, counts in runs
    ]
    return RunChains(np.array([sum(counts) for _, counts in runs]), np.stack(np.broadcast_arrays(*of_layers)))


def balanced_cuts(chain: RunChains, pp: PlanInts, vpp: PlanInts, largest_s: PlanFloats) -> Cuts:
    """Return cuts of which no chunk takes longer than `largest_s`, which some cut keeps.

    Every plan has at least as many layers as chunks.
    """
    chunks = (pp * vpp).astype(np.float64)
    allowed = largest_s * (1.0 + _ROUNDING)
    earliest = _earliest(chain, chunks, allowed)
    plan, start = np.arange(len(pp)), np.zeros_like(chunks)
    held = np.zeros((int(pp.max(initial=1)), len(pp)))  # seconds that stages hold in any cut: the last the last layer
    held[pp - 1, plan] = np.where(vpp > 1, chain.seconds[-1], 0.0)
    # An equal share of the chain, or of the other stages if the last layer leaves them less.
    total = chain.before(np.full(len(pp), chain.num_layers))
    forced = chain.seconds[-1] + (vpp - 1) * chain.seconds.min(axis=0)
    of_stage = np.where(forced > total / pp, (total - forced) / np.maximum(pp - 1, 1), total / pp)
    boundaries = np.full((int(chain.num_layers) + 1, len(pp)), int(chain.num_layers))
    for chunk in range(int(chunks.max(initial=0))):
        boundaries[chunk] = start
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
    return boundaries.T


def least_largest_chunk_s(chain: RunChains, chunks: PlanFloats) -> PlanFloats:
    """Return the least seconds of the largest of `chunks` chunks of at least one layer each, over all cuts."""
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


def _fill(chain: RunChains, chunks: PlanFloats, bound: PlanFloats) -> _Fill:
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


def _earliest(chain: RunChains, chunks: PlanFloats, allowed: PlanFloats) -> Float[np.ndarray, "boundaries plans"]:
    """Return the earliest boundaries from which the later chunks hold all remaining layers."""
    stop = np.full_like(chunks, chain.num_layers)
    boundaries = [stop]
    for chunk in reversed(range(int(chunks.max(initial=0)))):
        fewest = np.ceil(chain.within(chain.before(stop) - allowed) - _WHOLE)
        stop = np.where(chunk < chunks, np.maximum(fewest, chunk), stop)
        boundaries.append(stop)
    return np.stack(boundaries[::-1])


def _farthest(chain: RunChains, seconds: PlanFloats) -> PlanFloats:
    """Return how many of the first layers are done within `seconds`."""
    return np.floor(chain.within(seconds) + _WHOLE)


def even_cuts(limits: Limits, pp: PlanInts, vpp: PlanInts) -> tuple[Cuts, PlanBools]:
    """Return the even cuts, and which plans have one (`dsx.cost.stages`)."""
    chain, chunks = limits.chain, (pp * vpp)[:, None]
    counted = (chain.body % chunks != 0).astype(np.int64)  # layers that embedding and head count as
    number = np.arange(chain.num_layers + 1)
    inner = chain.first - counted + number * ((chain.body + 2 * counted) // chunks)
    cuts = np.where(number == 0, 0, np.where(number < chunks, inner, chain.num_layers))
    return cuts, limits.divides(pp * vpp)


# What the seconds of a pipeline do not depend on, but for the number of microbatches.
_OF_REPLICAS = ("num_gpus", "global_batch_size")
_OF_REDUCTIONS = ("dp", "dp_nvs", "zero_stage", "zero_replicas")  # nor on these, but for reductions in every pass


def chunk_cuts(problem: Problem, table: KeyCosts, rows: Rows) -> tuple[Over[Cuts, "... cuts"], Int[np.ndarray, "cuts"]]:
    """Return the cuts of rows, several of each, and the row of each."""
    pp, vpp = rows.choices["pp"], rows.choices["vpp"]
    of_chunks, of_stages = _balanced_cuts(problem, table, rows)
    even, divides = even_cuts(problem.limits(), pp, vpp)
    exists = np.stack([np.ones_like(divides), (of_stages != of_chunks).any(axis=1), divides])
    return np.stack([of_chunks, of_stages, even])[exists], np.nonzero(exists)[1]


def chunk_pipelines_s(problem: Problem, table: KeyCosts, rows: Rows) -> PlanFloats:
    """Return the least seconds of the pipeline of a row with one of its cuts, whether or not it fits."""
    reduce = [any(in_every_pass(stage, way) for way in (FORWARD, BACKWARD)) for stage in range(NUM_STAGES)]
    in_passes = np.array(reduce)[rows.choices["zero_stage"]]
    columns = {
        name: np.where(in_passes, column, -1) if name in _OF_REDUCTIONS else column
        for name, column in rows.choices.items()
        if name not in _OF_REPLICAS
    }
    first, which = distinct_rows(np.stack([rows.points, rows.positions, *columns.values()], axis=1))
    distinct = rows.take(first)
    cuts, row = chunk_cuts(problem, table, distinct)
    pp, vpp = distinct.choices["pp"][row], distinct.choices["vpp"][row]
    order = np.lexsort((pp, vpp))  # rows that are priced together have about as many chunks and stages
    least_s = np.full(len(first), np.inf)
    for start in range(0, len(order), _AT_ONCE):
        part = order[start : start + _AT_ONCE]
        plans, workload = plans_of(problem, table, distinct.take(row[part]))
        boundaries = rounds_of(cuts[part], pp[part], vpp[part]).astype(np.float64)
        seconds = pipeline_at(stage_costs(plans, workload), boundaries).step_s
        np.minimum.at(least_s, row[part], seconds)
    return least_s[which]


def rounds_of(cuts: Cuts, pp: PlanInts, vpp: PlanInts) -> Rounds:
    """Return the boundaries of rounds of chunks of cuts; the chunks that a cut lacks are empty."""
    first = pp[:, None] * np.arange(vpp.max())
    stage = np.minimum(np.arange(pp.max() + 1), pp[:, None])
    at = np.minimum(first[:, :, None] + stage[:, None, :], (pp * vpp)[:, None, None])
    return np.take_along_axis(cuts[:, None], at, axis=2).transpose(1, 2, 0)


@xp.unchecked
def _balanced_cuts(problem: Problem, table: KeyCosts, rows: Rows) -> tuple[Cuts, Cuts]:
    """Return the cuts that balance chunks before stages, and those that balance stages alone."""
    plans, workload = plans_of(problem, table, rows)
    chain = chain_of(workload.stack, stage_costs(plans, workload).forward_backward_s)
    pp, vpp = rows.choices["pp"], rows.choices["vpp"]
    first, which = distinct_rows(np.vstack([chain.seconds, pp, vpp]).T)
    chain, pp, vpp = replace(chain, seconds=chain.seconds[:, first]), pp[first], vpp[first]
    least = least_largest_chunk_s(chain, (pp * vpp).astype(np.float64))
    twice = replace(chain, seconds=np.tile(chain.seconds, 2)), np.tile(pp, 2), np.tile(vpp, 2)
    cuts = balanced_cuts(*twice, np.concatenate([least, np.full_like(least, np.inf)]))
    of_chunks, of_stages = np.split(cuts, 2)
    return of_chunks[which], of_stages[which]


_AT_ONCE = 1 << 10  # rows that are priced together: the costs of their stages fit into the cache of a core

# The cut that is best for a row: of those that fit the fastest, the one of least memory, or that if none fits.
Goal = Literal["fastest", "least memory", "fastest, else least memory"]


class Priced(NamedTuple):
    """The costs of rows as NumPy arrays, and their cuts: chunk c of stage i is interval c p + i of the chain."""

    costs: PlanCosts
    cuts: Cuts


def price_best_cuts(
    problem: Problem, table: KeyCosts, rows: Rows, goal: Goal = "fastest, else least memory", float64: bool = True
) -> Priced:
    """Find and price the best cut of rows, in float64 or float32.

    With the goal "fastest" the costs of a row that fits with no cut are infinite.
    """
    dtype = np.float64 if float64 else np.float32
    several = rows.choices["vpp"] > 1
    if not several.any():
        return _optimal(problem, table, rows, goal, dtype)
    which = np.flatnonzero(~several), np.flatnonzero(several)
    of_one = _optimal(problem, table, rows.take(which[0]), goal, dtype)
    of_several = _of_chunks(problem, table, rows.take(which[1]), goal, dtype)
    back = np.argsort(np.concatenate(which))
    return tree_map(lambda *columns: np.concatenate(columns)[back], of_one, of_several)


def price_cuts(problem: Problem, table: KeyCosts, rows: Rows, cuts: Cuts, dtype: type = np.float64) -> Priced:
    """Price rows with the given cuts."""
    pp, vpp = rows.choices["pp"], rows.choices["vpp"]
    if len(pp) >= MANY and (vpp == 1).all():
        from dsx.pricing.compiled import price_tiles

        return Priced(price_tiles(problem, table, rows, cuts, dtype), cuts)
    order = np.lexsort((pp, vpp))  # rows that are priced together have about as many chunks and stages
    parts = [none_priced(dtype is np.float64)]
    for start in range(0, len(order), _AT_ONCE):
        part = order[start : start + _AT_ONCE]
        parts.append(price_chunks(problem, table, rows.take(part), rounds_of(cuts[part], pp[part], vpp[part]), dtype))
    back = np.argsort(order)
    return Priced(tree_map(lambda *columns: np.concatenate(columns)[back], *parts), cuts)


def price_chunks(
    problem: Problem, table: KeyCosts, rows: Rows, boundaries: Rounds, dtype: type = np.float64
) -> PlanCosts:
    """Price rows with the given chunks."""
    plans, workload = plans_of(problem, table, rows, dtype)
    return price(plans, workload, boundaries, dtype is np.float64)


def boundaries_of(layers: Sequence[int], pp: int) -> Int[np.ndarray, "rounds {pp+1}"]:
    """Return the boundaries of rounds of chunks with these numbers of layers, as a layout lists them."""
    ends = np.array(starts(layers))
    return np.stack([ends[first : first + pp + 1] for first in range(0, len(layers), pp)])


def _optimal(problem: Problem, table: KeyCosts, rows: Rows, goal: Goal, dtype: type) -> Priced:
    """Price the optimal cuts of rows with one chunk per stage."""
    num_rows = len(rows.positions)
    cuts, fits = np.zeros((num_rows, int(problem.workload.stack.num_layers) + 1), np.int32), np.zeros(num_rows, bool)
    if goal != "least memory":
        if num_rows >= MANY:
            from dsx.pricing.compiled import of_row_tiles

            least_bytes = of_row_tiles(_least_bytes, problem, table, rows)
        else:
            least_bytes = np.zeros(num_rows)
            for start in range(0, num_rows, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                least_bytes[part] = _least_bytes(*plans_of(problem, table, rows.take(part)))
        at = np.flatnonzero(np.asarray(least_bytes * (1.0 - ROUNDING) <= np.asarray(_room(problem, rows).gpu)))
        cuts[at], fits[at] = _optimal_cuts(problem, table, rows.take(at), least_memory=False)
    if goal != "fastest":
        at = np.flatnonzero(~fits)
        cuts[at], _ = _optimal_cuts(problem, table, rows.take(at), least_memory=True)
    priced = price_cuts(problem, table, rows, cuts, dtype)
    return _finite_where(fits, priced) if goal == "fastest" else priced


def _least_bytes(plans: Plans, workload: Workload) -> PerPlan:
    """Return what the fullest GPU needs at least, bytes; `dsx.cost.cut_bounds` says why."""
    return CutBounds(stage_costs(plans, workload)).peak_bytes


def _room(problem: Problem, rows: Rows) -> Room:
    return room(*machines(problem, rows.points), rows.choices["num_gpus"].astype(np.float64))


def _optimal_cuts(problem: Problem, table: KeyCosts, rows: Rows, least_memory: bool) -> tuple[Cuts, PlanBools]:
    """Return the optimal cuts of rows, and which of them fit."""
    cuts, fits, uncut = probed_cuts(problem, table, rows, least_memory)
    at = np.flatnonzero(uncut)
    if len(at):
        from dsx.pricing.optimal_cut import scanned_cuts

        cuts[at], fits[at] = scanned_cuts(problem, table, rows.take(at), np.float64, least_memory)
    return cuts, fits


def _of_chunks(problem: Problem, table: KeyCosts, rows: Rows, goal: Goal, dtype: type) -> Priced:
    """Price the best of the cuts of rows with several chunks per stage.

    It is the fastest that fits, the first of equals; where none fits, the one that needs least memory.
    """
    usable = tree_map(np.asarray, _room(problem, rows))
    cuts, row = chunk_cuts(problem, table, rows)
    priced = price_cuts(problem, table, rows.take(row), cuts, dtype)
    fits = np.asarray(tree_map(lambda most: most[row], usable).holds(priced.costs))
    step_s = np.where(fits & (goal != "least memory"), priced.costs.step_time_s, np.inf)
    order = np.lexsort((np.where(np.isinf(step_s), priced.costs.peak_bytes, 0.0), step_s, row))
    first = order[np.flatnonzero(np.diff(row[order], prepend=-1))]
    best = tree_map(lambda column: column[first], priced)
    return _finite_where(np.asarray(usable.holds(best.costs)), best) if goal == "fastest" else best


def _finite_where(fits: PlanBools, priced: Priced) -> Priced:
    return priced._replace(costs=tree_map(lambda column: np.where(fits, column, np.inf), priced.costs))


@dataclass(frozen=True, slots=True)
class CandidateCounts:
    """How many candidates a search has, and what it did with them."""

    candidates: int
    feasible: int  # that were priced and fit in memory
    skipped: int = 0  # that a bound of many candidates leaves out
    bounded: int = 0  # that their own bound leaves out
    cut: int = 0  # that got their best cut

    @property
    def priced(self) -> int:
        """The candidates that were looked at one by one."""
        return self.candidates - self.skipped

    @property
    def infeasible(self) -> int:
        """The candidates that were looked at one by one and do not fit in memory."""
        return self.priced - self.bounded - self.feasible

    def plus(self, other: "CandidateCounts") -> "CandidateCounts":
        """Return the sum of two counts."""
        return CandidateCounts(
            *(getattr(self, name) + getattr(other, name) for name in CandidateCounts.__dataclass_fields__)
        )


def column_names(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Return, for each coded column, the names that its codes stand for."""
    return {"strategy": problem.strategies, **CODES}


def candidate_columns(problem: Problem, keys: Keys, positions: PlanInts, choices: Arrays) -> Arrays:
    """Return ``candidate`` and all columns of a plan for rows of keys and choices."""
    count = len(positions)
    columns: Arrays = {name: keys[name][positions] for name in KEY_COLUMNS}
    columns |= {name: choices[name] for name in CHOICE_COLUMNS}
    columns["sequence_length"] = np.full(count, problem.sequence_length)
    columns["candidate"] = candidate_ids(columns, column_names(problem))
    return columns


def cost_columns(costs: PlanCosts) -> Arrays:
    """Return the cost columns of a record."""
    return {name: getattr(costs, name) for name in StepCosts.__dataclass_fields__}


def interval_columns(problem: Problem, num_gpus: PlanInts, step_time_s: PlanFloats) -> Arrays:
    """Return the columns of the prediction interval of step times."""
    assumed = problem.assumptions_spec
    thin = thinness(sources_like(problem.likeness, assumed.trained_on))
    facts = plan_facts(num_gpus, problem.nvs_size, has_experts(problem.model.dimensions), thin)
    interval = step_interval(assumed.interval, step_time_s, facts)
    return {name: getattr(interval, name) for name in StepInterval.__dataclass_fields__}


def result_rows(problem: Problem, keys: Keys, rows: Rows, costs: PlanCosts, cuts: Cuts | None = None) -> Arrays:
    """Return all columns of priced rows, and `point`, the hardware point of each.

    `cuts` are best cuts; they become the column `stage_layers`, the layers of each chunk.
    """
    columns = candidate_columns(problem, keys, rows.positions, rows.choices) | cost_columns(costs)
    columns |= interval_columns(problem, columns["num_gpus"], columns["step_time_s"])
    # Memory, of GPU and host, is all that an enumerated candidate can break.
    usable = room(*machines(problem, rows.points), columns["num_gpus"].astype(np.float64))
    reject = np.zeros(len(rows.points), dtype=np.int64)
    for reason, fits in ((MEMORY, costs.peak_bytes <= usable.gpu), (HOST_MEMORY, costs.host_bytes <= usable.host)):
        reject |= np.where(fits, 0, 1 << problem.reasons.index(reason))
    columns |= {"reject": reject, "point": rows.points}
    return columns if cuts is None else columns | {LAYOUT: np.diff(cuts.astype(np.int16), axis=1)}


def priced_rows(problem: Problem, keys: Keys, table: KeyCosts, rows: Rows) -> Arrays:
    """Return all columns of rows, priced in float64."""
    if problem.optimal_cuts:
        priced = price_best_cuts(problem, table, rows)
        return result_rows(problem, keys, rows, priced.costs, priced.cuts)
    return result_rows(problem, keys, rows, price_rows(problem, table, rows))


def no_rows(problem: Problem, keys: Keys) -> Arrays:
    """Return the columns of `priced_rows` without any row."""
    nothing = np.zeros(0, dtype=np.int64)
    cuts = np.zeros((0, int(problem.workload.stack.num_layers) + 1), np.int16) if problem.optimal_cuts else None
    rows = Rows(nothing, nothing, dict.fromkeys(CHOICE_COLUMNS, nothing))
    return result_rows(problem, keys, rows, none_priced(), cuts)


def joined(parts: Sequence[Over[Arrays, "... _"]]) -> Arrays:
    """Return the rows of several tables as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
