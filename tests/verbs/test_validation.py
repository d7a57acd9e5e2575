"""What a validation says and writes, over a stand-in for the predictor."""

import csv
import re

import numpy as np
import pytest
from runs.tables import write

import dsx
from dsx.errors import RunTableError, SpecError, StoreError, UnknownNameError
from dsx.runs.predict import Predictions
from dsx.runs.table import UnmodelledReason


def half(setups, assumptions):
    """Predict half a second per tensor-parallel GPU, and no memory beyond two."""
    assert assumptions.name == "default"
    seconds = np.array([setup.plan["tp"] / 2 for setup in setups])
    fits = np.array([setup.plan["tp"] <= 2 for setup in setups])
    reasons = tuple(UnmodelledReason("no layer text", "x") if setup.sizes.experts else None for setup in setups)
    unknown = np.array([reason is not None for reason in reasons])
    seconds = np.where(unknown, np.nan, seconds)
    return Predictions(
        seconds,
        0.8 * seconds,
        1.2 * seconds,
        *np.full((3, len(setups)), 6e10),
        fits,
        ("full", *[None] * (len(setups) - 1)),
        reasons,
    )


CHANGES = (
    {"measured_iter_s": "1.1", "oom": ""},  # a time says that it ran
    {"tp": "4", "dp": "2", "measured_iter_s": "2.5", "measured_mem_gb": "40", "mem_unit": "GB", "vpp": ""},
    {"tp": "8", "dp": "1", "measured_iter_s": "", "oom": "1"},
    {"experts": "8", "topk": "2"},
    {"n_gpus": "24"},
    {"source_id": "other", "measured_iter_s": "", "measured_tokens_per_s_per_gpu": "8192"}
    | {"kernels": "", "notes": "kernel=flash_attention2 + RMS kernel; read from a figure"},
)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "runs.csv", *CHANGES)


def data_of(table, assumptions="default"):
    return dsx.validate(table, assumptions, predict=half).to_data()


def test_figures_of_a_table_and_its_rows(table, tmp_path, caplog):
    found = dsx.validate(table, "default", tmp_path / "rows.csv", predict=half)
    data = found.to_data()
    assert data.keys() == {
        *("schema_version", "noise_floor", "pairs", "unknown_software", "extrapolated", "unread", "overall", "sources"),
        *("regret", "spearman_median", "oom", "not_modelled", "filled", "from_notes", "inferred_recompute", "outliers"),
    }
    own, other = data["sources"]
    assert (own["source_id"], own["rows"], own["modelled"]) == ("own", 5, 3)
    assert own["mape"] == pytest.approx(((1 - 1 / 1.1) + (1 - 2 / 2.5)) / 2)
    assert own["memory_mape"] == pytest.approx(0.5)
    assert (other["rows"], other["bias"], other["inside_interval"]) == (1, pytest.approx(0.0), 1.0)
    assert data["oom"] == {"fit": 3, "fit_correct": 2, "oom": 1, "oom_correct": 1}
    assert data["not_modelled"] == {"no layer text": 1, "tp * pp * cp * dp is not n_gpus": 1}
    assert data["regret"] == {"groups": 0, "median": None, "p95": None, "within_5_percent": None}
    assert data["inferred_recompute"] == {"full": 1}
    assert (data["filled"], data["from_notes"]) == ({"vpp": 1, "etp": 1}, {"kernels": 1})
    assert "runs.csv:6: own-5: tp * pp * cp * dp is not n_gpus (tp=2, pp=2, cp=1, dp=4, n_gpus=24)" in caplog.text
    # People see a table.
    out = str(found)
    assert "runs.csv under 'default': 6 rows, 4 modelled" in out
    assert re.findall("^(?:own|other|all)", out, re.MULTILINE) == ["own", "other", "all"]
    assert "memory: 2 of 3 that ran and 1 of 1 out of memory predicted so" in out
    assert "not modelled:\n  no layer text: 1 row (own-4)\n  tp * pp * cp * dp is not n_gpus: 1 row (own-5)" in out
    assert "ranked right: 100.0 % of 1 pair of layouts that differ by more than 5 %" in out
    assert "noise floor, one release: 0 repeated configurations, spread - in the median, - at 90 %" in out
    assert "blank, filled: vpp (1), etp (1)\nblank, in the notes: kernels (1)" in out
    assert "nan" not in out.lower().split()
    # Rows are written.
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "measured_s", "predicted_s", "low", "high", "reason"]
    assert [row["id"] for row in rows] == [f"own-{number}" for number in range(1, 7)]
    assert [float(rows[0][name]) for name in ("measured_s", "predicted_s", "low", "high")] == [1.1, 1.0, 0.8, 1.2]
    assert (rows[2]["measured_s"], rows[2]["predicted_s"], rows[2]["reason"]) == ("", "4.0", "")
    assert (rows[3]["predicted_s"], rows[3]["reason"]) == ("", "no layer text (x)")
    assert rows[4]["measured_s"] == "3.5"
    assert rows[4]["reason"].startswith("tp * pp * cp * dp is not n_gpus (tp=2, ")


