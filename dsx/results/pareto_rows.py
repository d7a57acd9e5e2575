"""The Pareto front of a result set: the feasible rows that no other feasible row beats in every objective.

    pareto(df, "step_time_s", "peak_bytes")    # both as small as possible
    pareto(df, "num_gpus", "-tokens_per_s")    # a leading minus: as large as possible

`dsx.search.pareto` has the algorithm and the tie rule: rows that are equal in all objectives are all kept. Rows with an
objective that is NaN or infinite are left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsx.errors import InputError
from dsx.results.frames import check_frame, column_list, require
from dsx.results.schema import COLUMNS
from dsx.search.pareto_front import front

if TYPE_CHECKING:
    import pandas as pd

_NO_QUANTITIES = frozenset(column.name for column in COLUMNS if column.kind not in ("integer", "real"))


def pareto(df: "pd.DataFrame", *objectives: str | Sequence[str]) -> "pd.DataFrame":
    """Return the rows of `df` on the front, the best by the first objective first.

    Each objective is a numeric column to be minimised, or, as "-mfu", maximised; a list of them may be given too.
    `df.attrs` are kept.
    Raises UnknownNameError for a column that `df` does not have, InputError for one without numbers, or for what is no
    DataFrame.
    """
    names = [name for given in objectives for name in column_list("objectives", given)]
    if not names:
        raise InputError("a front needs an objective, for example 'step_time_s', or '-mfu' to maximise")
    check_frame(df)
    feasible = df.loc[require(df, "reject") == 0]
    points = np.column_stack([minimised(feasible, objective) for objective in names])
    on_front = front(points)
    # lexsort sorts by its last key first.
    result = feasible.loc[on_front].iloc[np.lexsort(points[on_front].T[::-1])]
    result.attrs = dict(df.attrs)
    return result


def column_of(objective: str) -> str:
    """Return the column of an objective."""
    return objective.removeprefix("-")


def minimised(df: "pd.DataFrame", objective: str) -> NDArray[np.float64]:
    """Return the values of an objective, negated if it is maximised.

    Raises UnknownNameError or InputError as `pareto` does.
    """
    values = require(df, column_of(objective))
    if values.dtype.kind not in "iuf" or column_of(objective) in _NO_QUANTITIES:
        raise InputError(f"{column_of(objective)!r} cannot be an objective: it does not hold quantities")
    numbers = values.astype(np.float64)
    return -numbers if objective.startswith("-") else numbers
