"""The ranks over which ZeRO divides: all that hold the same parameters, or so many of them that copies remain.

With `zero_replicas` r above 1 (hybrid sharding) the d data-parallel ranks are r groups of d/r that each hold all of
the divided state. The ranks of a group follow each other, so they fill fast domains first: of t ranks in a domain
gcd(d/r, t) are of one group and the others are copies of them (Zhao et al., 2023, section 3.2; Zhang et al., MiCS,
2022, section 3.2). ZeRO stage 0 divides nothing, so has no copies.

The e ranks that hold the same experts (ep nests in the other axes) are fewer than d times the axes of a replica, and r
divides them too: their groups are of e/r. Of the r copies of a shard, as many share a domain as of any other weight,
as far as so many holders of the same experts lie there.
"""

import jax.numpy as jnp

from dsx.cost.choices import StepChoices
from dsx.cost.groups import Group, group
from dsx.cost.layer import LayerCosts
from dsx.cost.shapes import PerPlan
from dsx.space.codes import Searched


def replicas(choices: StepChoices, searched: Searched) -> tuple[Group, Group | None]:
    """Return the data-parallel ranks over which ZeRO divides, and the copies of one; None where there is one alone."""
    if searched.zero_replicas == (1,):
        return group(choices.dp, choices.dp_nvs, *choices.dp_outer), None
    copies = jnp.minimum(choices.zero_replicas, choices.dp)
    if 0 in searched.zero_stage:
        copies = jnp.where(choices.zero_stage > 0, copies, jnp.ones_like(copies))
    size = choices.dp / copies
    shares = (choices.dp_nvs, *choices.dp_outer)
    near = [_gcd(size, share) for share in shares]
    return group(size, *near), group(copies, *(share / inside for share, inside in zip(shares, near, strict=True)))


def shards(
    layer: LayerCosts, divided: Group, copies: Group | None, searched: Searched
) -> tuple[list[Group], list[Group]]:
    """Return, per weight group, the ranks over which ZeRO divides, and those that hold the same shard.

    `divided` and `copies` are those of dp; without copies there is no group of any.
    """
    axes = [
        group(layer.group_size[index], layer.group_share[index], *(shares[index] for shares in layer.group_outer))
        for index in range(layer.group_size.shape[0])
    ]
    if searched.ep == (1,):
        return [divided.times(members) for members in axes], [] if copies is None else [copies] * len(axes)
    # An ep group that spans several replicas leaves a fraction of a rank in each.
    if copies is None:
        return [divided.times(members).whole() for members in axes], []
    holders = [divided.times(copies).times(members).whole() for members in axes]
    # A plan that breaks the rules may have more copies than holders.
    number = [jnp.minimum(copies.size, members.size) for members in holders]
    parts = [_split(members, copies, count) for members, count in zip(holders, number, strict=True)]
    return [shard for shard, _ in parts], [alike for _, alike in parts]


def _split(holders: Group, copies: Group, number: PerPlan) -> tuple[Group, Group]:
    """Return the ranks that hold the same as a group that is divided, and its `number` copies."""
    lying = [*zip(holders.lying, copies.lying, strict=True)]
    near = [_gcd(members.share, alike.share) for members, alike in lying]
    shares = [members.share / inside for (members, _), inside in zip(lying, near, strict=True)]
    return group(holders.size / number, *shares), group(number, *near)


def _gcd(one: PerPlan, other: PerPlan) -> PerPlan:
    whole = (jnp.round(value).astype(jnp.int32) for value in jnp.broadcast_arrays(one, other))
    return jnp.gcd(*whole).astype(jnp.asarray(one).dtype)
