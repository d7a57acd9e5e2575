"""Fits of a model that is a formula: what is recovered, held, weighed and left alone."""

import numpy as np
import pytest
from formula import BETWEEN, START, TRUE, WORK, Formula, N, sample, step_times

from dsx.config.schema import Bounds
from dsx.runs.fit import PRIOR_DEVIATION, ROUNDS, Fit, at, fit, leave_out, local_times, position_of, slope

MEASURED = step_times(TRUE)


def full_fit(measured, source=None, stack=None, between=BETWEEN, progress=lambda done: None):
    return fit(Formula(measured, START), sample(measured, source, stack), START, between, progress)


def fitted(measured, source=None, stack=None, between=BETWEEN):
    return full_fit(measured, source, stack, between).fit


def test_positions_and_times_near_a_centre():
    between = {"log": Bounds(0.1, 10.0), "linear": Bounds(0.0, 4.0)}
    position = position_of({"log": 1.0, "linear": 1.0}, between)
    assert position == pytest.approx([0.5, 0.25])
    assert at(position, between) == pytest.approx({"log": 1.0, "linear": 1.0})
    assert slope(position, between) == pytest.approx([np.log(100), 4.0])
    assert position_of({"log": 99.0, "linear": -1.0}, between).tolist() == [1.0, 0.0]
    # Times near a centre are those of the model.
    centre = position_of(START, BETWEEN)
    times = local_times(Formula(MEASURED, START), centre, BETWEEN)
    for place in range(3):
        moved = centre.copy()
        moved[place] += 0.04
        assert times.at(moved) == pytest.approx(np.log(step_times(at(moved, BETWEEN))), abs=5e-5)
    assert times.slope[:, 3] == pytest.approx(np.zeros(N), abs=1e-12)
    seconds = step_times(START)
    assert times.kernels == pytest.approx((seconds - START["extra"]) / seconds, rel=0.01)


@pytest.mark.parametrize("centre", [0.0, 1e-25, 0.02, 1 - 1e-16, 1.0])
def test_a_centre_at_a_bound_has_its_slope(centre):
    between = {"compute": BETWEEN["compute"]}
    times = local_times(Formula(MEASURED, START), np.array([centre]), between)
    inside = np.array([centre + (0.06 if centre < 0.5 else -0.06)])
    seconds = step_times({**START, **at(inside, between)})
    assert times.at(inside) == pytest.approx(np.log(seconds), abs=2e-4)


def test_fits_find_what_made_the_rows_within_bounds():
    full = full_fit(1.2 * step_times(START), between={})
    found = full.fit
    assert (found.values, found.at_bound, found.undetermined) == ({}, (), ())
    assert sum([*found.effects.stack.values(), *found.effects.generation.values()]) == pytest.approx(0.19, abs=0.03)
    assert full.solution.covariance.shape == (0, 0)
    # What made the rows is found.
    found = fitted(MEASURED)
    assert found.values == pytest.approx({**TRUE, "idle": 3.0}, rel=0.03)
    assert (found.undetermined, found.at_bound, found.uncertain) == (("idle",), (), ())
    assert np.isnan(found.standard_errors["idle"])
    assert step_times(found.values) == pytest.approx(MEASURED, rel=0.01)
    # Progress counts rounds.
    done = []
    full_fit(MEASURED, progress=done.append)
    assert sum(done) == ROUNDS
    # Bounds hold.
    slow = step_times({**START, "compute": 0.5})
    found = fitted(slow, between={"compute": Bounds(0.78, 0.9), "extra": BETWEEN["extra"]})
    assert found.values["compute"] == 0.78
    assert "compute" in found.at_bound
    assert np.isnan(found.standard_errors["compute"]) and found.standard_errors["extra"] > 0
    # A field that is less certain than large is named.
    values = {"a": 1.0, "b": 1.0, "c": -2.0, "d": 1.0}
    errors = {"a": 0.5, "b": 1.5, "c": 1.9, "d": np.nan}
    assert Fit(values, errors, (), ("d",)).uncertain == ("b",)


