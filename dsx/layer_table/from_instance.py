"""The partition problem of an instance file on a network."""

import numpy as np

from dsx.layer_table.hierarchy import Hierarchy
from dsx.layer_table.instance import Instance, LayerTable
from dsx.layer_table.network_levels import NetworkLevels
from dsx.layer_table.partition_problem import PartitionProblem, Width
from dsx.layer_table.segments import Chain
from dsx.pricing.chain import check_length


def problem_of(
    instance: Instance,
    network: NetworkLevels,
    optimizer_factor: float,
    zero_stages: tuple[int, ...],
    recompute: tuple[bool, ...],
) -> PartitionProblem:
    """Return the problem of an instance, with all its widths, on a network; SpecError if it has too many layers."""
    check_length(
        len(instance.layer_ids), instance.file, "merge neighbouring layers into one row, adding their times and bytes"
    )
    return PartitionProblem(
        widths=tuple(Width(table.width, table.devices_per_stage, _chain(table)) for table in instance.tables),
        hierarchy=Hierarchy(
            devices_per_level=np.array(network.devices_per_level),
            bandwidth=np.array(network.bandwidth, np.float64),
            latency=np.array(network.latency, np.float64),
        ),
        num_microbatches=instance.num_microbatches,
        device_bytes=instance.device_bytes,
        optimizer_factor=optimizer_factor,
        zero_stages=zero_stages,
        recompute=recompute,
    )


def _chain(table: LayerTable) -> Chain:
    return Chain(**{name: np.array(getattr(table, name), np.float64) for name in Chain.__dataclass_fields__})
