"""Plans as a pandas DataFrame, with the columns of a result set."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsx.cost.columns import StepCosts
from dsx.cost.interval import StepInterval
from dsx.records import columns

if TYPE_CHECKING:
    import pandas as pd

_UNITS = {name: unit for name, (unit, _) in (columns(StepCosts) | columns(StepInterval)).items()}


def plans_frame(plans: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return plans as rows: their choices, then their costs; `attrs["units"]` has the units of the costs."""
    import pandas as pd

    frame = pd.DataFrame([dict(plan["plan"]) | {name: plan[name] for name in _UNITS} for plan in plans])
    frame.attrs["units"] = dict(_UNITS)
    return frame
