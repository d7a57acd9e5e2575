"""Shard groups, the ranks over which ZeRO divides, and replica groups, the ranks that hold the same shard.

Without hybrid sharding, ZeRO divides over all ranks that hold the same parameters. With `zero_replicas` r above 1
(hybrid sharding) the d data-parallel ranks form r shard groups of d/r ranks, and each shard group holds all of the
divided state. The ranks of a shard group are consecutive, so they fill fast domains first: of t ranks in a domain
gcd(d/r, t) belong to one shard group, and the others hold replicas of their shards (Zhao et al., 2023, section 3.2;
Zhang et al., MiCS, 2022, section 3.2). ZeRO stage 0 divides nothing, so it has no replicas.

A schedule that runs two chains of stages (`dsx.schedules.order`) has each weight on two stages, so on twice as many
ranks; those of the second chain share a domain, or a unit of a tier, with those of the first one if all stages do, and
follow them there.

Where domains cut groups unevenly, ranks are counted as they are numbered, one axis after the other. With an even number
of replicas a shard group has one chain, else as much of both. The worst-placed group counts; of embedding and head,
which are on the first and the last stage, the worst-placed one of these.

The e ranks that hold the same experts are every ep-th of the d times the axes of a data-parallel replica that follow
each other (`dsx.plans.experts`). r divides them too, into shard groups of e/r. Of the r replicas of a shard of
experts, as many share a domain as of any other weight, but no more than there are holders of the same experts in the
domain. Where the edge of a domain cuts ep groups or shard groups, replicas count as apart.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.cost.context import StepChoices, StepPlans
from dsx.cost.groups import Group, group
from dsx.cost.layer import LayerCosts
from dsx.plans.placement import Runs, consecutive, share_of_runs
from dsx.records import Array, Bool, tree_map


class DpGroups(NamedTuple):
    """The groups among the data-parallel ranks, and the chains of stages that they are on."""

    shard: Group
    replicas: Group | None  # None if no shard has replicas
    chains: PerPlan  # on which each weight is
    chains_together: tuple[PerPlan, ...]  # of these, those that share a domain, and a unit of each tier


def dp_groups(plans: StepPlans) -> DpGroups:
    """Return the shard group and the replica group among the data-parallel ranks."""
    choices, searched = plans.choices, plans.searched
    ones, stages = xp.ones_like(choices.dp), (choices.pp_nvs, *choices.pp_outer)
    chains, together = ones, (ones,) * len(stages)
    if any(schedule.holds.num_chains > 1 for schedule in plans.schedules):
        of_schedule = plans.by_schedule(lambda schedule: xp.full_like(ones, schedule.holds.num_chains))
        chains = xp.where(choices.pp > 1, of_schedule, ones)
        together = tuple(xp.where(near >= choices.pp, chains, ones) for near in stages)
    ranks, shares = choices.dp * chains, (choices.dp_nvs, *choices.dp_outer)
    shares = tuple(share * near for share, near in zip(shares, together, strict=True))
    if searched.zero_replicas == (1,):
        return DpGroups(group(ranks, *shares), None, chains, together)
    replicas = xp.minimum(choices.zero_replicas, choices.dp)
    if 0 in searched.zero_stage:
        replicas = xp.where(choices.zero_stage > 0, replicas, xp.ones_like(replicas))
    size = ranks / replicas
    # Ranks of a shard group that follow each other: those of both chains if these share a unit.
    rows = [xp.where(near > 1, size, _gcd(size, choices.dp)) for near in together]
    parts = [_per_unit(ranks, share, size, row) for share, row in zip(shares, rows, strict=True)]
    shard_shares, replica_shares = zip(*parts, strict=True)
    return DpGroups(group(size, *shard_shares), group(replicas, *replica_shares), chains, together)


def _per_unit(ranks: PerPlan, share: PerPlan, size: PerPlan, row: PerPlan) -> tuple[PerPlan, PerPlan]:
    """Return how many ranks of a shard group of `size` share a unit, and how many replicas of a shard do.

    `row` ranks of a shard group are consecutive. Where groups lie unevenly, and where a unit has neither whole rows nor
    a part of one alone, replicas share a unit only if their whole shard groups do.
    """
    even = xp.ceil(ranks / share) * share == ranks
    in_unit = xp.where(even | (size < ranks), _gcd(size, share), share)
    nested = even & ((in_unit == share) | (in_unit == row))
    return in_unit, xp.where(nested | (in_unit == size), share / in_unit, xp.ones_like(ranks))


def weight_shards(
    layer: LayerCosts, dp: DpGroups, plans: StepPlans, at_ends: bool = False
) -> tuple[list[Group], list[Group]]:
    """Return the shard group and the replica group of each weight group; no replica groups if no shard has replicas.

    With `at_ends` the groups are those of the first and the last stage alone.
    """
    choices, without_ep = plans.choices, plans.searched.ep == (1,)
    axes = [
        group(layer.group_size[index], layer.group_share[index], *(shares[index] for shares in layer.group_outer))
        for index in range(layer.group_size.shape[0])
    ]
    joint = [dp.shard.times(members) for members in axes]
    replicas = [] if dp.replicas is None else [dp.replicas]
    if not without_ep:
        if dp.replicas is None:
            joint = [_every(ep, ranks, dp.chains_together) for ep, ranks in zip(layer.group_ep, joint, strict=True)]
        else:
            of_ep = zip(layer.group_ep, axes, strict=True)
            parts = [_split(ep, members, dp, dp.replicas, choices) for ep, members in of_ep]
            joint, replicas = map(list, zip(*parts, strict=True))
    if layer.rank_placement:
        # The group of all replicas, and of nothing else, lies as dp does.
        of_dp = xp.asarray(dp.shard.size == choices.dp)
        if dp.replicas is not None:
            of_dp = of_dp & (dp.replicas.size == 1.0)
        lying = layer.rank_placement, choices, of_dp
        runs = [_shard_runs(ranks, dp.shard, choices) for ranks in joint]
        ends = [_of_end_stages(of_ranks, dp.chains, choices) if at_ends else () for of_ranks in runs]
        joint = [_as_placed(ranks, *where, *lying) for ranks, *where in zip(joint, runs, ends, strict=True)]
        replicas = [_as_placed(ranks, _replica_runs(dp.shard, ranks, choices), (), *lying) for ranks in replicas]
    return joint, replicas * len(axes) if without_ep else replicas


def _every(ep: PerPlan, ranks: Group, together: Sequence[PerPlan]) -> Group:
    """Return every ep-th of the consecutive `ranks`: those that hold the same experts.

    Each domain has as many as its ranks have whole ep groups, of each of the chains that it has `together`. With less
    than a whole one it has a holder or none.
    """
    # A plan that breaks the rules may have less than one holder.
    size = xp.maximum(ranks.size / ep, xp.ones_like(ranks.size))
    return _of_tiers(
        [
            _on_units(size, *_every_of_unit(ep, size, unit, chains))
            for unit, chains in zip(ranks.by_tier, together, strict=True)
        ]
    )


def _every_of_unit(ep: PerPlan, size: PerPlan, ranks: Group, chains: PerPlan) -> tuple[PerPlan, PerPlan]:
    """Return on how many units the `size` holders are, and how many are in one of them."""
    share = chains * xp.maximum(xp.floor(ranks.share / (chains * ep)), xp.ones_like(size))
    return xp.minimum(ranks.domains, size / chains), share


def _shard_runs(joint: Group, dp_ranks: Group, choices: StepChoices) -> Runs:
    """Return how the ranks of the shard groups `joint`, of `dp_ranks` and other axes, are numbered.

    In each chain they are one run, or one for each replica where other stages come between two replicas. Two stages
    are one run of both chains, unless a shard group has a part of the replicas of each, in the order that numbers
    replicas first.
    """
    replicas = _gcd(dp_ranks.size, choices.dp)  # of one chain
    chains, members = dp_ranks.size / replicas, joint.size / dp_ranks.size
    adjacent = _replicas_adjacent(choices)
    paired = (chains == 2.0) & (choices.pp == 2.0) & (~adjacent | (replicas == choices.dp))
    one_run = adjacent | paired
    chains, replicas = xp.where(paired, 1.0, chains), xp.where(paired, chains * replicas, replicas)
    in_run = xp.where(one_run, replicas, xp.ones_like(replicas))
    apart = _stage_ranks(choices) * xp.where(one_run, replicas, choices.pp)
    apart = xp.where(adjacent & (chains > 1.0), choices.num_gpus, apart)  # the other chain is anywhere in the job
    return Runs(members * in_run, _stage_ranks(choices) / members, replicas / in_run, apart, chains)


def _replica_runs(dp_ranks: Group, dp_replicas: Group, choices: StepChoices) -> Runs:
    """Return how the ranks of the replica groups of shard groups of `dp_ranks` are numbered: one run in each chain.

    Two stages are one run in the order that numbers replicas first, and follow each other in each replica in the other.
    """
    size, adjacent = _gcd(dp_ranks.size, choices.dp), _replicas_adjacent(choices)
    chains, ones = size * dp_replicas.size / choices.dp, xp.ones_like(dp_replicas.size)
    of_two = (choices.pp == 2.0) & (chains == 2.0)
    in_pairs = of_two & ~adjacent
    chains = xp.where(of_two, ones, chains)
    members = xp.where(in_pairs, 2.0 * ones, dp_replicas.size / chains)
    between = _stage_ranks(choices) * size * xp.where(adjacent, ones, choices.pp)  # ranks from one replica to the next
    apart = xp.where(adjacent & (chains == 2.0), choices.num_gpus, xp.where(in_pairs, between, members * between))
    stride = xp.where(in_pairs, _stage_ranks(choices), between)
    return Runs(members, stride, dp_replicas.size / (members * chains), apart, chains)


def _of_end_stages(runs: Runs, chains: PerPlan, choices: StepChoices) -> tuple[PerPlan, PerPlan]:
    """Return how many of the first groups and of the last ones have the ranks of the first and of the last stage."""
    ones, zero, every = xp.ones_like(choices.num_gpus), xp.zeros_like(choices.num_gpus), choices.num_gpus
    of_stage = choices.dp * _stage_ranks(choices) / (runs.members * runs.stride)
    alone, together = chains == 1.0, (chains == runs.copies) & (runs.runs > 1.0)
    in_a_row = alone & _replicas_adjacent(choices)
    first = xp.where(in_a_row, of_stage, xp.where(together, ones, every))
    return first, xp.where(in_a_row, of_stage, xp.where(together & alone, ones, zero))


def _stage_ranks(choices: StepChoices) -> PerPlan:
    """Return the ranks of a stage of a replica."""
    return choices.num_gpus / (choices.pp * choices.dp)


def _replicas_adjacent(choices: StepChoices) -> Bool[Array, "*#plans"]:
    """Return whether no other stage comes between two replicas of a stage."""
    return (choices.pp == 1.0) | (choices.order == 0.0)


def _as_placed(
    members: Group,
    runs: Runs,
    ends: Sequence[PerPlan],
    rank_placement: Sequence[PerPlan],
    choices: StepChoices,
    of_dp: Bool[Array, "*#plans"],
) -> Group:
    """Return the groups `members`; where domains cut groups unevenly, as their ranks lie in `runs`.

    Of groups that follow each other, as many of the first ones and of the last ones count as `ends` has, or all.
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
    if not xp.may_hold(cut):
        return members
    domain = xp.where(_consecutive(of_replica, choices), of_replica * choices.dp_nvs * choices.pp_nvs, of_job)
    shares: list[PerPlan] = []
    for domains in (xp.ones_like(domain), *units):
        floats = xp.broadcast_arrays(*runs, choices.num_gpus, domain * domains, *ends)
        counts = [xp.round(value).astype(np.int32) for value in floats]
        *where, world, unit = (xp.maximum(value, 1) for value in counts[: len(counts) - len(ends)])
        share = share_of_runs(Runs(*where), world, unit, counts[len(counts) - len(ends) :] or None)
        shares.append(share.astype(floats[0].dtype))
    return tree_map(functools.partial(xp.where, cut), group(members.size, *shares), members)


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
    return consecutive(degrees, shares, choices.num_gpus, ranks, of_replica == ranks)


