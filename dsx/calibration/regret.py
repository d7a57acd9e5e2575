"""Whether predictions find the fastest configuration: regret, pairs and rank correlation in groups of configurations.

A group holds the rows of one source that differ only in configuration. A layout that was measured several times (with
several software versions, say) has the median of its times. Groups of fewer than `LEAST_LAYOUTS` layouts say little and
are left out, as are rows without a measured or a predicted time.

    regret = measured time of the layout that is predicted fastest / shortest measured time of the group - 1

If several layouts are predicted equally fast, the slowest of them counts: a model that predicts the same time for all
layouts must not profit from their order.

Two layouts whose measured times differ by more than `CLOSE` are a pair, in groups of two layouts already: it is ranked
right if the faster one is predicted faster. Pairs that differ by less are ties of the measurement, which count neither
way.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsx.predict.validation_rows import Rows

LEAST_LAYOUTS = 4
CLOSE = 0.05  # a negligible regret, a tie of a pair


@dataclass(frozen=True, slots=True)
class Group:
    """The layouts of a group, one entry each."""

    source: str

    measured_s: np.ndarray  # [L]
    predicted_s: np.ndarray  # [L]


class Grouped(Protocol):
    """Measured rows with their groups: a table, or the rows of a table that a fit uses."""

    @property
    def source(self) -> Sequence[str]:
        """[N] the source of each row."""
        ...

    @property
    def group(self) -> Sequence[Hashable]:
        """[N] the same for rows that differ only in configuration."""
        ...

    @property
    def layout(self) -> Sequence[Hashable]:
        """[N] the configuration."""
        ...

    @property
    def measured_s(self) -> np.ndarray:
        """[N] measured step time."""
        ...


def groups(rows: Rows, least: int = LEAST_LAYOUTS) -> list[Group]:
    """Return the groups of `rows` that have `least` layouts or more, in the order of their first rows."""
    return groups_of(rows, np.where(rows.modelled, rows.predicted_s, np.nan), least)


def groups_of(rows: Grouped, predicted_s: np.ndarray, least: int = LEAST_LAYOUTS) -> list[Group]:
    """Return the groups of `rows` under other predictions, [N]; rows whose prediction is not finite are left out."""
    members: dict[Hashable, dict[Hashable, list[int]]] = {}
    for row in map(int, np.flatnonzero(np.isfinite(rows.measured_s) & np.isfinite(predicted_s))):
        members.setdefault(rows.group[row], {}).setdefault(rows.layout[row], []).append(row)
    return [
        Group(
            rows.source[next(iter(layouts.values()))[0]],
            np.array([np.median(rows.measured_s[layout]) for layout in layouts.values()]),
            np.array([np.median(predicted_s[layout]) for layout in layouts.values()]),
        )
        for layouts in members.values()
        if len(layouts) >= least
    ]


def regret(group: Group) -> float:
    """Return how much longer the layout that is predicted fastest takes than the best, as a fraction."""
    chosen = group.predicted_s == group.predicted_s.min()
    return float(group.measured_s[chosen].max() / group.measured_s.min() - 1)


def pairs(groups: Sequence[Group]) -> dict[str, Any]:
    """Return how many pairs groups have, and the share that is ranked right, of all and by source; None if none."""
    by_source: dict[str, np.ndarray] = {}
    for group in groups:
        by_source[group.source] = by_source.get(group.source, np.zeros(2, np.int64)) + ranked_right(group)
    right, count = map(int, sum(by_source.values(), np.zeros(2, np.int64)))
    return {
        "pairs": count,
        "right": right / count if count else None,
        "sources": {source: float(right / count) for source, (right, count) in by_source.items() if count},
    }


def ranked_right(group: Group) -> np.ndarray:
    """Return how many pairs of a group are predicted in their order, and how many it has, [2] int64.

    It takes the memory of a row, however many pairs there are.
    """
    order = np.argsort(group.measured_s, kind="stable")
    measured, predicted = np.log(group.measured_s[order]), np.log(group.predicted_s[order])
    behind = np.searchsorted(measured, measured + np.log1p(CLOSE), side="right")
    right = sum(
        int((predicted[first:] > own).sum()) for own, first in zip(predicted.tolist(), behind.tolist(), strict=True)
    )
    return np.array([right, (len(order) - behind).sum()])


def spearman(group: Group) -> float:
    """Return the rank correlation of predicted and measured times; NaN if either is constant."""
    from scipy.stats import spearmanr  # importing it takes a quarter of a second, for one figure of a report

    if np.ptp(group.predicted_s) == 0 or np.ptp(group.measured_s) == 0:  # scipy warns of it
        return float("nan")
    found: Any = spearmanr(group.predicted_s, group.measured_s)
    return float(found.statistic)


def regret_figures(regrets: Sequence[float]) -> dict[str, float | int | None]:
    """Return the statistics of `regrets` over groups; None if there is no group."""
    values = np.array(regrets, dtype=np.float64)
    some = len(values) > 0
    return {
        "groups": len(values),
        "median": float(np.median(values)) if some else None,
        "p95": float(np.quantile(values, 0.95)) if some else None,
        "within_5_percent": float(np.mean(values <= CLOSE)) if some else None,
    }
