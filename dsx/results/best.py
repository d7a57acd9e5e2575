"""Rows of a result set as plain data, as ``evaluate --json`` prints a plan, and the fastest of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.cost.columns import StepCosts
from dsx.results.store import load_chosen
from dsx.space.candidates import Candidates

if TYPE_CHECKING:
    import pandas as pd


def fastest(folder: Path, count: int, per: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the `count` feasible rows of smallest step time as plans; with `per`, the best of each group.

    Raises StoreError if the set cannot be read.
    """

    def choose(frame: Any) -> Any:
        ordered = frame.loc[frame["reject"] == 0].sort_values(["step_time_s", "candidate"])
        if per:
            return ordered.drop_duplicates(list(per)).sort_values(list(per)).head(count)
        return ordered.head(count)

    return as_plans(load_chosen(folder, ["reject", "step_time_s", "candidate", *per], choose))


def as_plans(feasible: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return feasible rows one by one: the choices under `plan`, the costs by name, `fits` and `reject`."""
    choices = ("candidate", *Candidates.__dataclass_fields__)
    return [
        {"plan": {name: row[name] for name in choices}}
        | {name: row[name] for name in StepCosts.__dataclass_fields__}
        | {"fits": True, "reject": []}
        for row in feasible.to_dict(orient="records")
    ]
