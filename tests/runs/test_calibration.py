"""Calibration to rows that dsx itself made under other numbers: found again, held out, adapted, written and read."""

import itertools

import numpy as np
import pytest
import yaml
from runs.tables import write

from dsx.config.assumption_set import AssumptionsSpec, IntervalSpec, load_assumptions, load_fitted
from dsx.config.schema import Bounds
from dsx.config.what_if import varied_field
from dsx.errors import RunTableError, SpecError
from dsx.runs.calibration import (
    MOST_FIELDS,
    RUNS,
    Prior,
    adapt,
    after_few_runs,
    calibrate,
    median_errors,
    prior_of,
    text_of,
)
from dsx.runs.error_report import errors, groups_of
from dsx.runs.observations import observe, others_like, without_outliers
from dsx.runs.predict import predict
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

# Only the layers between embedding and head: the fitted numbers price them too, and there is much less to derive. The
# host is fast, so that the times of these small models are those of their kernels.
FAST = {"uncounted_layers": ["embedding", "head"], "dispatch_latency": "100 ns"}
SET = {"extends": "uncalibrated", "name": "own", **FAST}
BASE = load_assumptions(SET).model_copy(update={"specialise": {}})  # what few runs leave has a test of its own
TRUE = {"matrix_efficiency": 0.75, "hbm_efficiency": 0.65, "net_efficiency": 0.5}
BETWEEN = {
    "matrix_efficiency": Bounds(0.6, 1.0),
    "hbm_efficiency": Bounds(0.4, 1.0),
    "net_efficiency": Bounds(0.3, 1.0),
    "fp8_efficiency": Bounds(0.3, 1.0),
}
SLOW = 0.12  # log effect of one of two stacks
PLANS = [
    *[(1, 8, 1), (2, 4, 2), (4, 2, 4), (8, 1, 1)],  # tp, dp, microbatch of one node
    *[(1, 16, 1), (2, 8, 4), (4, 4, 2), (8, 2, 8)],  # of two
]
SOURCES = {"small": (1024, "NeMo"), "middle": (2048, "NeMo"), "large": (4096, "MosaicML LLM Foundry")}


