"""Expert parallelism in plans: ep nests inside the other axes.

ep * etp * edp = tp * tp2 * cp * dp, where etp is the product of the other axes that shard an expert. The members of an
ep group are ranks of the other axes. Megatron-LM numbers ranks of one fast domain first, so the share of an ep group
follows: with r ranks of a domain to nest in, it is gcd(ep, r). That divides ep, and leaves whole groups inside the
domains and between them. The other axes alone fill the domain.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

Columns = Mapping[str, Any]

REPLICA_AXES = ("tp", "tp2", "cp")  # the axes of a replica that ep may nest in; it may nest in dp too


def nesting_ranks(table: Columns, expert_axes: Collection[str], suffix: str = "") -> Any:
    """Return the ranks of a replica that ep may nest in; with the suffix ``_nvs``, those of one fast domain."""
    return math.prod(table[f"{axis}{suffix}"] for axis in REPLICA_AXES if axis not in expert_axes)


def nests(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return whether ep divides the ranks that it may nest in."""
    return nesting_ranks(plan, expert_axes) * plan["dp"] % plan["ep"] == 0


def zero_replicas_nest(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return whether each ZeRO replica holds whole ep groups, so that it is a replica of the experts too."""
    holders = nesting_ranks(plan, expert_axes) * plan["dp"] // plan["ep"]
    return (plan["ep"] == 1) | (holders % plan["zero_replicas"] == 0)


def expert_share(plan: Columns, expert_axes: Collection[str]) -> Any:
    """Return how many members of an ep group share a fast domain."""
    return np.gcd(plan["ep"], nesting_ranks(plan, expert_axes, "_nvs") * plan["dp_nvs"])


def ep_constraints(keys: Columns, expert_axes: Sequence[Collection[str]]) -> np.ndarray:
    """Return [3, U] what the ep groups of keys require of the replicas: `whole`, `wide`, `near`.

    An ep group spans `whole` replicas, and dp is a multiple of them. Inside a domain it consists of up to `wide` parts
    of one replica each, and takes `near` = gcd(wide, dp_nvs) of them. All three are 1 where ep is 1. `expert_axes` has
    the axes of each strategy.
    """
    ep, near = keys["ep"], keys["ep_nvs"]
    if not (ep > 1).any():
        return np.ones((3, len(ep)), dtype=np.int64)
    ranks, share = np.ones_like(ep), np.ones_like(ep)
    for strategy, axes in enumerate(expert_axes):
        here = keys["strategy"] == strategy
        ranks = np.where(here, nesting_ranks(keys, axes), ranks)
        share = np.where(here, nesting_ranks(keys, axes, "_nvs"), share)
    inside = np.gcd(ep, share)
    # A share is at least what the axes of the key give.
    near = np.where(near % inside == 0, near // inside, 0)
    return np.stack([ep // np.gcd(ep, ranks), ep // inside, near])