def test_weights_of_sources_and_of_rows_far_off():
    """Two sources that disagree by 8 % are met halfway, though one has nine times the rows."""
    source = np.array(["many"] * (N - 4) + ["few"] * 4)
    measured = MEASURED * np.where(source == "few", 1.04, 1 / 1.04)
    full = full_fit(measured, source)
    predicted = Formula(MEASURED, START).step_times(full.fit.values, slowdown=full.slowdown)
    errors = np.log(predicted / measured)
    assert errors[source == "many"].mean() == pytest.approx(-errors[source == "few"].mean(), abs=0.015)
    # Rows that are far off do not decide.
    measured = MEASURED.copy()
    measured[:3] *= 10
    found = fitted(measured)
    squares = np.exp(np.log(measured / step_times(START)).mean())
    assert squares > 1.4
    assert step_times(found.values)[3:] == pytest.approx(MEASURED[3:], rel=0.1)

    # A belief gives way to more sources.
    def distances(sources):
        found = fitted(MEASURED, [str(row % sources) for row in range(N)])
        bounds = {name: BETWEEN[name] for name in TRUE}
        return np.abs(position_of(found.values, bounds) - position_of(TRUE, bounds))

    assert distances(20).sum() < 0.75 * distances(2).sum()


def test_what_two_fields_do_together_stays_where_it_was():
    class Twice(Formula):
        def step_times(self, values, rows=None, slowdown=1.0):
            return slowdown * WORK / (values["compute"] * values["memory"])

    start = {"compute": 0.6, "memory": 0.45}
    between = {name: BETWEEN[name] for name in start}
    model = Twice(np.zeros(N), START)
    measured = model.step_times(start)
    full = fit(model, sample(measured), start, between)
    assert full.fit.values == pytest.approx(start, rel=1e-3)
    # Only the prior holds either one, so the standard error of each is nearly that of the prior.
    assert np.sqrt(np.diag(full.solution.covariance)) == pytest.approx(
        np.full(2, PRIOR_DEVIATION / np.sqrt(2)), rel=0.2
    )


def test_stacks_that_differ_are_no_error_of_the_fields():
    stack = ["fast"] * (N // 2) + ["slow"] * (N // 2)
    slower = np.where(np.array(stack) == "slow", np.exp(0.1), np.exp(-0.1))
    measured = Formula(MEASURED, START).step_times(TRUE, slowdown=slower)
    full = full_fit(measured, stack=stack)
    found, factors = full.fit, full.slowdown
    assert {name: found.values[name] for name in TRUE} == pytest.approx(TRUE, rel=0.1)
    effects = found.effects.stack
    assert effects["slow"] - effects["fast"] == pytest.approx(0.2, rel=0.05)
    assert factors[-1] / factors[0] == pytest.approx(np.exp(0.2), rel=0.02)


@pytest.mark.slow
def test_standard_errors_are_the_spread_of_fits():
    random = np.random.default_rng(7)
    noisy = [MEASURED * np.exp(random.normal(0, 0.02, N)) for _ in range(8)]
    fits = [fitted(measured) for measured in noisy]
    for name in ("compute", "memory"):
        spread = np.std([found.values[name] for found in fits])
        stated = np.median([found.standard_errors[name] for found in fits])
        assert stated == pytest.approx(spread, rel=0.6), name


def left_out(part, measured, stack=None):
    done = []
    found = leave_out(Formula(measured, START), part, full_fit(measured, stack=stack), done.append)
    assert sum(done) == len({*part})
    return found


@pytest.mark.slow
def test_what_is_left_out_is_predicted_without_its_rows_and_effect():
    part = [f"p{row % 4}" for row in range(N)]
    own = np.array(part) == "p1"
    found = left_out(part, MEASURED)
    assert found.fits.keys() == {"p0", "p1", "p2", "p3"}
    assert found.predicted_s == pytest.approx(MEASURED, rel=0.02)
    # Its own times have no influence on its prediction, beyond where the search for it begins.
    changed = left_out(part, np.where(own, 1.5 * MEASURED, MEASURED))
    assert changed.predicted_s[own] == pytest.approx(found.predicted_s[own], rel=0.01)
    # A stack that is left out has no effect.
    stack = ["a"] * 15 + ["b"] * 15 + ["c"] * 10
    slower = np.where(np.array(stack) == "c", np.exp(0.2), 1.0)
    measured = Formula(MEASURED, START).step_times(TRUE, slowdown=slower)
    found = left_out(stack, measured, stack)
    own = np.array(stack) == "c"
    assert found.fits["c"].effects.stack["c"] == pytest.approx(0, abs=1e-6)
    assert found.predicted_s[own] == pytest.approx(MEASURED[own], rel=0.04)
    # Sources that are left out one by one have the effect of their stack.
    first = [f"{name}{'' if row % 2 else ' first'}" for row, name in enumerate(stack)]
    assert left_out(first, measured, stack).predicted_s[own] == pytest.approx(measured[own], rel=0.05)
