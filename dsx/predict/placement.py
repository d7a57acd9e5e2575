"""Where the ranks of a measured setup lie: as Megatron-LM numbers them, tp innermost, then cp, dp and pp.

Run tables name no placement. Where the degrees of a job do not fill a domain, 64 of 72, the rest is left to other jobs.
"""

from collections.abc import Collection, Sequence

import numpy as np

from dsx.runs.setups import Setup
from dsx.space.choices import MODEL_AXES
from dsx.space.experts import expert_share
from dsx.space.placement import fill_in_order
from dsx.space.tiers import ORDERS, axes_in

PLACED = tuple(axis for axis in axes_in(ORDERS[0]) if axis != "tp2")  # which no run table has


def key_columns(setups: Sequence[Setup], expert_axes: Collection[str]) -> dict[str, np.ndarray]:
    """Return the columns of a shard key for each of [N] setups; `expert_axes` divide experts beside ep."""
    ones = np.ones(len(setups))
    columns = {axis: np.array([getattr(setup, axis, 1) for setup in setups]) for axis in MODEL_AXES}
    placed = [shares(setup) for setup in setups]
    columns |= {f"{axis}_nvs": np.array([one.get(axis, 1) for one in placed]) for axis in (*MODEL_AXES, "dp")}
    columns["ep_nvs"] = expert_share(columns, expert_axes)
    return columns | {"panels": ones, "microbatch_size": np.array([setup.microbatch_size for setup in setups])}


def shares(setup: Setup) -> dict[str, int]:
    """Return how many members of each axis share a fast domain: the most that fit and divide its degree."""
    return fill_in_order({axis: getattr(setup, axis) for axis in PLACED}, setup.cluster.network.nvs.size)
