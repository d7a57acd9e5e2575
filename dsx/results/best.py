"""Rows of a result set as plain data, as ``evaluate --json`` prints a plan, and the fastest of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.cost.columns import StepCosts
from dsx.results.store import load
from dsx.space.candidates import Candidates

if TYPE_CHECKING:
    import pandas as pd


def fastest(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the `count` feasible rows of smallest step time as plans.

    Raises StoreError if the set cannot be read.
    """
    frame: Any = load(folder)
    return as_plans(frame.loc[frame["reject"] == 0].sort_values(["step_time_s", "candidate"]).head(count))


def as_plans(feasible: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return feasible rows one by one: the choices under `plan`, the costs by name, `fits` and `reject`."""
    choices = ("candidate", *Candidates.__dataclass_fields__)
    return [
        {"plan": {name: row[name] for name in choices}}
        | {name: row[name] for name in StepCosts.__dataclass_fields__}
        | {"fits": True, "reject": []}
        for row in feasible.to_dict(orient="records")
    ]
