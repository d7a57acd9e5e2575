"""Adapt an assumption set to one cluster and framework with a handful of runs.

The set states the few fields that are free and their usual deviations: a normal prior around its values. Let u be the
position of a field between its bounds in [0, 1] (on a log scale if they are positive, as in a fit), r the residuals
log(predicted / measured), t = r over the set's `noise`, and d its deviations. The minimised sum is

    sum over rows of 2 (sqrt(1 + t^2) - 1) + sum over fields of ((u - u of the set) / d)^2

So one run changes the fields that it depends on a little, many runs change them as far as the runs agree, and a run
that disagrees with the others counts less than its square (the loss of a fit).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dsx.calibration.fit import AT_BOUND, Fit, StepTimes, Values, at, minimise, position_of, slope, softened
from dsx.calibration.observations import Observations
from dsx.spec.between import Bounds

RUNS = 5  # runs of a source that `specialised` adapts to
REPETITIONS = 20


def specialise(
    step_times: StepTimes,
    measured_s: np.ndarray,
    base: Values,
    between: Mapping[str, Bounds],
    deviations: Mapping[str, float],
    noise: float,
) -> Fit:
    """Return the most likely values of the fields in `deviations` after [N] runs.

    Args:
        step_times: predicts the [N] runs under values of the fields.
        measured_s: [N] seconds.
        base: values of the set, inside `between`.
        between: bounds of each field.
        deviations: standard deviation of each free field, as a share of the distance between its bounds.
        noise: standard deviation of a run's r; larger errors count less than their squares.

    Standard errors are those of the posterior; NaN for a field that the runs do not depend on.
    """
    names = list(deviations)
    prior = np.array([deviations[name] for name in names])
    centre = position_of(base, names, between)

    def residuals(position: np.ndarray) -> np.ndarray:
        values = at(position, names, between)
        errors = np.log(step_times({**base, **values}) / measured_s) / noise
        return np.concatenate([softened(errors, 1.0), (position - centre) / prior])

    position, jacobian = minimise(residuals, centre)
    runs = jacobian[: len(measured_s)]
    # The prior makes this matrix regular, whatever the runs.
    errors = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian))) * slope(position, names, between)
    idle = [name for name, column in zip(names, runs.T, strict=True) if not np.abs(column).max() > 1e-9]
    errors[[name in idle for name in names]] = np.nan
    values = {name: base[name] if name in idle else value for name, value in at(position, names, between).items()}
    bound = [name for name, share in zip(names, position, strict=True) if min(share, 1 - share) < AT_BOUND]
    return Fit(values, dict(zip(names, map(float, errors), strict=True)), tuple(bound), tuple(idle))


def specialised(
    observations: Observations,
    bases: Mapping[str, Values],
    between: Mapping[str, Bounds],
    deviations: Mapping[str, float],
    noise: float,
    seed: int = 0,
) -> dict[str, float]:
    """Return, by source, the median absolute relative error after adapting the set to `RUNS` of its runs.

    Args:
        observations: measured rows.
        bases: by source, the values to adapt, best those of a fit without that source.
        between, deviations, noise: as `specialise` takes them.
        seed: of the choice of runs.

    The runs are drawn `REPETITIONS` times; each time the rest of the source is predicted, and the median is over all
    these predictions. Sources with at most `RUNS` rows are left out.
    """
    found: dict[str, float] = {}
    for name, base in bases.items():
        own = np.flatnonzero(observations.of_source(name))
        if len(own) <= RUNS:
            continue
        random = np.random.default_rng(seed)
        errors: list[np.ndarray] = []
        for _ in range(REPETITIONS):
            runs = random.choice(own, RUNS, replace=False)
            values = specialise_to(observations, runs, base, between, deviations, noise).values
            rest = np.setdiff1d(own, runs)
            predicted = observations.step_times({**base, **values}, _mask(observations, rest))[rest]
            errors.append(np.abs(predicted / observations.measured_s[rest] - 1))
        found[name] = float(np.median(np.concatenate(errors)))
    return found


def specialise_to(
    observations: Observations,
    runs: Sequence[int] | np.ndarray,
    base: Values,
    between: Mapping[str, Bounds],
    deviations: Mapping[str, float],
    noise: float,
) -> Fit:
    """Return the result of `specialise` for the rows of `observations` at the positions `runs`."""
    wanted = _mask(observations, runs)

    def step_times(values: Values) -> np.ndarray:
        return observations.step_times(values, wanted)[runs]

    return specialise(step_times, observations.measured_s[runs], base, between, deviations, noise)


def _mask(observations: Observations, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    mask = np.zeros(len(observations.source), dtype=bool)
    mask[rows] = True
    return mask
