"""The ranks over which ZeRO divides: all that hold the same parameters, or so many of them that copies remain.

With `zero_replicas` r above 1 (hybrid sharding) the d data-parallel ranks are r groups of d/r that each hold all of
the divided state. The ranks of a group follow each other, so they fill fast domains first: of t ranks in a domain
gcd(d/r, t) are of one group and the others are copies of them (Zhao et al., 2023, section 3.2; Zhang et al., MiCS,
2022, section 3.2). ZeRO stage 0 divides nothing, so has no copies.
"""

from typing import Any

import jax.numpy as jnp

from dsx.cost.choices import StepChoices
from dsx.cost.groups import Group, group
from dsx.cost.layer import LayerCosts
from dsx.space.codes import Open


def replicas(choices: StepChoices, known: Open) -> tuple[Group, Group | None]:
    """Return the data-parallel ranks over which ZeRO divides, and the copies of one; None where there is one alone."""
    if known.zero_replicas == (1,):
        return group(choices.dp, choices.dp_nvs), None
    copies = jnp.minimum(choices.zero_replicas, choices.dp)
    if 0 in known.zero_stage:
        copies = jnp.where(choices.zero_stage > 0, copies, jnp.ones_like(copies))
    size = choices.dp / copies
    share = _gcd(size, choices.dp_nvs)
    return group(size, share), group(copies, choices.dp_nvs / share)


def shards(layer: LayerCosts, divided: Group) -> list[Group]:
    """Return, per weight group, the ranks over which ZeRO divides: `divided` of dp, and all of the group's axes."""
    return [
        divided.times(group(layer.group_size[index], layer.group_share[index]))
        for index in range(layer.group_size.shape[0])
    ]


def _gcd(one: Any, other: Any) -> Any:
    whole = (jnp.round(value).astype(jnp.int32) for value in (one, other))
    return jnp.gcd(*whole).astype(one.dtype)
