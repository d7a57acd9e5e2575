"""Numbers, lines and tables as text: quantities with units, percentages, aligned columns, lines of 100 columns."""

import itertools
import math
from collections.abc import Collection, Sequence

from dsx.config.what_if import varied_field
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.plan import Plan
from dsx.text import WIDTH as WIDTH
from dsx.text import printable
from dsx.text import wrapped as wrapped
from dsx.units import format_quantity


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Return aligned columns, one line per row: columns at the positions `text` align left, the others right.

    A title may have several lines. The header is left out if all titles are empty.
    """
    titles = [title.split("\n") for title in header]
    height = max(map(len, titles), default=0) if any(header) else 0
    above = zip(*([""] * (height - len(lines)) + lines for lines in titles), strict=True) if height else ()
    cells = [*above, *([printable(cell) for cell in row] for row in rows)]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def share(part: float, total: float, digits: int = 0) -> str:
    """Return `part` as a percentage of `total`; a dash if there is none."""
    is_known = math.isfinite(part) and math.isfinite(total) and total > 0
    return f"{100 * part / total:.{digits}f} %" if is_known else "-"


def shares(parts: Sequence[float], total: float) -> list[str]:
    """Return parts as whole percentages of their sum `total`; dashes if there are none.

    They add up to 100 %: the parts with the largest remainders are rounded up, the others down.
    """
    if not (math.isfinite(total) and total > 0 and all(map(math.isfinite, parts))):
        return ["-"] * len(parts)
    exact = [100 * part / total for part in parts]
    percent = [math.floor(value) for value in exact]
    missing = round(sum(exact)) - sum(percent)
    by_loss = sorted(range(len(parts)), key=lambda at: percent[at] - exact[at])
    for at in by_loss[:missing]:
        percent[at] += 1
    return [f"{value} %" for value in percent]


def cut_text(layers: Sequence[int], between: str = " ") -> str:
    """Return the layers of the stages, equal neighbours as one entry: "20 21*6 20"; "even" for none."""
    groups = [(size, len(list(group))) for size, group in itertools.groupby(layers)]
    return between.join(f"{size}" if count == 1 else f"{size}*{count}" for size, count in groups) or "even"


def whole_plan_text(plan: Plan) -> str:
    """Return a plan as settings of the command line, with the layers of its stages where it has a cut of its own."""
    layers = plan.layers if plan["pp"] > 1 else ()
    return f"{plan.text} {LAYOUT}={cut_text(layers, ',')}" if layers else plan.text


def quantity(name: str, value: float) -> str:
    """Return the value of a result column with its unit."""
    # These import JAX, which the other functions do not need.
    from dsx.cost.context import StepCosts
    from dsx.cost.interval import StepInterval
    from dsx.records import columns

    unit = (columns(StepCosts) | columns(StepInterval))[name][0]
    if name == "mfu":
        return f"{100 * value:.1f} %"
    return "-" if not math.isfinite(value) else format_quantity(value, unit)


def hardware_title(name: str) -> str:
    """Return the title of a hardware column, a path over two lines: "network.nvs." above "bandwidth"."""
    section, dot, field = name.rpartition(".")
    return f"{section}.\n{field}" if dot else name


def hardware_text(name: str, value: str | float) -> str:
    """Return a cluster's name, or a what-if value with its unit."""
    return value if isinstance(value, str) else format_quantity(value, varied_field(name).unit)
