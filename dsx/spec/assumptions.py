"""An assumption set: every constant of the cost model that is a belief and not a fact.

The fields are read by space and cost; none of them, and not the name of the set, selects a formula by
its name alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dsx.spec.load import Spec, load_spec
from dsx.spec.overrides import Assignment
from dsx.spec.quantities import Bytes, Choice, Count, Flag, Fraction, NonNegative, Positive, Seconds, Share, Sourced


class AlgorithmsSpec(Spec):
    """The algorithms that a library has for each kind of collective; the fastest is taken."""

    all_gather: Annotated[list[Literal["ring", "hierarchical"]], Field(min_length=1), Sourced]
    reduce_scatter: Annotated[list[Literal["ring", "hierarchical"]], Field(min_length=1), Sourced]
    all_reduce: Annotated[list[Literal["ring", "tree", "hierarchical"]], Field(min_length=1), Sourced]
    all_to_all: Annotated[list[Literal["ring", "exchange"]], Field(min_length=1), Sourced]
    broadcast: Annotated[list[Literal["ring", "tree"]], Field(min_length=1), Sourced]
    reduce: Annotated[list[Literal["ring", "tree"]], Field(min_length=1), Sourced]


class AssumptionsSpec(Spec):
    """What is counted, with which efficiencies, and which choices are not searched."""

    name: str
    description: str
    source: str
    calibrated: Flag  # whether it stands for measurements

    layers: dict[str, str]  # layer kind of a model -> name of a layer text; where it is empty, a kind is its own name
    uncounted_layers: list[str]  # layer kinds that cost nothing and have no weights
    blocks: dict[str, str]  # block that a layer uses -> block that takes its place
    unfused_blocks: dict[str, str]  # block -> the one that stands for it where attention is not fused
    operators: list[str]  # operator tables; a later one wins
    uncounted: list[str]  # operators that cost nothing
    default_strategy: str  # where a search names none
    fixed: dict[str, Choice]  # candidate columns that are not searched -> their value

    matrix_efficiency: Fraction  # of matrix_flops
    # A device with a `power` lowers its clock to (power / (flop_energy * matrix_flops)) ** clock_exponent of the peak's.
    flop_energy: NonNegative  # J per matrix FLOP; 0: no device does
    clock_exponent: Share
    vector_efficiency: Fraction  # of vector_flops
    # How a multiply falls behind matrix_efficiency (dsx.cost.multiply): by its contracted size, by the tiles that its
    # result is cut into and the waves that these run in; attention in fused kernels, and 8 bits, over it.
    contracted_half: NonNegative  # elements
    tile_half: NonNegative  # elements
    tile_quantisation: Share
    wave_quantisation: Share
    tiles: list[tuple[Count, Count]]  # rows and columns, the first one is the best; none: as if any fitted
    attention_efficiency: Fraction
    attention_gradient_efficiency: Fraction
    attention_half: NonNegative  # elements
    linear_dtype: Annotated[Literal["bf16", "fp8"], Sourced]  # of multiplies with a weight; bf16: at matrix_flops
    fp8_efficiency: Fraction
    grouped_efficiency: Fraction  # of one multiply per expert: uneven loads, and what the grouping costs
    hbm_efficiency: Fraction  # of hbm_bandwidth
    elementwise_traffic: Positive  # of kernels without multiplies, over the bytes of their operators
    nvs_efficiency: Fraction  # of the bandwidth inside a fast domain
    net_efficiency: Fraction  # of the bandwidth between fast domains
    launch_latency: Seconds  # of one launch
    launch_hidden: Share  # of a launch, behind its kernel's memory traffic: 1 is max(launch + compute, memory)
    # What is launched: each operator once in either direction, or as many kernels as it has work for.
    launches: Annotated[Literal["operators", "kernels"], Sourced]

    dispatch_latency: Seconds  # of the host, for each kernel or collective that it issues; it issues one at a time

    # Shares of the communication that could run beside compute that do: of an axis beside the kernel that it belongs
    # to (an all-reduce does not), of a send beside a microbatch on a stage, of the data-parallel reduction beside the passes of a layer.
    tp_overlap: Share
    cp_overlap: Share
    ep_overlap: Share
    pp_overlap: Share
    dp_overlap: Share
    fsdp_overlap: Share  # the same for what ZeRO stage 3 moves with every microbatch

    call_latency: Seconds  # of starting one collective or send
    relay: NonNegative  # extra time of a NIC's byte, as a share, where one GPU receives it there and sends it on
    bulk_latency: Positive  # a hop of the protocol for large messages, over the latency of the tier
    eager_nvs_latency: Positive  # a hop of the protocol for small messages inside a domain, likewise
    eager_net_latency: Positive  # and between domains
    eager_bandwidth: Fraction  # of one GPU's links, with that protocol
    tree_latency: Positive  # a hop's latency in a tree over that in a ring
    tree_bandwidth: Fraction  # of a ring's bandwidth
    protocols: Annotated[list[Literal["bulk", "eager"]], Field(min_length=1), Sourced]  # the fastest is taken
    algorithms: AlgorithmsSpec

    # What the backward of a fused kernel reads: the tensors that the forward saved, or those it consumed.
    fused_backward_reads: Annotated[Literal["stored", "consumed"], Sourced]
    # Whether gradients of parameters replicated over a tensor parallel axis are reduced at a cost.
    charge_replicated_gradients: Flag
    # Whether memory counts what a layer needs beside its saved tensors: gradients on their way, copies gathered again.
    charge_transients: Flag

    activation_bytes: Count  # bytes per element
    weight_bytes: Count  # bytes per element
    gradient_bytes: Count  # bytes per element
    optimizer_bytes_per_parameter: NonNegative  # bytes kept
    optimizer_traffic_per_parameter: NonNegative  # bytes read and written by one update
    accumulation_traffic_per_parameter: NonNegative  # bytes read and written by adding up gradients, per microbatch
    overhead: Bytes  # what the framework keeps on every GPU beside the model


def load_assumptions(
    name_or_path: str | Path, overrides: Sequence[Assignment] = (), near: Path | None = None
) -> AssumptionsSpec:
    """Return the assumption set of that name or path; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError that lists all faults of the file.
    """
    return load_spec("assumptions", "assumptions", AssumptionsSpec, name_or_path, overrides, near)
