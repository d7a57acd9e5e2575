"""Numbers as text: counts, percentages, quantities with their units."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dsx.space.layer_layout import LAYOUT
from dsx.spec.what_if import field
from dsx.units import format_quantity


def share(part: float, whole: float, digits: int = 0) -> str:
    """Return `part` as a percentage of `whole`; a dash if there is none."""
    known = math.isfinite(part) and math.isfinite(whole) and whole > 0
    return f"{100 * part / whole:.{digits}f} %" if known else "-"


def shares(parts: Sequence[float], whole: float) -> list[str]:
    """Return parts as whole percentages of their sum `whole`; dashes if there are none.

    They add up to 100 %: the parts with the largest remainders are rounded up, the others down.
    """
    if not (math.isfinite(whole) and whole > 0 and all(map(math.isfinite, parts))):
        return ["-"] * len(parts)
    exact = [100 * part / whole for part in parts]
    percent = [math.floor(value) for value in exact]
    missing = round(sum(exact)) - sum(percent)
    by_loss = sorted(range(len(parts)), key=lambda at: percent[at] - exact[at])
    for at in by_loss[:missing]:
        percent[at] += 1
    return [f"{value} %" for value in percent]


def cut_text(stage_layers: str | None, between: str = " ") -> str:
    """Return the layers of the stages, equal neighbours as one entry: "20 21*6 20"; "even" without a layout."""
    if stage_layers is None:
        return "even"
    groups = [(size, len(list(group))) for size, group in itertools.groupby(stage_layers.split(","))]
    return between.join(size if count == 1 else f"{size}*{count}" for size, count in groups)


def whole_plan_text(plan: Any) -> str:
    """Return a plan as settings of the command line, with the layers of its stages where it has a cut of its own."""
    stated = plan.get(LAYOUT) if plan["pp"] > 1 else None
    return plan.text if stated is None else f"{plan.text} {LAYOUT}={cut_text(stated, ',')}"


def quantity(name: str, value: float) -> str:
    """Return the value of a result column with its unit."""
    # These import JAX, which the other functions do not need.
    from dsx.cost.columns import StepCosts
    from dsx.cost.interval import StepInterval
    from dsx.records import columns

    unit = (columns(StepCosts) | columns(StepInterval))[name][0]
    if name == "mfu":
        return f"{100 * value:.1f} %"
    return "-" if not math.isfinite(value) else format_quantity(value, unit)


def signed(name: str, difference: float) -> str:
    """Return a difference of two values of a result column, with its sign and unit."""
    return f"{'-' if difference < 0 else '+'}{quantity(name, abs(difference))}" if math.isfinite(difference) else "-"


def hardware_title(name: str) -> str:
    """Return the title of a hardware column, a path over two lines: "network.nvs." above "bandwidth"."""
    section, dot, field = name.rpartition(".")
    return f"{section}.\n{field}" if dot else name


def hardware_text(name: str, value: str | float) -> str:
    """Return a cluster's name, or a what-if value with its unit."""
    return value if isinstance(value, str) else format_quantity(value, field(name).unit)
