"""benchmarks/accuracy.py writes a document with every figure, pictures, and predictions to freeze."""

import csv
import re

import numpy as np
import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.config.schema import Bounds
from dsx.runs.error_report import IntervalCoverage
from dsx.runs.fit import Deviations, Effects, Fit
from dsx.runs.observations import observe
from dsx.runs.predict import Predictions, compare
from dsx.runs.setups import measured_step_time, setups
from dsx.runs.table import read_runs

BASE = load_assumptions("uncalibrated", [("uncounted_layers", "[embedding, head]")])
BETWEEN = {"matrix_efficiency": Bounds(0.3, 1.0)}


@pytest.fixture
def validation(benchmark_script):
    return benchmark_script("accuracy")


@pytest.fixture
def runs(tmp_path):
    memory = {"measured_mem_gb": "50", "mem_unit": "GB"}
    stated = "fused loss; OwnTool predicted 4900 ms / 40.0 GiB"
    many = [{"microbatch": str(size)} for size in (1, 2, 4, 2, 1)]
    last = {"source_id": "b", "notes": stated, "measured_iter_s": "4.9"} | memory
    return read_runs(write(tmp_path / "runs.csv", *many, last, {"trust": "C"}, {"n_gpus": "24"}))


def tenth_more(asked, assumptions):
    """Predict a tenth more than was measured, 40 GB, and that everything fits."""
    times = np.array([1.1 * measured_step_time(setup) for setup in asked])
    none = (None,) * len(asked)
    return Predictions(times, 0.9 * times, 1.1 * times, *np.full((3, len(asked)), 4e10), times > 0, none, none)


@pytest.fixture
def rows(runs):
    return compare(runs, setups(runs), tenth_more, load_assumptions("default"))


@pytest.fixture
def unseen(benchmark_script, runs):
    """Fits that predict sources exactly when they are left out, and stacks 20 % too long."""
    observations = observe(runs, setups(runs), BASE)
    measured = observations.measured_s
    effects = Effects({"megatron-2024": 0.05}, {"ampere": -0.02}, Deviations(0.11, 0.01, 0.07))
    return benchmark_script("unseen").Unseen(
        observations,
        Fit({"matrix_efficiency": 0.8}, {"matrix_efficiency": 0.04}, (), (), effects),
        without_source_s=measured,
        without_stack_s=1.2 * measured,
        low_s=0.9 * measured,
        high_s=1.2 * measured,
        coverage={"own": IntervalCoverage(0.9, 0.25)},
        few_runs={"own": {1: 0.051, 3: 0.041, 5: 0.031}},
    )


