"""The assumption set as the cost functions read it: real-valued beliefs as leaves, choices as structure."""

from typing import Any

from dsx.records import record, static
from dsx.spec.assumptions import AssumptionsSpec

FP8 = "fp8"


@record
class Assumptions:
    """Beliefs of the cost model; a leaf is a float, so it can be fitted or differentiated."""

    matrix_efficiency: Any  # share of peak matrix FLOP/s reached
    contracted_half: Any  # contracted size at which a multiply reaches half of it
    tile_half: Any  # side of a tile at which loading takes as long as multiplying
    tile_quantisation: Any  # share of the work beyond a result's edges that is done
    wave_quantisation: Any  # share of the idle part of the last wave of tiles that is waited for
    attention_efficiency: Any  # of a fused kernel's multiplies of activations, over matrix_efficiency
    attention_gradient_efficiency: Any  # the same in the backward
    attention_half: Any  # head dimension at which they reach half of it
    fp8_efficiency: Any  # of multiplies in 8 bits, over matrix_efficiency
    cast_traffic: Any  # bytes moved to cast an element of an operand to 8 bits
    clock_exponent: Any  # of the clock over power
    grouped_efficiency: Any  # of multiplies of experts, over matrix_efficiency
    vector_efficiency: Any  # share of peak vector FLOP/s reached
    hbm_efficiency: Any  # share of HBM bandwidth reached
    nvs_efficiency: Any  # share of link bandwidth reached inside a fast domain
    net_efficiency: Any  # share of link bandwidth reached between domains
    unfused_share: Any  # of the bytes that operators move beside their own where they run as several kernels
    host_efficiency: Any  # share of the bandwidth to the host's memory reached
    host_memory_bandwidth: Any  # bytes/s of the host's memory, one GPU's share
    launch_latency: Any  # s per launch
    launch_hidden: Any  # share of a launch that the memory traffic of its kernel hides
    dispatch_latency: Any  # s of the host per kernel or collective
    tp_overlap: Any  # share of the communication that its kernel could hide that it does hide
    cp_overlap: Any
    ep_overlap: Any
    pp_overlap: Any  # of a send, behind a microbatch on a stage
    dp_overlap: Any  # of the reduction once a step, behind the passes of a layer
    fsdp_overlap: Any  # of what ZeRO stage 3 moves with every microbatch
    call_latency: Any  # s per collective or send
    relay: Any  # extra time of a NIC's byte, as a share, where one GPU receives it and sends it on
    bulk_latency: Any  # a hop under the protocol for large messages, over the tier's latency
    eager_nvs_latency: Any  # a hop under the protocol for small messages inside a domain, over the tier's latency
    eager_net_latency: Any  # and between domains
    eager_bandwidth: Any  # share of one GPU's bandwidth under that protocol
    tree_latency: Any  # a hop's latency in a tree over that in a ring
    tree_bandwidth: Any  # share of a ring's bandwidth
    weight_bytes: Any  # bytes per element
    gradient_bytes: Any  # bytes per element
    optimizer_bytes_per_parameter: Any  # bytes
    optimizer_traffic_per_parameter: Any  # bytes read and written by an update
    accumulation_traffic_per_parameter: Any  # bytes read and written by adding up a microbatch's gradients
    overhead: Any  # bytes the framework keeps
    fragmentation: Any  # bytes that an allocator holds beside activations, over those
    charge_replicated_gradients: bool = static()
    protocols: tuple[str, ...] = static()
    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = static()  # (kind of collective, algorithms for it)
    linear_dtype: str = static()  # of multiplies with a weight
    tiles: tuple[tuple[int, int], ...] = static()  # rows and columns of a multiply's tiles


def assumptions_from_spec(spec: AssumptionsSpec) -> Assumptions:
    """Return the numeric part of an assumption set."""
    return Assumptions(
        matrix_efficiency=float(spec.matrix_efficiency),
        clock_exponent=float(spec.clock_exponent),
        contracted_half=float(spec.contracted_half),
        tile_half=float(spec.tile_half),
        tile_quantisation=float(spec.tile_quantisation),
        wave_quantisation=float(spec.wave_quantisation),
        attention_efficiency=float(spec.attention_efficiency),
        attention_gradient_efficiency=float(spec.attention_gradient_efficiency),
        attention_half=float(spec.attention_half),
        fp8_efficiency=float(spec.fp8_efficiency),
        cast_traffic=float(spec.cast_traffic),
        grouped_efficiency=float(spec.grouped_efficiency),
        vector_efficiency=float(spec.vector_efficiency),
        hbm_efficiency=float(spec.hbm_efficiency),
        nvs_efficiency=float(spec.nvs_efficiency),
        net_efficiency=float(spec.net_efficiency),
        unfused_share=float(spec.unfused_share),
        host_efficiency=float(spec.host_efficiency),
        host_memory_bandwidth=float(spec.host_memory_bandwidth),
        launch_latency=float(spec.launch_latency),
        launch_hidden=float(spec.launch_hidden),
        dispatch_latency=float(spec.dispatch_latency),
        tp_overlap=float(spec.tp_overlap),
        cp_overlap=float(spec.cp_overlap),
        ep_overlap=float(spec.ep_overlap),
        pp_overlap=float(spec.pp_overlap),
        dp_overlap=float(spec.dp_overlap),
        fsdp_overlap=float(spec.fsdp_overlap),
        call_latency=float(spec.call_latency),
        relay=float(spec.relay),
        bulk_latency=float(spec.bulk_latency),
        eager_nvs_latency=float(spec.eager_nvs_latency),
        eager_net_latency=float(spec.eager_net_latency),
        eager_bandwidth=float(spec.eager_bandwidth),
        tree_latency=float(spec.tree_latency),
        tree_bandwidth=float(spec.tree_bandwidth),
        weight_bytes=float(spec.weight_bytes),
        gradient_bytes=float(spec.gradient_bytes),
        optimizer_bytes_per_parameter=float(spec.optimizer_bytes_per_parameter),
        optimizer_traffic_per_parameter=float(spec.optimizer_traffic_per_parameter),
        accumulation_traffic_per_parameter=float(spec.accumulation_traffic_per_parameter),
        overhead=float(spec.overhead),
        fragmentation=float(spec.fragmentation),
        charge_replicated_gradients=bool(spec.charge_replicated_gradients),
        protocols=tuple(spec.protocols),
        algorithms=tuple((kind.replace("_", "-"), tuple(names)) for kind, names in spec.algorithms),
        linear_dtype=spec.linear_dtype,
        tiles=tuple((rows, columns) for rows, columns in spec.tiles),
    )
