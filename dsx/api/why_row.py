"""A row of a result set explained."""

from collections.abc import Sequence
from pathlib import Path

from dsx.api.result_row import row_of
from dsx.api.why import Explanation, explained
from dsx.pricing.evaluate import price_plan


def why_row(folder: str | Path, candidate: int | str, hardware: Sequence[str] = ()) -> Explanation:
    """Explain a row of a result set by the id of its candidate.

    `hardware` says at which cluster or values of what_if, as COLUMN=VALUE. Raises InputError if there is no such row,
    or several.
    """
    row = row_of(Path(folder), str(candidate), hardware)
    problem = row.problem
    return explained(problem, price_plan(problem, row.plan))
