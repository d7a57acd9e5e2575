"""Where the ranks of a measured setup lie: as Megatron-LM numbers them, tp innermost, then cp, dp and pp.

A job takes equally many GPUs of each fast domain. Where its degrees do not fill one, 64 of 72, the rest is left to
other jobs, so that the members of a group lie evenly.
"""

from collections.abc import Collection, Sequence

import numpy as np

from dsx.measured.setups import Setup
from dsx.space.experts import expert_share
from dsx.space.rules import MODEL_AXES

PLACED = ("tp", "cp", "dp", "pp")  # innermost first


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
    left = setup.cluster.network.nvs.size
    found: dict[str, int] = {}
    for axis in PLACED:
        degree = getattr(setup, axis)
        found[axis] = max(share for share in range(1, left + 1) if degree % share == 0)
        left //= found[axis]
    return found
