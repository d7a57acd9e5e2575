"""Adapting a set to a few runs: how far one and many move the fields, and how errors fall with the number of runs."""

import numpy as np
import pytest
from formula import BETWEEN, START, Formula, N, step_times

from dsx.runs.calibration import Prior, specialise, specialise_to
from dsx.runs.fit import at, local_times, position_of

BOUNDS = {name: BETWEEN[name] for name in ("compute", "memory")}
CENTRE = position_of(START, BOUNDS)


def prior(noise=0.05, deviations=(0.1, 0.3)):
    return Prior(BOUNDS, np.array(deviations), noise)


def adapted(measured, rows, known=None):
    """Return the values after some of the rows, and the fit."""
    known = known or prior()
    times = local_times(Formula(measured, START), CENTRE, known.bounds)
    position, errors = specialise(times.of(rows), measured[rows], CENTRE, known)
    return at(position, BOUNDS), errors


def left(measured, values, rows):
    return np.abs(np.log(step_times({**START, **values}) / measured))[rows].mean()


def test_runs_move_a_field_as_far_as_they_outweigh_its_prior():
    slower = step_times({**START, "compute": 0.6})
    moved = [START["compute"] - adapted(slower, rows)[0]["compute"] for rows in ([0], [0, 1, 2], [0, 1, 2, 3, 4])]
    assert 0 < moved[0] < moved[1] < moved[2] < START["compute"] - 0.6
    before, after = (left(slower, values, [0]) for values in (START, adapted(slower, [0])[0]))
    assert after < before / 2
    # Many runs outweigh the prior.
    measured = step_times({**START, "compute": 0.65, "memory": 0.65})
    many, certain = adapted(measured, list(range(N)), prior(noise=0.01))
    assert many == pytest.approx({"compute": 0.65, "memory": 0.65}, rel=0.02)
    _, few = adapted(measured, [0, 1], prior(noise=0.01))
    assert (few > certain).all() and (certain > 0).all()
    # Runs as predicted change nothing.
    found, _ = adapted(step_times(START), [0, 1, 2])
    assert found == pytest.approx({name: START[name] for name in BOUNDS}, rel=1e-6)
    # A run that disagrees counts less.
    measured = step_times({**START, "compute": 0.7})
    wrong = np.where(np.arange(N) == 3, 4 * measured, measured)
    found, _ = adapted(wrong, list(range(6)))
    assert left(measured, found, list(range(N))) < 0.05
    assert np.log(wrong / measured)[:6].mean() > 0.2  # as far as the mean of all six would move it
    # The further a field may be the further it moves.
    slower = 1.1 * step_times(START)
    small, large = (adapted(slower, [0], prior(deviations=(0.05, 0.05 * more)))[0] for more in (1, 6))
    assert START["memory"] - large["memory"] > 3 * (START["memory"] - small["memory"])
    # A field that no run depends on keeps its value.
    bounds = {name: BETWEEN[name] for name in ("compute", "idle")}
    found = specialise_to(Formula(measured, START), START, Prior(bounds, np.full(2, 0.2), 0.02))
    assert found.values["compute"] == pytest.approx(0.7, rel=0.02)
    assert found.standard_errors["compute"] > 0
    assert (found.values["idle"], found.undetermined, found.at_bound) == (START["idle"], ("idle",), ())
    assert np.isnan(found.standard_errors["idle"])
