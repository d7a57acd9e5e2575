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

The embedding is the first layer of its chunk, but hides nothing: its neighbour is gathered during its forward and
scattered during its backward.
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


class Queued(NamedTuple):
    """The collectives of a layer's weights and what they hide behind, seconds."""

    gather_s: PerPlan
    scatter_s: PerPlan
    forward_s: PerPlan
    backward_s: PerPlan
    whole_weights_s: PerPlan  # the part of the backward that only computes weight gradients

    @property
    def after_backward_s(self) -> PerPlan:
        """What the first forward of a chunk waits longer by if a backward came before."""
        return _beyond(self.both_s, self.forward_s) - _beyond(self.gather_s, self.forward_s)

    @property
    def both_s(self) -> PerPlan:
        """Both collectives."""
        return self.gather_s + self.scatter_s

    @property
    def weights_s(self) -> PerPlan:
        """That part, as far as it hides anything."""
        return xp.minimum(self.whole_weights_s, self.backward_s)

    @property
    def inputs_s(self) -> PerPlan:
        """The rest of the backward."""
        return self.backward_s - self.weights_s


def outlasting(layer: Queued, ends: PerPlan, apart: Bool[Array, "*#plans"] | None) -> Outlasting:
    """Return what collectives of a layer outlast its passes by.

    `ends` is the share of layers that end a chunk; where it is 0 each pass hides its own collectives. Plans in `apart`
    compute gradients of weights in a pass of their own; None if none do.
    """
    gather_s = layer.gather_s
    forward = _beyond(gather_s, layer.forward_s) + ends * layer.after_backward_s
    backward = _mean(ends, _beyond(gather_s, layer.backward_s), _beyond(layer.both_s, layer.backward_s))
    if apart is None:
        return Outlasting(forward, backward, backward)
    one, none = xp.ones_like(ends), xp.zeros_like(ends)
    inputs = (one - ends) * _beyond(gather_s, layer.inputs_s)
    inner = xp.maximum(one - 2.0 * ends, none) * _beyond(layer.scatter_s, layer.weights_s)
    weights = inner + ends * _beyond_last_weights(layer, ends)
    return Outlasting(forward, xp.where(apart, inputs + weights, backward), xp.where(apart, weights, backward))


def of_embedding(layer: Queued, after: Queued, ends: PerPlan, apart: Bool[Array, "*#plans"] | None) -> Outlasting:
    """Return what collectives outlast the passes of the embedding by, less what `outlasting` has for its neighbour.

    The neighbour is not the first layer of the chunk: no scatter comes before its forward, and no gather of the next
    pass after its backward. Where gradients have several bytes a weight, a part of the former stays, so that a slower
    network never makes a chunk faster.
    """
    none, single = xp.zeros_like(after.gather_s), _single(ends)
    share = xp.where(after.scatter_s > 0.0, xp.minimum(after.gather_s / after.scatter_s, 1.0), none)
    gather_s, last_s = layer.gather_s, layer.gather_s + after.scatter_s

    def first(moved_s: PerPlan, pass_s: PerPlan, later_s: PerPlan) -> PerPlan:
        """Return what outlasts a pass of the embedding, less what its neighbour does not wait for."""
        return xp.maximum(_beyond(moved_s, pass_s) - later_s, none)

    forward = first(layer.scatter_s + after.gather_s, layer.forward_s, share * after.after_backward_s)
    later_s = _beyond(after.both_s, after.backward_s) - _beyond(after.scatter_s, after.backward_s)
    whole = first(gather_s + last_s, layer.backward_s, later_s)
    if apart is None:
        return Outlasting(forward, whole, whole)
    inputs = _beyond(gather_s, layer.inputs_s)
    later_s = _beyond_last_weights(after, ends) - (1.0 - single) * _beyond(after.scatter_s, after.weights_s)
    weights = first(last_s, layer.weights_s, later_s)
    return Outlasting(forward, xp.where(apart, inputs + weights, whole), xp.where(apart, weights, whole))


def mean(share: PerPlan, some: Outlasting, others: Outlasting) -> Outlasting:
    """Return the mean of passes of which a share are `some`."""
    return Outlasting(*(_mean(share, one, other) for one, other in zip(some, others, strict=True)))


def _beyond_last_weights(layer: Queued, ends: PerPlan) -> PerPlan:
    """Return what outlasts the last gradients of weights of a chunk; of one layer they are the first ones too."""
    single = _single(ends)
    of_many, alone = _beyond(layer.both_s, layer.weights_s), _beyond(layer.gather_s, layer.weights_s)
    return _mean(single, alone, of_many)


def _single(ends: PerPlan) -> PerPlan:
    """Return the share of chunks that have one layer, where none has none."""
    return xp.maximum(2.0 - 1.0 / xp.maximum(ends, 0.5), xp.zeros_like(ends))


def _mean(share: PerPlan, some: PerPlan, others: PerPlan) -> PerPlan:
    return others + share * (some - others)


def _beyond(seconds: PerPlan, pass_s: PerPlan) -> PerPlan:
    return xp.maximum(seconds - pass_s, xp.zeros_like(seconds))
