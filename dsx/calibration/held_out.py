"""Every source predicted by a fit to the others: how far off dsx is on machines, software and sizes it has not seen."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dsx.calibration.fit import Fit, Values, fit
from dsx.calibration.observations import Observations
from dsx.spec.between import Bounds

LEAST_SOURCES = 3  # to say anything of a source by the others


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The predictions of N rows, each by the fit without its own source."""

    predicted_s: np.ndarray  # [N]
    fits: dict[str, Fit]  # by the source that was left out


def fit_to(
    observations: Observations,
    chosen: np.ndarray,
    start: Values,
    between: Mapping[str, Bounds],
    near: Values | None = None,
) -> Fit:
    """Return the fit to the rows where [N] bools `chosen` hold; the other arguments are those of `fit`."""
    source = [name for name, wanted in zip(observations.source, chosen, strict=True) if wanted]

    def step_times(values: Values) -> np.ndarray:
        return observations.step_times(values, chosen)[chosen]

    return fit(step_times, observations.measured_s[chosen], source, start, between, near)


def leave_one_source_out(
    observations: Observations,
    start: Values,
    between: Mapping[str, Bounds],
    progress: Callable[[int], None] = lambda done: None,
    near: Values | None = None,
) -> HeldOut:
    """Return what each source is predicted to be by a fit, from `start`, to all the others.

    `near` are values that a fit to all rows found: those to fewer are close to it. `progress` is told after each
    source. A source with all the rows cannot be held out: there must be two at least.
    """
    predicted = np.full(len(observations.source), np.nan)
    fits: dict[str, Fit] = {}
    for name in observations.sources:
        own = observations.of_source(name)
        fits[name] = fit_to(observations, ~own, start, between, near)
        predicted[own] = observations.step_times(fits[name].values, own)[own]
        progress(1)
    return HeldOut(predicted, fits)
