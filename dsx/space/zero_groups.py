"""The ranks of ZeRO shard groups and of replica groups, by the rules that `dsx.cost.shards` prices.

The data-parallel ranks are divided into one shard group per ZeRO replica, with as many of its ranks in a domain as
divide both. Ranks of two chains of stages follow each other in a domain that has all stages. The other axes that a
weight is reduced over are in its shard group whole. Of experts, the ranks that hold the same part are divided into
replica groups instead: as many replicas share a domain as of any other weight, but no more than there are holders in
the domain.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx.space.ranks import Keys, RankGrid, divided


class ZeroGroups(NamedTuple):
    """Groups of ranks that reduce the gradients of the same weights, [groups, members] each."""

    shards: np.ndarray  # each member holds a shard
    replicas: np.ndarray  # all members hold the same shard, one of each shard group


def zero_groups(
    grid: RankGrid, axes: Sequence[str], zero_replicas: int = 1, over_ep: bool = False, chains: int = 1
) -> ZeroGroups:
    """Return the groups of weights that are reduced over `axes`, dp among them; `over_ep` and `chains` as in a grid.

    ZeRO stage 0 has one replica. Raises ValueError for axes without dp, if `zero_replicas` does not divide the ranks,
    and as `RankGrid.groups` does.
    """
    if "dp" not in axes:
        raise ValueError(f"weights are reduced over dp too, not over {', '.join(axes)} alone")
    keys = grid.keys(axes, over_ep, chains)
    num_chains = chains if grid.degrees["pp"] > 1 else 1
    ranks = grid.degrees["dp"] * num_chains
    if ranks % zero_replicas:
        raise ValueError(f"zero_replicas={zero_replicas} does not divide {ranks} data-parallel ranks")
    size = ranks // zero_replicas
    position, shares = _of_chains(grid, grid.columns["dp"], keys.chain, grid.held(["dp"]), num_chains)
    sharded = [math.gcd(size, share) for share in shares]
    # Ranks of a shard group that follow each other in a unit: those of both chains if these share it.
    row = math.gcd(size, grid.degrees["dp"])
    rows = [size if share > alone else row for share, alone in zip(shares, grid.held(["dp"]), strict=True)]
    cut = grid.shares[0] != grid.degrees and any(
        own < min(wanted, share) for own, wanted, share in zip(sharded, rows, shares, strict=True)
    )
    if over_ep and grid.ep > 1:
        near = [] if cut else [share // own for share, own in zip(shares, sharded, strict=True)]
        return _of_experts(grid, axes, keys, near, zero_replicas, num_chains)
    held, members = ([ranks * rows[0] // size], rows[:1]) if cut else (shares, sharded)
    replica, shard = divided(position, [*held, ranks], [*members, size])
    holders = keys.divided(shard, size)
    for axis in axes:
        if axis != "dp":
            holders = holders.divided(grid.columns[axis], grid.degrees[axis])
    return ZeroGroups(keys.divided(replica, zero_replicas).rows(), holders.rows())


def _of_experts(
    grid: RankGrid, axes: Sequence[str], keys: Keys, near: Sequence[int], zero_replicas: int, num_chains: int
) -> ZeroGroups:
    """Return the groups of experts; of other weights, `near` replicas are in a domain and in a unit of each tier.

    Where domains cut ep groups or shard groups (`near` is empty), or the numbers of ranks at any place, shard groups
    are consecutive ranks.
    """
    members = keys.rows()
    count = members.shape[1]
    if count % zero_replicas:
        raise ValueError(f"zero_replicas={zero_replicas} does not divide the {count} ranks that hold the same experts")
    position = np.empty(grid.world, dtype=np.int64)
    position[members] = np.arange(count)
    in_chain = count // num_chains
    if grid.ep_in_a_row or not near:
        size = count // zero_replicas
        replica, place = divided(position, [in_chain, count], [math.gcd(size, in_chain), size])
        return ZeroGroups(keys.divided(replica, zero_replicas).rows(), keys.divided(place, size).rows())
    nested = zip(grid.held(axes), grid.held(grid.nesting), strict=True)
    held = [ranks // math.gcd(grid.ep, nesting) for ranks, nesting in nested]
    position, held = _of_chains(grid, position % in_chain, keys.chain, held, num_chains)
    replicas = [math.gcd(holders, most) for holders, most in zip(held, near, strict=True)]
    shard, replica = divided(position, [*held, count], [*replicas, zero_replicas])
    return ZeroGroups(keys.divided(replica, zero_replicas).rows(), keys.divided(shard, count // zero_replicas).rows())


def _of_chains(
    grid: RankGrid, place: np.ndarray, chain: np.ndarray, held: Sequence[int], num_chains: int
) -> tuple[np.ndarray, list[int]]:
    """Return the positions of ranks among all chains, and how many are in a domain and in a unit of each tier.

    `place` is that of each rank in its chain, of which a domain and a unit have as many as `held`. All chains follow
    each other in the innermost one that has all stages, unless domains cut the numbers of ranks at any place.
    """
    in_numbers = grid.shares[0] == grid.degrees
    whole = [shares["pp"] == grid.degrees["pp"] and not in_numbers for shares in grid.shares]
    block = next((ranks for ranks, has_all in zip(held, whole, strict=True) if has_all), int(place.max()) + 1)
    position = place % block + block * (chain + num_chains * (place // block))
    return position, [ranks * (num_chains if has_all else 1) for ranks, has_all in zip(held, whole, strict=True)]
