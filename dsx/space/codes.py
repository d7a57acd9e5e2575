"""Columns of a plan that are names, stages or held fixed: their values, and which of them a search leaves open."""

from collections.abc import Mapping
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.records import record, static
from dsx.space.schedules import SCHEDULES
from dsx.space.tiers import ORDERS
from dsx.spec.quantities import LARGEST_COUNT

RECOMPUTE = ("none", "selective", "full")
OFFLOAD = ("none", "optimizer", "activations", "both")
ZERO_STAGES = (0, 1, 2, 3)
# How the layers are cut into the stages of a pipeline; no column of a plan, but what is made of one.
PARTITIONS = EVEN, OPTIMAL = ("even", "optimal")

# The names that the codes of a column stand for, in the order of the codes.
CODES: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": tuple(schedule.name for schedule in SCHEDULES),
    "offload": OFFLOAD,
    "order": ORDERS,
}
VALUES: dict[str, tuple[int, ...]] = {
    "zero_stage": ZERO_STAGES,
    "recompute": tuple(range(len(RECOMPUTE))),
    "schedule": tuple(range(len(SCHEDULES))),
    "offload": tuple(range(len(OFFLOAD))),
    "order": tuple(range(len(ORDERS))),
}
# Columns that are any number from a least one on, which changes nothing.
LEAST = {"vpp": 1, "zero_replicas": 1, "stored_layers": 0, "ep": 1}
OPEN = (*LEAST, *VALUES)


@record
class Open:
    """The values that columns of the choices may take, as structure: what is not among them is not compiled.

    Names are codes. No value of vpp, zero_replicas, stored_layers or ep means every number that a plan may have there.
    """

    vpp: tuple[int, ...] = static(default=(1,))
    zero_stage: tuple[int, ...] = static(default=(1,))
    recompute: tuple[int, ...] = static(default=(0,))
    schedule: tuple[int, ...] = static(default=(0,))
    zero_replicas: tuple[int, ...] = static(default=(1,))
    stored_layers: tuple[int, ...] = static(default=(0,))
    offload: tuple[int, ...] = static(default=(0,))
    ep: tuple[int, ...] = static(default=(1,))
    order: tuple[int, ...] = static(default=(0,))

    def default(self, column: str) -> int:
        """Return the value of a column where a plan says nothing: the first one that is open."""
        return (getattr(self, column) or (LEAST[column],))[0]


def opened(values: Mapping[str, Any]) -> Open:
    """Return what is open where `values` lists the values of columns; a column that is not listed is open."""
    return Open(**{name: tuple(map(int, values.get(name, VALUES.get(name, ())))) for name in OPEN})


def least(column: str) -> int:
    """Return the least number that a column of the choices may hold; names are codes."""
    return min(VALUES[column]) if column in VALUES else LEAST.get(column, 1)


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
    fits = isinstance(value, int) and (value in known if known else least(column) <= value <= LARGEST_COUNT)
    if not fits:
        most = f" and at most {LARGEST_COUNT}" if isinstance(value, int) and value > LARGEST_COUNT else ""
        wanted = (
            f"one of {', '.join(map(str, known))}" if known else f"a whole number of at least {least(column)}{most}"
        )
        raise SpecError(f"{column} = {value!r}: {wanted} is wanted")
    return int(value)
