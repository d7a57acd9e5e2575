"""Calibration to rows that dsx itself made under other numbers: found again, held out, adapted."""

import math

import numpy as np
import pytest
from runs.tables import write

from dsx.calibration.assumption_file import text_of
from dsx.calibration.calibration import adapt, calibrate, errors
from dsx.calibration.fit import Sample, fit, position_of
from dsx.calibration.held_out import leave_one_source_out
from dsx.calibration.observations import observe
from dsx.calibration.regret import groups_of
from dsx.calibration.specialise import specialised
from dsx.errors import RunTableError, SpecError
from dsx.predict.predictor import predict
from dsx.runs.run_table import read_runs
from dsx.runs.setups import setups
from dsx.spec.assumptions import AssumptionsSpec, load_assumptions, load_fitted
from dsx.spec.between import Bounds
from dsx.spec.what_if import field

# Only the layers between embedding and head: the fitted numbers price them too, and much less is compiled.
DEFAULT = load_assumptions("default").model_copy(update={"uncounted_layers": ["embedding", "head"]})
TRUE = {"matrix_efficiency": 0.65, "hbm_efficiency": 0.75, "net_efficiency": 0.5, "launch_latency": 12e-6}
BETWEEN = {
    "matrix_efficiency": Bounds(0.5, 1.0),
    "hbm_efficiency": Bounds(0.4, 1.0),
    "net_efficiency": Bounds(0.3, 1.0),
    "launch_latency": Bounds(5e-7, 5e-5),
    "fp8_efficiency": Bounds(0.3, 1.0),
}
PLANS = [
    *[(1, 8, 1), (2, 4, 2), (4, 2, 4), (8, 1, 1)],  # tp, dp, microbatch of one node
    *[(1, 16, 1), (2, 8, 4), (4, 4, 2), (8, 2, 8)],  # of two
]


