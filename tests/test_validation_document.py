"""benchmarks/accuracy.py writes a document with every figure, pictures, and predictions to freeze."""

import csv
import dataclasses
import re

import numpy as np
import pytest
from runs.tables import write

from dsx.calibration.intervals import Coverage
from dsx.calibration.observations import observe
from dsx.predict.predictions import Predictions
from dsx.predict.predictor import predict
from dsx.predict.validation_rows import compare
from dsx.runs.run_table import read_runs
from dsx.runs.setups import setups
from dsx.runs.step_time import measured_step_time
from dsx.spec.assumptions import load_assumptions
from dsx.spec.between import Bounds


@pytest.fixture
def validation(benchmark_script):
    return benchmark_script("accuracy")


@pytest.fixture
def runs(tmp_path):
    memory = {"measured_mem_gb": "50", "mem_unit": "GB"}
    return read_runs(write(tmp_path / "runs.csv", memory, {"source_id": "b"}, {"trust": "C"}, {"n_gpus": "24"}))


@pytest.fixture
def rows(runs):
    def tenth_more(asked, assumptions):
        times = np.array([1.1 * measured_step_time(setup) for setup in asked])
        none = (None,) * len(asked)
        return Predictions(times, 0.9 * times, 1.1 * times, *np.full((3, len(asked)), 4e10), times > 0, none, none)

    return compare(runs, setups(runs), tenth_more, load_assumptions("default"))


def test_the_document_has_every_figure(validation, runs, rows):
    kept = validation.chosen(rows, [run.trust == "A" for run in runs])
    better = dataclasses.replace(kept, predicted_s=kept.measured_s)
    unseen = validation.Unseen(better, {"own": Coverage(0.9, 0.25)}, {"own": 0.031})
    text = validation.document(
        kept, unseen, "default", {"were filled": {"vpp": 1}}, validation.chosen(rows, [False] * 4), len(runs)
    )
    assert "3 rows of trust A and B; 1 of less trust are left out." in text
    first, second = re.findall(r"^\| all \|.*$", text, re.MULTILINE)
    assert first.split(" | ")[1:5] == ["3", "2", "10.0 %", "10.0 %"]
    assert second.split(" | ")[1:3] == ["0.0 %", "0.0 %"]
    assert second.endswith("| 25.0 % | 3.1 % |")
    assert re.search(r"^\| b \|.* - \| - \|$", text, re.MULTILINE)
    assert first.endswith("| 20.0 % |")
    assert "| tp * pp * cp * dp is not n_gpus | 1 |" in text
    assert "| vpp | 1 |" in text


@pytest.mark.slow
def test_sources_are_predicted_without_their_rows(validation, tmp_path):
    changes = [{"source_id": source, "measured_iter_s": seconds} for source in "abc" for seconds in ("3.5", "3.6")]
    runs = read_runs(write(tmp_path / "runs.csv", *changes, {"trust": "C"}))
    made = setups(runs)
    assumptions = load_assumptions("default")
    rows = validation.chosen(compare(runs, made, predict, assumptions), [run.trust == "A" for run in runs])
    between = {"matrix_efficiency": Bounds(0.1, 1.0)}
    start = {"matrix_efficiency": 0.5}
    found = validation.predicted_unseen(rows, observe(runs, made, assumptions), assumptions, between, start)
    # One number and equal sources: each is predicted to take what the others did.
    assert found.rows.predicted_s == pytest.approx(np.full(6, np.sqrt(3.5 * 3.6)), rel=1e-3)
    assert (found.coverage, found.specialised) == ({}, {})
    assert validation.predicted_unseen(rows, observe(runs, made, assumptions), assumptions, {}, {}) is None


def test_sections_of_other_scripts_stay(validation, tmp_path):
    own, other = (
        "## By source\n\n| a |\n",
        "## Collectives\n\n<!-- collectives: written -->\nx\n<!-- end of collectives -->",
    )
    (tmp_path / "old.md").write_text(f"# Validation\n\n{own}\n{other}\n")
    assert validation.others_sections(tmp_path / "old.md") == f"\n{other}\n"
    assert validation.others_sections(tmp_path / "none.md") == ""


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
