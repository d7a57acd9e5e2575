"""The derived collectives, run on real shards: every rank ends with what the consumer asked for.

Ranks are points of a mesh; each holds a NumPy array. A collective sees only what the ranks of its group
hold. Slices are not collectives and not listed: they are made as soon as they can be.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.notation.expressions import evaluate
from dsx.notation.sharded_layer import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Distribution,
    Unmatchable,
    match,
)
from dsx.notation.syntax import Dim

AXES = ("tp", "cp", "ep")
LETTERS = ("b", "s")


def block(whole, layout, degrees, rank):
    """The part of `whole` that `rank` holds: along each dimension the last axis is innermost."""
    for d, axes in enumerate(layout):
        index = 0
        for axis in axes:
            index = index * degrees[axis] + rank[axis]
        size = whole.shape[d] // math.prod(degrees[axis] for axis in axes)
        whole = np.take(whole, range(index * size, (index + 1) * size), axis=d)
    return whole


class Ranks:
    """What every rank of a mesh holds."""

    def __init__(self, degrees, producer, consumer, whole, rng):
        self.degrees = degrees
        self.mesh = list(itertools.product(*(range(degrees[axis]) for axis in AXES)))
        self.layout = [list(dim.axes) for dim in producer.dims]
        self.target = [list(dim.axes) for dim in consumer.dims]
        self.partial = set(producer.partial)
        # One random summand for each setting of the partial axes; the last one completes the sum.
        settings = list(itertools.product(*(range(degrees[axis]) for axis in producer.partial)))
        summands = {setting: rng.integers(-99, 99, whole.shape) for setting in settings[:-1]}
        summands[settings[-1]] = whole - sum(summands.values(), np.zeros_like(whole))
        self.held = {
            rank: block(
                summands[tuple(self.named(rank)[axis] for axis in producer.partial)],
                self.layout,
                degrees,
                self.named(rank),
            )
            for rank in self.mesh
        }

    def named(self, rank):
        return dict(zip(AXES, rank, strict=True))

    def group(self, rank, axis):
        """What the members of the rank's group over `axis` hold, in order."""
        at = AXES.index(axis)
        return [self.held[(*rank[:at], i, *rank[at + 1 :])] for i in range(self.degrees[axis])]

    def exchange(self, axis, make):
        """Give every rank make(what its group holds, its own place in it)."""
        at = AXES.index(axis)
        self.held = {rank: make(self.group(rank, axis), rank[at]) for rank in self.mesh}

    def split(self, array, dimension, axis):
        return np.split(array, self.degrees[axis], axis=dimension)

    def innermost(self, axis):
        (dimension,) = [d for d, axes in enumerate(self.layout) if axes and axes[-1] == axis]
        return dimension

    def next_in_target(self, axis):
        (dimension,) = [d for d, axes in enumerate(self.target) if axis in axes]
        assert self.target[dimension][: len(self.layout[dimension]) + 1] == [*self.layout[dimension], axis]
        return dimension

    def slice_what_can_be(self):
        sliced = True
        while sliced:
            sliced = False
            for axis in AXES:
                if axis in self.partial or any(axis in axes for axes in self.layout):
                    continue
                for d, (axes, wanted) in enumerate(zip(self.layout, self.target, strict=True)):
                    if [*axes, axis] == wanted[: len(axes) + 1]:
                        self.exchange(axis, lambda held, i, d=d, axis=axis: self.split(held[i], d, axis)[i])
                        axes.append(axis)
                        sliced = True

    def run(self, kind, axis):
        if kind == ALL_GATHER:
            d = self.innermost(axis)
            self.exchange(axis, lambda held, i: np.concatenate(held, axis=d))
            self.layout[d].pop()
        elif kind == ALL_REDUCE:
            self.exchange(axis, lambda held, i: sum(held))
            self.partial.remove(axis)
        elif kind == REDUCE_SCATTER:
            d = self.next_in_target(axis)
            self.exchange(axis, lambda held, i: self.split(sum(held), d, axis)[i])
            self.partial.remove(axis)
            self.layout[d].append(axis)
        else:
            assert kind == ALL_TO_ALL
            here, there = self.innermost(axis), self.next_in_target(axis)
            self.exchange(
                axis, lambda held, i: np.concatenate([self.split(x, there, axis)[i] for x in held], axis=here)
            )
            self.layout[here].pop()
            self.layout[there].append(axis)

    def size(self):
        (size,) = {array.size for array in self.held.values()}
        return size


@st.composite
def distributions(draw):
    """Every axis replicated, partial, or dividing one dimension; axes of a dimension in any order."""
    where = {axis: draw(st.sampled_from(["replicated", "partial", *LETTERS])) for axis in draw(st.permutations(AXES))}
    dims = tuple(Dim(letter, tuple(axis for axis, place in where.items() if place == letter)) for letter in LETTERS)
    return Distribution(dims, tuple(axis for axis in ("tp", "cp", "ep") if where[axis] == "partial"))


def is_possible(producer, consumer):
    """No partial sum is invented, and ranks keep their order: kept axes lead in both, in the same order."""
    for have, want in zip(producer.dims, consumer.dims, strict=True):
        kept = [axis for axis in have.axes if axis in want.axes]
        if list(have.axes[: len(kept)]) != kept or list(want.axes[: len(kept)]) != kept:
            return False
    return set(consumer.partial) <= set(producer.partial)


DEGREES = st.fixed_dictionaries({axis: st.integers(1, 3) for axis in AXES})


@settings(max_examples=300)
@given(distributions(), distributions(), DEGREES, st.integers(1, 2), st.integers(0, 2**32))
def test_ranks_end_with_the_distribution_of_the_consumer(producer, consumer, degrees, blocks, seed):
    if not is_possible(producer, consumer):
        with pytest.raises(Unmatchable):
            match(producer, consumer)
        return
    transfers = match(producer, consumer)

    everyone = math.prod(degrees.values())
    sizes = {"b": everyone, "s": everyone * blocks}
    rng = np.random.default_rng(seed)
    whole = rng.integers(-99, 99, (sizes["b"], sizes["s"]))
    ranks = Ranks(degrees, producer, consumer, whole, rng)

    for transfer in transfers:
        ranks.slice_what_can_be()
        before = ranks.size()
        ranks.run(transfer.kind, transfer.axis)
        volume = ranks.size() if transfer.kind == ALL_GATHER else before
        assert evaluate(transfer.elements, sizes | degrees) == volume
    ranks.slice_what_can_be()

    assert ranks.layout == ranks.target
    assert ranks.partial == set(consumer.partial)
    for axis in consumer.partial:  # a sum that is left open is completed here
        ranks.run(ALL_REDUCE, axis)
    for rank, array in ranks.held.items():
        np.testing.assert_array_equal(array, block(whole, ranks.target, degrees, ranks.named(rank)))


@settings(max_examples=300)
@given(distributions(), distributions())
def test_an_axis_has_at_most_one_collective_and_none_without_need(producer, consumer):
    if not is_possible(producer, consumer):
        return
    moved = [transfer.axis for transfer in match(producer, consumer)]
    assert len(moved) == len(set(moved))
    for axis in moved:
        place = [
            next((dim.letter for dim in d.dims if axis in dim.axes), axis in d.partial) for d in (producer, consumer)
        ]
        assert place[0] is not False  # a replicated value is sliced, which transfers nothing
        assert place[0] != place[1]


@given(distributions())
def test_a_value_in_the_right_distribution_needs_no_collective(distribution):
    assert match(distribution, distribution) == []
