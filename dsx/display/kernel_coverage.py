"""The kernels of a plan that have operator times, and the rows that match no kernel, as text and as plain data."""

from collections.abc import Sequence
from typing import Any

from dsx.display.quantities import counted, share
from dsx.display.table import table
from dsx.pricing.measured_kernels import Coverage, IdleRow
from dsx.spec.operator_times import DIRECTIONS, OperatorTime, Shape, shape_text
from dsx.units import format_quantity

_SHOWN = 10  # rows that match no kernel, in a text


def coverage_data(covered: Coverage) -> dict[str, Any]:
    """Return the measured kernels of a plan as plain data; times in seconds."""
    return {
        "file": covered.file,
        "num_kernels": covered.num_kernels,
        "num_measured": len(covered.kernels),
        "measured_share": covered.share,
        "measured": [
            {
                "line": one.row.line,
                "layer": one.layer,
                "kernel": one.kernel,
                "operator": one.row.operator,
                "direction": DIRECTIONS[one.direction],
                **_sizes(one.row.shape),
                "time_s": one.row.time_s,
                "roofline_s": one.roofline_s,
            }
            for one in covered.kernels
        ],
        "idle": idle_data(covered.idle),
    }


def idle_data(idle: Sequence[IdleRow]) -> list[dict[str, Any]]:
    """Return rows that match no kernel as plain data."""
    return [
        {
            "line": one.row.line,
            "operator": one.row.operator,
            "direction": _direction(one.row) or None,
            **_sizes(one.row.shape),
            "dtype": one.row.dtype or None,
            "nearest": one.nearest and _sizes(one.nearest),
        }
        for one in idle
    ]


def coverage_text(covered: Coverage, plan: str = "this plan", with_idle: bool = True) -> str:
    """Return the measured kernels of a plan as a table; `with_idle` adds the rows that match none of its kernels."""
    lines = [
        f"operator times of {covered.file}: {len(covered.kernels)} of {counted(covered.num_kernels, 'kernel')} of "
        f"{plan}, {share(covered.share, 1, 1)} of the time of all kernels"
    ]
    rows = [
        [
            f"{one.layer} {one.kernel}",
            DIRECTIONS[one.direction],
            one.row.operator,
            shape_text(one.row.shape),
            format_quantity(one.roofline_s, "s"),
            format_quantity(one.row.time_s, "s"),
            f"{one.row.line}",
        ]
        for one in covered.kernels
    ]
    if rows:
        lines.append(table(["", "", "operator", "m x n x k", "roofline", "measured", "line"], rows, text=range(4)))
    if with_idle:
        lines.append(idle_text(covered.file, covered.idle, plan))
    return "\n".join(lines)


def shares_text(covered: Sequence[Coverage]) -> str:
    """Return the measured share of the kernel time of each plan; empty if it is the same for all of them."""
    shares = [share(one.share, 1, 1) for one in covered]
    if len(set(shares)) <= 1:
        return ""
    listed = ", ".join(f"{text} of plan {number}" for number, text in enumerate(shares, 1))
    return f"measured share of kernel time: {listed}; the order of the plans depends partly on rooflines"


def idle_text(file: str, idle: Sequence[IdleRow], plan: str) -> str:
    """Return the rows that match no kernel of a plan, each with the nearest shape."""
    if not idle:
        return f"every row of {file} matches a kernel of {plan}"
    lines = [f"{counted(len(idle), 'row')} of {file}: no kernel of {plan} has that shape"]
    for one in idle[:_SHOWN]:
        row = one.row
        what = " ".join(filter(None, (row.operator, _direction(row), row.dtype, shape_text(row.shape))))
        lines.append(f"  line {row.line}: {what}; {_nearest(one)}")
    if len(idle) > _SHOWN:
        lines.append(f"  ... and {len(idle) - _SHOWN} more, which --json prints")
    return "\n".join(lines)


def _nearest(one: IdleRow) -> str:
    if one.nearest is None:
        return f"there is no {one.row.operator} with such sizes"
    if one.nearest == one.row.shape:
        return f"that shape is not computed in {one.row.dtype}"
    return f"the nearest is {shape_text(one.nearest)}"


def _direction(row: OperatorTime) -> str:
    return DIRECTIONS[row.directions[0]] if len(row.directions) == 1 else ""


def _sizes(shape: Shape) -> dict[str, int | None]:
    m, n, k, batch = shape
    return {"m": m, "n": n, "k": k or None, "batch": batch or None}


def shapes_data(kernels: Sequence[tuple[str, int | None, Shape]]) -> list[dict[str, Any]]:
    """Return kernels that could be measured as plain data, with the columns of a file of operator times."""
    return [
        {"operator": operator, "direction": None if direction is None else DIRECTIONS[direction]} | _sizes(shape)
        for operator, direction, shape in kernels
    ]


def shapes_text(kernels: Sequence[dict[str, object]]) -> str:
    """Return kernels that could be measured as a table."""
    rows = [[str(value or "") for value in kernel.values()] for kernel in kernels]
    header = ["operator", "direction", "m", "n", "k", "batch"]
    return "the kernels of all layers, as --operator-times takes them:\n" + table(header, rows, text=(0, 1))
