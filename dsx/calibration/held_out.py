"""Predict every source by a fit to the others: the errors of dsx on machines, software and sizes it has not seen.

The same for whole stacks, which says more about software that nobody has measured: structure is chosen by it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.calibration.fit import Fit, Sample, Solution, fit_of, solve
from dsx.calibration.local_times import LocalTimes
from dsx.calibration.observations import Observations
from dsx.calibration.positions import Values, position_of
from dsx.spec.between import Bounds

LEAST_SOURCES = 3  # to judge a source by the others


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The predictions of N rows, each by the fit without its own part of the rows."""

    predicted_s: np.ndarray  # [N]
    fits: dict[str, Fit]  # by the part that is left out
    slowdown: np.ndarray  # [N] factor on kernel times by the effects of that fit


def leave_out(
    observations: Observations,
    part: Sequence[str],
    sample: Sample,
    start: Values,
    between: Mapping[str, Bounds],
    whole: tuple[Solution, LocalTimes],
    progress: Callable[[int], None] = lambda done: None,
) -> HeldOut:
    """Return the predictions of each part of the rows by a fit to the other parts.

    Args:
        observations: N measured rows.
        part: [N] the source of each row, say, or its stack.
        sample: the rows with their weights.
        start: the beliefs.
        between: the bounds of the fitted fields.
        whole: the fit to all rows and the times around it, which serve the fits to fewer.
        progress: called after each part.

    A part's own effects are unknown to its fit, so they are zero unless other parts share its stack or generation.
    """
    near, times = whole
    beliefs = position_of(start, times.names, between)
    names = np.array(part)
    predicted, slowdown = np.full(len(names), np.nan), np.ones(len(names))
    fits: dict[str, Fit] = {}
    for name in dict.fromkeys(part):
        own = names == name
        found = solve(sample.without(own), times, beliefs, near)
        fits[name] = fit_of(found, times, sample.members, start, between)
        slowdown[own] = found.slowdown(sample.members)[own]
        predicted[own] = observations.step_times(fits[name].values, own, slowdown)[own]
        progress(1)
    return HeldOut(predicted, fits, slowdown)
