"""One GPU: two compute rates and one memory.

Not modelled: caches; how far a kernel stays behind the peaks is a belief (dsx.cost.multiply).
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
    fp8_flops: Any  # FLOP/s, dense matrix multiply in 8 bits; 0: such multiplies run at matrix_flops
    power_share: Any  # watts that it may draw over those of its data sheet
    host_bandwidth: Any  # bytes/s to the memory of the host, per direction
    num_sms: Any  # multiprocessors; 1 where unknown, so that waves of tiles are whole
    name: str = static()
