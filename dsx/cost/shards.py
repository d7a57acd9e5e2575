"""Shard groups, the ranks over which ZeRO divides, and replica groups, the ranks that hold the same shard.

Without hybrid sharding, ZeRO divides over all ranks that hold the same parameters. With `zero_replicas` r above 1
(hybrid sharding) the d data-parallel ranks form r shard groups of d/r ranks, and each shard group holds all of the
divided state. The ranks of a shard group are consecutive, so they fill fast domains first: of t ranks in a domain
gcd(d/r, t) belong to one shard group, and the others hold replicas of their shards (Zhao et al., 2023, section 3.2;
Zhang et al., MiCS, 2022, section 3.2). ZeRO stage 0 divides nothing, so it has no replicas.

A schedule that runs two chains of stages (`dsx.space.stage_chunks`) has each weight on two stages, so on twice as many
ranks; those of the second chain share a domain, or a unit of a tier, with those of the first one if all stages do, and
follow them there.

Where domains cut groups unevenly, ranks are counted as they are numbered, one axis after the other. With an even number
of replicas a shard group has one chain, else as much of both.

The e ranks that hold the same experts (ep nests in the other axes) are fewer than d times the axes of a data-parallel
replica. r divides them too, into shard groups of e/r. Of the r replicas of a shard of experts, as many share a domain
as of any other weight, but no more than there are holders of the same experts in the domain.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from dsx.cost import xp
from dsx.cost.choices import StepChoices, pick
from dsx.cost.groups import Group, group
from dsx.cost.layer import LayerCosts
from dsx.cost.shapes import PerPlan
from dsx.records import Array, Bool
from dsx.space.codes import Searched
from dsx.space.domain_fill import Runs, consecutive, share_of_runs
from dsx.space.schedules import SCHEDULES


def dp_groups(choices: StepChoices, searched: Searched) -> tuple[Group, Group | None]:
    """Return the shard group and the replica group among the data-parallel ranks; None if no shard has replicas."""
    ranks, shares = choices.dp, (choices.dp_nvs, *choices.dp_outer)
    if any(SCHEDULES[code].holds.num_chains > 1 for code in searched.schedule):
        of_code = {code: xp.full_like(ranks, SCHEDULES[code].holds.num_chains) for code in searched.schedule}
        one = xp.ones_like(ranks)
        chains = xp.where(choices.pp > 1, pick(searched.schedule, choices.schedule, of_code), one)
        stages = (choices.pp_nvs, *choices.pp_outer)
        ranks = ranks * chains
        shares = tuple(
            share * xp.where(near >= choices.pp, chains, one) for share, near in zip(shares, stages, strict=True)
        )
    if searched.zero_replicas == (1,):
        return group(ranks, *shares), None
    replicas = xp.minimum(choices.zero_replicas, choices.dp)
    if 0 in searched.zero_stage:
        replicas = xp.where(choices.zero_stage > 0, replicas, xp.ones_like(replicas))
    size = ranks / replicas
    parts = [_per_unit(ranks, share, size) for share in shares]
    return group(size, *(own for own, _ in parts)), group(replicas, *(near for _, near in parts))


def _per_unit(ranks: PerPlan, share: PerPlan, size: PerPlan) -> tuple[PerPlan, PerPlan]:
    """Return how many ranks of a shard group of `size` share a unit, and how many replicas of a shard do.

    Where groups lie unevenly, ranks are consecutive, and replicas share a unit only if their whole shard groups do.
    """
    even = xp.ceil(ranks / share) * share == ranks
    own = xp.where(even | (size < ranks), _gcd(size, share), share)
    return own, xp.where(even | (own == size), share / own, xp.ones_like(ranks))


def weight_shards(
    layer: LayerCosts,
    dp_shard: Group,
    dp_replicas: Group | None,
    choices: StepChoices,
    searched: Searched,
) -> tuple[list[Group], list[Group]]:
    """Return the shard group and the replica group of each weight group; no replica groups without `dp_replicas`."""
    axes = [
        group(layer.group_size[index], layer.group_share[index], *(shares[index] for shares in layer.group_outer))
        for index in range(layer.group_size.shape[0])
    ]
    joint = [dp_shard.times(members) for members in axes]
    if searched.ep != (1,):
        # An ep group that spans several data-parallel replicas has a fraction of a rank in each.
        joint = [members.whole() for members in joint]
    replicas = [] if dp_replicas is None else [dp_replicas]
    if dp_replicas is not None and searched.ep != (1,):
        parts: list[tuple[Group, Group]] = []
        for members, shards in zip(axes, joint, strict=True):
            holders = dp_shard.times(dp_replicas).times(members).whole()
            # A plan that breaks the rules may have more replicas than holders.
            parts.append(_split(holders, shards, dp_replicas, xp.minimum(dp_replicas.size, holders.size)))
        joint, replicas = [shard for shard, _ in parts], [own for _, own in parts]
    if layer.rank_placement:
        # The group of all replicas, and of nothing else, lies as dp does.
        of_dp = xp.asarray(dp_shard.size == choices.dp)
        if dp_replicas is not None:
            of_dp = of_dp & (dp_replicas.size == 1.0)
        lying = layer.rank_placement, choices, of_dp
        joint = [_as_placed(each, _shard_runs(each, dp_shard, choices), *lying) for each in joint]
        replicas = [_as_placed(each, _replica_runs(dp_shard, each, choices), *lying) for each in replicas]
    return joint, replicas * len(axes) if searched.ep == (1,) else replicas


def _shard_runs(joint: Group, dp_ranks: Group, choices: StepChoices) -> Runs:
    """Return how the ranks of the shard groups `joint`, of `dp_ranks` and other axes, are numbered.

    In each chain they are one run, or one for each replica where other stages come between two replicas. Two stages
    are one run of both chains, unless a shard group has a part of the replicas of each, in the order that numbers
    replicas first.
    """
    own = _gcd(dp_ranks.size, choices.dp)  # replicas of one chain
    chains, members = dp_ranks.size / own, joint.size / dp_ranks.size
    adjacent = _replicas_adjacent(choices)
    paired = (chains == 2.0) & (choices.pp == 2.0) & (~adjacent | (own == choices.dp))
    one_run = adjacent | paired
    chains, own = xp.where(paired, 1.0, chains), xp.where(paired, chains * own, own)
    in_run = xp.where(one_run, own, xp.ones_like(own))
    apart = _stage_ranks(choices) * xp.where(one_run, own, choices.pp)
    apart = xp.where(adjacent & (chains > 1.0), choices.num_gpus, apart)  # the other chain is anywhere in the job
    return Runs(members * in_run, _stage_ranks(choices) / members, own / in_run, apart, chains)


def _replica_runs(dp_ranks: Group, dp_replicas: Group, choices: StepChoices) -> Runs:
    """Return how the ranks of the replica groups of shard groups of `dp_ranks` are numbered: one run in each chain.

    Two stages are one run in the order that numbers replicas first, and follow each other in each replica in the other.
    """
    own, adjacent = _gcd(dp_ranks.size, choices.dp), _replicas_adjacent(choices)
    chains, one = own * dp_replicas.size / choices.dp, xp.ones_like(dp_replicas.size)
    of_two = (choices.pp == 2.0) & (chains == 2.0)
    in_pairs = of_two & ~adjacent
    chains = xp.where(of_two, one, chains)
    members = xp.where(in_pairs, 2.0 * one, dp_replicas.size / chains)
    between = _stage_ranks(choices) * own * xp.where(adjacent, one, choices.pp)  # ranks from one replica to the next
    apart = xp.where(adjacent & (chains == 2.0), choices.num_gpus, xp.where(in_pairs, between, members * between))
    stride = xp.where(in_pairs, _stage_ranks(choices), between)
    return Runs(members, stride, dp_replicas.size / (members * chains), apart, chains)


def _stage_ranks(choices: StepChoices) -> PerPlan:
    """Return the ranks of a stage of a replica."""
    return choices.num_gpus / (choices.pp * choices.dp)


def _replicas_adjacent(choices: StepChoices) -> Bool[Array, "*#plans"]:
    """Return whether no other stage comes between two replicas of a stage."""
    return (choices.pp == 1.0) | (choices.order == 0.0)


def _as_placed(
    members: Group,
    runs: Runs,
    rank_placement: Sequence[PerPlan],
    choices: StepChoices,
    of_dp: Bool[Array, "*#plans"],
) -> Group:
    """Return the groups `members`; where domains cut groups unevenly, as their ranks lie in `runs`.

    The product of groups over several axes would have the worst-placed members of all of them at once. That of all
    replicas, `of_dp`, has not, unless domains cut the stages of replicas.
    """
    even, of_replica, of_job, *units = rank_placement
    dp_even, pp_even = (
        xp.ceil(degree / share) * share == degree
        for degree, share in ((choices.dp, choices.dp_nvs), (choices.pp, choices.pp_nvs))
    )
    uneven = (even == 0.0) | ~dp_even | ~pp_even
    cut = uneven & ~(of_dp & (of_replica == _stage_ranks(choices)))
    domain = xp.where(_consecutive(of_replica, choices), of_replica * choices.dp_nvs * choices.pp_nvs, of_job)
    shares: list[PerPlan] = []
    for domains in (xp.ones_like(domain), *units):
        floats = xp.broadcast_arrays(*runs, choices.num_gpus, domain * domains)
        *where, world, unit = (xp.maximum(xp.round(value), 1.0).astype(np.int32) for value in floats)
        shares.append(share_of_runs(Runs(*where), world, unit, xp).astype(floats[0].dtype))
    return jax.tree.map(functools.partial(xp.where, cut), group(members.size, *shares), members)


def _consecutive(of_replica: PerPlan, choices: StepChoices) -> Bool[Array, "*#plans"]:
    """Return whether domains have as many consecutive ranks as the shares say, `of_replica` of a stage of a replica."""
    ranks = _stage_ranks(choices)
    order = ("dp", "pp"), ("pp", "dp")
    degrees, shares = (
        {
            place: xp.where(choices.order == 0.0, *(getattr(choices, f"{axis}{part}") for axis in axes))
            for place, axes in zip(("first", "last"), order, strict=True)
        }
        for part in ("", "_nvs")
    )
    return consecutive(degrees, shares, choices.num_gpus, ranks, of_replica == ranks, xp)


def _split(holders: Group, shards: Group, dp_replicas: Group, count: PerPlan) -> tuple[Group, Group]:
    """Return the shard group and the replica group, of `count` ranks, of the ranks that hold the same parameters.

    Where these lie unevenly, both are those of any other weight: the `shards` and the `dp_replicas`.
    """
    of_shards: list[Group] = []
    of_replicas: list[Group] = []
    for members, shard, replicas in zip(holders.by_tier, shards.by_tier, dp_replicas.by_tier, strict=True):
        even, own = members.domains * members.share == members.size, _gcd(members.share, replicas.share)
        domains = xp.where(even, members.domains * own / count, shard.domains)
        of_shards.append(_on_units(holders.size / count, domains, xp.where(even, members.share / own, shard.share)))
        domains = xp.where(even, count / own, replicas.domains)
        of_replicas.append(_on_units(count, domains, xp.where(even, own, replicas.share)))
    return _of_tiers(of_shards), _of_tiers(of_replicas)


def _of_tiers(groups: list[Group]) -> Group:
    return groups[0]._replace(outer=tuple(groups[1:]))


def _on_units(size: PerPlan, domains: PerPlan, share: PerPlan) -> Group:
    """Return the group of `size` GPUs on so many domains, or units of a tier, with at least `share` in each."""
    return Group(size, domains, 1.0 / size, 1.0 / share, share, xp.log2(domains))


def _gcd(left: PerPlan, right: PerPlan) -> PerPlan:
    floats = xp.broadcast_arrays(left, right)
    integers = (xp.round(value).astype(np.int32) for value in floats)
    return xp.gcd(*integers).astype(floats[0].dtype)
