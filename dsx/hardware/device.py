"""One GPU: two compute rates and one memory.

Not modelled: rates that depend on the precision or the size of a kernel, caches, power.
"""

from typing import Any

from dsx.records import record, static


@record
class Device:
    """Peak rates of one GPU; a leaf is a float, or an [H] array of hardware points."""

    matrix_flops: Any  # FLOP/s, dense matrix multiply at the precision of training
    vector_flops: Any  # FLOP/s, everything else
    hbm_bandwidth: Any  # bytes/s
    hbm_capacity: Any  # bytes
    name: str = static()
