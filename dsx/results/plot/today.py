"""The machine of today: what a sweep's own cluster and assumption set have in the fields that it varies."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from dsx.spec.what_if import is_assumption, is_field, value_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd


def value_today(df: "pd.DataFrame", column: str) -> float | None:
    """Return the own value of the cluster, or of the assumption set, in a what-if column, in SI units.

    None if the column is no field of a machine, if the rows have several clusters, or if the frame does not say.
    """
    if not is_field(column):
        return None
    resolved = df.attrs.get("spec", {}).get("resolved", {})
    there = {str(name) for name in df["cluster"].unique()} if "cluster" in df.columns else set()
    clusters = [one for one in resolved.get("clusters", ()) if not there or one["name"] in there]
    found: Any = resolved if is_assumption(column) else clusters[0] if len(clusters) == 1 else None
    for part in column.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    with suppress(ValidationError):
        return None if found is None else float(value_type(column).validate_python(found))
    return None


def place_today(df: "pd.DataFrame", column: str, values: "Sequence[Any]") -> int | None:
    """Return the position of today's value among `values` of a column, None if it is not among them."""
    today = value_today(df, column)
    same = (
        [] if today is None else np.flatnonzero(np.isclose(np.asarray(values, np.float64), today, rtol=1e-9, atol=0.0))
    )
    return int(same[0]) if len(same) else None