def lines_of(text, title):
    """Return the lines of the table under a title, without its head."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, title
    return [line for line in section[1].splitlines() if line.startswith("|")][2:]


@pytest.fixture
def text(validation, runs, rows, unseen):
    trusted = [run.trust == "A" for run in runs]
    kept = [run for run in runs if run.trust == "A"]
    return validation.document(validation.chosen(rows, trusted), kept, setups(kept), unseen, "default", rows, BETWEEN)


def test_sections_of_the_document(text):
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[:3] == ["Noise floor", "Errors in short", "By source"]
    assert lines_of(text, "Noise floor")[-1] == "| all | 2 | 0.0 % | 0.0 % | 2 | 0.0 % | 0.0 % |"
    # Errors are those of each way to predict.
    assert "7 rows of trust A and B, 6 of them with a step time that is modelled; 1 rows of less trust" in text
    in_sample, source, stack, *adapted = lines_of(text, "Errors in short")
    assert in_sample.startswith("| in sample | 10.0 % | 10.0 % | 10.0 % | 10.0 % | - | - |")
    assert source.startswith("| source left out | 0.0 % | 0.0 % |")
    assert stack.startswith("| stack left out | 20.0 % | 20.0 % |")
    assert [re.search(r"median over sources ([\d.]+ %)", line)[1] for line in adapted] == ["5.1 %", "4.1 %", "3.1 %"]
    # A source of few rows is apart.
    own, few = lines_of(text, "By source")[0], lines_of(text, "By source")[-1]
    assert own.startswith("| own | 5 | 10.0 % | 10.0 % | 0.0 % | 0.0 % | 20.0 % | 20.0 % |")
    assert own.endswith("| 90.0 % | 25.0 % | 5.1 % | 4.1 % | 3.1 % |")
    assert few.startswith("| b | 1 |") and few.endswith("| - | - | - | - | - |")
    assert text.index("Sources of fewer than 5 timed rows") > text.index(own)
    # The other sections.
    assert lines_of(text, "By device generation")[0].startswith("| ampere | 1 | 6 | 10.0 %")
    assert lines_of(text, "By kind of model")[0].startswith("| dense | 1 | 6 | 10.0 %")
    assert "In 1 of 1 sources at least 70 % of the rows are inside." in text
    assert lines_of(text, "Free numbers") == ["| `matrix_efficiency` | 0.8 | 0.04 | 0.3 to 1 |  |"]
    assert "stacks 11.0 %, device generations 1.0 %, sources beyond both 7.0 %" in text
    assert "| `megatron-2024` | 5.0 % |" in text
    assert lines_of(text, "Memory") == ["| b | 20.0 % |"]
    assert "| tp * pp * cp * dp is not n_gpus | 1 |" in text
    assert len(lines_of(text, "Ranking")) == 2
    # Tools are beside dsx on their own runs.
    time, memory = lines_of(text, "The closest public tools")
    assert time == "| OwnTool, step time: its own table | 1 | 0.0 % | 0.0 % | 10.0 % | 10.0 % | 0.0 % | 0.0 % |"
    theirs = f"{100 * abs(40 * 2**30 / 50e9 - 1):.1f} %"
    assert memory == f"| OwnTool, memory: its own table | 1 | {theirs} | {theirs} | 20.0 % | 20.0 % | - | - |"


def test_without_a_fit_there_are_fewer_sections(validation, runs, rows):
    text = validation.document(rows, runs, setups(runs), None, "default", rows, {})
    assert "## Ranking" in text and "## Memory" in text
    assert not any(title in text for title in ("## By source", "## Free numbers", "## Effects"))


def test_means_are_over_sources_of_enough_rows(benchmark_script):
    tables = benchmark_script("error_tables")
    error = np.array([0.1, -0.1, 0.1, 0.1, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 9.0, np.nan])
    found = tables.by_source(error, [*"aaaaa", *"bbbbb", "c", "d"])
    assert found.keys() == {*"abc"} and tables.scored(found).keys() == {*"ab"}
    assert (found["a"].median, found["a"].mean) == (pytest.approx(0.1), pytest.approx(0.2))
    assert tables.means(found) == (pytest.approx(0.3), pytest.approx(0.35))
    assert tables.means({}) == (None, None)
    apart = tables.by_class(error, [*"aaaaa", *"bbbbb", "c", "d"], ["x"] * 5 + ["y"] * 7)
    assert apart["x"].keys() == {"a"} and apart["y"].keys() == {"b", "c"}


@pytest.mark.slow
def test_sources_are_predicted_without_their_rows(benchmark_script, tmp_path):
    script = benchmark_script("unseen")
    changes = [
        {"source_id": source, "measured_iter_s": seconds, "microbatch": size}
        for source in "abc"
        for seconds, size in (("3.5", "1"), ("3.4", "2"), ("3.3", "4"))
    ]
    runs = read_runs(write(tmp_path / "runs.csv", *changes))
    observations = observe(runs, setups(runs), BASE)
    found = script.predicted_unseen(observations, BASE, BETWEEN)
    assert found.fit.values.keys() == BETWEEN.keys()
    # Sources are equal, so each is predicted as the others.
    assert found.without_source_s == pytest.approx(np.tile(found.without_source_s[:3], 3), rel=1e-3)
    assert found.without_source_s == pytest.approx(observations.measured_s, rel=0.1)
    # There is one stack, so without it nothing is known but the set.
    assert found.without_stack_s == pytest.approx(observations.step_times({}), rel=1e-3)
    assert found.few_runs.keys() == {*"abc"} and found.coverage == {}
    assert script.predicted_unseen(observations, BASE, {}) is None


def test_sections_of_other_scripts_stay(validation, tmp_path):
    own, other = (
        "## By source\n\n| a |\n",
        "## Collectives\n\n<!-- collectives: written -->\nx\n<!-- end of collectives -->",
    )
    (tmp_path / "old.md").write_text(f"# Validation\n\n{own}\n{other}\n")
    assert validation.others_sections(tmp_path / "old.md") == f"\n{other}\n"
    assert validation.others_sections(tmp_path / "none.md") == ""


def test_frozen_predictions_read_back(validation, runs, rows, tmp_path):
    validation.freeze(rows, tmp_path / "frozen.csv")
    with (tmp_path / "frozen.csv").open(newline="") as file:
        frozen = list(csv.DictReader(file))
    assert [row["id"] for row in frozen] == [*rows.id]
    assert float(frozen[0]["predicted_s"]) == pytest.approx(3.85, rel=1e-5)
    assert (frozen[0]["fits"], frozen[-1]["predicted_s"], frozen[-1]["fits"]) == ("1", "nan", "0")


@pytest.mark.slow
def test_pictures_are_drawn(validation, runs, rows, unseen, tmp_path):
    validation.draw_pictures(rows, setups(runs), unseen, tmp_path / "figures")
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "figures").iterdir()}
    assert sizes.keys() == {"validation-step-time.png", "validation-memory.png"}
    assert min(sizes.values()) > 1000


def test_valid_rows_are_those_that_can_be_fitted(benchmark_script, tmp_path):
    table = write(tmp_path / "runs.csv", {}, {"n_gpus": "24"}, {"source_id": "b"})
    assert [row["id"] for row in benchmark_script("calibration").valid_rows(table)] == ["own-1", "own-3"]
