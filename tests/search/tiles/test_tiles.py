"""Tiles cover every candidate exactly once, whatever the shape of tiles and chunks, and a slice has one group."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.tables import BOUNDS, bounds, key_tables

from dsx.plans.blocks import Blocks
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.search.tiles import tiles
from dsx.search.tiles.tiles import PADDING, Groups, KeyRows, block_ranges, make_chunk

# One tile holds a whole block, a few of its candidates, or, as everywhere else, 8 keys and 64 choices.
SHAPES = st.sampled_from([(1, 1), (3, 7), (8, 64), (1000, 10_000)])
CHUNKS = st.sampled_from([1, 40, 500, 1 << 17])
PER = st.lists(st.sampled_from([*KEY_COLUMNS, *CHOICE_COLUMNS]), max_size=4, unique=True)


def chunks_of(blocks, groups, low, high):
    rows = KeyRows(blocks)
    ranges = list(block_ranges(blocks, low, high))
    return rows, ranges, [make_chunk(blocks, rows, groups, blocks.segments(*blocks_of_it)) for blocks_of_it in ranges]


def slices(chunk):
    """Every tile of a chunk with the choices of its slice, as (tile, columns)."""
    for tile in range(len(chunk.row)):
        of_tile = chunk.slices[tile]
        here = slice(chunk.start[of_tile], chunk.start[of_tile] + chunk.length[of_tile])
        yield tile, chunk.placement[here], chunk.global_batch_size[here]


def rows_of(blocks, low, high):
    positions, choices = blocks.rows(int(blocks.first_candidate[low]), int(blocks.first_candidate[high]))
    return Counter(zip(positions.tolist(), *(column.tolist() for column in choices.values()), strict=True))


def covered(blocks, rows, chunk):
    """How often each (key, *choice) is in the tiles of a chunk."""
    found = Counter()
    for tile, placement, batch in slices(chunk):
        assert len(placement) == len(batch) == chunk.length[chunk.slices[tile]]
        sizes = np.full(len(batch), chunk.microbatch_size[chunk.slices[tile]], dtype=np.int64)
        made = list(zip(*(c.tolist() for c in blocks.choices_at(placement, batch, sizes).values()), strict=True))
        for key in rows.keys[chunk.row[tile]].tolist():
            if key != PADDING:
                found.update((key, *choice) for choice in made)
    return found


@given(keys=key_tables(), given_bounds=BOUNDS, per=PER, shape=SHAPES, size=CHUNKS, data=st.data())
def test_tiles_cover_every_candidate_once(keys, given_bounds, per, shape, size, data):
    blocks = Blocks(keys, given_bounds)
    low = data.draw(st.integers(0, len(blocks)))
    high = data.draw(st.integers(low, len(blocks)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "KEYS", shape[0])
        patch.setattr(tiles, "CHOICES", shape[1])
        patch.setattr(tiles, "_CHUNK", size)
        rows, ranges, chunks = chunks_of(blocks, Groups(keys, blocks, per), low, high)
    borders = [low, *(last for _, last in ranges)]
    assert ranges == list(pairwise(borders))
    assert borders[-1] == high
    total = Counter()
    for (first, last), chunk in zip(ranges, chunks, strict=True):
        assert len(chunk.placement) == len(chunk.global_batch_size) == blocks.num_choices[first:last].sum()
        assert last == first + 1 or len(chunk.placement) <= size
        assert chunk.size == blocks.first_candidate[last] - blocks.first_candidate[first]
        assert chunk.length.min() > 0
        assert chunk.length.max() <= shape[1]
        found = covered(blocks, rows, chunk)
        assert found == rows_of(blocks, first, last)
        total += found
    assert total == rows_of(blocks, low, high)
    assert set(total.values()) <= {1}


@pytest.mark.slow
@given(keys=key_tables(), given_bounds=BOUNDS, per=PER, choices=st.sampled_from([1, 7, 64]))
def test_a_slice_has_choices_of_one_group(keys, given_bounds, per, choices):
    """Codes differ where, and only where, a column of `per` differs."""
    blocks = Blocks(keys, given_bounds)
    groups = Groups(keys, blocks, per)
    assert groups.choice_columns == [name for name in per if name in CHOICE_COLUMNS]
    if not groups.of_keys:
        assert (groups.of_key == 0).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "CHOICES", choices)
        patch.setattr(tiles, "_CHUNK", 200)
        rows, _, chunks = chunks_of(blocks, groups, 0, len(blocks))
    known = {}
    for chunk in chunks:
        lengths = {}
        of_tiles = (chunk.row, chunk.group[chunk.slices], chunk.length[chunk.slices])
        for row, code, length in zip(*(column.tolist() for column in of_tiles), strict=True):
            lengths.setdefault((row, code), []).append(length)
        # A group of a block has as few slices as possible.
        assert all(sorted(found)[1:] == [choices] * (len(found) - 1) for found in lengths.values())
        for tile, placement, batch in slices(chunk):
            of_tile = chunk.slices[tile]
            sizes = np.full(len(batch), chunk.microbatch_size[of_tile], dtype=np.int64)
            made = blocks.choices_at(placement, batch, sizes)
            (of_choice,) = set(zip(*(made[n].tolist() for n in groups.choice_columns), strict=True)) or {()}
            row = rows.keys[chunk.row[tile]]
            for key in row[row != PADDING].tolist():
                of_key = tuple(int(keys[name][key]) for name in per if name in KEY_COLUMNS)
                code = int(chunk.group[of_tile] + groups.of_key[key])
                assert 0 <= code < groups.span
                assert known.setdefault((of_key, of_choice), code) == code
    assert len(set(known.values())) == len(known)


@given(keys=key_tables(), given_bounds=BOUNDS, wide=st.sampled_from([1, 3, 8, 500]))
def test_rows_of_keys_are_padded_after_the_last_key_of_a_block(keys, given_bounds, wide):
    blocks = Blocks(keys, given_bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "KEYS", wide)
        rows = KeyRows(blocks)
    assert rows.keys.shape == (rows.first[-1], wide)
    assert len(rows.first) == len(blocks) + 1
    for block in range(len(blocks)):
        here = rows.keys[rows.first[block] : rows.first[block + 1]].ravel()
        keys_here = blocks.keys[blocks.first_key[block] : blocks.first_key[block + 1]]
        assert here[: len(keys_here)].tolist() == keys_here.tolist()
        assert (here[len(keys_here) :] == PADDING).all()
        assert len(here) - len(keys_here) < wide


def test_the_choices_of_some_tiles_in_full_width():
    """Padding after the last choice of a slice repeats it."""
    keys = {name: np.ones(3, dtype=np.int64) for name in KEY_COLUMNS}
    blocks = Blocks(keys, bounds([16], range(16, 16 * 101, 16), num_layers=4))
    _, _, (chunk,) = chunks_of(blocks, Groups(keys, blocks, ["pp"]), 0, len(blocks))
    assert sorted(chunk.length.tolist()) == [36] * 3 + [64] * 3  # a hundred batch sizes of each of three pipelines
    chosen = np.arange(len(chunk.length))[::-1]
    placement, batch = chunk.choices(chosen)
    assert placement.shape == batch.shape == (len(chosen), tiles.CHOICES)
    for at, number in enumerate(chosen.tolist()):
        count = int(chunk.length[number])
        here = slice(int(chunk.start[number]), int(chunk.start[number]) + count)
        assert placement[at, :count].tolist() == chunk.placement[here].tolist()
        assert batch[at, :count].tolist() == chunk.global_batch_size[here].tolist()
        last = chunk.placement[here][-1], chunk.global_batch_size[here][-1]
        assert set(zip(placement[at, count:], batch[at, count:], strict=True)) <= {last}
