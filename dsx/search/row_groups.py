"""Groups of rows: the rows of smallest objective of each group, or the front of each group.

A group is the rows with equal values in some columns. The order of the space decides among equal rows, so the result
does not depend on how the space was divided.
"""

from collections.abc import Sequence

import numpy as np

from dsx.search.pareto_front import front
from dsx.space.choices import MODEL_AXES
from dsx.space.enumerate import Arrays, changes

# The order of candidates in a space: columns of the key, then columns of the choice.
_ORDER = ("strategy", *MODEL_AXES, "panels", "microbatch_size", *(f"{axis}_nvs" for axis in MODEL_AXES))
_ORDER += ("num_gpus", "pp", "pp_nvs", "global_batch_size")


def ranks(group: np.ndarray, *groups: np.ndarray) -> np.ndarray:
    """Return the rank of each row in its group, for rows that are sorted by the columns of the groups."""
    position = np.arange(len(group))
    return position - np.maximum.accumulate(np.where(changes(group, *groups), position, 0))


def leading_rows(rows: Arrays, top: int, groups: Sequence[str], objective: str = "step_time_s") -> Arrays:
    """Return the `top` rows of smallest objective of each group, sorted by group and objective.

    Equal rows come in the order of the space. So the same rows of many ties are kept, however the space is divided.
    """
    order = np.lexsort([rows[name] for name in reversed((*groups, objective, *_ORDER))])
    rows = {name: column[order] for name, column in rows.items()}
    leading = ranks(*(rows[name] for name in groups)) < top if groups else np.arange(len(order)) < top
    return {name: column[leading] for name, column in rows.items()}


def front_of_groups(rows: Arrays, groups: Sequence[str], objectives: Sequence[str]) -> Arrays:
    """Return the front of each group, each candidate once, sorted by group and objectives."""
    order = np.lexsort((rows["candidate"], *(rows[name] for name in reversed(groups))))
    rows = {name: column[order] for name, column in rows.items()}
    columns = [rows[name] for name in groups]
    first = np.flatnonzero(changes(*columns, rows["candidate"]))
    rows = {name: column[first] for name, column in rows.items()}
    begins = changes(*(rows[name] for name in groups))
    points = objective_points(rows, objectives)
    members = np.split(np.arange(len(first)), np.flatnonzero(begins)[1:])
    chosen = np.concatenate([here[front(points[here])] for here in members if len(here)] or [first])
    chosen = chosen[np.lexsort((*points[chosen].T[::-1], np.cumsum(begins)[chosen]))]
    return {name: column[chosen] for name, column in rows.items()}


def objective_points(rows: Arrays, objectives: Sequence[str]) -> np.ndarray:
    """Return the [N, D] objectives to minimise; a column with a leading minus is maximised."""
    columns = [-rows[name[1:]] if name.startswith("-") else rows[name] for name in objectives]
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(rows["candidate"])).T
