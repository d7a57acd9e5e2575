"""Bounds of shard keys: the least seconds of a step of any plan of a key, with any pipeline, schedule and cut.

All GPUs of a job share the work of its step, so no plan of a key is faster than the whole of it on as many GPUs.
"""

import math

import jax
import numpy as np

from dsx.cost.cut_bounds import least_microbatch_s
from dsx.cost.step import Workload
from dsx.pricing.layers import KeyCosts
from dsx.search.row_groups import ranks
from dsx.search.space import Space
from dsx.space.enumerate import Arrays
from dsx.space.expert_nesting import REPLICA_AXES

_SCOUTS = 16  # keys of each microbatch size
_SHARES = (1 / 16, 1 / 4)  # of the other keys


def key_bounds(space: Space, table: KeyCosts, workload: Workload) -> np.ndarray:
    """Return [U] bounds [s] of the keys of a space at the first hardware point.

    `table` has their [H, U] layer costs, under any values of `recompute`.
    """
    bounds, keys = space.bounds, space.keys
    gpus = np.prod(np.stack([keys[axis] for axis in REPLICA_AXES]), axis=0)
    microbatches = min(bounds.global_batch_size) / keys["microbatch_size"]
    kinds = jax.tree.map(lambda leaf: np.asarray(leaf)[0], table)
    return microbatches * gpus / max(bounds.num_gpus) * least_microbatch_s(kinds, workload.stack, workload.searched)


def shares_of(keys: Arrays, bounds: np.ndarray) -> list[np.ndarray]:
    """Return the shares of [U] keys that are searched one after the other until the seconds of fast plans are known.

    The first one has keys of each microbatch size, those of least `bounds` [U]; the others have all other keys, those
    of least bounds first. Keys of large microbatches have the least bounds of all, but slow plans: much of few
    microbatches is bubble.
    """
    order = np.lexsort((bounds, keys["microbatch_size"]))
    scouts = ranks(keys["microbatch_size"][order]) < _SCOUTS
    others = order[~scouts]
    others = others[np.argsort(bounds[others], kind="stable")]
    return [order[scouts], *np.split(others, [math.ceil(share * len(others)) for share in _SHARES])]
