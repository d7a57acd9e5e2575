"""The answer of a result set: its plans by role (`dsx.results.roles`).

All three are of one job on one machine, that of the best plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.reporting.ranked_rows import RankedRows, ranked
from dsx.results.roles import by_role, wanted_by_role
from dsx.space.choices import BY_NAME, CODES
from dsx.space.features import READ, of_choices, of_keys, total_cost, uneven_of
from dsx.space.layer_layout import LAYOUT

if TYPE_CHECKING:
    import pandas as pd


_BLOCK = 1 << 17  # rows whose costs are found at once, which takes many columns of wide numbers


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
    first = ranked(feasible, 1).iloc[0] if candidate is None else candidate
    found: dict[str, Any] = {} if candidate is None else {"chosen": candidate}
    job = rows.alike(first, rows.settings)
    if len(job):
        wants = wanted_by_role(float(job["step_time_s"].to_numpy().min()), resolution)
        best = [_best(job.loc[(job["step_time_s"] <= want.most_s).to_numpy()], want.simple) for want in wants]
        found |= by_role(best, [int(costs_of(row.to_frame().T)[0]) for row in best])
    titles: dict[Any, list[str]] = {}
    for title, row in found.items():
        titles.setdefault(row.name, []).append(title)
    whole = rows.whole(rows.every.loc[[*titles]])
    plans = rows.plans(whole)
    return [
        Named(tuple(of), whole.iloc[at], priced)
        for at, (of, priced) in enumerate(zip(titles.values(), plans, strict=True))
    ]


def costs_of(rows: "pd.DataFrame") -> Any:
    """Return what the features of each row cost, [N] int64."""
    codes = {name: (rows[name].map(BY_NAME[name].code) if name in CODES else rows[name]) for name in READ}
    columns = {name: column.to_numpy(np.int64) for name, column in codes.items()}
    uneven = uneven_of(rows[LAYOUT].tolist()) if LAYOUT in rows else False
    return total_cost(of_keys(columns), of_choices(columns, uneven))


def _best(near: "pd.DataFrame", simple: bool) -> Any:
    """Return the row of least memory, or with `simple`, of those of least cost; of equal ones the fastest."""
    times, sizes = near["step_time_s"].to_numpy(), near["peak_bytes"].to_numpy()
    # lexsort sorts by its last key first.
    blocks = [near.iloc[at : at + _BLOCK] for at in range(0, len(near), _BLOCK)]
    keys = (times, sizes, *([np.concatenate([costs_of(block) for block in blocks])] if simple else []))
    return near.iloc[np.lexsort(keys)[0]]
