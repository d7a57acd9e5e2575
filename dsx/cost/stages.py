"""Stages of a cut: which layers each stage of a pipeline holds.

The layers of a model are a stack: the layers of the first stage alone (embedding), segments of body layers, and the
layers of the last stage alone (final norm, head and loss). An even cut gives every chunk of every stage the same number
of body layers. If their number does not divide, embedding and head count as one layer each (Megatron-LM's
account-for-embedding and account-for-loss options). If that does not divide either, the last chunks hold fewer layers.
With vpp chunks a stage holds every pp-th chunk of the stack. A schedule may place chunks otherwise
(`dsx.schedules.order`); then a stage holds two of them.

Few stages of an even cut differ: the first, the last, and those at the border of two segments. One stage represents all
others. Only these are priced.

Any other cut is a list of boundaries in the chain of all layers: embedding, body and head. A chunk has the layers
between two boundaries, and a stage one chunk of each round. If the kinds of a body alternate, each layer counts as the
same mix of them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.records import Array, Float, record, static
from dsx.schedules.order import IN_ROUNDS, StageChunks


@record
class Stack:
    """The layers of a model by kind, first to last."""

    counts: tuple[tuple[PerPlan, ...], ...]  # per segment, layers of each of its kinds; floats
    segments: tuple[tuple[int, ...], ...] = static()  # per segment its kinds; several alternate evenly
    first: tuple[int, ...] = static(default=())  # kinds that only the first stage has
    last: tuple[int, ...] = static(default=())  # kinds that only the last stage has
    divided: bool = static(default=False)  # whether every priced pipeline divides the body evenly
    # The layers before the first one whose output has a gradient, and its kind; 0 and None if every pipeline has that
    # one in its first stage. Of a model of which nothing is trained, all layers and None.
    num_constant: int = static(default=0)
    first_trained: int | None = static(default=None)

    @property
    def uniform(self) -> bool:
        """Return whether all stages hold the same layers."""
        return len(self.segments) == 1 and not self.first and not self.last

    @property
    def same_body(self) -> bool:
        """Return whether all chunks of every priced pipeline hold the same layers of the body."""
        return self.divided and len(self.segments) == 1

    @property
    def embedding_and_head(self) -> tuple[int, ...]:
        """Kinds that only the first or only the last stage has."""
        return (*self.first, *self.last)

    @property
    def body(self) -> list[tuple[tuple[int, ...], tuple[PerPlan, ...]]]:
        """The kinds of each segment, and their layers."""
        return [*zip(self.segments, self.counts, strict=True)]

    @property
    def num_body_layers(self) -> PerPlan:
        """Layers without embedding and head."""
        return sum(sum(counts) for counts in self.counts)

    @property
    def num_layers(self) -> PerPlan:
        """Layers of the whole chain; each stage of a pipeline has at least one."""
        return self.num_body_layers + len(self.first) + len(self.last)

    def totals(self) -> dict[int, PerPlan]:
        """Return the layers of each kind in the whole model."""
        layers: dict[int, PerPlan] = {kind: 1.0 for kind in (*self.first, *self.last)}
        for kinds, counts in self.body:
            for kind, count in zip(kinds, counts, strict=True):
                layers[kind] = layers.get(kind, 0.0) + count
        return layers

    def mean_stage(self, pp: PerPlan, position: PerPlan) -> "Stage":
        """Return a stage with the mean of the layers of all `pp` stages, at a position."""
        return Stage(position, {kind: count / pp for kind, count in self.totals().items()})


Layers = Mapping[int, PerPlan]  # number of layers of each kind


class Around(NamedTuple):
    """The layers of some chunks of a stage, and of the chunks around them."""

    first: Layers  # first chunk of the stage
    last: Layers  # last chunk of the stage
    earlier: Layers  # the chunks before the first chunk
    later: Layers  # the chunks after the last chunk

    def of_both(self, holds: StageChunks, pp: PerPlan) -> Layers:
        """Return the layers of the first and the last chunk of a stage that does not hold its chunks in rounds."""
        twice = holds.two_chunks(pp)
        return {kind: layers + twice * self.last[kind] for kind, layers in self.first.items()}


class Stage(NamedTuple):
    """One stage, or several as arrays: its position, and the number of layers of each kind that it holds."""

    position: PerPlan
    layers: Layers
    even: bool = True  # whether of an even cut
    around: Around | None = None  # None of a stage that stands for no place in a pipeline
    chunks: Layers | None = None  # [R, S, N] of each chunk of stages of a cut, in rounds
    begins: bool = False  # whether it is known to be the first one
    ends: bool = False  # whether it is known to be the last one

    @property
    def chunks_around(self) -> Around:
        """The layers of its chunks and of those around them; raises ValueError for a stage without a place."""
        if self.around is None:
            raise ValueError("a stage that stands for no place in a pipeline has no chunks around it")
        return self.around


class EvenStages(NamedTuple):
    """The stages of an even cut that may determine the step; of equal neighbours the first and the last one."""

    largest: list[Stage]  # may need most memory
    slowest: list[Stage]  # may take longest; the first two are the first and the last stage


class EqualChunks(NamedTuple):
    """Pipelines whose chunks all hold `chunk` layers, of which embedding and head are `counted` each."""

    stack: Stack
    holds: StageChunks
    pp: PerPlan
    vpp: PerPlan
    num_chunks: PerPlan
    chunk: PerPlan
    counted: PerPlan

    def between(self, start: PerPlan, stop: PerPlan) -> Layers:
        """Return the layers of the chunks from `start` to `stop`, exclusive."""

        def number_in(begin: PerPlan, length: PerPlan) -> PerPlan:
            first, end = (
                xp.clip(number * self.chunk - begin, xp.zeros_like(number), length) for number in (start, stop)
            )
            return end - first

        num_chunks = self.num_chunks
        ones, zero = xp.ones_like(start), xp.zeros_like(start)
        return (
            _layers_in(self.stack.body, self.counted, number_in)
            | {kind: xp.where((start <= zero) & (stop > zero), ones, zero) for kind in self.stack.first}
            | {kind: xp.where((start < num_chunks) & (stop >= num_chunks), ones, zero) for kind in self.stack.last}
        )

    def in_rounds(self, index: PerPlan) -> Layers:
        """Return the layers of a stage that holds its chunks in rounds."""
        per_round = self.chunk * self.pp

        def held_before(position: PerPlan) -> PerPlan:
            """Return how many of the first `position` layers this stage holds."""
            rounds = xp.floor(position / per_round)
            in_round = position - rounds * per_round - index * self.chunk
            return rounds * self.chunk + xp.clip(in_round, xp.zeros_like(in_round), self.chunk)

        def number_in(begin: PerPlan, length: PerPlan) -> PerPlan:
            return held_before(begin + length) - held_before(begin)

        layers = _layers_in(self.stack.body, self.counted, number_in)
        ones, zero = xp.ones_like(index), xp.zeros_like(index)
        layers |= {kind: xp.where(index == zero, ones, zero) for kind in self.stack.first}
        return layers | {kind: xp.where(index == self.pp - 1.0, ones, zero) for kind in self.stack.last}

    def stage(self, index: PerPlan) -> Stage:
        """Return a stage of an even cut."""
        final = self.holds.last(index, self.pp, self.vpp)
        around = Around(
            first=self.between(index, index + 1.0),
            last=self.between(final, final + 1.0),
            earlier=self.between(xp.zeros_like(index), index),
            later=self.between(final + 1.0, self.num_chunks),
        )
        layers = self.in_rounds(index) if self.holds.in_rounds else around.of_both(self.holds, self.pp)
        return Stage(index, layers, around=around)

    def stage_of_same_body(self, index: PerPlan, sends: bool = False) -> Stage:
        """Return a stage of an even cut all of whose chunks, held in rounds, have the same body, as `stage` does.

        A stage that `sends` to the next one is not the last one, but for a pipeline of one stage, which has no
        schedule. Layers that chunks cannot have are left out.
        """
        stack, vpp = self.stack, self.vpp
        final = index + (vpp - 1.0) * self.pp
        ones, zero = xp.ones_like(index), xp.zeros_like(index)
        is_first = xp.where(index == zero, ones, zero)
        is_last = None if sends else xp.where(index == self.pp - 1.0, ones, zero)
        ((kinds, counts),), num_body_layers = stack.body, stack.num_body_layers

        def layers(chunks: PerPlan, first: PerPlan | None, last: PerPlan | None) -> Layers:
            body = {
                kind: (chunks * self.chunk) * (count / num_body_layers)
                for kind, count in zip(kinds, counts, strict=True)
            }
            ends = ((stack.first, first), (stack.last, last))
            return body | {kind: held for kinds, held in ends if held is not None for kind in kinds}

        around = Around(
            first=layers(ones, is_first, None if is_last is None else xp.where(vpp > 1.0, zero, is_last)),
            last=layers(ones, xp.where(vpp > 1.0, zero, is_first), is_last),
            earlier=layers(index, ones - is_first, None),
            later=layers(self.pp * vpp - 1.0 - final, None, ones if is_last is None else ones - is_last),
        )
        return Stage(index, layers(vpp, is_first, is_last), around=around)


def stages(
    stack: Stack,
    pp: PerPlan,
    vpp: PerPlan,
    holds: StageChunks = IN_ROUNDS,
    every_end: bool = False,
    senders: Sequence[PerPlan] = (),
) -> EvenStages:
    """Return the stages of an even cut that are priced; pp and vpp broadcast.

    With `every_end`, both ends of each run of equal stages are among the slowest. So are the `senders`, by position.
    """
    ones, zero = xp.ones_like(pp), xp.zeros_like(pp)
    if stack.uniform and holds.in_rounds:
        share = xp.floor(stack.num_body_layers / pp)
        priced = [_like_all(stack, share, pp, vpp, index) for index in (zero, pp - 1.0, *senders)]
        priced[:2] = priced[0]._replace(begins=True), priced[1]._replace(ends=True)
        return EvenStages(priced[: 2 if every_end else 1], priced)
    chunks = holds.count(pp, vpp)
    counted = zero if stack.divided else _embedding_counted(stack, chunks)
    chunk = xp.ceil((stack.num_body_layers + 2.0 * counted) / chunks)
    last = xp.maximum(xp.floor(pp / holds.num_chains) - 1.0, zero)
    indices, ends_of_runs = [zero, last], []
    if every_end or not stack.same_body:
        # Otherwise all stages have the same body layers, and the first and the last one a further layer.
        indices.append(xp.minimum(ones, last))
        ends_of_runs.append(xp.maximum(last - 1.0, zero))
    begin = xp.zeros_like(stack.num_body_layers)
    for counts in stack.counts[:-1]:
        begin = begin + sum(counts)
        at_border = holds.stage_of(xp.floor((begin + counted) / chunk), pp)
        indices += [at_border, xp.minimum(at_border + 1.0, last)]
        ends_of_runs.append(xp.maximum(at_border - 1.0, zero))
    equal = EqualChunks(stack, holds, pp, vpp, chunks, chunk, counted)
    if stack.same_body and holds.in_rounds:
        priced = [equal.stage_of_same_body(index) for index in (*indices, *ends_of_runs)]
        priced += [equal.stage_of_same_body(index, sends=True) for index in senders]
    else:
        priced = [
            equal.stage(index) for index in (*indices, *ends_of_runs, *(xp.minimum(sender, last) for sender in senders))
        ]
    priced[:2] = priced[0]._replace(begins=True), priced[1]._replace(ends=holds.in_rounds)
    return EvenStages(priced[: len(indices) + (len(ends_of_runs) if every_end else 0)], priced)


def stages_between(
    stack: Stack, boundaries: Float[Array, "rounds boundaries *each"], pp: PerPlan, holds: StageChunks = IN_ROUNDS
) -> Stage:
    """Return the stages of a cut as arrays; with several chunks per stage, each has a chunk of every round.

    `boundaries` are those of the chunks of each round in the chain, [R, S + 1] of one plan or [R, S + 1, N] of N plans.
    For a cut into fewer stages, the last boundaries are all the end of the chain; the last stages then have no layer.
    So are those of the last rounds for a plan with fewer rounds, if its stages hold their chunks in rounds.
    """
    index = np.arange(boundaries.shape[1] - 1, dtype=boundaries.dtype)
    position = index.reshape(-1, *[1] * (boundaries.ndim - 2))
    chunks = layers_between(stack, boundaries[:, :-1], boundaries[:, 1:])
    start, last = boundaries[0, :-1], boundaries[-1]
    if holds.in_rounds and len(boundaries) > 1:
        final = (boundaries[:, :1] < stack.num_layers).astype("int32").sum(axis=0, keepdims=True) - 1
        last = xp.take_along_axis(boundaries, xp.broadcast_to(final, (1, *boundaries.shape[1:])), axis=0)[0]
    begin, end = last[:-1], last[1:]
    if not holds.in_rounds:
        in_round = holds.last(position, pp, 1.0) - (len(boundaries) - 1) * pp
        at = xp.clip(in_round, 0.0, float(len(index) - 1)).astype("int32")
        begin, end = (xp.take_along_axis(ends, xp.broadcast_to(at, ends.shape), axis=0) for ends in (begin, end))
    around = Around(
        first={kind: xp.asarray(layers)[0] for kind, layers in chunks.items()},
        last=layers_between(stack, begin, end),
        earlier=layers_between(stack, xp.zeros_like(start), start),
        later=layers_between(stack, end, xp.zeros_like(start) + stack.num_layers),
    )
    if not holds.in_rounds:
        return Stage(position, around.of_both(holds, pp), even=False, around=around)
    layers = {kind: xp.asarray(of_rounds).sum(axis=0) for kind, of_rounds in chunks.items()}
    return Stage(position, layers, even=False, around=around, chunks=chunks)


def even_first(stack: Stack, pp: PerPlan, vpp: PerPlan, holds: StageChunks = IN_ROUNDS) -> Stage:
    """Return the first stage of the most even cut, with fractions of layers if the chunks do not divide them."""
    zero = xp.zeros_like(pp)
    if stack.uniform:
        share = xp.where(pp > 1, float(holds.num_chains), 1.0) / pp
        return Stage(zero, {kind: count * share for kind, count in stack.totals().items()}, even=False)
    chunks = holds.count(pp, vpp)
    counted = _embedding_counted(stack, chunks)
    equal = EqualChunks(stack, holds, pp, vpp, chunks, (stack.num_body_layers + 2.0 * counted) / chunks, counted)
    if holds.in_rounds:
        return Stage(zero, equal.in_rounds(zero), even=False)
    return equal.stage(zero)._replace(even=False)


def first_back(stack: Stack, pp: PerPlan, vpp: PerPlan, holds: StageChunks) -> PerPlan | None:
    """Return the first chunk of an even cut whose results have a gradient; None if it is the first one of all plans."""
    if not stack.num_constant:
        return None
    chunks = holds.count(pp, vpp)
    counted = _embedding_counted(stack, chunks)
    chunk = xp.ceil((stack.num_body_layers + 2.0 * counted) / chunks)
    return xp.minimum(xp.floor((stack.num_constant - len(stack.first) + counted) / chunk), chunks)


def layers_between(stack: Stack, start: PerPlan, stop: PerPlan) -> Layers:
    """Return the layers of each kind from position `start` of the chain to `stop`, exclusive."""
    first, last = ([((kind,), (1.0,)) for kind in kinds] for kinds in (stack.first, stack.last))

    def number_in(begin: PerPlan, length: PerPlan) -> PerPlan:
        return xp.maximum(xp.minimum(stop, begin + length) - xp.maximum(start, begin), 0.0)

    return _layers_in((*first, *stack.body, *last), 0.0, number_in)


def _layers_in(
    segments: Sequence[tuple[tuple[int, ...], tuple[PerPlan, ...]]],
    begin: PerPlan,
    number_in: Callable[[PerPlan, PerPlan], PerPlan],
) -> dict[int, PerPlan]:
    """Return the layers of each kind in segments from `begin` on, of which `number_in(begin, length)` layers count."""
    layers: dict[int, PerPlan] = {}
    for kinds, counts in segments:
        length = sum(counts)
        number = number_in(begin, length)
        for kind, count in zip(kinds, counts, strict=True):
            layers[kind] = layers.get(kind, 0.0) + number * (count / length)
        begin = begin + length
    return layers


def _like_all(stack: Stack, share: PerPlan, pp: PerPlan, vpp: PerPlan, index: PerPlan) -> Stage:
    """Return a stage of a uniform stack, in which each stage has `share` layers."""
    ((kinds, counts),), num_body_layers = stack.body, stack.num_body_layers

    def mix(number: PerPlan) -> Layers:
        return {kind: number * (count / num_body_layers) for kind, count in zip(kinds, counts, strict=True)}

    chunk = share / vpp
    around = Around(mix(chunk), mix(chunk), earlier=mix(index * chunk), later=mix((pp - 1.0 - index) * chunk))
    return Stage(index, mix(share), around=around)


def over_layers(layers: Layers, values: Sequence[PerPlan]) -> PerPlan:
    """Return the sum of a value over some layers; `values` has that of one layer of each kind."""
    return functools.reduce(xp.add, [count * values[kind] for kind, count in layers.items()])


def _embedding_counted(stack: Stack, chunks: PerPlan) -> PerPlan:
    """Return the layers that the embedding counts as, and likewise the head: 1 where the body does not divide."""
    layers = stack.num_body_layers / chunks
    if_uneven = 1.0 if stack.first and stack.last else 0.0
    return xp.where(xp.floor(layers) == layers, xp.zeros_like(layers), xp.full_like(layers, if_uneven))
