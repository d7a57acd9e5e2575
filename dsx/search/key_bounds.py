"""Bounds of shard keys: the least seconds of a step of any plan of a key, with any pipeline, schedule and cut.

All GPUs of a job share the work of its step, so no plan of a key is faster than the whole of it on as many GPUs.
"""

import jax
import numpy as np

from dsx.cost.cut_bounds import least_microbatch_s
from dsx.cost.step import Workload
from dsx.pricing.layers import KeyCosts
from dsx.search.space import Space
from dsx.space.expert_nesting import REPLICA_AXES


def key_bounds(space: Space, table: KeyCosts, workload: Workload) -> np.ndarray:
    """Return [U] bounds [s] of the keys of a space at the first hardware point.

    `table` has their [H, U] layer costs, under any values of `recompute`.
    """
    bounds, keys = space.bounds, space.keys
    gpus = np.prod(np.stack([keys[axis] for axis in REPLICA_AXES]), axis=0)
    microbatches = min(bounds.global_batch_size) / keys["microbatch_size"]
    kinds = jax.tree.map(lambda leaf: np.asarray(leaf)[0], table)
    return microbatches * gpus / max(bounds.num_gpus) * least_microbatch_s(kinds, workload.stack, workload.searched)
