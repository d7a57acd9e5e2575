"""A small result set to write, spoil and read."""

import numpy as np
import pytest

from dsx.results import manifest, store
from dsx.results.schema import COLUMNS

SPEC = {"model": "m", "num_gpus": [8, 16], "precision": "float32"}
NAMES = {"strategy": ("flat", "grid"), "recompute": ("none", "full"), "schedule": ("one",)}
REASONS = [("memory", "peak_bytes is above the device's capacity"), ("layers", "pp does not divide them")]


def make_rows(n: int, first: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(first)
    rows = {}
    for column in COLUMNS:
        match column.kind:
            case "real":
                rows[column.name] = rng.random(n).astype(np.float32)
            case "name":
                rows[column.name] = np.arange(n) % len(NAMES[column.name])
            case _:
                rows[column.name] = rng.integers(0, 100, n)
    rows["candidate"] = np.arange(first, first + n) + 2**40
    rows["reject"] = np.arange(n) % 3
    return rows


@pytest.fixture
def rows():
    return make_rows


@pytest.fixture
def begun():
    """The manifest of a set that is about to be written, with changes to its spec."""

    def begin(precision="float32", **changes):
        return manifest.begin(SPEC | changes, NAMES, REASONS, precision)

    return begin


@pytest.fixture
def counts():
    return manifest.Counts(candidates=12, feasible=4, rejected={"memory": 4, "layers": 4})


@pytest.fixture
def stored(tmp_path, begun, counts):
    """The folder of a complete set with parts of 5 and 7 rows."""
    folder = tmp_path / "set"
    with store.create(folder, begun()) as writer:
        writer.write(make_rows(5))
        writer.write(make_rows(7, first=5))
        writer.finish(counts)
    return folder
