"""What verbs print: data on stdout, everything else on stderr."""

import itertools
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dsx.printable import printable
from dsx.units import format_quantity

JSON_VERSION = 1


def note(message: str) -> None:
    """Print a remark on stderr."""
    print(f"dsx: {message}", file=sys.stderr)


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object with its schema version; what is not a number becomes null."""
    print(json.dumps({"schema_version": JSON_VERSION} | _finite(data), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> None:
    """Print columns aligned: those at the positions `text` to the left, numbers to the right.

    A title may have several lines; a header of empty titles is left out.
    """
    titles = [title.split("\n") for title in header]
    height = max(map(len, titles), default=0) if any(header) else 0
    above = zip(*([""] * (height - len(lines)) + lines for lines in titles), strict=True) if height else ()
    cells = [*above, *([printable(cell) for cell in row] for row in rows)]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(len(header))]
    for row in cells:
        aligned = [
            cell.ljust(width) if column in text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(aligned).rstrip())


def counted(number: int, noun: str) -> str:
    """Return "1 plan", "2,027 plans"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(part: float, whole: float, digits: int = 0) -> str:
    """Return `part` in percent of `whole`, or a dash where that is no number."""
    known = math.isfinite(part) and math.isfinite(whole) and whole > 0
    return f"{100 * part / whole:.{digits}f} %" if known else "-"


def shares(parts: Sequence[float], whole: float) -> list[str]:
    """Return parts of a whole in percent, without digits, that add up to 100 %; dashes where that is no number.

    Rounded up are those that lose most by rounding down.
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


def cut_text(stage_layers: str) -> str:
    """Return the layers of stages with runs of equal ones together: "20 21*6 20"."""
    runs = [(size, len(list(run))) for size, run in itertools.groupby(stage_layers.split(","))]
    return " ".join(size if count == 1 else f"{size}*{count}" for size, count in runs)


def quantity(name: str, value: float) -> str:
    """Return a result column's value with its unit, for people."""
    from dsx.cost.columns import StepCosts
    from dsx.cost.interval import StepInterval
    from dsx.records import columns

    unit = (columns(StepCosts) | columns(StepInterval))[name][0]
    if name == "mfu":
        return f"{100 * value:.1f} %"
    return "-" if not math.isfinite(value) else format_quantity(value, unit)
