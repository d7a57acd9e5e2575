"""The assumption set as the cost functions read it: real-valued beliefs as leaves, choices as structure."""

from typing import Any

from dsx.records import record, static
from dsx.spec.assumptions import AssumptionsSpec


@record
class Assumptions:
    """Beliefs of the cost model; a leaf is a float, so it can be fitted or differentiated."""

    matrix_efficiency: Any  # share of peak matrix FLOP/s reached
    vector_efficiency: Any  # share of peak vector FLOP/s reached
    hbm_efficiency: Any  # share of HBM bandwidth reached
    network_efficiency: Any  # share of link bandwidth reached
    launch_latency: Any  # s per kernel and direction
    weight_bytes: Any  # bytes per element
    gradient_bytes: Any  # bytes per element
    optimizer_bytes_per_parameter: Any  # bytes
    optimizer_traffic_per_parameter: Any  # bytes read and written by an update
    overhead: Any  # bytes the framework keeps
    charge_replicated_gradients: bool = static()


def assumptions_from_spec(spec: AssumptionsSpec) -> Assumptions:
    """Return the numeric part of an assumption set."""
    return Assumptions(
        matrix_efficiency=float(spec.matrix_efficiency),
        vector_efficiency=float(spec.vector_efficiency),
        hbm_efficiency=float(spec.hbm_efficiency),
        network_efficiency=float(spec.network_efficiency),
        launch_latency=float(spec.launch_latency),
        weight_bytes=float(spec.weight_bytes),
        gradient_bytes=float(spec.gradient_bytes),
        optimizer_bytes_per_parameter=float(spec.optimizer_bytes_per_parameter),
        optimizer_traffic_per_parameter=float(spec.optimizer_traffic_per_parameter),
        overhead=float(spec.overhead),
        charge_replicated_gradients=bool(spec.charge_replicated_gradients),
    )
