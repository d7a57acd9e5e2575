"""Each candidate of a block is in the cell that the sum gives, and a cell is of one group."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.tables import BOUNDS, key_tables
from search.sweeps import searched

from dsx.plans.blocks import Blocks
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.search.tiles import contenders as cells_module
from dsx.search.tiles.contenders import cells_of, group_codes
from dsx.search.tiles.tiles import Groups

PER = st.lists(st.sampled_from([*KEY_COLUMNS, *CHOICE_COLUMNS]), max_size=5, unique=True)


@given(keys=key_tables(), given_bounds=BOUNDS, per=PER, data=st.data())
def test_candidates_of_a_cell_are_those_of_a_group(keys, given_bounds, per, data):
    blocks = Blocks(keys, given_bounds)
    low = data.draw(st.integers(0, len(blocks)))
    high = data.draw(st.integers(low, len(blocks)))
    groups = Groups(keys, blocks, per)
    cells = cells_of(blocks, groups, low, high)
    first, last = blocks.first_candidate[[low, high]].tolist()
    positions, choices = blocks.rows(first, last)
    num_keys, num_choices = np.diff(blocks.first_key[low : high + 1]), blocks.num_choices[low:high]
    assert (len(cells.of_key), len(cells.of_choice)) == (num_keys.sum(), num_choices.sum())
    codes = []
    for block in range(high - low):
        of_key = cells.of_key[num_keys[:block].sum() :][: num_keys[block]]
        of_choice = cells.of_choice[num_choices[:block].sum() :][: num_choices[block]]
        codes.append(cells.code[of_key[:, None] + of_choice[None]].ravel())
    codes = np.concatenate([*codes, np.zeros(0, dtype=np.int64)])
    columns = [keys[name][positions] if name in KEY_COLUMNS else choices[name] for name in per]
    known = set(zip(codes.tolist(), *(column.tolist() for column in columns), strict=True))
    assert len({code for code, *_ in known}) == len({tuple(values) for _, *values in known}) == len(known)
    assert set(cells.code.tolist()) == set(codes.tolist())
    ranges = [(block, block + 1) for block in range(low, high)]
    np.testing.assert_array_equal(group_codes(blocks, groups, ranges), np.unique(codes))


def test_counting_ends(monkeypatch):
    monkeypatch.setattr(cells_module, "COUNTED", 3)
    _, space, _ = searched()
    groups = Groups(space.keys, space.blocks, ("tp", "pp", "dp"))
    ranges = [(block, block + 1) for block in range(len(space.blocks))]
    assert 3 < len(group_codes(space.blocks, groups, ranges)) < 100


@pytest.mark.parametrize("per", [(), ("tp",), ("num_gpus", "pp", "global_batch_size", "num_microbatches")])
def test_codes_are_fewer_than_the_span(per):
    _, space, _ = searched()
    groups = Groups(space.keys, space.blocks, per)
    codes = group_codes(space.blocks, groups, [(0, len(space.blocks))])
    assert 0 <= codes.min() <= codes.max() < groups.span
