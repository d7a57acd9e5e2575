"""Layouts in the words of the launcher, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.launching.request import layout_text
from dsx.plans.layer_layout import Chain, layers_of_chunks


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], ""),
        ([0, *[1] * 126, 0], "E|(t|)*126L"),
        ([7, 6, 6, 5], "Et*7|t*6|t*6|t*5L"),
        ([1, 2, 2, 2, 0, 3], "Et|(t*2|)*3|t*3L"),
    ],
)
def test_equal_chunks_are_one_group(body, text):
    assert layout_text(body) == text


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40).filter(sum))
def test_a_layout_reads_back(body):
    body[-1] += 1
    found = layers_of_chunks(layout_text(body), Chain(1, sum(body), 1))
    assert [*found] == [size + (at == 0) + (at == len(body) - 1) for at, size in enumerate(body)]
