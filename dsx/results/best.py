"""The fastest plans of a result set, as plain data."""

from pathlib import Path
from typing import Any

from dsx.cost.columns import StepCosts
from dsx.results.store import load
from dsx.space.candidates import Candidates


def fastest(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the `count` feasible rows of smallest step time, as ``evaluate --json`` prints a plan.

    Raises StoreError if the set cannot be read.
    """
    frame: Any = load(folder)
    rows = frame.loc[frame["reject"] == 0].sort_values(["step_time_s", "candidate"]).head(count)
    choices = ("candidate", *Candidates.__dataclass_fields__)
    return [
        {"plan": {name: row[name] for name in choices}}
        | {name: row[name] for name in StepCosts.__dataclass_fields__}
        | {"fits": True, "reject": []}
        for row in rows.to_dict(orient="records")
    ]