def table(folder, noise=None):
    """Write rows of one structure in three sources, with the times of `TRUE`."""
    rows = []
    for source, width in (("small", 1024), ("middle", 2048), ("large", 4096)):
        for tp, dp, microbatch in PLANS:
            sizes = {"hidden": width, "ffn_hidden": 3 * width, "heads": width // 128, "kv_heads": width // 128}
            plan = {"tp": tp, "dp": dp, "pp": 1, "n_gpus": tp * dp, "microbatch": microbatch, "global_batch": 64}
            rows.append({"source_id": source} | {name: str(value) for name, value in (sizes | plan).items()})
    truth = DEFAULT.model_copy(update=TRUE)
    times = predict(setups(read_runs(write(folder / "bare.csv", *rows))), truth).step_time_s
    times = times if noise is None else times * np.exp(noise(len(rows)))
    changes = [row | {"measured_iter_s": repr(float(time))} for row, time in zip(rows, times, strict=True)]
    return write(folder / "runs.csv", *changes)


def observed(file, assumptions=DEFAULT):
    runs = read_runs(file)
    return observe(runs, setups(runs), assumptions)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return observed(table(tmp_path_factory.mktemp("exact")))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    random = np.random.default_rng(2)
    return observed(table(tmp_path_factory.mktemp("noisy"), lambda count: random.normal(0, 0.03, count)))


@pytest.fixture(scope="module")
def fitted(noisy):
    return calibrate(noisy, DEFAULT, BETWEEN)


@pytest.mark.slow
def test_every_number_that_can_be_bounded_is_one_that_prices(exact):
    numbers = [name for name, info in AssumptionsSpec.model_fields.items() if info.annotation is float]
    times = exact.step_times({name: float(getattr(DEFAULT, name)) for name in numbers})
    assert times == pytest.approx(exact.step_times({}), rel=1e-12)


def test_the_numbers_that_made_the_rows_are_found(exact):
    start = {name: float(getattr(DEFAULT, name)) for name in BETWEEN}
    found = fit(Sample(exact.step_times, exact.measured_s, exact.source), start, BETWEEN, pull=1e-3)
    assert {name: found.values[name] for name in TRUE} == pytest.approx(TRUE, rel=2e-3)
    assert exact.step_times(found.values) == pytest.approx(exact.measured_s, rel=1e-4)


def test_a_calibration_predicts_the_rows_it_was_made_of(exact):
    found = calibrate(exact, DEFAULT, BETWEEN)
    assert found.fit.undetermined == ("fp8_efficiency",)
    assert found.fit.values["fp8_efficiency"] == DEFAULT.fp8_efficiency
    before, after = (errors(exact, times)[-1] for times in (found.before_s, found.after_s))
    assert before["mape"] > 0.05 > 5e-3 > after["mape"]


def test_progress_counts_fits(noisy):
    done = []
    calibrate(noisy, DEFAULT, BETWEEN, done.append)
    assert sum(done) == 1 + len(noisy.sources)


def test_a_source_is_predicted_without_its_rows(noisy, fitted):
    start = {name: float(getattr(DEFAULT, name)) for name in BETWEEN}
    held_out = leave_one_source_out(noisy, start, BETWEEN)
    assert held_out.fits.keys() == {"small", "middle", "large"}
    large = noisy.of_source("large")
    others = held_out.fits["large"]
    assert held_out.predicted_s[large] == pytest.approx(noisy.step_times(others.values)[large])
    assert others.values != fitted.fit.values
    # Where the search begins decides nothing.
    assert fitted.held_out.predicted_s == pytest.approx(held_out.predicted_s, rel=2e-3)


def test_errors_are_known_from_what_was_held_out(noisy, fitted):
    assert [entry.where.domains for entry in fitted.interval] == ["one", "several", None]
    assert all(entry.low < 1 < entry.high < 1.5 for entry in fitted.interval)
    # Each source is judged by the other two, which are too few.
    assert fitted.coverage == {}
    assert len(groups_of(noisy, fitted.after_s)) == 6  # four plans of one job: three models, one node and two
    assert 0.01 < fitted.resolution < 0.15


def test_the_file_reads_back(fitted, tmp_path):
    text = text_of(fitted, BETWEEN, "own", "default", 'rows of "runs: 1.csv"', "Fitted.")
    (tmp_path / "own.yaml").write_text(text)
    spec, between = load_fitted(tmp_path / "own.yaml")
    assert spec.calibrated and spec.name == "own"
    for name in TRUE:
        assert getattr(spec, name) == pytest.approx(fitted.fit.values[name], rel=1e-5)
        assert between[name] == BETWEEN[name]
    assert (spec.fp8_efficiency, spec.relay) == (DEFAULT.fp8_efficiency, DEFAULT.relay)
    assert "# Kept, since no row depends on them: fp8_efficiency." in text
    assert spec.interval == fitted.interval
    assert spec.resolution == pytest.approx(fitted.resolution, rel=0.05)


def test_predictions_carry_the_interval(fitted, noisy):
    spec = DEFAULT.model_copy(update=fitted.fit.values | {"interval": fitted.interval})
    found = predict(noisy.setups, spec)
    several = np.array([setup.plan["num_gpus"] > 8 for setup in noisy.setups])
    one, more, _ = fitted.interval
    assert found.low == pytest.approx(found.step_time_s * np.where(several, more.low, one.low))
    assert found.high == pytest.approx(found.step_time_s * np.where(several, more.high, one.high))
    inside = (found.low <= noisy.measured_s) & (noisy.measured_s <= found.high)
    assert inside.mean() > 0.8


def test_too_many_fields_or_none_are_refused(exact):
    many = {f"{name}{number}": Bounds(0.1, 1.0) for name in BETWEEN for number in range(7)}
    with pytest.raises(SpecError, match="has 35 fields with 'between', but at most 32 can be fitted at once"):
        calibrate(exact, DEFAULT, many)
    with pytest.raises(SpecError, match="'default' has no field to fit: state 'between'"):
        calibrate(exact, DEFAULT, {})


@pytest.fixture(scope="module")
def one_row(tmp_path_factory):
    """A run on two nodes that took a tenth longer than the set says."""
    place = tmp_path_factory.mktemp("one")
    time = predict(setups(read_runs(write(place / "bare.csv", {}))), DEFAULT).step_time_s[0]
    return observed(write(place / "runs.csv", {"measured_iter_s": repr(1.1 * float(time))}))


@pytest.mark.slow
def test_few_rows_are_too_few(one_row, exact):
    with pytest.raises(RunTableError, match=r"^1 usable row for 4 fields to fit, which need at least 8; to"):
        calibrate(one_row, DEFAULT, BETWEEN)
    with pytest.raises(RunTableError, match="no row depends on a field to fit: fp8_efficiency"):
        calibrate(exact, DEFAULT, {"fp8_efficiency": Bounds(0.3, 1.0)})


@pytest.mark.slow  # one row is compiled on its own; the tests of `dsx calibrate` adapt a set to one run
def test_one_row_adapts_a_set(one_row):
    assumptions = DEFAULT.model_copy(update={"specialise": {"matrix_efficiency": 0.1, "net_efficiency": 0.3}})
    found = adapt(one_row, assumptions, BETWEEN)
    assert found.fit.values.keys() == {"matrix_efficiency", "net_efficiency"}
    assert found.fit.values["matrix_efficiency"] < DEFAULT.matrix_efficiency
    assert found.before_s[0] < found.after_s[0] < one_row.measured_s[0]
    # As far from the row as from the prior, each in its own deviation.
    left = math.log(one_row.measured_s[0] / found.after_s[0]) / assumptions.noise
    names = list(assumptions.specialise)
    ends = ({name: getattr(DEFAULT, name) for name in names}, found.fit.values)
    before, after = (position_of(values, names, BETWEEN) for values in ends)
    moved = (after - before) / np.array([*assumptions.specialise.values()])
    assert left**2 + sum(m**2 for m in moved) < (math.log(1.1) / assumptions.noise) ** 2
    text = text_of(found, BETWEEN, "own", "default", "1 row", "Adapted.")
    assert "interval" not in text and "resolution" not in text


def test_a_set_must_say_what_is_adapted(one_row):
    def without(**changes):
        return DEFAULT.model_copy(update=changes)

    with pytest.raises(SpecError, match="cannot be adapted to a few runs: it states no 'specialise'"):
        adapt(one_row, without(specialise={}), BETWEEN)
    with pytest.raises(SpecError, match="it states no 'noise'"):
        adapt(one_row, without(noise=None), BETWEEN)
    with pytest.raises(SpecError, match="'relay' needs bounds: state 'between' with its value"):
        adapt(one_row, without(specialise={"relay": 0.1}), BETWEEN)


@pytest.mark.slow
def test_a_few_runs_of_a_source_predict_the_rest(noisy):
    base = {name: float(getattr(DEFAULT, name)) for name in ("matrix_efficiency", "hbm_efficiency", "net_efficiency")}
    bases = dict.fromkeys(noisy.sources, base)
    deviations = {"matrix_efficiency": 0.1, "hbm_efficiency": 0.1, "net_efficiency": 0.3}
    found = specialised(noisy, bases, BETWEEN, deviations, 0.05)
    assert found == specialised(noisy, bases, BETWEEN, deviations, 0.05)
    before = {figures["source_id"]: figures["median_ape"] for figures in errors(noisy, noisy.step_times({}))}
    assert found.keys() == set(noisy.sources)
    assert all(found[name] < before[name] for name in ("middle", "large"))


def test_fields_have_units():
    assert {name: field(f"assumptions.{name}").unit for name in BETWEEN} == dict.fromkeys(BETWEEN, "") | {
        "launch_latency": "s"
    }


def test_the_packaged_set_says_how_it_is_adapted():
    spec, between = load_fitted("default")
    assert spec.noise and 0 < len(spec.specialise) <= 3
    assert spec.specialise.keys() <= between.keys()
    assert load_assumptions("paper-2410.00273").interval == []
