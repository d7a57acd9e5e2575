"""Predict every source by a fit to the others: the errors of dsx on machines, software and sizes it has not seen."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dsx.calibration.fit import Fit, Sample, Values, fit
from dsx.calibration.observations import Observations
from dsx.spec.between import Bounds

LEAST_SOURCES = 3  # to judge a source by the others


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The predictions of N rows, each by the fit without its own source."""

    predicted_s: np.ndarray  # [N]
    fits: dict[str, Fit]  # by the source that is left out


def fit_to(
    observations: Observations,
    chosen: np.ndarray,
    start: Values,
    between: Mapping[str, Bounds],
    near: Values | None = None,
) -> Fit:
    """Return the fit to the rows where [N] bools `chosen` are true; the other arguments are those of `fit`."""
    source = [name for name, wanted in zip(observations.source, chosen, strict=True) if wanted]

    def step_times(values: Values) -> np.ndarray:
        return observations.step_times(values, chosen)[chosen]

    return fit(Sample(step_times, observations.measured_s[chosen], source), start, between, near)


def leave_one_source_out(
    observations: Observations,
    start: Values,
    between: Mapping[str, Bounds],
    progress: Callable[[int], None] = lambda done: None,
    near: Values | None = None,
) -> HeldOut:
    """Return the predictions of each source by a fit to all the others, which begins at `start`.

    `near` holds the values of a fit to all rows, which are close to those of a fit to fewer. Calls `progress` after
    each source. There must be at least two sources.
    """
    predicted = np.full(len(observations.source), np.nan)
    fits: dict[str, Fit] = {}
    for name in observations.sources:
        own = observations.of_source(name)
        fits[name] = fit_to(observations, ~own, start, between, near)
        predicted[own] = observations.step_times(fits[name].values, own)[own]
        progress(1)
    return HeldOut(predicted, fits)
