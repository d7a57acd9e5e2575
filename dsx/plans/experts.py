"""Expert parallelism in plans: ep nests inside the other axes.

ep * etp * edp = tp * tp2 * cp * dp, where etp is the product of the other axes that shard an expert. The members of an
ep group are ranks of the other axes that follow each other, as Megatron-LM numbers them. So the other axes alone fill a
domain, and the share of an ep group follows: with r ranks of a domain to nest in, it is gcd(ep, r). Where one of both
divides the other, each domain has whole groups, or a group whole domains. Else groups begin at any multiple of
gcd(ep, r) in a domain, the edge of a domain cuts some, and the worst-placed one has so many members on one side: of
ep=32 on 72 ranks a group has 8 in one domain and 24 in the next.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dsx.records import Bool, Int

Whole = int | Int[np.ndarray, "*#plans"]  # a whole number of one plan, or of each of many
Truth = bool | Bool[np.ndarray, "*#plans"]
W = TypeVar("W", bound=int | np.ndarray)
Columns = Mapping[str, Whole]  # one plan or many by column, names as codes

REPLICA_AXES = ("tp", "tp2", "cp")  # the axes of a replica that ep may nest in; it may nest in dp too


def nesting_ranks(table: Mapping[str, W], expert_axes: Collection[str], suffix: str = "") -> W:
    """Return the ranks of a replica that ep may nest in; with the suffix ``_nvs``, those of one fast domain."""
    shares = (table[f"{axis}{suffix}"] for axis in REPLICA_AXES if axis not in expert_axes)
    return math.prod(shares)  # pyright: ignore[reportReturnType]


def nests(plan: Columns, expert_axes: Collection[str]) -> Truth:
    """Return whether ep divides the ranks that it may nest in."""
    return nesting_ranks(plan, expert_axes) * plan["dp"] % plan["ep"] == 0


def zero_replicas_nest(plan: Columns, expert_axes: Collection[str]) -> Truth:
    """Return whether each ZeRO replica holds whole ep groups, so that it is a replica of the experts too."""
    holders = nesting_ranks(plan, expert_axes) * plan["dp"] // plan["ep"]
    return (plan["ep"] == 1) | (holders % plan["zero_replicas"] == 0)


def share_of_shares(keys: Columns, expert_axes: Collection[str], replicas: Whole) -> Int[np.ndarray, "*#plans"]:
    """Return the members that an ep group has in a fast domain with so many `replicas`, as the shares tell."""
    return np.gcd(keys["ep"], nesting_ranks(keys, expert_axes, "_nvs") * replicas)


def share_of_row(keys: Columns, expert_axes: Collection[str], size: int) -> Int[np.ndarray, "*#plans"]:
    """Return the fewest members that an ep group has among `size` consecutive ranks of a job."""
    stride: Whole = 1  # ranks from one member to the next
    nested: Whole = 1
    apart: Truth = False  # whether members do not have the same number of ranks between them
    for axis in REPLICA_AXES:
        if axis in expert_axes:
            stride, apart = stride * keys[axis], apart | ((nested > 1) & (keys[axis] > 1))
        else:
            nested = nested * keys[axis]
    return np.where(apart | (size % stride != 0), 1, np.gcd(keys["ep"], np.maximum(size // stride, 1)))


def ep_constraints(
    keys: Mapping[str, Int[np.ndarray, "keys"]], expert_axes: Sequence[Collection[str]], size: int | None = None
) -> Int[np.ndarray, "4 keys"]:
    """Return what the ep groups of keys require of the replicas: `whole`, `wide`, `near`, `in_row`.

    An ep group spans `whole` replicas, and dp is a multiple of them. Inside a domain it consists of up to `wide` parts
    of one replica each, and takes `near` = gcd(wide, dp_nvs) of them. Where the shares do not tell the ranks of a
    domain of `size` GPUs, that is `in_row` instead: 1 if the group has its share of so many consecutive ranks. All are
    1 where ep is 1. `expert_axes` has the axes of each strategy. Without a size, the shares always tell.
    """
    ep, near = keys["ep"], keys["ep_nvs"]
    if not (ep > 1).any():
        return np.ones((4, len(ep)), dtype=np.int64)
    ranks, share, row = (np.ones_like(ep) for _ in range(3))
    for strategy, axes in enumerate(expert_axes):
        of_strategy = keys["strategy"] == strategy
        ranks = np.where(of_strategy, nesting_ranks(keys, axes), ranks)
        share = np.where(of_strategy, nesting_ranks(keys, axes, "_nvs"), share)
        row = np.where(of_strategy, near if size is None else share_of_row(keys, axes, size), row)
    inside = np.gcd(ep, share)
    # No placement whose shares tell the ranks of a domain has a share that is no multiple.
    replicas = np.where(near % inside == 0, near // inside, 0)
    return np.stack([ep // np.gcd(ep, ranks), ep // inside, replicas, near == row])
