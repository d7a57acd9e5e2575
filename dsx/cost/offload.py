"""Offload to the memory of the host, over a link that moves both directions at once.

Optimizer: the state and the update are the host's (Ren et al., ZeRO-Offload, 2021, section 4): gradients go down,
the host updates what ZeRO leaves to the rank, new weights come up. Nothing of it overlaps here.

Activations: what a body layer saves moves out during the forward of the next layer and comes back during the
backward; what these do not hide is waited for. Two layers of each microbatch in flight remain on the GPU, the one
that is written or read and the one on its way (Rhu et al., vDNN, 2016). What the layers of the ends save stays.
"""

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices, pick
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Stage
from dsx.hardware.device import Device
from dsx.space.choices import CODES
from dsx.space.codes import Searched

OPTIMIZER, ACTIVATIONS, BOTH = "optimizer", "activations", "both"


def moves(what: str, searched: Searched) -> tuple[int, ...]:
    """Return the codes among those that a search knows under which `what` is offloaded."""
    return tuple(code for code in searched.offload if CODES["offload"][code] in (what, BOTH))


def offloaded(
    what: str, choices: StepChoices, searched: Searched, there: Callable[[], PerPlan], here: PerPlan
) -> PerPlan:
    """Return what `there` returns for plans that offload `what`, and `here` for the others.

    It is not even asked where no plan does.
    """
    moved = moves(what, searched)
    if not moved:
        return here
    value = there()
    return pick(
        searched.offload, choices.offload, {code: value if code in moved else here for code in searched.offload}
    )


def link_s(num_bytes: PerPlan, device: Device, assumptions: Assumptions) -> PerPlan:
    """Return the seconds of moving bytes to the host or back."""
    return num_bytes / (assumptions.host_efficiency * device.host_bandwidth)


def exposed_s(
    stash_bytes: PerPlan, forward_s: PerPlan, backward_s: PerPlan, device: Device, assumptions: Assumptions
) -> PerPlan:
    """Return the seconds that a layer's passes of one microbatch wait for what it saves, out and back."""
    moving = link_s(stash_bytes, device, assumptions)
    nothing = jnp.zeros_like(moving)
    return jnp.maximum(moving - forward_s, nothing) + jnp.maximum(moving - backward_s, nothing)


def host_update_s(num_parameters: PerPlan, device: Device, assumptions: Assumptions) -> PerPlan:
    """Return the seconds of an update of so many parameters on the host, their gradients and weights moved."""
    moved = link_s(assumptions.gradient_bytes + assumptions.weight_bytes, device, assumptions)
    return num_parameters * (moved + assumptions.optimizer_traffic_per_parameter / assumptions.host_memory_bandwidth)


def remaining_bytes(
    stage: Stage, stash_bytes: Sequence[PerPlan], largest_bytes: Sequence[PerPlan], ends: frozenset[int]
) -> PerPlan:
    """Return the saved bytes of one microbatch that stay on a GPU of a stage whose body layers are offloaded.

    Per kind: what a layer saves on average, and at most.
    """
    body = {kind: layers for kind, layers in stage.layers.items() if kind not in ends}
    whole = functools.reduce(jnp.add, [layers * stash_bytes[kind] for kind, layers in body.items()])
    # A kind that the stage does not have has no layer to keep.
    present = [jnp.minimum(layers, jnp.ones_like(layers)) * largest_bytes[kind] for kind, layers in body.items()]
    kept = jnp.minimum(whole, 2.0 * functools.reduce(jnp.maximum, present))
    return functools.reduce(
        jnp.add, [layers * stash_bytes[kind] for kind, layers in stage.layers.items() if kind in ends], kept
    )
