"""What `default` predicts of the published runs is frozen: a change that moves a prediction shows here.

Where it is meant to, `make validation` writes the predictions again, and CHANGELOG.md says what moved.
"""

import csv

import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.search_path import packaged_data
from dsx.runs.predict import compare, predict
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

FOLDER = packaged_data() / "validation"
ROUNDED = 1e-5  # frozen predictions have six digits


@pytest.fixture(scope="module")
def frozen():
    with (FOLDER / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(
    scope="module",
    params=[("Narayanan", "fms-fsdp"), pytest.param(("",), marks=pytest.mark.slow)],
    ids=["two sources", "all"],
)
def rows(request, frozen):
    """The rows of some sources, as they are frozen and as they are predicted now."""
    runs = [run for run in read_runs(FOLDER / "runs.csv") if any(name in run.source for name in request.param)]
    by_id = {row["id"]: row for row in frozen}
    return [by_id[run.id] for run in runs], compare(runs, setups(runs), predict, load_assumptions("default"))


def test_every_row_is_frozen(frozen):
    assert [row["id"] for row in frozen] == [run.id for run in read_runs(FOLDER / "runs.csv")]


def test_no_step_time_moved(rows):
    expected, found = rows
    np.testing.assert_allclose(found.predicted_s, [float(row["predicted_s"]) for row in expected], rtol=ROUNDED)


def test_no_memory_moved(rows):
    expected, found = rows
    np.testing.assert_allclose(found.predicted_bytes, [float(row["predicted_bytes"]) for row in expected], rtol=ROUNDED)
    np.testing.assert_array_equal(found.fits, [row["fits"] == "1" for row in expected])
