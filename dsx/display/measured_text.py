"""Measured kernels and collectives as text and as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsx.display.table import table
from dsx.units import counted, format_quantity

LARGE = 0.1  # a spread above it is said
_SHOWN = 10  # kernels of a list in a text


def kernels_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return kernels as a table, with the rate of each: FLOP/s of multiplies, else bytes/s."""
    rows = [
        [
            one["operator"],
            one["direction"] or "",
            one["shape"],
            one["dtype"],
            format_quantity(one["time_s"], "s"),
            f"{100 * one['spread']:.0f} %",
            _rate(one),
        ]
        for one in measured
    ]
    header = ["operator", "direction", "m x n x k", "dtype", "time", "spread", "rate"]
    return table(header, rows, text=(0, 1, 2, 3)) if rows else ""


def _rate(one: Mapping[str, Any]) -> str:
    amount, unit = (one["flops"], "flop/s") if one["flops"] else (one["bytes"], "bytes/s")
    return format_quantity(amount / one["time_s"], unit)


def spread_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return which times vary much; empty if none does."""
    loose = [one for one in measured if one["spread"] > LARGE]
    if not loose:
        return ""
    named = [f"{one['operator']} {one['direction'] or ''} {one['shape']}".replace("  ", " ") for one in loose[:_SHOWN]]
    more = ", ..." if len(loose) > _SHOWN else ""
    return (
        f"{counted(len(loose), 'time')} with a spread above {100 * LARGE:.0f} % between the quartiles; was something "
        f"else running? {', '.join(named)}{more}"
    )


def left_out_text(left_out: Sequence[Mapping[str, Any]]) -> str:
    """Return the kernels without a time by the reason; empty if there are none."""
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        what = f"{one['operator']} {one['direction'] or ''}".strip()
        reasons.setdefault(one["why_not"], []).append(f"{what} {one['shape']}")
    lines = [
        f"{counted(len(names), 'kernel')} not measured ({reason}): {', '.join(names[:_SHOWN])}"
        f"{', ...' if len(names) > _SHOWN else ''}"
        for reason, names in reasons.items()
    ]
    return "\n".join(lines)


def collectives_text(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return collectives as a table."""
    rows = [
        [
            one["collective"],
            str(one["num_devices"]),
            format_quantity(one["bytes"], "bytes"),
            format_quantity(one["time_s"], "s"),
            f"{100 * one['spread']:.0f} %",
            format_quantity(one["bytes"] / one["time_s"], "bytes/s"),
        ]
        for one in measured
    ]
    return table(["collective", "devices", "size", "time", "spread", "rate"], rows) if rows else ""
