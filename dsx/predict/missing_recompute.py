"""Fill a missing `recompute` with the least that lets the run fit in memory.

A measured run did fit. Where it does not without recomputation, it must have recomputed: selectively, one region of its
layers (`dsx.space.recompute_values`), or all of them. Of the values under which it fits the fastest is taken, since
that is what its authors would have chosen; if none fits, the one that needs least memory.

Combinations of regions, and recomputation of only some layers, are not tried: a table that states less than this cannot
tell them apart.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsx.predict.batches import batches
from dsx.predict.setup_costs import price
from dsx.runs.setups import Setup
from dsx.space.recompute_values import MAIN, NONE, REGION_NAMES, value_of
from dsx.spec.assumptions import AssumptionsSpec

# Over the memory of a GPU: predictions are not further off. A run that was filled under it fits with it.
MARGIN = 1.25
# The values that are tried, each with one region more or all of the layer.
TRIED = tuple(value for value in dict.fromkeys((*MAIN, *map(value_of, REGION_NAMES))) if value != NONE)


def is_inferred(setup: Setup) -> bool:
    """Return whether the recomputation of a setup is inferred from its memory."""
    return "recompute" in setup.filled and not setup.run.oom


def with_recompute(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> list[Setup]:
    """Return the setups, those with missing `recompute` with the least that fits; none if every value is too much."""
    found = list(setups)
    missing = [row for row, setup in enumerate(setups) if is_inferred(setup)]
    peak, _ = _priced([setups[row] for row in missing], assumptions)
    short = [row for row, size in zip(missing, peak, strict=True) if size > _room(setups[row])]
    if not short:
        return found
    tried = [_recomputing(setups[row], value) for row in short for value in TRIED]
    peaks, seconds = (each.reshape(len(short), len(TRIED)) for each in _priced(tried, assumptions))
    for at, row in enumerate(short):
        fits = peaks[at] <= _room(setups[row])
        best = int(np.argmin(np.where(fits, seconds[at], np.inf) if fits.any() else peaks[at]))
        found[row] = tried[at * len(TRIED) + best]
    return found


def _recomputing(setup: Setup, value: str) -> Setup:
    return replace(setup, plan=setup.plan | {"recompute": value})


def _room(setup: Setup) -> float:
    return MARGIN * setup.cluster.device.hbm_capacity


def _priced(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the peak bytes and the seconds of setups, [N]; NaN where a setup cannot be priced."""
    peak, seconds = np.full((2, len(setups)), np.nan)
    for batch in batches(setups, assumptions)[0]:
        costs = price(batch)
        peak[batch.rows], seconds[batch.rows] = costs.peak_bytes, costs.step_time_s
    return peak, seconds