def table(folder, noise=None, **truth):
    """Write rows of one structure in three sources, of two stacks, with the times of a set, by default that of TRUE."""
    rows = []
    for source, (width, framework) in SOURCES.items():
        for tp, dp, microbatch in PLANS:
            sizes = {"hidden": width, "ffn_hidden": 3 * width, "heads": width // 128, "kv_heads": width // 128}
            plan = {"tp": tp, "dp": dp, "pp": 1, "n_gpus": tp * dp, "microbatch": microbatch, "global_batch": 64}
            software = {"framework": framework, "year": 2024}
            cells = {"source_id": source} | software | sizes | plan
            rows.append({name: str(value) for name, value in cells.items()})
    made = setups(read_runs(write(folder / "bare.csv", *rows)))
    times = predict(made, load_assumptions(SET | (truth or TRUE))).step_time_s
    times = times if noise is None else times * np.exp(noise(len(rows)))
    changes = [row | {"measured_iter_s": repr(float(time))} for row, time in zip(rows, times, strict=True)]
    return write(folder / "runs.csv", *changes)


def observed(file, assumptions=BASE):
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
    return calibrate(noisy, BASE, BETWEEN)


@pytest.mark.slow
def test_every_number_that_can_be_bounded_is_one_that_prices(exact):
    numbers = [name for name, info in AssumptionsSpec.model_fields.items() if info.annotation is float]
    own = {name: float(getattr(BASE, name)) for name in numbers}
    assert np.isfinite(exact.step_times(own)).all()


def test_rows_have_their_stack_generation_and_weight_and_slowdowns(exact):
    assert dict.fromkeys(exact.generation) == {"ampere": None}
    assert len({*exact.stack}) == 2
    # Each row is like the rows of two other sources at most, in everything but the stack.
    assert others_like(exact.setups).min() >= 2
    # A slowdown is of kernels alone.
    plain, slower = exact.step_times({}), exact.step_times({}, slowdown=1.5)
    assert ((plain < slower) & (slower < 1.5 * plain)).all()
    assert exact.step_times({"kernel_slowdown": 1.5}) == pytest.approx(slower)
    some = np.arange(len(plain)) == 3
    assert np.isfinite(exact.step_times({}, some)).tolist() == some.tolist()


@pytest.mark.slow
def test_fits_begin_without_effects_and_find_the_numbers(exact, tmp_path):
    effects = {"stack": dict.fromkeys(exact.stack, SLOW), "generation": {"ampere": 0.05}}
    known = observed(table(tmp_path), load_assumptions(SET | {"effects": effects}))
    assert (known.step_times({}) > exact.step_times({})).all()
    plain = known.without_effects()
    assert plain.step_times({}) == pytest.approx(exact.step_times({}))
    some = np.array([1, 5, 20])
    assert plain.only(some, {}, 1.2).step_times({}) == pytest.approx(exact.step_times({}, slowdown=1.2)[some])
    # The numbers that made the rows are found.
    found = calibrate(exact, BASE, BETWEEN)
    assert found.fit.undetermined == ("fp8_efficiency",)
    assert found.fit.values["fp8_efficiency"] == BASE.fp8_efficiency
    values = found.fit.values
    assert all(values[name] == pytest.approx(TRUE[name], rel=0.05) for name in ("matrix_efficiency", "hbm_efficiency"))
    # Gradients overlap most of the network, so it stays nearer to its belief.
    assert TRUE["net_efficiency"] < values["net_efficiency"] < BASE.net_efficiency
    before, after = (errors(exact, times)[-1] for times in (found.before_s, found.after_s))
    assert before["mape"] > 0.05 > 0.01 > after["mape"]


@pytest.mark.slow
def test_a_few_runs_predict_the_rest_with_progress_and_errors_of_held_out_sources(noisy, fitted):
    done = []
    calibrate(noisy, BASE, {"hbm_efficiency": BETWEEN["hbm_efficiency"]}, done.append)
    assert sum(done) == 5 + len(noisy.sources)
    # Errors are known from what was held out.
    assert fitted.held_out.fits.keys() == {"small", "middle", "large"}
    assert [entry.where.thin for entry in fitted.interval] == [3, 2, 1, None]
    assert all(entry.low < 1 < entry.high for entry in fitted.interval)
    # Each source is judged by the other two, which are too few.
    assert fitted.coverage == {}
    assert len(groups_of(noisy, fitted.after_s)) == 6  # four plans of one job: three models, one node and two
    assert 0.01 < fitted.resolution < 0.15
    assert fitted.trained_on.generation == {"ampere": 3} and fitted.trained_on.kind == {"dense": 3}
    assert sorted(fitted.trained_on.stack.values()) == [1, 2]
    # A few runs of a source predict the rest.
    prior = Prior(ADAPTED, np.array([0.1, 0.3]), 0.05)
    adapted = after_few_runs(noisy, fitted.held_out, prior)
    found = median_errors(noisy, adapted)
    assert found == median_errors(noisy, after_few_runs(noisy, fitted.held_out, prior))
    assert found.keys() == {*noisy.sources} and all(known.keys() == {*RUNS} for known in found.values())
    before = {one["source_id"]: one["median_ape"] for one in errors(noisy, fitted.held_out.predicted_s)}
    assert all(known[5] < max(before[name], 0.04) for name, known in found.items())
    # Drawn runs are not predicted.
    assert all((np.isfinite(times).sum(axis=1) == len(noisy.source) - 3 * n).all() for n, times in adapted.items())


@pytest.mark.slow
def test_the_file_reads_back_and_predicts_the_same(tmp_path):
    stacks = sorted({*observed(table(tmp_path)).stack})
    effects = {"stack": {stacks[0]: SLOW, stacks[1]: -SLOW}, "generation": {"ampere": 0.05}}
    observations = observed(table(tmp_path, **TRUE, effects=effects))
    found = calibrate(observations, BASE, BETWEEN)
    (tmp_path / "own.yaml").write_text(
        text_of(found, BETWEEN, "own", "uncalibrated", 'rows of "runs: 1.csv"', "Fitted.")
        + "".join(f"{name}: {value}\n" for name, value in FAST.items())
    )
    spec, between = load_fitted(tmp_path / "own.yaml")
    assert spec.calibrated and spec.name == "own"
    for name in TRUE:
        assert getattr(spec, name) == pytest.approx(found.fit.values[name], rel=1e-5)
        assert between[name] == BETWEEN[name]
    assert (spec.fp8_efficiency, spec.relay) == (BASE.fp8_efficiency, BASE.relay)
    assert "# Kept, since no row depends on them: fp8_efficiency." in (tmp_path / "own.yaml").read_text()
    assert spec.interval == found.interval and spec.trained_on == found.trained_on
    assert spec.resolution == pytest.approx(found.resolution, rel=0.05)
    # Nothing of the fit is lost between the file and a price: the stacks differ by as much as those of the rows.
    assert spec.effects.stack[stacks[0]] - spec.effects.stack[stacks[1]] == pytest.approx(2 * SLOW, abs=0.08)
    predicted = predict(observations.setups, spec)
    assert predicted.step_time_s == pytest.approx(found.after_s, rel=5e-3)
    ratio = predicted.high / predicted.step_time_s
    assert set(np.round(ratio, 6)) <= {round(entry.high, 6) for entry in found.interval}


def test_a_table_in_which_all_times_are_off_by_a_thousand_is_refused(tmp_path):
    file = table(tmp_path, lambda count: np.full(count, np.log(1000.0)))
    runs = read_runs(file)
    with pytest.raises(RunTableError, match=r"looks wrong: the times are 1\.\d*e\+03 times what is predicted"):
        without_outliers(observed(file), runs, setups(runs), BASE)


@pytest.mark.slow
def test_what_cannot_be_fitted_is_refused(exact):
    many = {f"{name}{number}": Bounds(0.1, 1.0) for name in BETWEEN for number in range(3)}
    with pytest.raises(SpecError, match=f"has 12 fields with 'between', but at most {MOST_FIELDS} can be fitted"):
        calibrate(exact, BASE, many)
    with pytest.raises(SpecError, match="'own' has no field to fit: state 'between'"):
        calibrate(exact, BASE, {})
    # Rows that determine nothing are refused.
    with pytest.raises(RunTableError, match=r"^usable rows: 5, fields to fit: 3, which need at least 6 rows; to"):
        calibrate(exact.only(np.arange(11, 16), {}), BASE, BETWEEN)
    with pytest.raises(RunTableError, match="no row depends on a field to fit: fp8_efficiency"):
        calibrate(exact, BASE, {"fp8_efficiency": Bounds(0.3, 1.0)})
    # A value less certain than its size fails the fit.
    # One launch takes microseconds of a step, so nothing is known of its latency.
    with pytest.raises(RunTableError, match=r"call_latency is .* with a standard error of .*; to adapt a set to a few"):
        calibrate(exact, BASE.model_copy(update={"call_latency": 1e-8}), {"call_latency": Bounds(1e-9, 1e-6)})


@pytest.mark.slow
def test_a_value_at_a_bound_fails_the_fit(tmp_path):
    slow = observed(table(tmp_path, hbm_efficiency=0.4))
    with pytest.raises(RunTableError, match=r"do not determine every field: hbm_efficiency is at a bound, 0\.8"):
        calibrate(slow, BASE, {"hbm_efficiency": Bounds(0.8, 0.95)})


ADAPTED = {"kernel_slowdown": Bounds(0.5, 2.0), "net_efficiency": Bounds(0.3, 1.0)}


@pytest.mark.slow
def test_one_row_adapts_a_set_and_five_adapt_it_more(tmp_path):
    slower = observed(table(tmp_path, kernel_slowdown=1.3))
    free = {"kernel_slowdown": {"deviation": 0.1, "between": [0.5, 2]}}
    set_ = load_assumptions(SET | {"specialise": free, "noise": 0.05})
    moved = []
    for count in (1, 5):
        found = adapt(slower.only(np.arange(count), {}), set_)
        assert found.fit.values.keys() == set_.specialise.keys() and found.adapted
        before, after = (errors(slower.only(np.arange(count), {}), s)[-1] for s in (found.before_s, found.after_s))
        assert after["mape"] < before["mape"] / 2
        moved.append(found.fit.values["kernel_slowdown"])
    assert 1 < moved[0] < moved[1] < 1.3
    text = text_of(found, prior_of(set_).bounds, "own", "default", "5 rows", "Adapted.")
    assert f"stack: {slower.stack[0]}" in text
    assert not any(word in text for word in ("interval", "resolution", "effects", "calibrated", "between"))


@pytest.mark.slow
def test_a_fitted_set_knows_what_few_runs_leave_of_its_errors(tmp_path):
    # Every cluster has a speed of its own, of which a few runs tell most.
    clusters = observed(table(tmp_path, lambda count: np.repeat([-0.2, 0.0, 0.2], count // 3)))
    free = {"kernel_slowdown": {"deviation": 0.1, "between": [0.5, 2]}}
    fitted = {"hbm_efficiency": BETWEEN["hbm_efficiency"]}
    done = []
    found = calibrate(clusters, load_assumptions(SET | {"specialise": free, "noise": 0.05}), fitted, done.append)
    assert sum(done) == 5 + 2 * len(clusters.sources)
    assert [one.runs for one in found.after_runs] == [*RUNS]
    ratios = [one.high / one.low for one in (found.interval[-1], *found.after_runs)]
    assert all(more > less for more, less in itertools.pairwise(ratios))

    stated = yaml.safe_load(text_of(found, fitted, "own", "uncalibrated", "24 rows", "Fitted."))
    fitted_set = load_assumptions(SET | stated | {"specialise": free, "noise": 0.05})
    after = fitted_set.adapted
    assert [(one.runs, one.low, one.high) for one in after] == [
        (one.runs, one.low, one.high) for one in found.after_runs
    ]
    # A set that is adapted takes over what is stated for the most runs that it has.
    own = adapt(clusters.only(np.arange(4), {}), fitted_set)
    assert own.interval == [IntervalSpec(low=after[1].low, high=after[1].high)]
    assert own.resolution == after[1].resolution


def test_a_set_must_say_what_is_adapted(exact):
    def without(**changes):
        return load_assumptions(SET).model_copy(update=changes)

    with pytest.raises(SpecError, match="cannot be adapted to a few runs: it states no 'specialise'"):
        adapt(exact, without(specialise={}))
    with pytest.raises(SpecError, match="it states no 'noise'"):
        adapt(exact, without(noise=None))


def test_packaged_sets_have_units_and_say_what_is_fitted():
    assert {name: varied_field(f"assumptions.{name}").unit for name in BETWEEN} == dict.fromkeys(BETWEEN, "")
    # The packaged sets say what is fitted and how they are adapted.
    _, between = load_fitted("uncalibrated")
    assert 0 < len(between) <= MOST_FIELDS
    spec = load_assumptions("default")
    assert spec.noise and spec.specialise
    assert load_assumptions("paper-2410.00273").interval == []
