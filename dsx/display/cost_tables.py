"""The time and memory of a step as tables, part by part."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dsx.cost.columns import StepCosts
from dsx.display.layout import wrapped
from dsx.display.quantities import quantity, share, signed
from dsx.display.table import table
from dsx.units import format_quantity

_NEARLY_EQUAL = 1e-3  # of the step
_ROUNDING = 1e-9


def costs_text(costs: Mapping[str, float]) -> str:
    """Return a step's time and memory as tables, then its 80 % interval and the remaining columns, such as MFU."""
    parts: list[str] = []
    columns = [*StepCosts.__dataclass_fields__]
    for whole, unit in (("step_time_s", "_s"), ("peak_bytes", "_bytes")):
        total = costs[whole]
        names = [name for name in columns[: columns.index(whole)] if name.endswith(unit)]
        rows = [[name, quantity(name, costs[name]), share(costs[name], total, 1)] for name in names]
        parts.append(table(["", "", "share"], [*rows, [whole, quantity(whole, total), share(total, total, 1)]]))
    if costs["step_time_s_low"] == costs["step_time_s_low"]:
        low, high = (quantity(name, costs[name]) for name in ("step_time_s_low", "step_time_s_high"))
        parts.append(f"80 % interval of step_time_s: {low} to {high}")
    if math.isnan(costs["mfu"]):
        parts.append(
            wrapped(
                "no MFU and no tokens a second: the plan leaves a part of the work of a step to no rank, so its "
                "seconds are not those of a step"
            )
        )
    rest = [name for name in columns[columns.index("peak_bytes") + 1 :] if costs[name] == costs[name]]
    rest = rest if costs["host_bytes"] else [name for name in rest if name != "host_bytes"]  # nothing is offloaded
    parts.append(table(["", ""], [[name, quantity(name, costs[name])] for name in rest]))
    return "\n\n".join(filter(None, parts))


def comparison_text(costs: Mapping[str, float], others: Mapping[str, float]) -> str:
    """Return the parts of a step beside those of the fastest plan, the largest difference first.

    A part that is the same in both, or nearly so, has no line.
    """
    whole, peak = "step_time_s", "peak_bytes"
    parts = [name for name in costs if name.endswith("_s") and not name.startswith((whole, "tokens"))]
    parts = [name for name in parts if abs(costs[name] - others[name]) > _NEARLY_EQUAL * others[whole]]
    parts.sort(key=lambda name: -abs(costs[name] - others[name]))
    rows: list[list[str]] = []
    for name in (*parts, whole, peak):
        own, other = costs[name], others[name]
        difference = 0.0 if math.isclose(own, other, rel_tol=_ROUNDING) else own - other
        rows.append([name, quantity(name, own), quantity(name, other), signed(name, difference)])
    return table(["", "this plan", "fastest", "difference"], rows)


def operators_text(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return the kernels of one layer for one microbatch as a table."""
    figures = ("matrix FLOP", "vector FLOP", "HBM traffic", "compute", "memory", "communication", "saved")
    rows: list[list[str]] = []
    for kernel in kernels:
        for direction in ("forward", "backward"):
            part = kernel[direction]
            comm = part["tp_comm_s"] + part["cp_comm_s"] + part["ep_comm_s"]
            if not kernel["counted"] and not comm:
                continue
            rows.append(
                [
                    kernel["name"],
                    direction,
                    f"{part['matrix_flops']:.4g}",
                    f"{part['vector_flops']:.4g}",
                    format_quantity(part["bytes"], "bytes"),
                    format_quantity(part["compute_s"], "s"),
                    format_quantity(part["memory_s"], "s"),
                    format_quantity(comm, "s"),
                    format_quantity(kernel["saved_bytes"], "bytes") if direction == "forward" else "",
                ]
            )
    return "one layer, one microbatch:\n" + table(["", "", *figures], rows, text=(0, 1))
