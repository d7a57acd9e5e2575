"""Tiles and chunks cover every candidate exactly once, and every part is of one shape."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.search import tiles
from dsx.search.rows import row_chunks
from dsx.search.tiles import PADDING, batches
from dsx.space.enumerate import CHOICE_COLUMNS, Block


@st.composite
def spaces(draw):
    """Blocks with distinct keys; the choices of each are distinct, with groups in their first two columns."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70)), max_size=6))
    made, first = [], 0
    for number, (num_keys, num_choices) in enumerate(shapes):
        choices = np.ones((len(CHOICE_COLUMNS), num_choices), dtype=np.int64)
        choices[0] = np.arange(num_choices) % draw(st.integers(1, 5))
        choices[1] = np.arange(num_choices) % 3
        choices[2] = 1000 * number + np.arange(num_choices)
        made.append(Block(np.arange(first, first + num_keys), choices))
        first += num_keys
    return made


def choices_of(block):
    return [tuple(choice) for choice in block.matrix.T.tolist()]


def candidates(blocks):
    """How often each pair of a key and its choices occurs."""
    return Counter((key, choice) for block in blocks for key in block.keys.tolist() for choice in choices_of(block))


def covered(found):
    """The pairs of a key and its choices in batches."""
    pairs = Counter()
    for batch in found:
        for keys, start, length in zip(batch.keys, batch.start, batch.length, strict=True):
            run = batch.choices[:, start : start + length]
            assert run.shape[1] == length
            for key in keys[keys != PADDING].tolist():
                pairs.update((key, tuple(choice)) for choice in run.T.tolist())
    return pairs


SHAPES = st.sampled_from([((1,), (1,)), ((3,), (7,)), ((1, 8, 32), (32, 256, 1024)), ((2, 5), (4, 16))])


@given(made=spaces(), shape=SHAPES, cells=st.sampled_from([1, 30, 500]), room=st.sampled_from([0, 3, 60]))
def test_tiles_cover_every_candidate_once(made, shape, cells, room):
    keys, choices = shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_KEYS_PER_TILE", keys)
        patch.setattr(tiles, "_CHOICES_PER_TILE", choices)
        patch.setattr(tiles, "_CELLS", cells)
        patch.setattr(tiles, "_CHOICES", 2 * choices[-1] + room)
        for group_by in ([], ["num_gpus"], ["num_gpus", "global_batch_size"]):
            found = list(batches(made, group_by))
            assert covered(found) == candidates(made)
            assert sum(batch.candidates for batch in found) == sum(block.size for block in made)
            assert len({(batch.shape, batch.keys.shape, batch.choices.shape) for batch in found}) <= 1
            check_groups(found, group_by)


def check_groups(found, group_by):
    """A run has one value of each grouped column, and a slice of full width stays inside the choices."""
    rows = [CHOICE_COLUMNS.index(name) for name in group_by]
    for batch in found:
        assert (batch.start + batch.shape.choices <= batch.choices.shape[1]).all()
        for start, length in zip(batch.start.tolist(), batch.length.tolist(), strict=True):
            run = batch.choices[rows, start : start + length]
            assert (run == run[:, :1]).all()
            assert length <= batch.shape.choices


def test_no_blocks_make_no_batch():
    assert list(batches([], [])) == []


@pytest.mark.parametrize("cells", [2**12, 2**18])  # a batch is full of tiles, or of choices
def test_more_blocks_than_are_looked_at_ahead(cells):
    choices = np.ones((len(CHOICE_COLUMNS), 2), dtype=np.int64)
    made = [Block(np.arange(3 * n, 3 * n + 3), choices + n) for n in range(700)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_CELLS", cells)
        patch.setattr(tiles, "_CHOICES", 2**8)
        found = list(batches(iter(made), []))
    assert covered(found) == candidates(made)
    check_groups(found, [])


@given(made=spaces(), length=st.integers(1, 300))
def test_chunks_cover_every_row_once_and_in_order(made, length):
    chunks = list(row_chunks(iter(made), length))
    found = [
        (key, tuple(choice))
        for positions, choices in chunks
        for key, *choice in zip(positions.tolist(), *(choices[name].tolist() for name in CHOICE_COLUMNS), strict=True)
    ]
    expected = [(key, choice) for block in made for key in block.keys.tolist() for choice in choices_of(block)]
    assert found == expected
    lengths = [len(positions) for positions, _ in chunks]
    assert lengths[:-1] == [length] * len(lengths[:-1])
    assert all(0 < size <= length for size in lengths)
