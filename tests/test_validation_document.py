"""benchmarks/accuracy.py writes a document with every figure, pictures, and predictions to freeze."""

import csv
import dataclasses
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from measured.tables import write

from dsx.measured.predictions import Predictions
from dsx.measured.rows import compare
from dsx.measured.runs import read_runs
from dsx.measured.setups import setups
from dsx.measured.step_time import measured_step_time
from dsx.spec.assumptions import load_assumptions

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def validation(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("accuracy")


@pytest.fixture
def runs(tmp_path):
    memory = {"measured_mem_gb": "50", "mem_unit": "GB"}
    return read_runs(write(tmp_path / "runs.csv", memory, {"source_id": "b"}, {"trust": "C"}, {"n_gpus": "24"}))


@pytest.fixture
def rows(runs):
    def tenth_more(asked, assumptions):
        times = np.array([1.1 * measured_step_time(setup) for setup in asked])
        none = (None,) * len(asked)
        return Predictions(times, 0.9 * times, 1.1 * times, np.full(len(asked), 4e10), times > 0, none)

    return compare(runs, setups(runs), tenth_more, load_assumptions("default"))


def test_the_document_has_every_figure(validation, runs, rows):
    kept = validation.chosen(rows, [run.trust == "A" for run in runs])
    better = dataclasses.replace(kept, predicted_s=kept.measured_s)
    text = validation.document(kept, better, "default", {"vpp": 1}, runs)
    assert "3 rows of trust A and B; 1 of less trust are left out." in text
    first, second = re.findall(r"^\| all \|.*$", text, re.MULTILINE)
    assert first.split(" | ")[1:5] == ["3", "2", "10.0 %", "10.0 %"]
    assert second.split(" | ")[3:5] == ["0.0 %", "0.0 %"]
    assert first.endswith("| 20.0 % |")
    assert "| tp * pp * cp * dp is not n_gpus | 1 |" in text
    assert "| vpp | 1 |" in text


def test_predictions_without_the_own_source_are_read(validation, rows, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("id,measured_s,predicted_s,low,high,reason\nown-2,3.5,4.2,4.0,,\n")
    found = validation.predicted_by(rows, file)
    assert (found.predicted_s[1], found.low[1]) == (4.2, 4.0)
    assert np.isnan(found.high[1]) and np.isnan(found.predicted_s[0])


def test_frozen_predictions_read_back(validation, rows, tmp_path):
    validation.freeze(rows, tmp_path / "frozen.csv")
    with (tmp_path / "frozen.csv").open(newline="") as file:
        frozen = list(csv.DictReader(file))
    assert [row["id"] for row in frozen] == [*rows.id]
    assert float(frozen[0]["predicted_s"]) == pytest.approx(3.85, rel=1e-5)
    assert (frozen[0]["fits"], frozen[3]["predicted_s"], frozen[3]["fits"]) == ("1", "nan", "0")


def test_pictures_are_drawn(validation, rows, tmp_path):
    for draw in (validation.draw_step_time, validation.draw_memory):
        draw(rows, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 1000
        (tmp_path / "picture.png").unlink()
