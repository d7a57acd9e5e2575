"""Stages of a cut: which layers each stage of a pipeline holds.

The layers of a model are a stack: what only the first stage has (an embedding), segments of body layers,
and what only the last stage has (final norm, head and loss). An even cut gives every chunk of every stage
the same number of body layers; where that does not come out, embedding and head count as one layer each
(Megatron-LM's account-for-embedding and account-for-loss options), and where that does not either, the last
chunks hold fewer than the others. With vpp chunks a stage holds every pp-th chunk of the stack.

Few stages of an even cut differ: the first, the last, those at the border of two segments, and one that stands for
all others. Only those are priced.

Any other cut is a list of boundaries in the chain of all layers, embedding, body and head, of which a stage has those
between two boundaries. In a body of kinds that alternate each layer counts as the same mix of them.
"""

from typing import NamedTuple

import jax.numpy as jnp

from dsx.cost.shapes import PerPlan
from dsx.records import Array, Float, record, static


@record
class Stack:
    """The layers of a model by kind, first to last."""

    counts: tuple[tuple[PerPlan, ...], ...]  # per segment, layers of each of its kinds; floats
    segments: tuple[tuple[int, ...], ...] = static()  # per segment its kinds; several alternate evenly
    first: tuple[int, ...] = static(default=())  # kinds that only the first stage has
    last: tuple[int, ...] = static(default=())  # kinds that only the last stage has
    divided: bool = static(default=False)  # every pipeline that is priced divides the body

    @property
    def uniform(self) -> bool:
        """Return whether all stages hold the same."""
        return len(self.segments) == 1 and not self.first and not self.last

    @property
    def num_body_layers(self) -> PerPlan:
        """Layers between the ends."""
        return sum(sum(counts) for counts in self.counts)

    @property
    def num_layers(self) -> PerPlan:
        """Layers of the whole chain, of which each stage of a pipeline has one at least."""
        return self.num_body_layers + len(self.first) + len(self.last)

    def totals(self) -> dict[int, PerPlan]:
        """Return the layers of each kind in the whole model."""
        found: dict[int, PerPlan] = {kind: 1.0 for kind in (*self.first, *self.last)}
        for kinds, counts in zip(self.segments, self.counts, strict=True):
            for kind, count in zip(kinds, counts, strict=True):
                found[kind] = found.get(kind, 0.0) + count
        return found


class Stage(NamedTuple):
    """One stage, or several alike in arrays: its position, and how many layers of each kind it holds."""

    position: PerPlan
    layers: dict[int, PerPlan]
    even: bool = True  # of an even cut, so that it has layers of the body


def stages(stack: Stack, pp: PerPlan, vpp: PerPlan) -> list[Stage]:
    """Return the stages that may be slowest or largest, the first one first; pp and vpp broadcast."""
    if stack.uniform:
        share = jnp.floor(stack.num_body_layers / pp)
        whole = stack.num_body_layers
        kinds = zip(stack.segments[0], stack.counts[0], strict=True)
        return [Stage(jnp.zeros_like(pp), {kind: share * (count / whole) for kind, count in kinds})]
    one = jnp.ones_like(pp)
    ends = jnp.zeros_like(pp) if stack.divided else _ends_counted(stack, pp * vpp)
    chunk = jnp.ceil((stack.num_body_layers + 2.0 * ends) / (pp * vpp))
    indices = [jnp.zeros_like(pp), jnp.minimum(one, pp - 1.0), pp - 1.0]
    if stack.divided and len(stack.segments) == 1:
        # The second stage has the body layers of the first one, no embedding, and no more microbatches in flight.
        del indices[1]
    begin = jnp.zeros_like(stack.num_body_layers)
    for counts in stack.counts[:-1]:
        begin = begin + sum(counts)
        position = jnp.floor((begin + ends) / chunk)
        at_border = position - pp * jnp.floor(position / pp)
        indices += [at_border, jnp.minimum(at_border + 1.0, pp - 1.0)]
    return [_stage(stack, index, pp, chunk, ends) for index in indices]


def stages_between(stack: Stack, boundaries: Float[Array, "boundaries"]) -> Stage:
    """Return the stages between [S + 1] boundaries of the chain, as arrays of [S].

    A cut into fewer stages ends in boundaries that are all the end of the chain, which leaves stages without a layer.
    """
    index = jnp.arange(boundaries.shape[0] - 1, dtype=boundaries.dtype)
    return Stage(index, layers_between(stack, boundaries[:-1], boundaries[1:]), even=False)


def even_first(stack: Stack, pp: PerPlan) -> Stage:
    """Return the first stage of the most even cut, with parts of layers where pp does not divide them."""
    if stack.uniform:
        return Stage(jnp.zeros_like(pp), {kind: count / pp for kind, count in stack.totals().items()}, even=False)
    ends = _ends_counted(stack, pp)
    share = (stack.num_body_layers + 2.0 * ends) / pp
    return _stage(stack, jnp.zeros_like(pp), pp, share, ends)._replace(even=False)


def layers_between(stack: Stack, start: PerPlan, stop: PerPlan) -> dict[int, PerPlan]:
    """Return the layers of each kind from position `start` of the chain up to `stop`."""
    layers: dict[int, PerPlan] = {}
    begin = 0.0
    ends = [[((kind,), (1.0,)) for kind in kinds] for kinds in (stack.first, stack.last)]
    for kinds, counts in (*ends[0], *zip(stack.segments, stack.counts, strict=True), *ends[1]):
        whole = sum(counts)
        held = jnp.maximum(jnp.minimum(stop, begin + whole) - jnp.maximum(start, begin), 0.0)
        for kind, count in zip(kinds, counts, strict=True):
            layers[kind] = layers.get(kind, 0.0) + held * (count / whole)
        begin = begin + whole
    return layers


def _ends_counted(stack: Stack, chunks: PerPlan) -> PerPlan:
    """Return 1 where embedding and head count as layers because the body alone cannot be cut evenly."""
    layers = stack.num_body_layers / chunks
    even = jnp.floor(layers) == layers
    has_ends = 1.0 if stack.first and stack.last else 0.0
    return jnp.where(even, jnp.zeros_like(layers), jnp.full_like(layers, has_ends))


def _stage(stack: Stack, index: PerPlan, pp: PerPlan, chunk: PerPlan, ends: PerPlan) -> Stage:
    turn = chunk * pp

    def before(position: PerPlan) -> PerPlan:
        """Return how many of the first `position` layers this stage holds."""
        whole = jnp.floor(position / turn)
        rest = position - whole * turn - index * chunk
        return whole * chunk + jnp.clip(rest, jnp.zeros_like(rest), chunk)

    layers: dict[int, PerPlan] = {}
    begin = ends
    for kinds, counts in zip(stack.segments, stack.counts, strict=True):
        end = begin + sum(counts)
        held = before(end) - before(begin)
        for kind, count in zip(kinds, counts, strict=True):
            layers[kind] = layers.get(kind, 0.0) + held * (count / sum(counts))
        begin = end
    one, none = jnp.ones_like(index), jnp.zeros_like(index)
    for kind in stack.first:
        layers[kind] = jnp.where(index == none, one, none)
    for kind in stack.last:
        layers[kind] = jnp.where(index == pp - 1.0, one, none)
    return Stage(index, layers)
