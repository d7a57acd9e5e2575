"""What a blank `recompute` stands for: none where the run fits in memory so, else full.

A run that was measured did fit. Where a table does not say what was made again, and the rest of the plan needs far more
memory than a GPU has if everything is kept, something was.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from dsx.cost.assumptions import assumptions_from_spec
from dsx.predict.batches import batches
from dsx.predict.setup_costs import price
from dsx.runs.setups import Setup
from dsx.spec.assumptions import AssumptionsSpec

MARGIN = 1.25  # on a GPU's memory: what is predicted is not off by more


def with_recompute(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> list[Setup]:
    """Return the setups; where `recompute` is blank and the run cannot have fitted without, with full recomputation."""
    found = list(setups)
    made, _ = batches(setups, assumptions)
    for batch in made:
        open_rows = [row for row in batch.rows if "recompute" in setups[row].filled and not setups[row].run.oom]
        if not open_rows:
            continue
        # The whole batch is priced, as it is for its step times: with the same rows it is compiled once.
        with jax.enable_x64(True):
            peak = np.asarray(price(batch, assumptions_from_spec(batch.spec)).peak_bytes)
        needed = dict(zip(batch.rows.tolist(), peak.tolist(), strict=True))
        for row in open_rows:
            if needed[row] > MARGIN * found[row].cluster.device.hbm_capacity:
                found[row] = replace(found[row], plan=found[row].plan | {"recompute": "full"})
    return found