def test_software_that_no_stack_names_is_counted(tmp_path, caplog):
    known = {"framework": "Megatron-LM", "year": "2024"}
    names = ("Own", "Own", "Second", "Third", "Fourth")
    path = write(tmp_path / "runs.csv", known, *({"framework": name, "year": "2024"} for name in names))
    unknown = data_of(path)["unknown_software"]
    assert [*unknown.values()] == [2, 1, 1, 1]
    first = next(iter(unknown))
    assert first.startswith("software 'Own' is not known") and first.endswith("the stack 'generic-2024' is assumed")
    assert f"{first} (2 rows)" in caplog.text
    assert "and 1 more names of software are not known (1 row)" in caplog.text


def test_rows_that_nothing_was_measured_like_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = "trained_on: {stack: {megatron-2024: 2}, generation: {hopper: 1}, kind: {dense: 2}}"
    (tmp_path / "mine.yaml").write_text(f"extends: uncalibrated\nname: default\n{known}\n")
    alike = {"framework": "NeMo", "gpu": "H100-80GB-SXM"}
    path = write(tmp_path / "runs.csv", alike, alike | {"experts": "8", "topk": "2"}, {"gpu": "A100-80GB-SXM"})
    found = dsx.validate(path, "mine.yaml", predict=half)
    extrapolated = found.to_data()["extrapolated"]
    assert (extrapolated["generation"], extrapolated["kind"]) == ({"ampere": 1}, {"experts": 1})
    assert sum(extrapolated["stack"].values()) >= 1
    assert "extrapolated, no such kind in the measurements of the set: experts (1)" in str(found)


def test_times_that_are_no_seconds_are_said(tmp_path, caplog):
    rows = [{"measured_iter_s": f"{1e3 * tp / 2}", "oom": "", "tp": str(tp), "dp": str(8 // tp)} for tp in (1, 2)]
    dsx.validate(write(tmp_path / "ms.csv", *rows), predict=half)
    assert "the table looks wrong: the times are 1e+03 times what is predicted" in caplog.text


def test_rows_that_are_not_modelled_are_named_by_reason(tmp_path):
    path = write(tmp_path / "runs.csv", {}, {"experts": "8"}, *[{"n_gpus": "24"}] * 7)
    _, _, named = str(dsx.validate(path, predict=half)).partition("not modelled:\n")
    assert named.splitlines() == [
        "  tp * pp * cp * dp is not n_gpus: 7 rows (own-3, own-4, own-5, own-6, own-7, ...)",
        "  no layer text: 1 row (own-2)",
    ]
    # A table of which every row is modelled names none.
    assert "not modelled" not in str(dsx.validate(write(tmp_path / "runs.csv"), predict=half))
    # A row without a measurement has a reason.
    path = write(tmp_path / "runs.csv", {}, {"measured_iter_s": "", "oom": ""})
    assert data_of(path)["not_modelled"] == {"nothing was measured": 1}


def test_tables_of_impossible_rows_are_errors_and_the_others_are_priced(tmp_path):
    path = write(tmp_path / "runs.csv", *[{"n_gpus": "24"}] * 5)
    with pytest.raises(RunTableError) as caught:
        dsx.validate(path, "default", tmp_path / "rows.csv", predict=half)
    assert str(caught.value).startswith("no row of the table can be modelled\n")
    assert f"{path}:2: own-1: tp * pp * cp * dp is not n_gpus (tp=2, pp=2" in str(caught.value)
    assert str(caught.value).endswith("and 2 rows more")
    assert not (tmp_path / "rows.csv").exists()
    # A predictor is asked only for what can be.
    asked = []

    def ask(setups, assumptions):
        asked.extend(setup.run.id for setup in setups)
        return half(setups, assumptions)

    dsx.validate(write(tmp_path / "runs.csv", {"n_gpus": "24"}, {}), predict=ask)
    assert asked == ["own-2"]


@pytest.mark.parametrize(
    ("name", "assumptions", "output", "error", "says"),
    [
        ("runs.csv", "defalt", None, UnknownNameError, "did you mean 'default'?"),
        ("run.csv", "default", None, SpecError, "is not a file; did you mean 'runs.csv'?"),
        ("runs.csv", "default", "runs.csv", StoreError, "-o runs.csv: is read by this command"),
        ("runs.csv", "mine.yaml", "mine.yaml", StoreError, "-o mine.yaml: is read by this command"),
        (
            "runs.csv",
            "default",
            "sweep.yaml",
            StoreError,
            "-o sweep.yaml: is there, and is no .csv file; choose",
        ),
        ("runs.csv", "default", "manifest.json", StoreError, "is the manifest of a folder that dsx wrote; choose"),
        ("runs.csv", "default", "none/rows.csv", StoreError, "-o none/rows.csv: none is no folder; make it, or choose"),
        ("runs.csv", "default", "folder", StoreError, "-o folder: is a folder; name a file in it"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_priced(table, tmp_path, name, assumptions, output, error, says):
    (tmp_path / "mine.yaml").write_text("extends: default\nname: mine\n")
    for other in ("sweep.yaml", "manifest.json"):
        (tmp_path / other).write_text("{}")
    (tmp_path / "folder").mkdir()
    before = table.read_bytes()

    def never(setups, assumptions):
        raise AssertionError("priced, though the input is bad")

    with pytest.raises(error) as caught:
        dsx.validate(tmp_path / name, assumptions, output and tmp_path / output, predict=never)
    assert says in str(caught.value)
    assert table.read_bytes() == before
