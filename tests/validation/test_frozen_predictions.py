"""What `default` predicts of the published runs is frozen: a change that moves a prediction shows here.

Where it is meant to, `make validation` writes the predictions again, and CHANGELOG.md says what moved.
"""

import csv

import numpy as np
import pytest

from dsx.predict.predictor import predict
from dsx.predict.validation_rows import compare
from dsx.runs.run_table import read_runs
from dsx.runs.setups import setups
from dsx.spec.assumptions import load_assumptions
from dsx.spec.locate import packaged_data

FOLDER = packaged_data() / "validation"
ROUNDED = 1e-5  # frozen predictions have six digits


@pytest.fixture(scope="module")
def frozen():
    with (FOLDER / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def rows():
    runs = read_runs(FOLDER / "runs.csv")
    return compare(runs, setups(runs), predict, load_assumptions("default"))


def test_every_row_is_frozen(frozen):
    assert [row["id"] for row in frozen] == [run.id for run in read_runs(FOLDER / "runs.csv")]


def test_no_step_time_moved(frozen, rows):
    expected = np.array([float(row["predicted_s"]) for row in frozen])
    np.testing.assert_allclose(rows.predicted_s, expected, rtol=ROUNDED)


def test_no_memory_moved(frozen, rows):
    expected = np.array([float(row["predicted_bytes"]) for row in frozen])
    np.testing.assert_allclose(rows.predicted_bytes, expected, rtol=ROUNDED)
    np.testing.assert_array_equal(rows.fits, np.array([row["fits"] == "1" for row in frozen]))
