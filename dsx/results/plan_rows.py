"""The fastest rows of a result set, and rows as plain data in the form that ``evaluate --json`` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.cost.columns import StepCosts
from dsx.cost.interval import StepInterval
from dsx.results.schema import CUT
from dsx.results.store import load_chosen
from dsx.space.choices import PLAN_COLUMNS
from dsx.space.plan import Plan
from dsx.space.strategy_rules import HOST_MEMORY, MEMORY, VANISHES

if TYPE_CHECKING:
    import pandas as pd


def fastest(folder: Path, count: int | None, per: Sequence[str] = (), of_each: int = 1) -> list[dict[str, Any]]:
    """Return the `count` fastest feasible rows as plans; all of them if `count` is None.

    With `per`, the rows are the `of_each` fastest of each group of equal `per` columns, group by group. Raises
    StoreError if the set cannot be read, UnknownNameError for a column that it does not have.
    """

    def choose(frame: Any) -> Any:
        ordered = frame.loc[frame["reject"] == 0].sort_values(["step_time_s", "candidate"])
        if per:
            leading = ordered.loc[ordered.groupby(list(per), observed=True).cumcount() < of_each]
            ordered = leading.sort_values([*per, "step_time_s", "candidate"])
        return ordered.iloc[:count]

    return as_plans(load_chosen(folder, ["reject", "step_time_s", "candidate", *per], choose))


def as_plans(rows: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return one dict for each row of a result set.

    `plan` holds the choices, `hardware` the cluster and what-if values, then come the costs by name, `fits`, and under
    `reject` the names of the broken rules.
    """
    choices = ("candidate", *PLAN_COLUMNS, *({CUT.name} & {*rows.columns}))
    hardware = ("cluster", *rows.attrs["what_if"])
    reasons = [reason["name"] for reason in rows.attrs["reject_reasons"]]
    plans: list[dict[str, object]] = []
    plain = rows.copy(deep=False)
    plain.attrs = {}  # pandas would copy them for every row
    for row in plain.to_dict(orient="records"):
        broken = [name for bit, name in enumerate(reasons) if row["reject"] >> bit & 1]
        plans.append(
            {"plan": Plan({name: row[name] for name in choices}), "hardware": {name: row[name] for name in hardware}}
            | {name: row[name] for name in (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)}
            | {"fits": not {MEMORY.name, HOST_MEMORY.name, VANISHES.name} & set(broken), "reject": broken}
        )
    return plans
