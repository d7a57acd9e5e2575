"""The assumption set for the cost functions: numbers as leaves, choices as structure.

`dsx.spec.assumptions.AssumptionsSpec` documents each field under the same name: meaning, unit and bounds. A new
constant is a field there and a field here; the conversion uses the names.
"""

import math
from typing import Any, get_args

from dsx.records import ArrayLike, leaves, record, static
from dsx.space.conditions import Condition, conditions_of
from dsx.spec.assumptions import AlgorithmsSpec, AssumptionsSpec
from dsx.spec.known_errors import EffectsSpec

BF16 = "bf16"  # the precision of multiplies that need no cast of their operands
SUSTAINED = "sustained"


@record
class Assumptions:
    """The numbers of the cost model in SI units; a leaf is a float, so it can be fitted or differentiated."""

    kernel_slowdown: ArrayLike
    matrix_efficiency: ArrayLike
    sustained_share: ArrayLike
    tile_latency: ArrayLike
    tile_half: ArrayLike
    tile_quantisation: ArrayLike
    wave_quantisation: ArrayLike
    attention_kernels: ArrayLike
    attention_efficiency: ArrayLike
    attention_gradient_efficiency: ArrayLike
    attention_half: ArrayLike
    fp8_efficiency: ArrayLike
    cast_traffic: ArrayLike
    clock_exponent: ArrayLike
    grouped_efficiency: ArrayLike
    vector_efficiency: ArrayLike
    hbm_efficiency: ArrayLike
    nvs_efficiency: ArrayLike
    net_efficiency: ArrayLike
    unfused_share: ArrayLike
    host_efficiency: ArrayLike
    host_memory_efficiency: ArrayLike
    host_memory_share: ArrayLike
    launch_latency: ArrayLike
    launch_hidden: ArrayLike
    dispatch_latency: ArrayLike
    tp_overlap: ArrayLike
    cp_overlap: ArrayLike
    ep_overlap: ArrayLike
    pp_overlap: ArrayLike
    dp_overlap: ArrayLike
    fsdp_overlap: ArrayLike
    call_latency: ArrayLike
    relay: ArrayLike
    bulk_latency: ArrayLike
    eager_nvs_latency: ArrayLike
    eager_net_latency: ArrayLike
    eager_bandwidth: ArrayLike
    tree_latency: ArrayLike
    tree_bandwidth: ArrayLike
    weight_bytes: ArrayLike
    gradient_bytes: ArrayLike
    optimizer_bytes_per_parameter: ArrayLike
    host_gradient_bytes: ArrayLike
    optimizer_traffic_per_parameter: ArrayLike
    muon_bytes_per_parameter: ArrayLike
    muon_traffic_per_parameter: ArrayLike
    muon_steps: ArrayLike
    muon_bytes: ArrayLike
    muon_tp_bytes: ArrayLike
    accumulation_traffic_per_parameter: ArrayLike
    overhead: ArrayLike
    fragmentation: ArrayLike
    memory_margin: ArrayLike
    dispatcher: ArrayLike  # 1 for once_per_domain
    charge_replicated_gradients: bool = static()
    protocols: tuple[str, ...] = static()
    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = static()  # (kind of collective, algorithms for it)
    linear_dtype: str = static()
    matrix_ceiling: str = static()
    panel_overlap: str = static()
    pipeline_sends: str = static()
    optimizer: str = static()
    tiles: tuple[tuple[int, int], ...] = static()
    conditions: tuple[Condition, ...] = static(default=())  # of effects that not all plans have


def assumptions_from_spec(spec: AssumptionsSpec, family: str | None = None) -> Assumptions:
    """Return the part of an assumption set that pricing uses: leaves as floats, structure as hashable values.

    The slowdown of kernels includes the effects of the set's stack and of a device family, `DeviceSpec.family`.
    """
    numbers = leaves(Assumptions)

    def value(name: str) -> Any:
        stated = getattr(spec, name)
        if name not in numbers:
            return _hashable(stated)
        return float(alternatives(name).index(stated)) if isinstance(stated, str) else float(stated)

    values: dict[str, Any] = {name: value(name) for name in Assumptions.__dataclass_fields__ if name != "conditions"}
    values["conditions"] = conditions_of(spec)
    effect = kernel_effect(spec.effects, spec.stack, family)
    values["kernel_slowdown"] = spec.kernel_slowdown * effect
    return Assumptions(**values)


def kernel_effect(effects: EffectsSpec, stack: str | None, family: str | None) -> float:
    """Return the factor on the time of kernels by the effects of a stack and of a device family."""
    return math.exp(effects.stack.get(stack or "", 0.0) + effects.generation.get(family or "", 0.0))


def alternatives(name: str) -> tuple[str, ...]:
    """Return the values of a field of an assumption set that is one of a few words, in the order of their numbers."""
    return get_args(AssumptionsSpec.model_fields[name].annotation)


def _hashable(value: Any) -> Any:
    if isinstance(value, AlgorithmsSpec):
        return tuple((kind.replace("_", "-"), tuple(names)) for kind, names in value)
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
