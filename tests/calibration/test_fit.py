"""Fits of a model that is a formula: what is recovered, held, weighed and left alone."""

import numpy as np
import pytest

from dsx.calibration.fit import Sample, fit
from dsx.calibration.specialise import specialise
from dsx.spec.between import Bounds

N = 40
WORK, TRAFFIC = np.random.default_rng(1).uniform(0.2, 3.0, (2, N))
BETWEEN = {"compute": Bounds(0.3, 1.0), "memory": Bounds(0.2, 1.0), "extra": Bounds(0.0, 0.5), "idle": Bounds(1.0, 9.0)}
START = {"compute": 0.8, "memory": 0.9, "extra": 0.1, "idle": 3.0}
TRUE = {"compute": 0.55, "memory": 0.7, "extra": 0.25}


def step_times(values):
    return WORK / values["compute"] + TRAFFIC / values["memory"] + values["extra"]


MEASURED = step_times(TRUE)
ONE_SOURCE = ["a"] * N
LOOSE = 1e-3  # a pull that leaves the values to the rows


def test_what_made_the_rows_is_found():
    found = fit(Sample(step_times, MEASURED, ONE_SOURCE), START, BETWEEN, pull=LOOSE)
    assert found.values == pytest.approx({**TRUE, "idle": 3.0}, rel=1e-3)
    assert (found.undetermined, found.at_bound) == (("idle",), ())
    assert np.isnan(found.standard_errors["idle"])


def test_bounds_hold():
    between = BETWEEN | {"compute": Bounds(0.7, 1.0)}
    found = fit(Sample(step_times, MEASURED, ONE_SOURCE), START, between)
    assert found.values["compute"] == pytest.approx(0.7, rel=1e-3)
    assert found.values["compute"] >= 0.7
    assert "compute" in found.at_bound
    assert np.isnan(found.standard_errors["compute"]) and found.standard_errors["memory"] > 0


def test_sources_weigh_the_same_whatever_their_rows():
    # One source is 4 % slower, the other 4 % faster, and there is one number to tell.
    source = ["many"] * (N - 4) + ["few"] * 4
    measured = MEASURED * np.where(np.array(source) == "few", 1.04, 1 / 1.04)

    def scaled(values):
        return MEASURED / values["compute"]

    found = fit(Sample(scaled, measured, source), {"compute": 0.8}, {"compute": Bounds(0.5, 2.0)}, pull=LOOSE)
    assert found.values["compute"] == pytest.approx(1.0, rel=2e-3)


def test_rows_that_are_far_off_do_not_decide():
    measured = MEASURED.copy()
    measured[:3] *= 10
    found = fit(Sample(step_times, measured, ONE_SOURCE), START, BETWEEN)
    squares = np.exp(np.log(measured / step_times(START)).mean())
    assert squares > 1.5
    assert step_times(found.values)[3:] == pytest.approx(MEASURED[3:], rel=0.1)


def test_a_start_value_gives_way_to_more_sources():
    def distances(sources):
        source = [str(row % sources) for row in range(N)]
        found = fit(Sample(step_times, MEASURED, source), START, BETWEEN)
        return [abs(found.values[name] - TRUE[name]) for name in TRUE]

    assert all(many < few / 2 for few, many in zip(distances(1), distances(10), strict=True))


def test_what_two_fields_do_together_stays_where_it_was():
    def twice(values):
        return WORK / (values["compute"] * values["memory"])

    start = {"compute": 0.8, "memory": 0.9}
    between = {name: BETWEEN[name] for name in start}
    found = fit(Sample(twice, twice(start), ONE_SOURCE), start, between)
    assert found.values == pytest.approx(start, rel=1e-6)
    assert all(np.isnan(error) for error in found.standard_errors.values())


def test_standard_errors_are_the_spread_of_fits():
    random = np.random.default_rng(7)
    noisy = [MEASURED * np.exp(random.normal(0, 0.02, N)) for _ in range(60)]
    fits = [fit(Sample(step_times, measured, ONE_SOURCE), START, BETWEEN, pull=LOOSE) for measured in noisy]
    for name in TRUE:
        spread = np.std([found.values[name] for found in fits])
        stated = np.median([found.standard_errors[name] for found in fits])
        assert stated == pytest.approx(spread, rel=0.35), name


def adapted(measured, rows, noise=0.05):
    def some(values):
        return step_times({**START, **values})[rows]

    base = {name: START[name] for name in ("compute", "memory")}
    return base, specialise(some, measured[rows], base, BETWEEN, {"compute": 0.1, "memory": 0.3}, noise)


def test_one_run_moves_what_it_speaks_of():
    slower = step_times({**START, "compute": 0.7})
    base, found = adapted(slower, [0])
    assert found.values["compute"] < base["compute"]
    before, after = (abs(np.log(step_times({**START, **v})[0] / slower[0])) for v in (base, found.values))
    assert after < before / 2


def test_many_runs_outweigh_the_prior():
    _, found = adapted(step_times({**START, "compute": 0.6, "memory": 0.6}), list(range(N)), noise=0.01)
    assert found.values == pytest.approx({"compute": 0.6, "memory": 0.6}, rel=0.01)
    _, few = adapted(step_times(START), [0, 1])
    assert all(few.standard_errors[name] > found.standard_errors[name] > 0 for name in found.values)


def test_runs_as_predicted_change_nothing():
    base, found = adapted(step_times(START), [0, 1, 2])
    assert found.values == pytest.approx(base, rel=1e-6)
