"""One GPU: its peak compute rates and its memory.

Assumptions say which share of the peaks a kernel reaches in a training step (dsx.cost.multiply).

Not modelled: caches.
"""

from typing import Any

from dsx.records import record, static


@record
class Device:
    """Peak rates of one GPU; a leaf is a float, or an [H] array of hardware points."""

    matrix_flops: Any  # FLOP/s, dense matrix multiply at the precision of training
    vector_flops: Any  # FLOP/s, all other operators
    hbm_bandwidth: Any  # bytes/s
    hbm_capacity: Any  # bytes
    fp8_flops: Any  # FLOP/s, dense matrix multiply in 8 bits; 0: such multiplies run at matrix_flops
    fp4_flops: Any  # the same in 4 bits
    int8_flops: Any  # operations/s, the same of 8-bit integers
    sustained_share: Any  # of matrix_flops, by a large multiply; 0: that of the assumptions
    fp8_sustained_share: Any  # of fp8_flops
    attention_forward: tuple[Any, ...]  # share of matrix_flops by generation of fused kernels; 0: it has none of it
    attention_backward: tuple[Any, ...]
    power_share: Any  # power limit over the power of its data sheet
    host_bandwidth: Any  # bytes/s to the memory of the host, per direction
    num_sms: Any  # multiprocessors; 1 if unknown, so that every wave of tiles is full
    name: str = static()
