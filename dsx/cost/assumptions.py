"""The assumption set as the cost functions read it: numbers as leaves, choices as structure.

What a field means, its unit and its bounds stand at the field of that name in `dsx.spec.assumptions.AssumptionsSpec`.
A constant that is added is a field there and a field here; the conversion follows from the names.
"""

from typing import Any

from dsx.records import Array, leaves, record, static
from dsx.spec.assumptions import AlgorithmsSpec, AssumptionsSpec

FP8 = "fp8"


@record
class Assumptions:
    """The numbers of the cost model in SI units; a leaf is a float, so it can be fitted or differentiated."""

    matrix_efficiency: Array
    contracted_half: Array
    tile_half: Array
    tile_quantisation: Array
    wave_quantisation: Array
    attention_efficiency: Array
    attention_gradient_efficiency: Array
    attention_half: Array
    fp8_efficiency: Array
    cast_traffic: Array
    clock_exponent: Array
    grouped_efficiency: Array
    vector_efficiency: Array
    hbm_efficiency: Array
    nvs_efficiency: Array
    net_efficiency: Array
    unfused_share: Array
    host_efficiency: Array
    host_memory_bandwidth: Array
    launch_latency: Array
    launch_hidden: Array
    dispatch_latency: Array
    tp_overlap: Array
    cp_overlap: Array
    ep_overlap: Array
    pp_overlap: Array
    dp_overlap: Array
    fsdp_overlap: Array
    call_latency: Array
    relay: Array
    bulk_latency: Array
    eager_nvs_latency: Array
    eager_net_latency: Array
    eager_bandwidth: Array
    tree_latency: Array
    tree_bandwidth: Array
    weight_bytes: Array
    gradient_bytes: Array
    optimizer_bytes_per_parameter: Array
    optimizer_traffic_per_parameter: Array
    accumulation_traffic_per_parameter: Array
    overhead: Array
    fragmentation: Array
    charge_replicated_gradients: bool = static()
    protocols: tuple[str, ...] = static()
    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = static()  # (kind of collective, algorithms for it)
    linear_dtype: str = static()
    tiles: tuple[tuple[int, int], ...] = static()


def assumptions_from_spec(spec: AssumptionsSpec) -> Assumptions:
    """Return the part of an assumption set that prices a plan: leaves as floats, structure as hashable values."""
    numbers = leaves(Assumptions)

    def value(name: str) -> Any:
        stated = getattr(spec, name)
        return float(stated) if name in numbers else _hashable(stated)

    return Assumptions(**{name: value(name) for name in Assumptions.__dataclass_fields__})


def _hashable(value: Any) -> Any:
    if isinstance(value, AlgorithmsSpec):
        return tuple((kind.replace("_", "-"), tuple(names)) for kind, names in value)
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
