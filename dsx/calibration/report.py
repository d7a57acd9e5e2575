"""The errors of predictions, as `dsx validate --json` states them.

Over the rows of one source, with the relative error e = predicted / measured - 1:

    rows            rows of the table
    modelled        rows without a reason
    median_ape      median of |e| of the step time
    mape            mean of |e|
    bias            mean of e
    inside_interval share of the rows with low <= measured <= high, among rows with an interval
    memory_mape     mean of |e| of the memory, over rows that ran

`overall` has the same fields over all rows, every source with the same weight: a row weighs 1 / (rows of its source
in the figure). So a mean is the mean over sources of their means, and a median is a weighted one. A figure over no rows
is None. `dsx.calibration.regret` and `dsx.calibration.noise_floor` define the others.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from dsx.calibration.noise_floor import spread_figures, spreads
from dsx.calibration.regret import groups, pairs, regret, regret_figures, spearman
from dsx.calibration.weighted import weighted_mean, weighted_median, weights
from dsx.predict.validation_rows import Rows
from dsx.runs.run_table import Run

ALL_SOURCES = "all"  # the source_id of `overall`


def report(rows: Rows, runs: Sequence[Run]) -> dict[str, Any]:
    """Return every figure of a validation of `runs` as plain data; fractions, not percentages."""
    sources = list(dict.fromkeys(rows.source))
    source = np.array([sources.index(name) for name in rows.source])
    found = groups(rows)
    correlations = np.array([spearman(group) for group in found])
    correlations = correlations[np.isfinite(correlations)]
    return {
        "noise_floor": noise_floor(rows, runs),
        "overall": _figures(rows, np.ones(len(source), dtype=bool), source, ALL_SOURCES),
        "sources": [_figures(rows, source == number, source, name) for number, name in enumerate(sources)],
        "regret": regret_figures([regret(group) for group in found]),
        "pairs": pairs(groups(rows, least=2)),
        "spearman_median": float(np.median(correlations)) if len(correlations) else None,
        "oom": _oom(rows),
        "not_modelled": not_modelled(rows),
    }


def not_modelled(rows: Rows) -> dict[str, int]:
    """Return how many rows are not modelled, by reason, the most frequent one first."""
    return dict(Counter(reason.rule for reason in rows.reason if reason is not None).most_common())


def noise_floor(rows: Rows, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the spreads of repeated configurations, of one release and of all releases of a framework."""
    releases: dict[str, Sequence[Hashable]] = {
        "same_software": [(run.framework, run.software, run.year) for run in runs],
        "all_releases": [run.framework for run in runs],
    }
    found: dict[str, Any] = {}
    for name, software in releases.items():
        by_source = spreads(rows, software)
        found[name] = spread_figures(one for of_source in by_source.values() for one in of_source)
        found[name]["sources"] = {source: spread_figures(own) for source, own in by_source.items()}
    return found


def _figures(rows: Rows, chosen: np.ndarray, source: np.ndarray, name: str) -> dict[str, Any]:
    error = _relative(rows.predicted_s, rows.measured_s)
    memory = _relative(rows.predicted_bytes, np.where(rows.oom == 1, np.nan, rows.measured_bytes))
    inside = (rows.low <= rows.measured_s) & (rows.measured_s <= rows.high)
    timed = chosen & np.isfinite(error)
    bounded = timed & np.isfinite(rows.low) & np.isfinite(rows.high)
    weighed = chosen & np.isfinite(memory)
    return {
        "source_id": name,
        "rows": int(chosen.sum()),
        "modelled": int((chosen & rows.modelled).sum()),
        "median_ape": weighted_median(np.abs(error[timed]), weights(source[timed])),
        "mape": weighted_mean(np.abs(error[timed]), weights(source[timed])),
        "bias": weighted_mean(error[timed], weights(source[timed])),
        "inside_interval": weighted_mean(inside[bounded], weights(source[bounded])),
        "memory_mape": weighted_mean(np.abs(memory[weighed]), weights(source[weighed])),
    }


def _relative(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return predicted / measured - 1


def _oom(rows: Rows) -> dict[str, int]:
    """Return how many rows ran and how many ran out of memory, each with the number predicted correctly."""
    ran, failed = (rows.modelled & (rows.oom == value) for value in (0, 1))
    return {
        "fit": int(ran.sum()),
        "fit_correct": int((ran & rows.fits).sum()),
        "oom": int(failed.sum()),
        "oom_correct": int((failed & ~rows.fits).sum()),
    }
