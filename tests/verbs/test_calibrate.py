"""Calibrations on small tables: what they say and write, and that bad input leaves nothing behind."""

import pytest
from runs.tables import write

import dsx
from dsx.config.assumption_set import load_assumptions, load_fitted
from dsx.errors import DsxError
from dsx.runs.predict import predict
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

SET = """extends: paper-2410.00273
name: two
matrix_efficiency: {value: 0.8, between: [0.5, 1], source: estimate}
hbm_efficiency: {value: 0.9, between: [0.4, 1], source: estimate}
fp8_efficiency: {value: 0.75, between: [0.3, 1], source: estimate}
specialise: {matrix_efficiency: {deviation: 0.1, between: [0.5, 1]}}
noise: 0.02
"""
TRUE = {"matrix_efficiency": 0.6, "hbm_efficiency": 0.7}
SMALL = {
    "layers": "8", "hidden": "1024", "ffn_hidden": "4096", "heads": "8", "kv_heads": "8", "n_gpus": "8", "pp": "1",
} | {"gated_mlp": "0"}  # fmt: skip
PLANS = [
    SMALL | {"tp": str(tp), "dp": str(8 // tp), "microbatch": str(microbatch)}
    for tp, microbatch in ((1, 1), (2, 1), (4, 2), (8, 4), (2, 4), (1, 8))
]


@pytest.fixture(scope="module")
def times(tmp_path_factory):
    place = tmp_path_factory.mktemp("true")
    (place / "two.yaml").write_text(SET)
    truth = load_assumptions(place / "two.yaml").model_copy(update=TRUE)
    return predict(setups(read_runs(write(place / "runs.csv", *PLANS))), truth).step_time_s.tolist()


def measured(times, *wrong, factor=1000):
    """The runs with their times; those of some rows are many times too long."""
    factors = [factor if number in wrong else 1 for number in range(len(PLANS))]
    return [plan | {"measured_iter_s": repr(by * time)} for plan, time, by in zip(PLANS, times, factors, strict=True)]


@pytest.fixture
def place(tmp_path, monkeypatch, times):
    """A working directory with a set of two fitted numbers, and runs that others of them made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSX_PATH", raising=False)
    (tmp_path / "two.yaml").write_text(SET)
    write(tmp_path / "runs.csv", *measured(times))
    return tmp_path


def test_a_set_is_fitted_and_written(place):
    fitted = dsx.calibrate("runs.csv", "own.yaml", assumptions="two.yaml")
    lines = [" ".join(line.split()) for line in str(fitted).splitlines()]
    spec, between = load_fitted("own.yaml")
    assert any(line.startswith(f"matrix_efficiency 0.8 {spec.matrix_efficiency:.3g} 0.5 to 1 ") for line in lines)
    assert "fp8_efficiency 0.75 0.75 0.3 to 1 - not determined" in lines
    assert any(line.startswith("own 6 14.6 % 15.0 % 0.1 % 0.2 %") for line in lines)
    assert lines[-1] == "written: own.yaml"
    assert lines[-2].startswith("no source was held out: that needs 3 of them")
    assert any(line.startswith("effects of the generation on the time of kernels: deviation ") for line in lines)
    # Parameters that the rows determine less stay nearer to their starting values.
    assert {name: getattr(spec, name) for name in TRUE} == pytest.approx(TRUE, rel=0.05)
    assert spec.matrix_efficiency == pytest.approx(TRUE["matrix_efficiency"], rel=0.01)
    assert (spec.calibrated, spec.name, spec.noise) == (True, "own", 0.02)
    assert between == load_fitted("two.yaml")[1]
    text = (place / "own.yaml").read_text()
    assert 'source: "fitted to 6 rows of runs.csv, standard error ' in text
    assert sorted(file.name for file in place.iterdir()) == ["own.yaml", "runs.csv", "two.yaml"]
    # Programs read the same.
    data = fitted.to_data()
    assert data.keys() == {
        *("schema_version", "rows", "left_out", "fields", "errors", "interval", "coverage", "resolution"),
        *("memory_interval", "outliers", "effects"),
    }
    assert data["effects"].keys() == {"stack", "generation", "deviations"}
    assert data["effects"]["generation"].keys() == {"ampere"}
    fields = {field["name"]: field for field in data["fields"]}
    assert fields["fp8_efficiency"]["determined"] is False and fields["fp8_efficiency"]["standard_error"] is None
    assert fields["hbm_efficiency"]["between"] == [0.4, 1.0]
    assert data["errors"]["before"][-1]["mape"] > 0.1 > 0.01 > data["errors"]["after"][-1]["mape"]
    assert (data["errors"]["held_out"], data["interval"], data["resolution"]) == (None, [], None)


@pytest.mark.slow
def test_the_set_is_written_beside_what_it_extends(place):
    (place / "sets").mkdir()
    dsx.calibrate("runs.csv", "sets/own.yaml", assumptions="two.yaml")
    assert 'extends: "../two.yaml"' in (place / "sets" / "own.yaml").read_text()
    assert load_assumptions("sets/own.yaml").noise == 0.02
    # It can be fitted again, to a file that replaces an older one.
    again = dsx.calibrate("runs.csv", "own.yaml", assumptions="sets/own.yaml")
    assert again.to_data()["errors"]["before"][-1]["mape"] < 0.01


@pytest.mark.slow
def test_unknown_software_is_said(place, caplog):
    write(place / "one.csv", PLANS[0] | {"framework": "megatrom", "year": "2025"})
    dsx.calibrate("one.csv", "mine.yaml", specialise="default")
    said = "software 'megatrom' is not known; did you mean 'megatron'?; the stack 'generic-2024' is assumed (1 row)"
    assert said in caplog.messages


def test_one_run_adapts_a_set(place, times, caplog):
    write(place / "one.csv", measured(times)[0])
    data = dsx.calibrate("one.csv", "mine.yaml", specialise="two.yaml").to_data()
    assert not caplog.messages
    (field,) = data["fields"]
    assert field["name"] == "matrix_efficiency" and field["after"] < field["before"]
    assert data["errors"]["after"][-1]["mape"] < data["errors"]["before"][-1]["mape"]
    spec = load_assumptions("mine.yaml")
    assert spec.calibrated  # as its base is
    assert "calibrated" not in (place / "mine.yaml").read_text()
    assert (spec.matrix_efficiency, spec.hbm_efficiency) == (pytest.approx(field["after"], rel=1e-5), 0.9)
    # Runs that no cluster explains are written with a remark.
    write(place / "one.csv", measured(times, 0, factor=20)[0])
    dsx.calibrate("one.csv", "mine.yaml", specialise="two.yaml")
    (said,) = caplog.messages
    assert said.startswith("the median error of the set is still 9") and "are the times seconds of one step?" in said


@pytest.mark.slow
def test_a_run_makes_no_calibrated_assumption_set(place, times):
    (place / "two.yaml").write_text(f"{SET}calibrated: false\n")
    write(place / "one.csv", measured(times)[0])
    dsx.calibrate("one.csv", "mine.yaml", specialise="two.yaml")
    assert not load_assumptions("mine.yaml").calibrated
    # A fit to many is one, whatever it begins with.
    dsx.calibrate("runs.csv", "own.yaml", assumptions="two.yaml")
    assert load_assumptions("own.yaml").calibrated


TWO = {"assumptions": "two.yaml"}
WRONG_DEGREES = [PLANS[0], PLANS[1] | {"n_gpus": "16"}]
UNUSABLE = [PLANS[0] | {"measured_iter_s": "", "oom": "1"}, PLANS[1] | {"trust": "D"}]
OF_NO_GPUS = "bad.csv:3: own-2: tp * pp * cp * dp is not n_gpus (tp=2, pp=1, cp=1, dp=4, n_gpus=16)"
OF_NO_USE = "bad.csv: no row can be used in the fit: no measured step time (1), trust is not A or B (1)"


@pytest.mark.parametrize(
    ("rows", "out", "sets", "says"),
    [
        (WRONG_DEGREES, "own.yaml", TWO, OF_NO_GPUS),
        ([PLANS[0], PLANS[1] | {"tp": "two"}], "own.yaml", TWO, "bad.csv:3: tp: "),
        (UNUSABLE, "own.yaml", {}, OF_NO_USE),
        (None, "own.yaml", TWO | {"specialise": "default"}, "both name the set to begin with"),
        (None, "two.yaml", TWO, "-o two.yaml: is read by this command; choose another file"),
        (None, "own", TWO, "-o own: the file of an assumption set ends in .yaml"),
        (None, "other.yaml", TWO, "-o other.yaml: exists, and dsx calibrate did not write it; choose another file"),
        ((0,), "own.yaml", {"specialise": "two.yaml"}, "the table looks wrong: the times are 1"),  # milliseconds
        ((1, 2, 4), "own.yaml", {"specialise": "two.yaml"}, "looks wrong: 6 of 6 rows are far from the others"),
    ],
)
def test_what_cannot_be_fitted_or_written_is_refused(place, times, rows, out, sets, says):
    (place / "other.yaml").write_text("# By hand.\nextends: two.yaml\n")
    if rows is not None:
        several = measured(times, *rows) if isinstance(rows, tuple) else rows
        write(place / "bad.csv", *(several[:1] if rows == (0,) else several))
    before = {file: file.read_bytes() for file in place.iterdir()}
    with pytest.raises(DsxError) as error:
        dsx.calibrate("runs.csv" if rows is None else "bad.csv", out, **sets)
    assert says in str(error.value)
    assert {file: file.read_bytes() for file in place.iterdir()} == before


@pytest.mark.parametrize("base", [pytest.param("assumptions", marks=pytest.mark.slow), "specialise"])
@pytest.mark.slow
def test_an_outlier_is_named_and_left_out(place, times, caplog, base):
    rows = measured(times, 3)
    write(place / "typo.csv", *rows)
    write(place / "without.csv", *(row | {"id": f"own-{n}"} for n, row in enumerate(rows, 1) if n != 4))
    data = dsx.calibrate("typo.csv", "own.yaml", **{base: "two.yaml"}).to_data()
    assert f"not used in the fit, an outlier: own-4: measured {1000 * times[3]:.4g} s, predicted " in caplog.text
    (outlier,) = data["outliers"]
    assert (outlier["id"], outlier["measured_s"]) == ("own-4", pytest.approx(1000 * times[3]))
    assert (
        outlier["factor"] == pytest.approx(outlier["measured_s"] / outlier["predicted_s"]) and outlier["factor"] > 500
    )
    assert data["rows"] == 5
    alone = dsx.calibrate("without.csv", "alone.yaml", **{base: "two.yaml"}).to_data()
    assert (data["fields"], data["errors"]) == (alone["fields"], alone["errors"])
    assert alone["outliers"] == []
    # A validation names outliers and keeps them.
    data = dsx.validate("typo.csv", "two.yaml").to_data()
    assert "an outlier: own-4: measured " in caplog.text
    assert "outliers are in all figures: they affect medians little, means and biases more" in caplog.text
    assert [outlier["id"] for outlier in data["outliers"]] == ["own-4"] and data["overall"]["modelled"] == 6
