"""Plans as a pandas DataFrame with the columns of a result set."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.interval import StepInterval
from dsx.results.schema import COLUMNS, CUT

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {"name": np.object_, "real": np.float64}  # of empty columns; all others are int64
_COSTS = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
_EMPTY = {column.name: np.empty(0, _TYPES.get(column.kind, np.int64)) for column in COLUMNS}
_KNOWN = {column.name: column for column in (*COLUMNS, CUT)}


def plans_frame(plans: Sequence[Mapping[str, Any]], reasons: Sequence[str] = ()) -> "pd.DataFrame":
    """Return one row per plan: choices, hardware, costs, and `reject`, which is 0 for a feasible plan.

    `reasons` names the bits of `reject`, lowest bit first. `attrs` has the units and descriptions of the columns that
    every result set has.
    """
    import pandas as pd

    rows = [
        {**plan["plan"], **plan["hardware"]}
        | {name: plan[name] for name in _COSTS}
        | {"reject": sum(1 << reasons.index(name) for name in plan["reject"])}
        for plan in plans
    ]
    frame = (
        pd.DataFrame(rows, columns=_ordered({name: None for row in rows for name in row}))
        if rows
        else pd.DataFrame(_EMPTY)
    )
    known = [name for name in frame if name in _KNOWN]
    frame.attrs["units"] = {name: _KNOWN[str(name)].unit for name in known}
    frame.attrs["descriptions"] = {name: _KNOWN[str(name)].description for name in known}
    return frame


def _ordered(columns: Iterable[str]) -> list[str]:
    """Return columns in the order of a result set: choices, columns that only some sets have, costs."""
    last = [*_COSTS, "reject"]
    first = [name for name in _KNOWN if name in columns and name not in last]
    return [*first, *(name for name in columns if name not in (*first, *last)), *last]
