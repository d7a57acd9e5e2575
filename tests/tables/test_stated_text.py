"""A value that a spec states, as text."""

import pytest

from dsx.tables.job import stated_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("8e10 B", "80.0 GB"),
        (["1d", "2d"], "1d, 2d"),  # strategies, no days
        (None, "-"),
        (["80 GB", "1.6e12 B/s"], "80.0 GB, 1.60 TB/s"),
        (4096, "4096"),
    ],
)
def test_quantities_have_a_prefix_and_names_stay(value, text):
    assert stated_text(value) == text
