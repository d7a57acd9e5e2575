"""What a GPU costs while it runs: money, power, and the failures of a long run.

None of it changes the time of a step. A job pays for its GPUs and draws their full power from its first step to its
last, restarts included.

Not modelled: power below the limit while GPUs wait, and the power of hosts and switches, which `pue` may include.
"""

from typing import Any

from dsx.records import record
from dsx.spec.cluster import ClusterSpec


@record
class Operation:
    """Facts of the operation of one GPU; 0 where the cluster file states none."""

    price: Any  # USD/s
    site_power: Any  # W that the site draws for it: the most that a GPU draws, times `pue`
    mtbf: Any  # s between failures of a GPU, in the mean
    restart: Any  # s from a failure until the job trains again
    checkpoint: Any  # s that the job stops for writing a checkpoint


def operation_from_spec(spec: ClusterSpec) -> Operation:
    """Return the operation that a cluster file describes."""
    failures = spec.failures
    return Operation(
        price=spec.price or 0.0,
        site_power=(spec.device.power or 0.0) * (spec.pue or 1.0),
        mtbf=failures.mtbf if failures else 0.0,
        restart=failures.restart if failures else 0.0,
        checkpoint=failures.checkpoint if failures else 0.0,
    )
