"""Limits of a search as an argument: what a sweep states as `limit`, checked against the fixed choices."""

from collections.abc import Mapping, Sequence

from dsx.errors import InputError, SpecError
from dsx.results.schema import MENTIONED
from dsx.search.space import fault_of_limit
from dsx.space.boxes import Limitation, Selection
from dsx.spec.column_limits import column_limits, contradiction

# "tp<=8 pp>=2", ["tp<=8", "pp>=2"] or {"tp": "<=8", "pp": [">=2", "<=16"]}.
LimitLike = str | Sequence[str] | Mapping[str, object]


def given_limits(limit: LimitLike | None, fixed: Selection) -> Limitation:
    """Return the limits of a search by column; `fixed` has the values that its columns may have.

    Raises InputError for a column that cannot be limited, a bound that is none, and a limit that no fixed value obeys.
    """
    limits = column_limits(limit, MENTIONED, "limit")
    for column, bounds in limits.items():
        if fault := fault_of_limit(column):
            raise SpecError(f"limit: {fault}")
        if fault := contradiction(column, bounds, fixed.get(column, ())):
            raise InputError(f"limit: {fault}")
    return limits
