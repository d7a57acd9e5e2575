"""Columns of a plan that are names, stages or held fixed: their values, and which of them a search leaves open."""

from collections.abc import Mapping
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.records import record, static

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb-h1")
ZERO_STAGES = (0, 1, 2, 3)

# The names that the codes of a column stand for, in the order of the codes.
CODES: dict[str, tuple[str, ...]] = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
VALUES: dict[str, tuple[int, ...]] = {
    "zero_stage": ZERO_STAGES,
    "recompute": tuple(range(len(RECOMPUTE))),
    "schedule": tuple(range(len(SCHEDULES))),
}
OPEN = ("vpp", *VALUES, "ep")


@record
class Open:
    """The values that columns of the choices may take, as structure: what is not among them is not compiled.

    Names are codes. No value of vpp means every number of chunks that divides a stage, none of ep every degree that
    the rules allow.
    """

    vpp: tuple[int, ...] = static(default=(1,))
    zero_stage: tuple[int, ...] = static(default=(1,))
    recompute: tuple[int, ...] = static(default=(0,))
    schedule: tuple[int, ...] = static(default=(0,))
    ep: tuple[int, ...] = static(default=(1,))


def opened(values: Mapping[str, Any]) -> Open:
    """Return what is open where `values` lists the values of columns; a column that is not listed is open."""
    return Open(**{name: tuple(map(int, values.get(name, VALUES.get(name, ())))) for name in OPEN})


def code(column: str, value: int | str) -> int:
    """Return the number that a value of a column is stored as.

    Raises SpecError for a name or a stage that the column does not have.
    """
    names = CODES.get(column)
    if names:
        if value not in names:
            hint = did_you_mean(str(value), names)
            raise SpecError(f"{column} = {value!r} is not known{hint} (known: {', '.join(names)})")
        return names.index(str(value))
    known = VALUES.get(column)
    fits = isinstance(value, int) and (value in known if known else value >= 1)
    if not fits:
        wanted = f"one of {', '.join(map(str, known))}" if known else "a whole number of at least 1"
        raise SpecError(f"{column} = {value!r}: {wanted} is wanted")
    return int(value)