def _split(ep: PerPlan, members: Group, dp: DpGroups, dp_replicas: Group, choices: StepChoices) -> tuple[Group, Group]:
    """Return the shard group and the replica group of experts; other weights are reduced over `members` too.

    Where domains cut ep groups or shard groups, shard groups are consecutive ranks in each chain, and replicas count as
    apart.
    """
    chains, rows = dp.chains, (choices.dp_nvs, *choices.dp_outer)
    every = group(choices.dp * chains, *(row * near for row, near in zip(rows, dp.chains_together, strict=True)))
    holders = _every(ep, every.times(members), dp.chains_together)
    # A plan that breaks the rules may have more replicas than holders.
    count = xp.minimum(dp_replicas.size, holders.size)
    size = holders.size / count
    of_shards: list[Group] = []
    of_replicas: list[Group] = []
    groups = holders, members, dp.shard, dp_replicas, every
    for (held, ranks, shards, replicas, of_dp), row in zip(
        zip(*(of_tiers.by_tier for of_tiers in groups), strict=True), rows, strict=True
    ):
        ep_whole = (row * ranks.share % ep == 0) | (ep % (row * ranks.share) == 0)
        shards_whole = shards.share * replicas.share == of_dp.share
        even = (count == 1.0) | (ep_whole & shards_whole & (held.domains * held.share == held.size))
        near = xp.where(even, _gcd(held.share, replicas.share), xp.ones_like(count))
        of_replicas.append(_on_units(count, count / near, near))
        domains, share = _every_of_unit(ep, size, shards.times(ranks), xp.ones_like(size))
        domains, share = (xp.where(chains > 1, apart, value) for apart, value in ((size, domains), (1.0, share)))
        domains = xp.where(even, held.domains * near / count, domains)
        of_shards.append(_on_units(size, domains, xp.where(even, held.share / near, share)))
    return _of_tiers(of_shards), _of_tiers(of_replicas)


def _of_tiers(groups: list[Group]) -> Group:
    return groups[0]._replace(outer=tuple(groups[1:]))


def _on_units(size: PerPlan, domains: PerPlan, share: PerPlan) -> Group:
    """Return the group of `size` GPUs on so many domains, or units of a tier, with at least `share` in each."""
    return Group(size, domains, 1.0 / size, 1.0 / share, share, xp.log2(domains))


def _gcd(number: PerPlan, other: PerPlan) -> PerPlan:
    floats = xp.broadcast_arrays(number, other)
    integers = (xp.round(value).astype(np.int32) for value in floats)
    return xp.gcd(*integers).astype(floats[0].dtype)
