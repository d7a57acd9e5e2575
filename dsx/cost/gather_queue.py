"""Gathers that wait for scatters: what collectives of weights outlast the passes of a layer by under ZeRO 3.

Where every backward gathers weights too, the collectives of a rank run one after the other: each layer is gathered
while the pass before it runs, and its gradients are scattered while the next one does (`dsx.traces.pass_nodes`). No
pass waits for a scatter, but the gather behind it does. So a collective hides behind the pass that it is issued with,
and not behind all of a microbatch. Of a chunk of n layers, with a gather of G seconds and a scatter of S, there run

- with a forward G; with the first one S + G, as the last layer of the backward before it is scattered;
- with a whole backward S + G; with the first one G;
- with gradients of inputs alone G; with those of the last layer nothing;
- with gradients of weights alone S; with those of the first layer nothing, with those of the last one S + G, and G if
  that is the same layer.
"""

from typing import NamedTuple

from dsx.cost import xp
from dsx.cost.shapes import PerPlan
from dsx.records import Array, Bool


class Outlasting(NamedTuple):
    """What collectives outlast the passes of a layer by, seconds, the mean over the layers of a chunk."""

    forward_s: PerPlan
    backward_s: PerPlan
    weights_s: PerPlan  # of the backward, what gradients of inputs do not wait for


class Collectives(NamedTuple):
    """The collectives of a layer's weights, seconds."""

    gather_s: PerPlan
    scatter_s: PerPlan


def outlasting(
    moved: Collectives,
    forward_s: PerPlan,
    backward_s: PerPlan,
    weights_s: PerPlan,
    ends: PerPlan,
    apart: Bool[Array, "*#plans"] | None,
) -> Outlasting:
    """Return what collectives of a layer outlast its passes by.

    The passes hide them behind `forward_s` and `backward_s`. Of the backward of plans in `apart`, `weights_s` are a
    pass of their own. `ends` is the share of layers that end a chunk.
    """
    gather_s, scatter_s, both_s = moved.gather_s, moved.scatter_s, moved.gather_s + moved.scatter_s
    forward = _mean(ends, _beyond(both_s, forward_s), _beyond(gather_s, forward_s))
    backward = _mean(ends, _beyond(gather_s, backward_s), _beyond(both_s, backward_s))
    if apart is None:
        return Outlasting(forward, backward, backward)
    weights_s = xp.minimum(weights_s, backward_s)
    one, none = xp.ones_like(ends), xp.zeros_like(ends)
    inputs = (one - ends) * _beyond(gather_s, backward_s - weights_s)
    # Of chunks of one layer, whose gradients of weights are the first and the last ones.
    single = xp.maximum(2.0 * ends - one, none)
    weights = (
        xp.maximum(one - 2.0 * ends, none) * _beyond(scatter_s, weights_s)
        + (ends - single) * _beyond(both_s, weights_s)
        + single * _beyond(gather_s, weights_s)
    )
    return Outlasting(forward, xp.where(apart, inputs + weights, backward), xp.where(apart, weights, backward))


def _mean(share: PerPlan, some: PerPlan, others: PerPlan) -> PerPlan:
    return others + share * (some - others)


def _beyond(seconds: PerPlan, pass_s: PerPlan) -> PerPlan:
    return xp.maximum(seconds - pass_s, xp.zeros_like(seconds))
