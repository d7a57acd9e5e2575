"""Expert parallelism in plans: ep nests inside the other axes.

ep * etp * edp = tp * tp2 * cp * dp, where etp are the axes that divide an expert beside ep. The members of an ep
group are ranks of the others, taken as Megatron-LM numbers them: those that share a fast domain first. So the share
of an ep group is no choice: with r ranks of a domain to nest in it is gcd(ep, r), which divides ep and leaves whole
groups both inside the domains and between them. The domain is filled by the other axes alone.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

Columns = Mapping[str, Any]

REPLICA_AXES = ("tp", "tp2", "cp")  # the axes of a replica that ep may nest in, beside dp


def room(table: Columns, expert_axes: Collection[str], suffix: str = "") -> Any:
    """Return the ranks of a replica that ep may nest in: those of a domain with the suffix ``_nvs``."""
    return math.prod(table[f"{axis}{suffix}"] for axis in REPLICA_AXES if axis not in expert_axes)


def nests(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return whether ep groups divide the ranks that they may span."""
    return room(plan, expert_axes) * plan["dp"] % plan["ep"] == 0


def copies_fit(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return whether the copies of what ZeRO divides are copies of experts too: each has whole ep groups."""
    holders = room(plan, expert_axes) * plan["dp"] // plan["ep"]
    return (plan["ep"] == 1) | (holders % plan["zero_replicas"] == 0)


def expert_share(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return how many members of an ep group share a fast domain."""
    return np.gcd(plan["ep"], room(plan, expert_axes, "_nvs") * plan["dp_nvs"])


def spans(keys: Columns, expert_axes: Sequence[Collection[str]]) -> np.ndarray:
    """Return [3, U] what keys ask of the replicas; `expert_axes` are those of each strategy.

    An ep group spans `whole` replicas or a multiple of them, which divides dp. In a domain it takes `near` of the
    `wide` parts that the replicas there may give: near = gcd(wide, dp_nvs). All are 1 where ep is.
    """
    ep, near = keys["ep"], keys["ep_nvs"]
    if not (ep > 1).any():
        return np.ones((3, len(ep)), dtype=np.int64)
    ranks, share = np.ones_like(ep), np.ones_like(ep)
    for strategy, axes in enumerate(expert_axes):
        here = keys["strategy"] == strategy
        ranks = np.where(here, room(keys, axes), ranks)
        share = np.where(here, room(keys, axes, "_nvs"), share)
    inside = np.gcd(ep, share)
    # No share is less than what the key's own axes give.
    near = np.where(near % inside == 0, near // inside, 0)
    return np.stack([ep // np.gcd(ep, ranks), ep // inside, near])
