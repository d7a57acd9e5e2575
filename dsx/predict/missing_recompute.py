"""Fill a missing `recompute`: none if the run then fits in memory, else full.

A measured run did fit. If it needs far more memory than a GPU has without recomputation, it must have recomputed.
"""

from collections.abc import Sequence
from dataclasses import replace

from dsx.predict.batches import batches
from dsx.predict.setup_costs import price
from dsx.runs.setups import Setup
from dsx.spec.assumptions import AssumptionsSpec

MARGIN = 1.25  # over the memory of a GPU: predictions are not further off


def with_recompute(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> list[Setup]:
    """Return the setups, with full recomputation if `recompute` is missing and the run would not fit without it."""
    found = list(setups)
    priced, _ = batches(setups, assumptions)
    for batch in priced:
        missing = [row for row in batch.rows if "recompute" in setups[row].filled and not setups[row].run.oom]
        if not missing:
            continue
        peak = price(batch).peak_bytes
        needed = dict(zip(batch.rows.tolist(), peak.tolist(), strict=True))
        for row in missing:
            if needed[row] > MARGIN * found[row].cluster.device.hbm_capacity:
                found[row] = replace(found[row], plan=found[row].plan | {"recompute": "full"})
    return found
