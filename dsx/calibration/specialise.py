"""An assumption set adapted to one cluster and framework by a handful of runs.

The set says which few of its numbers are free and how far they usually are off: a normal prior around its values. With
u the share of the way between a field's bounds (on a log scale where these are positive, as in a fit), residuals
r = log(predicted / measured), t = r over the set's `noise`, and its deviations d, what is minimised is

    sum over rows of 2 (sqrt(1 + t^2) - 1) + sum over fields of ((u - u of the set) / d)^2

so one run moves what it speaks of a little, many move it as far as they agree, and one that disagrees with the others
counts less than its square (the loss of a fit).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dsx.calibration.fit import AT_BOUND, Fit, StepTimes, Values, at, minimise, position_of, slope, softened
from dsx.calibration.observations import Observations
from dsx.spec.between import Bounds

RUNS = 5  # of a source that it is adapted to, in `specialised`
REPETITIONS = 20


def specialise(
    step_times: StepTimes,
    measured_s: np.ndarray,
    base: Values,
    between: Mapping[str, Bounds],
    deviations: Mapping[str, float],
    noise: float,
) -> Fit:
    """Return the most likely values of the fields `deviations` after [N] runs.

    Args:
        step_times: predicts the [N] runs under values of the fields.
        measured_s: [N] seconds.
        base: values of the set, inside `between`.
        between: bounds of each field.
        deviations: standard deviation of each free field, as a share of the way between its bounds.
        noise: of a run's r: from there on errors count less than their squares.

    Standard errors are those of the posterior; NaN for what the runs say nothing of.
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
    # The prior alone makes this one regular, whatever the runs say.
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
    """Return, by source, the median absolute relative error once the set is adapted to `RUNS` of its runs.

    Args:
        observations: measured rows.
        bases: by source, the values that are adapted, best those of a fit without that source.
        between, deviations, noise: as `specialise` takes them.
        seed: of the choice of runs.

    The runs are drawn `REPETITIONS` times, the rest of the source is predicted, and the median is over all of that.
    Sources with no more rows than that are left out.
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
    """Return what `specialise` finds for the rows of `observations` at the positions `runs`."""
    wanted = _mask(observations, runs)

    def step_times(values: Values) -> np.ndarray:
        return observations.step_times(values, wanted)[runs]

    return specialise(step_times, observations.measured_s[runs], base, between, deviations, noise)


def _mask(observations: Observations, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    mask = np.zeros(len(observations.source), dtype=bool)
    mask[rows] = True
    return mask
