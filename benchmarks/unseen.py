"""Fits of an assumption set without each source and each stack, and their predictions of what they have not seen.

The rows are those that a fit uses: of trust A and B, timed, modelled. Pictures and tables of docs/validation.md read
these arrays.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.schema import Bounds
from dsx.runs.calibration import after_few_runs, may_adapt, median_errors, prior_of
from dsx.runs.error_report import LEAST_SOURCES, IntervalCoverage, coverage, unseen_intervals
from dsx.runs.fit import Fit, HeldOut, fit, leave_out, sample_of
from dsx.runs.observations import Observations


@dataclass(frozen=True)
class Unseen:
    """Predictions of [N] rows for sources and stacks that a set is not fitted to."""

    observations: Observations
    fit: Fit  # to all rows
    without_source_s: np.ndarray  # [N] each predicted by a fit without its source
    without_stack_s: np.ndarray  # [N] by a fit without its stack
    low_s: np.ndarray  # [N] interval, from the residuals of the other sources
    high_s: np.ndarray
    coverage: Mapping[str, IntervalCoverage]  # by source
    few_runs: Mapping[str, Mapping[int, float]]  # by source and number of runs: median error after adapting the set


def predicted_unseen(
    observations: Observations, assumptions: AssumptionsSpec, between: Mapping[str, Bounds]
) -> Unseen | None:
    """Return the fits of the fields `between` that begin with a set, and their predictions.

    None if there is nothing to fit, or if there are too few sources.
    """
    observations = observations.without_effects()
    if not between or len(observations.sources) < LEAST_SOURCES:
        return None
    start = {name: float(getattr(assumptions, name)) for name in between}
    full = fit(observations, sample_of(observations), start, between)

    def without(what: str, part: Sequence[str]) -> HeldOut:
        done = itertools.count(1)

        def told(number: int) -> None:
            print(f"fits without a {what}: {number * next(done)} of {len({*part})}", file=sys.stderr, flush=True)

        return leave_out(observations, part, full, told)

    sources, stacks = without("source", observations.source), without("stack", observations.stack)
    residuals = np.log(observations.measured_s / sources.predicted_s)
    low, high = unseen_intervals(residuals, observations.source, observations.facts)
    return Unseen(
        observations=observations,
        fit=full.fit,
        without_source_s=sources.predicted_s,
        without_stack_s=stacks.predicted_s,
        low_s=low * sources.predicted_s,
        high_s=high * sources.predicted_s,
        coverage=coverage(residuals, observations.source, observations.facts),
        few_runs=_after_few_runs(observations, sources, assumptions),
    )


def _after_few_runs(
    observations: Observations, sources: HeldOut, assumptions: AssumptionsSpec
) -> Mapping[str, Mapping[int, float]]:
    if not may_adapt(assumptions):
        return {}
    return median_errors(observations, after_few_runs(observations, sources, prior_of(assumptions)))
