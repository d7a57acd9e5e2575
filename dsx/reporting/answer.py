"""The answer of a result set: its best plan, the simplest of those about as fast, and the one of least memory.

All three are of one job on one machine, that of the best plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.reporting.ranked_rows import RankedRows, ranked
from dsx.space.choices import BY_NAME, CODES
from dsx.space.features import READ, num_features, of_choices, of_keys

if TYPE_CHECKING:
    import pandas as pd

LEAN = 0.05  # the plan of least memory is at most this share slower than the fastest


@dataclass(frozen=True)
class Named:
    """A plan with what it is the best at; one plan may be several."""

    titles: tuple[str, ...]
    row: Any  # of the set, a Series with all columns
    priced: Mapping[str, Any]  # the same as plain data, as `as_plans` gives it

    @property
    def title(self) -> str:
        """What the plan is the best at, in words."""
        return ", ".join(self.titles)


def answer(rows: RankedRows, resolution: float | None, candidate: Any = None) -> list[Named]:
    """Return the fastest plan, the simplest and the leanest; empty if no row is feasible.

    `resolution` is the relative difference of step time that measurements cannot rank; without one only equally fast
    plans count as about as fast. `candidate` is a row of `rows.every` to explain in place of the fastest plan; the
    others are then of its job.
    """
    feasible = rows.feasible
    if candidate is None and feasible.empty:
        return []
    first = ranked(feasible).iloc[0] if candidate is None else candidate
    found: dict[str, Any] = {} if candidate is None else {"chosen": candidate}
    job = rows.alike(first, rows.settings)
    if len(job):
        fastest = ranked(job).iloc[0]
        limit = fastest["step_time_s"] * (1 + (resolution or 0.0))
        lean = job.loc[(job["step_time_s"] <= fastest["step_time_s"] * (1 + LEAN)).to_numpy()]
        found["fastest"] = fastest
        found["simplest"] = _simplest(job.loc[(job["step_time_s"] <= limit).to_numpy()])
        found["least memory"] = lean.loc[lean["peak_bytes"].idxmin()]
    titles: dict[Any, list[str]] = {}
    for title, row in found.items():
        titles.setdefault(row.name, []).append(title)
    whole = rows.whole(rows.every.loc[[*titles]])
    plans = rows.plans(whole)
    return [
        Named(tuple(of), whole.iloc[at], priced)
        for at, (of, priced) in enumerate(zip(titles.values(), plans, strict=True))
    ]


def features(rows: "pd.DataFrame") -> Any:
    """Return the number of features of each row, [N] int64."""
    codes = {name: (rows[name].map(BY_NAME[name].code) if name in CODES else rows[name]) for name in READ}
    columns = {name: column.to_numpy(np.int64) for name, column in codes.items()}
    return num_features(of_keys(columns), of_choices(columns))


def _simplest(near: "pd.DataFrame") -> Any:
    """Return the row with the fewest features, of these the one with most memory left."""
    # lexsort sorts by its last key first.
    keys = (near["step_time_s"].to_numpy(), near["peak_bytes"].to_numpy(), features(near))
    return near.iloc[np.lexsort(keys)[0]]
