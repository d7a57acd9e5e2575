"""The plain plan: what one would run without a search, as the baseline of what a search finds.

Tensor parallelism up to the size of an NVLink domain, then pipeline stages until the model fits: the rule of thumb of
Narayanan et al. (arXiv 2104.04473, takeaway 1). All else is as `dsx.space.choices` has it by default: microbatches of
one sequence, one chunk a stage, no recomputation, no other parallelism.
"""

from typing import TYPE_CHECKING

import numpy as np

from dsx.results.frames import require
from dsx.space.choices import BY_NAME, SEARCHED_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

WORDS = "TP fills the NVLink domain, fewest stages"
_AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")
# The order of ranks has an effect through the placement, which is compared itself.
_PLAIN = {name: BY_NAME[name].default for name in SEARCHED_COLUMNS if name not in (*_AXES, "order")}
_PLAIN |= dict.fromkeys(("tp2", "cp", "ep", "microbatch_size"), 1)
COLUMNS = (*_PLAIN, "tp", "pp", "tp_nvs")


def plain_plan(df: "pd.DataFrame") -> int | None:
    """Return the position of the plain plan among the feasible rows, None if no row is one or a column is missing."""
    if not {*COLUMNS} <= {*df.columns}:
        return None
    plain = (require(df, "reject") == 0) & (require(df, "tp_nvs") == require(df, "tp"))
    for name, value in _PLAIN.items():
        plain &= np.asarray(df[name].array == value)
    rows = np.flatnonzero(plain)
    # lexsort sorts by its last key first.
    keys = (require(df, "step_time_s")[rows], require(df, "pp")[rows], -require(df, "tp")[rows].astype(np.int64))
    return int(rows[np.lexsort(keys)[0]]) if len(rows) else None
