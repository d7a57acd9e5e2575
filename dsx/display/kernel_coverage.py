"""The kernels of a plan that have operator times, and the rows that match no kernel, as text and as plain data."""

from collections.abc import Sequence
from typing import Any

from dsx.cost.measured_times import EXACT, EXTRAPOLATED, INTERPOLATED
from dsx.display.quantities import share
from dsx.display.table import table
from dsx.pricing.measured_kernels import Coverage, MeasuredKernel
from dsx.spec.operator_times import DIRECTIONS, OperatorTime, Shape, shape_text
from dsx.units import counted, format_quantity

_SHOWN = 10  # rows that match no kernel, in a text
_HOW = {EXACT: "measured", INTERPOLATED: "interpolated", EXTRAPOLATED: "extrapolated"}


def coverage_data(covered: Coverage) -> dict[str, Any]:
    """Return the measured kernels of a plan as plain data; times in seconds."""
    return {
        "file": covered.file,
        "num_kernels": covered.num_kernels,
        **{f"num_{name}": covered.number(how) for how, name in _HOW.items()},
        **{f"{name}_share": covered.shares[how] for how, name in _HOW.items()},
        "kernels": [
            {
                "line": one.row and one.row.line,
                "layer": one.layer,
                "kernel": one.kernel,
                "operator": one.operator,
                "direction": DIRECTIONS[one.direction],
                **_sizes(one.shape),
                "known": _HOW[one.how],
                "time_s": one.time_s,
                "roofline_s": one.roofline_s,
            }
            for one in covered.kernels
        ],
        "idle": idle_data(covered.idle),
    }


def idle_data(idle: Sequence[OperatorTime]) -> list[dict[str, Any]]:
    """Return rows that match no kernel as plain data."""
    return [
        {
            "line": row.line,
            "operator": row.operator,
            "direction": _direction(row) or None,
            **_sizes(row.shape),
            "dtype": row.dtype or None,
        }
        for row in idle
    ]


def coverage_text(covered: Coverage, plan: str = "this plan", with_idle: bool = True) -> str:
    """Return the measured kernels of a plan as a table; `with_idle` adds the rows that match none of its kernels."""
    lines = [f"operator times of {covered.file}, {known_text(covered, plan)}"]
    rows = [
        [
            f"{one.layer} {one.kernel}",
            DIRECTIONS[one.direction],
            one.operator,
            shape_text(one.shape),
            format_quantity(one.roofline_s, "s"),
            format_quantity(one.time_s, "s"),
            _known(one),
        ]
        for one in covered.kernels
    ]
    if rows:
        header = ["", "", "operator", "m x n x k", "roofline", "time", "known from"]
        lines.append(table(header, rows, text=(0, 1, 2, 3, 6)))
    if with_idle:
        lines.append(idle_text(covered.file, covered.idle, plan))
    return "\n".join(filter(None, lines))


def known_text(covered: Coverage, plan: str) -> str:
    """Return how the kernels of a plan are known, in one line."""
    parts = ", ".join(
        f"{covered.number(how)} {name} ({share(covered.shares[how], 1, 1)} of the time of all kernels)"
        for how, name in _HOW.items()
        if how == EXACT or covered.number(how)
    )
    return f"{counted(covered.num_kernels, 'kernel')} of {plan}: {parts}"


def _known(one: MeasuredKernel) -> str:
    return f"line {one.row.line}" if one.row else "between rows" if one.how == INTERPOLATED else "beyond the rows"


def shares_text(covered: Sequence[Coverage]) -> str:
    """Return the share of measured and interpolated times of each plan; empty if it is the same for all of them."""
    shares = [share(one.shares[EXACT] + one.shares[INTERPOLATED], 1, 1) for one in covered]
    if len(set(shares)) <= 1:
        return ""
    listed = ", ".join(f"{text} of plan {number}" for number, text in enumerate(shares, 1))
    return (
        f"measured or interpolated share of kernel time: {listed}; the order of the plans depends partly on rooflines "
        "and extrapolation"
    )


def idle_text(file: str, idle: Sequence[OperatorTime], plan: str) -> str:
    """Return the rows that are of no kernel of a plan; empty if there are none."""
    if not idle:
        return ""
    lines = [f"{counted(len(idle), 'row')} of {file}: no kernel of {plan} is of that operator, direction and type"]
    for row in idle[:_SHOWN]:
        what = " ".join(filter(None, (row.operator, _direction(row), row.dtype, shape_text(row.shape))))
        lines.append(f"  line {row.line}: {what}")
    if len(idle) > _SHOWN:
        lines.append(f"  ... and {len(idle) - _SHOWN} more, which --json prints")
    return "\n".join(lines)


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
