"""A small result set to write, spoil and read."""

import pytest
from results.sets import begin_manifest, files_in, make_counts, make_rows

from dsx.results import writer as writing


@pytest.fixture
def rows():
    return make_rows


@pytest.fixture
def counts():
    return make_counts


@pytest.fixture
def begun():
    """The manifest of a set that is about to be written, with changes to its spec."""
    return begin_manifest


@pytest.fixture
def files():
    return files_in


@pytest.fixture
def written():
    """Write a set whose parts have the given numbers of rows, and return its manifest."""

    def write(folder, manifest, *sizes):
        with writing.create(folder, manifest, len(sizes)) as writer:
            for number, size in enumerate(sizes):
                if number in writer.missing():
                    rows = make_rows(size, first=100 * number, what_if=manifest.what_if)
                    writer.write(number, rows, make_counts(size))
            return writer.finish()

    return write


@pytest.fixture
def stored(tmp_path, written):
    """The folder of a complete set with parts of 5 and 7 rows."""
    written(tmp_path / "set", begin_manifest(), 5, 7)
    return tmp_path / "set"
