"""The best plan at each setting of a sweep: each cluster, number of GPUs, batch and what-if value."""

from typing import Any

from dsx.display.quantities import hardware_text, quantity
from dsx.reporting.markup import Markup, element, markup, table
from dsx.reporting.ranked_rows import RankedRows, rate
from dsx.results.plot.selection import fastest
from dsx.units import format_quantity

_MOST = 60


def setting_table(rows: RankedRows) -> Markup:
    """Return the table; nothing if the sweep has one setting."""
    if not rows.varied:
        return markup()
    best = fastest(rows.feasible, rows.varied)
    found = rows.whole(best.iloc[:_MOST])
    lines = [
        [
            ", ".join(_setting(name, priced) for name in rows.varied),
            format_quantity(priced["step_time_s"], "s"),
            f"{speed:,.0f}",
            quantity("mfu", priced["mfu"]),
            format_quantity(priced["peak_bytes"], "bytes"),
            priced["plan"]["strategy"],
            priced["plan"].text,
        ]
        for priced, speed in zip(rows.plans(found), rate(found), strict=True)
    ]
    header = [", ".join(rows.varied), "step", "tokens/s/GPU", "MFU", "memory", "strategy", "plan"]
    more = f" The first {_MOST} of {len(best):,} settings are shown." if len(best) > _MOST else ""
    return markup(
        table(header, lines, "The best plan of each setting"),
        element("p", more) if more else "",
    )


def _setting(name: str, priced: Any) -> str:
    value = priced["hardware"][name] if name in priced["hardware"] else priced["plan"][name]
    return hardware_text(name, value) if "." in name else f"{value:,}" if isinstance(value, int) else str(value)
