"""The best plan at each setting of a sweep: each cluster, number of GPUs, batch and what-if value."""

import math
from collections.abc import Sequence
from typing import Any

from dsx.display.quantities import hardware_text, quantity, whole_plan_text
from dsx.reporting.markup import Markup, element, markup, table
from dsx.reporting.ranked_rows import RankedRows
from dsx.results.plot.selection import fastest
from dsx.results.run_choice import COST, DAYS, Priced, price_column
from dsx.units import format_quantity

_MOST = 60


def setting_table(rows: RankedRows) -> Markup:
    """Return the table; nothing if the sweep has one setting."""
    if not rows.varied:
        return markup()
    best = fastest(rows.feasible, rows.varied)
    plans = rows.plans(rows.whole(best.iloc[:_MOST]))
    run = _of_a_run(plans)
    lines = [
        [
            ", ".join(_setting(name, priced) for name in rows.varied),
            format_quantity(priced["step_time_s"], "s"),
            f"{priced['tokens_per_s_per_gpu']:,.0f}",
            quantity("mfu", priced["mfu"]),
            format_quantity(priced["peak_bytes"], "bytes"),
            *(quantity(column, priced[column]) for column in run.values()),
            priced["plan"]["strategy"],
            whole_plan_text(priced["plan"]),
        ]
        for priced in plans
    ]
    header = [", ".join(rows.varied), "step", "tokens/s/GPU", "MFU", "memory", *run, "strategy", "plan"]
    more = f" The first {_MOST} of {len(best):,} settings are shown." if len(best) > _MOST else ""
    return markup(
        table(header, lines, "The best plan of each setting"),
        element("p", more) if more else "",
    )


def _of_a_run(plans: Sequence[Priced]) -> dict[str, str]:
    """Return the heading and the column of what a whole training takes; nothing where its tokens are not stated."""
    if not any(math.isfinite(priced[DAYS]) for priced in plans):
        return {}
    paid = price_column(plans)
    return {"training": DAYS, "cost" if paid == COST else "GPU hours": paid}


def _setting(name: str, priced: Any) -> str:
    value = priced["hardware"][name] if name in priced["hardware"] else priced["plan"][name]
    return hardware_text(name, value) if "." in name else f"{value:,}" if isinstance(value, int) else str(value)
