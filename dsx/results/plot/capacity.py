"""The memory capacity of each row's GPU: from its what-if column, or from its cluster in the sweep."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsx.units import parse_quantity

if TYPE_CHECKING:
    import pandas as pd

COLUMN = "device.hbm_capacity"


def capacities(df: "pd.DataFrame") -> NDArray[np.float64]:
    """Return [n] bytes of HBM of each row's GPU; NaN if neither a column nor the sweep states it."""
    if COLUMN in df.columns:
        return df[COLUMN].to_numpy(np.float64)
    resolved = df.attrs.get("spec", {}).get("resolved", {})
    known = {cluster["name"]: cluster["device"]["hbm_capacity"] for cluster in resolved.get("clusters", ())}
    by_name = {name: parse_quantity(written, "bytes") for name, written in known.items()}
    names = df["cluster"] if "cluster" in df.columns else [""] * len(df)
    return np.array([by_name.get(name, np.nan) for name in names], np.float64)
