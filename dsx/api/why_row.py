"""The explanation of a row of a result set."""

from pathlib import Path

from dsx.api.plan_like import Row
from dsx.api.result_row import Hardware, row_of
from dsx.api.why import Explanation, explained
from dsx.argument_types import file_path
from dsx.pricing.evaluate import price_plan


def why_row(folder: str | Path, candidate: int | str | Row, hardware: Hardware = ()) -> Explanation:
    """Explain a row of a result set: the rules that it breaks, its time, its memory, and the fastest of its job.

        dsx.why_row("results/sweep", df.iloc[0])
        dsx.why_row("results/sweep", 8151892079365825710, {"device.hbm_capacity": "80 GB"})

    Args:
        folder: the folder of the result set.
        candidate: its id, or the row itself as `dsx.load` gives it.
        hardware: the cluster or the what-if values of the row, if the sweep varies them: a mapping, with numbers in SI
            units, or a list such as ["device.hbm_capacity=80 GB"].

    Raises InputError if there is no such row, or several; StoreError if the set cannot be read.
    """
    row = row_of(file_path("folder", folder), candidate, hardware)
    problem = row.problem
    return explained(problem, price_plan(problem, row.plan))
