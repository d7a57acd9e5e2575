"""Rank numbers: the coordinates of each rank of a plan, and the ranks of every group, those of ZeRO included.

Ranks are numbered as a mixed radix. The innermost digits are the members of each axis in a fast domain, in the rank
order of the plan (`dsx.plans.placement.ORDERS`); the outer digits are its domains, in the same order. So the ranks of a
domain are consecutive. Where the shares fill domains in rank order, this is the numbering of the launcher. Where a
share does not divide its degree, ranks are numbered one axis after the other, and each domain has the next of them.

An ep group nests in the ranks of other axes (`dsx.plans.experts`), which follow each other in it. Of the r such ranks
of a domain, gcd(ep, r) belong to one ep group if that is all of either. The units of outer tiers are divided in the
same way. So a group has as many members in a domain and in a unit as are priced, unless it straddles units
(`dsx.plans.placement.straddling`). Where the edge of a domain cuts ep groups, the one with the fewest members beside it
has as many as are priced.

Groups are arrays of ranks. Members are in the order of their numbers, so they fill domains first.

ZeRO shard groups and replica groups follow the rules that `dsx.cost.groups` prices. The data-parallel ranks are divided
into one shard group per ZeRO replica, with as many of its ranks in a domain as divide both. Ranks of two chains of
stages follow each other in a domain that has all stages. The other axes that a weight is reduced over are in its shard
group whole. Of experts, the ranks that hold the same part are divided into replica groups instead: as many replicas
share a domain as of any other weight, but no more than there are holders in the domain.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsx.errors import PlanError
from dsx.plans.experts import REPLICA_AXES
from dsx.plans.placement import ORDERS, axes_in, choice_shares, key_shares, replica_of, shares_of, used_of_domain
from dsx.records import Int

_PerRank = Int[np.ndarray, "ranks"]
_Groups = Int[np.ndarray, "groups members"]  # of ranks


class Keys(NamedTuple):
    """Which group each rank is in."""

    group: _PerRank
    num_groups: int
    chain: _PerRank  # the chain of stages

    def rows(self) -> _Groups:
        """Return the ranks of each group in the order of their numbers, those of the second chain last."""
        order = np.lexsort((np.arange(len(self.group)), self.chain, self.group))
        return order.reshape(self.num_groups, -1)

    def divided(self, part: _PerRank, num_parts: int) -> "Keys":
        """Return the groups divided into parts, from the part of each rank."""
        return Keys(self.group + self.num_groups * part, self.num_groups * num_parts, self.chain)


@dataclass(frozen=True)
class RankGrid:
    """The ranks of a plan; `rank_grid` makes it."""

    degrees: Mapping[str, int]  # of each axis but ep, the fastest-changing one first
    # Members of each axis in a fast domain, and in a unit of each tier between it and the outermost one; all of them
    # where domains cut the numbers of ranks at any place.
    shares: tuple[Mapping[str, int], ...]
    ranks_per_domain: int  # the last domain may have fewer
    ep: int = 1
    nesting: tuple[str, ...] = ()  # the axes that ep nests in

    @property
    def world(self) -> int:
        """All ranks."""
        return math.prod(self.degrees.values())

    @cached_property
    def columns(self) -> dict[str, _PerRank]:
        """By axis, the place of each rank; along ep, that in its ep group."""
        ranks = np.arange(self.world)
        columns: dict[str, _PerRank] = {}
        for axis, degree in self.degrees.items():
            share, (inner, outer) = self.shares[0][axis], self._strides[axis]
            columns[axis] = ranks // inner % share + share * (ranks // outer % (degree // share))
        return columns | {"ep": self._nested(columns)[1]}

    @property
    def ep_in_a_row(self) -> bool:
        """Whether domains or units cut ep groups, which lie in a row; else each has all of one or as much as fits."""
        cut = self.world > self.ranks_per_domain and self.shares[0] == self.degrees
        return cut or any(math.gcd(self.ep, ranks) < min(self.ep, ranks) for ranks in self.held(self.nesting))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank along each axis; along ep, that in its ep group."""
        return {axis: int(column[rank]) for axis, column in self.columns.items()}

    def rank(self, **coordinates: int) -> int:
        """Return the rank at a place; axes that are left out are 0.

        Raises ValueError for an axis that numbers no ranks, as ep does not, or a place that the axis does not have.
        """
        number = 0
        for axis, place in coordinates.items():
            if not 0 <= place < self.degrees.get(axis, 0):
                raise ValueError(f"{axis}={place} is no place of a rank; the axes are {dict(self.degrees)}")
            share, (inner, outer) = self.shares[0][axis], self._strides[axis]
            number += inner * (place % share) + outer * (place // share)
        return number

    def stage_peer(self, rank: int, stage: int) -> int:
        """Return the rank at the same place on another stage; raises ValueError for a stage that there is not."""
        return rank + self.rank(pp=stage) - self.rank(pp=int(self.columns["pp"][rank]))

    def held(self, axes: Collection[str]) -> list[int]:
        """Return how many ranks of a group over some axes but ep are in a domain, and in a unit of each tier."""
        return [math.prod(shares[axis] for axis in axes) for shares in self.shares]

    def groups(self, axes: Sequence[str], over_ep: bool = False, chains: int = 1) -> _Groups:
        """Return the groups over some axes, or over ep alone.

        With `over_ep`, those of the ranks that hold the same part of the experts; `axes` then include dp and the other
        axes that ep nests in. With two `chains` (`dsx.schedules.order`) the ranks of stages i and p - 1 - i are in
        one group, those of the earlier stage first. Raises ValueError if axes or stages do not allow that.
        """
        return self.keys(axes, over_ep, chains).rows()

    def group_of(self, axes: Sequence[str], over_ep: bool = False, chains: int = 1) -> _PerRank:
        """Return the group of each rank, a row of `groups`."""
        return self.keys(axes, over_ep, chains).group

    def keys(self, axes: Sequence[str], over_ep: bool = False, chains: int = 1) -> Keys:
        """Return which group each rank is in; as `groups`."""
        if unknown := {*axes} - {*self.degrees, *(["ep"] if len(axes) == 1 else [])}:
            raise ValueError(f"there are no groups over {', '.join(axes)}: {', '.join(sorted(unknown))}")
        # Stages of a second chain fold onto those of the first.
        num_stages, stage = self.degrees["pp"], self.columns["pp"]
        chain = np.zeros_like(stage)
        if chains > 1 and num_stages > 1:
            if chains != 2 or num_stages % 2:
                raise ValueError(f"{num_stages} stages do not pair up in {chains} chains")
            second = 2 * stage >= num_stages
            stage, chain = np.where(second, num_stages - 1 - stage, stage), second.astype(np.int64)
            num_stages //= 2
        sizes, columns = {**self.degrees, "pp": num_stages}, {**self.columns, "pp": stage}
        digits = {axis: columns[axis] for axis in self.degrees if axis not in axes}
        if "ep" in axes:
            groups, _ = self._nested(self.columns)
            digits = {axis: digit for axis, digit in digits.items() if axis not in self.nesting} | {"ep": groups}
            sizes["ep"] = math.prod(self.degrees[axis] for axis in self.nesting) // self.ep
        elif over_ep:
            if missing := [axis for axis in self.nesting if axis not in axes and self.degrees[axis] > 1]:
                raise ValueError(f"the ranks that hold the same experts span {', '.join(missing)} too")
            digits["ep"], sizes["ep"] = columns["ep"], self.ep
        keys = Keys(np.zeros(self.world, dtype=np.int64), 1, chain)
        for axis, digit in digits.items():
            keys = keys.divided(digit, sizes[axis])
        return keys

    def _nested(self, columns: Mapping[str, _PerRank]) -> tuple[_PerRank, _PerRank]:
        """Return the ep group of each rank, among those of the ranks that ep nests in, and its place there."""
        position = np.zeros(self.world, dtype=np.int64)
        inner, outer = 1, self.held(self.nesting)[0]
        for axis in self.nesting:
            share = self.shares[0][axis]
            position += inner * (columns[axis] % share) + outer * (columns[axis] // share)
            inner, outer = inner * share, outer * (self.degrees[axis] // share)
        if self.ep_in_a_row:
            return position // self.ep, position % self.ep
        held = [*self.held(self.nesting), outer]
        return divided(position, held, [math.gcd(self.ep, ranks) for ranks in held])

    @cached_property
    def _strides(self) -> dict[str, tuple[int, int]]:
        """How far apart the members of each axis are: in a domain, and from one domain to the next."""
        inner, outer = 1, math.prod(self.shares[0].values())
        strides: dict[str, tuple[int, int]] = {}
        for axis, degree in self.degrees.items():
            strides[axis] = inner, outer
            inner, outer = inner * self.shares[0][axis], outer * (degree // self.shares[0][axis])
        return strides


def rank_grid(
    plan: Mapping[str, int], nvs_size: int, expert_axes: Collection[str] = (), units: Sequence[int] = ()
) -> RankGrid:
    """Return the ranks of a plan, given by its columns with codes, in fast domains of `nvs_size` GPUs.

    `expert_axes` are the axes that shard experts besides ep. `units` are the domains in a unit of each tier between
    fast domain and outermost tier (`dsx.plans.placement.units`); they decide which ranks form a group where several
    choices are as good for the domains. Raises PlanError if shares are not those of a placement, or ep does not nest.
    """
    axes = axes_in(ORDERS[int(plan["order"])])
    degrees = {axis: int(plan[axis]) for axis in axes}
    inside = {axis: int(share) for axis, share in shares_of(plan, axes).items()}
    uneven = [axis for axis in axes if degrees[axis] % inside[axis]]
    used = used_of_domain(degrees, inside, nvs_size)
    if used is None:
        raise PlanError(
            "; ".join(f"nvs.{axis}={inside[axis]} does not divide {axis}={degrees[axis]}" for axis in uneven)
        )
    nesting = tuple(axis for axis in (*REPLICA_AXES, "dp") if axis not in expert_axes)
    ranks, ep = math.prod(degrees[axis] for axis in nesting), int(plan["ep"])
    if ranks % ep:
        raise PlanError(f"ep={ep} does not divide the {ranks} ranks that it nests in")
    if uneven:
        return RankGrid(degrees, (degrees,) * (1 + len(units)), used, ep, nesting)
    outer = [key_shares(plan, unit, expert_axes) | choice_shares(plan, replica_of(plan), unit) for unit in units]
    shares = (inside, *({axis: int(of_unit[axis]) for axis in axes} for of_unit in outer))
    return RankGrid(degrees, shares, used, ep, nesting)


def divided(position: _PerRank, held: Sequence[int], members: Sequence[int]) -> tuple[_PerRank, _PerRank]:
    """Return the group of each position, and its place there.

    `held` has how many of the consecutive positions are in a domain, in a unit of each tier, and in all; `members` how
    many of them one group has. Raises ValueError if there are no such groups.
    """
    group, place, outer = np.zeros_like(position), np.zeros_like(position), position
    num_groups, taken, inside = 1, 1, 1
    for positions, size in zip(held, members, strict=True):
        width = positions // inside
        of_group = math.gcd(size // taken, width)
        digit, outer, inside = outer % width, outer // width, positions
        group += num_groups * (digit // of_group)
        place += taken * (digit % of_group)
        num_groups, taken = num_groups * (width // of_group), taken * of_group
    if taken != members[-1]:
        raise ValueError(f"{held[-1]} ranks, {held[0]} in a domain, are no groups of {members[-1]}, {members[0]} in it")
    return group, place


class ZeroGroups(NamedTuple):
    """Groups of ranks that reduce the gradients of the same weights."""

    shards: _Groups  # each member holds a shard
    replicas: Int[np.ndarray, "shards holders"]  # all members hold the same shard, one of each shard group


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
        shard < min(ranks_in_row, share) for shard, ranks_in_row, share in zip(sharded, rows, shares, strict=True)
    )
    if over_ep and grid.ep > 1:
        near = [] if cut else [share // shard for share, shard in zip(shares, sharded, strict=True)]
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
    grid: RankGrid, place: _PerRank, chain: _PerRank, held: Sequence[int], num_chains: int
) -> tuple[_PerRank, list[int]]:
    """Return the positions of ranks among all chains, and how many are in a domain and in a unit of each tier.

    `place` is that of each rank in its chain, of which a domain and a unit have as many as `held`. All chains follow
    each other in the innermost one that has all stages, unless domains cut the numbers of ranks at any place.
    """
    in_numbers = grid.shares[0] == grid.degrees
    have_stages = [shares["pp"] == grid.degrees["pp"] and not in_numbers for shares in grid.shares]
    block = next((ranks for ranks, has_all in zip(held, have_stages, strict=True) if has_all), int(place.max()) + 1)
    position = place % block + block * (chain + num_chains * (place // block))
    return position, [ranks * (num_chains if has_all else 1) for ranks, has_all in zip(held, have_stages, strict=True)]
