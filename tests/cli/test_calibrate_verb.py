"""``dsx calibrate`` on small tables: what it prints and writes, and that bad input leaves nothing behind."""

import json

import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions, load_fitted
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


@pytest.fixture
def place(tmp_path, monkeypatch, times):
    """A working directory with a set of two fitted numbers, and runs that others of them made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSX_PATH", raising=False)
    (tmp_path / "two.yaml").write_text(SET)
    changes = [plan | {"measured_iter_s": repr(time)} for plan, time in zip(PLANS, times, strict=True)]
    write(tmp_path / "runs.csv", *changes)
    return tmp_path


def test_a_set_is_fitted_and_written(run, place):
    done = run("calibrate", "runs.csv", "-o", "own.yaml", "--assumptions", "two.yaml")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
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


@pytest.mark.slow
def test_json_has_what_the_table_has(run, place):
    data = json.loads(run("calibrate", "runs.csv", "-o", "own.yaml", "--assumptions", "two.yaml", "--json").out)
    assert set(data) == {
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
def test_the_set_is_written_beside_what_it_extends(run, place):
    (place / "sets").mkdir()
    assert run("calibrate", "runs.csv", "-o", "sets/own.yaml", "--assumptions", "two.yaml").code == 0
    assert 'extends: "../two.yaml"' in (place / "sets" / "own.yaml").read_text()
    assert load_assumptions("sets/own.yaml").noise == 0.02
    # It can be fitted again, to a file that replaces an older one.
    again = run("calibrate", "runs.csv", "-o", "own.yaml", "--assumptions", "sets/own.yaml", "--json")
    assert json.loads(again.out)["errors"]["before"][-1]["mape"] < 0.01


@pytest.mark.slow
def test_unknown_software_is_said(run, place):
    write(place / "one.csv", PLANS[0] | {"framework": "megatrom", "year": "2025"})
    done = run("calibrate", "one.csv", "--specialise", "default", "-o", "mine.yaml")
    assert done.code == 0
    said = "software 'megatrom' is not known; did you mean 'megatron'?; the stack 'generic-2024' is assumed (1 row)"
    assert f"dsx: {said}\n" in done.err


def test_one_run_adapts_a_set(run, place, times):
    write(place / "one.csv", PLANS[0] | {"measured_iter_s": repr(times[0])})
    done = run("calibrate", "one.csv", "--specialise", "two.yaml", "-o", "mine.yaml", "--json")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    (field,) = data["fields"]
    assert field["name"] == "matrix_efficiency" and field["after"] < field["before"]
    assert data["errors"]["after"][-1]["mape"] < data["errors"]["before"][-1]["mape"]
    spec = load_assumptions("mine.yaml")
    assert spec.calibrated  # as its base is
    assert "calibrated" not in (place / "mine.yaml").read_text()
    assert (spec.matrix_efficiency, spec.hbm_efficiency) == (pytest.approx(field["after"], rel=1e-5), 0.9)


def test_runs_that_no_cluster_explains_are_written_with_a_remark_or_refused(run, place, times):
    write(place / "one.csv", PLANS[0] | {"measured_iter_s": repr(20 * times[0])})
    done = run("calibrate", "one.csv", "--specialise", "two.yaml", "-o", "mine.yaml", "--json")
    assert done.code == 0
    assert "the median error of the set is still 9" in done.err and "are the times seconds of one step?" in done.err
    write(place / "one.csv", PLANS[0] | {"measured_iter_s": repr(1000 * times[0])})  # milliseconds
    done = run("calibrate", "one.csv", "--specialise", "two.yaml", "-o", "other.yaml")
    assert (done.code, (place / "other.yaml").exists()) == (2, False)
    assert "the table looks wrong: the times are 1" in done.err


@pytest.mark.slow
def test_a_run_makes_no_calibrated_assumption_set(run, place, times):
    (place / "two.yaml").write_text(f"{SET}calibrated: false\n")
    write(place / "one.csv", PLANS[0] | {"measured_iter_s": repr(times[0])})
    assert run("calibrate", "one.csv", "--specialise", "two.yaml", "-o", "mine.yaml").code == 0
    assert not load_assumptions("mine.yaml").calibrated
    # A fit to many is one, whatever it begins with.
    assert run("calibrate", "runs.csv", "--assumptions", "two.yaml", "-o", "own.yaml").code == 0
    assert load_assumptions("own.yaml").calibrated


def refused(run, place, *arguments, says, code=2):
    before = {file: file.read_bytes() for file in place.iterdir() if file.is_file()}
    done = run("calibrate", *arguments)
    assert (done.code, done.out) == (code, "")
    assert says in done.err and "Traceback" not in done.err
    assert {file: file.read_bytes() for file in place.iterdir() if file.is_file()} == before


def test_tables_without_usable_rows_and_sets_are_refused(run, place):
    for change, says in (
        ({"n_gpus": "16"}, "bad.csv:3: own-2: tp * pp * cp * dp is not n_gpus (tp=2, pp=1, cp=1, dp=4, n_gpus=16)"),
        ({"tp": "two"}, "bad.csv:3: tp: "),
    ):
        write(place / "bad.csv", PLANS[0], PLANS[1] | change)
        refused(run, place, "bad.csv", "-o", "own.yaml", "--assumptions", "two.yaml", says=says)
    write(place / "bad.csv", PLANS[0] | {"measured_iter_s": "", "oom": "1"}, PLANS[1] | {"trust": "D"})
    says = "bad.csv: no row can be used in the fit: no measured step time (1), trust is not A or B (1)"
    refused(run, place, "bad.csv", "-o", "own.yaml", says=says)
    both = ("--specialise", "two.yaml", "--assumptions", "default")
    refused(run, place, "runs.csv", "-o", "own.yaml", *both, says="both name the set to begin with")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("two.yaml", "-o two.yaml: is read by this command; choose another file"),
        ("own", "-o own: the file of an assumption set ends in .yaml"),
        ("other.yaml", "-o other.yaml: exists, and dsx calibrate did not write it; choose another file"),
    ],
)
def test_files_that_cannot_be_written_are_refused(run, place, output, says):
    (place / "folder.yaml").mkdir()
    (place / "other.yaml").write_text("# By hand.\nextends: two.yaml\n")
    refused(run, place, "runs.csv", "-o", output, "--assumptions", "two.yaml", says=says)


@pytest.fixture
def typo(place, times):
    """The runs, of which the fourth is a thousand times too slow."""
    changes = [plan | {"measured_iter_s": repr(time)} for plan, time in zip(PLANS, times, strict=True)]
    changes[3]["measured_iter_s"] = repr(1000 * times[3])
    write(place / "typo.csv", *changes)
    write(place / "without.csv", *(change | {"id": f"own-{n}"} for n, change in enumerate(changes, 1) if n != 4))


@pytest.mark.parametrize("base", [pytest.param("--assumptions", marks=pytest.mark.slow), "--specialise"])
@pytest.mark.slow
def test_an_outlier_is_named_and_left_out(run, typo, times, base):
    done = run("calibrate", "typo.csv", base, "two.yaml", "-o", "own.yaml", "--json")
    assert done.code == 0
    assert f"not used in the fit, an outlier: own-4: measured {1000 * times[3]:.4g} s, predicted " in done.err
    data = json.loads(done.out)
    (outlier,) = data["outliers"]
    assert (outlier["id"], outlier["measured_s"]) == ("own-4", pytest.approx(1000 * times[3]))
    assert outlier["factor"] == pytest.approx(outlier["measured_s"] / outlier["predicted_s"])
    assert outlier["factor"] > 500
    assert data["rows"] == 5
    alone = json.loads(run("calibrate", "without.csv", base, "two.yaml", "-o", "alone.yaml", "--json").out)
    assert (data["fields"], data["errors"]) == (alone["fields"], alone["errors"])
    assert alone["outliers"] == []


def test_too_many_outliers_are_a_wrong_table(run, place, times):
    changes = [plan | {"measured_iter_s": repr(time)} for plan, time in zip(PLANS, times, strict=True)]
    for row in (1, 2, 4):
        changes[row]["measured_iter_s"] = repr(1000 * times[row])
    write(place / "typo.csv", *changes)
    done = run("calibrate", "typo.csv", "--specialise", "two.yaml", "-o", "own.yaml")
    assert done.code == 2
    assert "the table looks wrong: 6 of 6 rows are far from the others" in done.err
    assert not (place / "own.yaml").exists()


@pytest.mark.slow
def test_validation_names_outliers_and_keeps_them(run, typo):
    done = run("validate", "typo.csv", "--assumptions", "two.yaml", "--json")
    assert done.code == 0
    assert "an outlier: own-4: measured " in done.err
    assert "outliers are in all figures: they affect medians little, means and biases more" in done.err
    data = json.loads(done.out)
    assert [outlier["id"] for outlier in data["outliers"]] == ["own-4"]
    assert data["overall"]["modelled"] == 6
