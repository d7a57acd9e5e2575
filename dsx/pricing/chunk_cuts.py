"""The cuts of rows with several chunks per stage: balanced chunks, balanced stages, and even ones.

The best of them is the cut of a row (`dsx.pricing.balanced_cut` says how far it is from the optimal one).
"""

import numpy as np

from dsx.cost import xp
from dsx.cost.step import pipeline_at
from dsx.graph.nodes import BACKWARD, FORWARD
from dsx.graph.step import NUM_STAGES, in_every_pass
from dsx.pricing.balanced_cut import balanced_cuts, chain_of, even_cuts, least_largest_chunk_s
from dsx.pricing.batch import stage_costs
from dsx.pricing.layers import KeyCosts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows, plans_of

# What the seconds of a pipeline do not depend on, but for the number of microbatches.
_OF_REPLICAS = ("num_gpus", "global_batch_size")
_OF_REDUCTIONS = ("dp", "dp_nvs", "zero_stage", "zero_replicas")  # nor on these, but for reductions in every pass


def chunk_cuts(problem: Problem, table: KeyCosts, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the boundaries [M, L + 1] of the cuts of N rows, and the row of each."""
    pp, vpp = rows.choices["pp"], rows.choices["vpp"]
    of_chunks, of_stages = _balanced_cuts(problem, table, rows)
    even, divides = even_cuts(problem.limits(), pp, vpp)
    there = np.stack([np.ones_like(divides), (of_stages != of_chunks).any(axis=1), divides])
    return np.stack([of_chunks, of_stages, even])[there], np.nonzero(there)[1]


def chunk_pipelines_s(problem: Problem, table: KeyCosts, rows: Rows) -> np.ndarray:
    """Return the [N] least seconds of the pipeline of a row with one of its cuts, whether or not it fits."""
    reduce = [any(in_every_pass(stage, way) for way in (FORWARD, BACKWARD)) for stage in range(NUM_STAGES)]
    in_passes = np.array(reduce)[rows.choices["zero_stage"]]
    columns = {
        name: np.where(in_passes, column, -1) if name in _OF_REDUCTIONS else column
        for name, column in rows.choices.items()
        if name not in _OF_REPLICAS
    }
    first, which = distinct_rows(np.stack([rows.points, rows.positions, *columns.values()], axis=1))
    few = rows.take(first)
    cuts, row = chunk_cuts(problem, table, few)
    pp, vpp = few.choices["pp"][row], few.choices["vpp"][row]
    order = np.lexsort((pp, vpp))  # rows that are priced together have about as many chunks and stages
    found = np.full(len(first), np.inf)
    for start in range(0, len(order), _AT_ONCE):
        here = order[start : start + _AT_ONCE]
        plans, workload = plans_of(problem, table, few.take(row[here]))
        boundaries = rounds_of(cuts[here], pp[here], vpp[here]).astype(np.float64)
        seconds = pipeline_at(stage_costs(plans, workload), boundaries).step_s
        np.minimum.at(found, row[here], seconds)
    return found[which]


def rounds_of(cuts: np.ndarray, pp: np.ndarray, vpp: np.ndarray) -> np.ndarray:
    """Return the [R, S + 1, N] boundaries of R rounds of chunks of cuts; the chunks that a cut lacks are empty."""
    first = pp[:, None] * np.arange(vpp.max())
    stage = np.minimum(np.arange(pp.max() + 1), pp[:, None])
    at = np.minimum(first[:, :, None] + stage[:, None, :], (pp * vpp)[:, None, None])
    return np.take_along_axis(cuts[:, None], at, axis=2).transpose(1, 2, 0)


@xp.unchecked
def _balanced_cuts(problem: Problem, table: KeyCosts, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the cuts that balance chunks before stages, and those that balance stages alone."""
    plans, workload = plans_of(problem, table, rows)
    chain = chain_of(workload.stack, stage_costs(plans, workload).forward_backward_s)
    pp, vpp = rows.choices["pp"], rows.choices["vpp"]
    first, which = distinct_rows(np.vstack([chain.seconds, pp, vpp]).T)
    chain, pp, vpp = chain._replace(seconds=chain.seconds[:, first]), pp[first], vpp[first]
    least = least_largest_chunk_s(chain, (pp * vpp).astype(np.float64))
    twice = chain._replace(seconds=np.tile(chain.seconds, 2)), np.tile(pp, 2), np.tile(vpp, 2)
    both = balanced_cuts(*twice, np.concatenate([least, np.full_like(least, np.inf)]))
    of_chunks, of_stages = np.split(both, 2)
    return of_chunks[which], of_stages[which]


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of each of the distinct rows of an array [N, C], and [N] which of them each row is."""
    # Rows as bytes are sorted several times as fast as rows of numbers.
    rows = np.ascontiguousarray(rows)
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, which
