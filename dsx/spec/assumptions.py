"""An assumption set: every constant of the cost model that is a belief and not a fact.

The fields are read by space and cost; none of them, and not the name of the set, selects a formula by
its name alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from dsx.errors import did_you_mean
from dsx.spec.between import Bounds, without_bounds
from dsx.spec.extends import extended
from dsx.spec.load import Given, Spec, load_overridden
from dsx.spec.locate import find
from dsx.spec.named_texts import check_names
from dsx.spec.overrides import Assignment
from dsx.spec.quantities import (
    Bytes,
    BytesPerSecond,
    Choice,
    Count,
    Flag,
    Fraction,
    NonNegative,
    Positive,
    Seconds,
    Share,
    Sourced,
)
from dsx.spec.validate import validate

MOST_SPECIALISED = 3  # fields that a handful of runs can adapt


class AlgorithmsSpec(Spec):
    """The algorithms that a library has for each kind of collective; the fastest is taken."""

    all_gather: Annotated[list[Literal["ring", "hierarchical"]], Field(min_length=1), Sourced]
    reduce_scatter: Annotated[list[Literal["ring", "hierarchical"]], Field(min_length=1), Sourced]
    all_reduce: Annotated[list[Literal["ring", "tree", "hierarchical"]], Field(min_length=1), Sourced]
    all_to_all: Annotated[list[Literal["ring", "exchange"]], Field(min_length=1), Sourced]
    broadcast: Annotated[list[Literal["ring", "tree"]], Field(min_length=1), Sourced]
    reduce: Annotated[list[Literal["ring", "tree"]], Field(min_length=1), Sourced]


class WhereSpec(Spec):
    """Which plans an interval is for, by what is known of a plan in any search; what is left out may be either."""

    domains: Literal["one", "several"] | None = None  # fast domains that the job's GPUs lie in
    experts: Flag | None = None  # whether layers have experts


class IntervalSpec(Spec):
    """The 80 % interval of measured over predicted step time, for some plans."""

    where: WhereSpec = WhereSpec()
    low: Positive
    high: Positive

    @field_validator("high")
    @classmethod
    def _above_low(cls, value: float, info: ValidationInfo) -> float:
        low = info.data.get("low")
        if low is not None and value < low:
            raise ValueError(f"{value:g} is less than low, {low:g}")
        return value


Unfusable = Literal["norm", "softmax"]  # operators that one kernel runs or several, as a measured run may state


def _setting(value: Any) -> Any:
    if value is True or isinstance(value, str):
        return value
    raise ValueError(f"expected true, which sets an option, or the name of a block, got {value!r}")


SettingValue = Annotated[bool | str, BeforeValidator(_setting)]  # of an option, of a block parameter


class AssumptionsSpec(Spec):
    """What is counted, with which efficiencies, and which choices are not searched."""

    former_keys: ClassVar[Mapping[str, str]] = {
        "blocks": "set: {core: unfused-attention-core}",
        "unfused_blocks": "unfused_attention: {core: unfused-attention-core}",
        "told_apart": "resolution: 0.2",
    }

    name: str
    description: str
    source: str
    calibrated: Flag  # whether it stands for measurements

    layers: dict[str, str]  # layer kind of a model -> layer definition; where it is empty, a kind is its own name
    uncounted_layers: list[str]  # layer kinds that cost nothing and have no weights
    # Option -> true, block parameter -> block: in all layers that know it. The second where attention is not fused.
    set: dict[str, SettingValue] = Field(default_factory=dict)
    unfused_attention: dict[str, SettingValue] = Field(default_factory=dict)
    operators: list[str]  # operator tables; a later one wins
    # Operator -> the table that is put over the others where it has no kernel.
    unfused_operators: dict[Unfusable, str] = Field(default_factory=dict)
    uncounted: list[str]  # operators that cost nothing
    default_strategy: str  # where a search names none
    # The members of a group that share a fast domain where a plan does not say: those that ranks in order put there, or
    # one of each.
    default_placement: Annotated[Literal["rank_order", "apart"], Sourced] = "rank_order"
    fixed: dict[str, Choice]  # candidate columns that are not searched -> their value

    matrix_efficiency: Fraction  # share of matrix_flops that is reached
    clock_exponent: Share  # a device that may draw a share of its full power has that to this power of its clock
    vector_efficiency: Fraction  # share of vector_flops that is reached
    # How a multiply falls behind matrix_efficiency (dsx.cost.multiply): by its contracted size, by the tiles that its
    # result is cut into and the waves that these run in; attention in fused kernels, and 8 bits, over it.
    contracted_half: NonNegative  # elements: the contracted size at which it reaches half of it
    tile_half: NonNegative  # elements: the side of a tile at which loading takes as long as multiplying
    tile_quantisation: Share  # of the work beyond a result's edges, that is done
    wave_quantisation: Share  # of the idle part of the last wave of tiles, that is waited for
    tiles: list[tuple[Count, Count]]  # rows and columns, the first one is the best; none: as if any fitted
    attention_efficiency: Fraction  # of a fused kernel's multiplies of activations, over matrix_efficiency
    attention_gradient_efficiency: Fraction  # the same in the backward
    attention_half: NonNegative  # elements: the head dimension at which they reach half of it
    linear_dtype: Annotated[Literal["bf16", "fp8"], Sourced]  # of multiplies with a weight; bf16: at matrix_flops
    fp8_efficiency: Fraction  # of multiplies in 8 bits, over matrix_efficiency
    cast_traffic: NonNegative  # bytes moved to cast an element of an operand to 8 bits
    # Of one multiply per expert, over matrix_efficiency: uneven loads, and what the grouping costs.
    grouped_efficiency: Fraction
    hbm_efficiency: Fraction  # of hbm_bandwidth
    # Of the bytes that operators move beside their own where a framework runs them as several kernels: 0 is all fused.
    unfused_share: Share
    nvs_efficiency: Fraction  # of the bandwidth inside a fast domain
    net_efficiency: Fraction  # of the bandwidth between fast domains
    host_efficiency: Fraction  # of host_bandwidth
    host_memory_bandwidth: BytesPerSecond  # of the host's memory, one GPU's share, as an update streams through it
    launch_latency: Seconds  # of one launch
    launch_hidden: Share  # of a launch, behind its kernel's memory traffic: 1 is max(launch + compute, memory)
    # What is launched: each operator once in either direction, or as many kernels as it has work for.
    launches: Annotated[Literal["operators", "kernels"], Sourced]

    dispatch_latency: Seconds  # of the host, for each kernel or collective that it issues; it issues one at a time

    # Shares of the communication that could run beside compute that do: an axis' gathers, scatters and exchanges beside
    # their kernel, a send beside a microbatch on a stage, the data-parallel reduction beside the passes of a layer.
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
    fragmentation: NonNegative  # what an allocator holds beside activations, over those

    # What is known of its errors. A set that was never compared with measurements states nothing here.
    interval: list[IntervalSpec] = Field(default_factory=list)  # the first entry that holds for a plan is that plan's
    # Relative difference of step time below which the measurements cannot rank two plans of a job.
    resolution: NonNegative | None = None
    noise: Positive | None = None  # how far log(measured / predicted) spreads once adapted to one's runs
    # Field that is adapted to one's runs -> standard deviation over users, as a share of the way between its bounds.
    specialise: dict[str, Positive] = Field(default_factory=dict)

    @field_validator("specialise")
    @classmethod
    def _a_few_numbers(cls, value: dict[str, float]) -> dict[str, float]:
        numbers = [name for name, info in cls.model_fields.items() if info.annotation is float]
        for name in value:
            if name not in numbers:
                raise ValueError(f"{name!r} is no real number of an assumption set{did_you_mean(name, numbers)}")
        if len(value) > MOST_SPECIALISED:
            raise ValueError(f"{len(value)} fields are more than a few runs determine: at most {MOST_SPECIALISED}")
        return value


def load_assumptions(given: Given, overrides: Sequence[Assignment] = (), near: Path | None = None) -> AssumptionsSpec:
    """Return the assumption set that is given, by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError that lists all faults of the file, or else all tables and blocks that it names
    and nobody has: they are looked for from `near`, as they are when a model is built.
    """
    return load_fitted(given, overrides, near)[0]


def load_fitted(
    given: Given, overrides: Sequence[Assignment] = (), near: Path | None = None
) -> tuple[AssumptionsSpec, dict[str, Bounds]]:
    """Return the assumption set that is given, by name, path or content, and the bounds of the fields that are fitted.

    Raises what `load_assumptions` raises.
    """
    # A column that a set searches can be held fixed; which columns there are is not known here.
    document = load_overridden("assumptions", "assumptions", AssumptionsSpec, given, overrides, near, ["fixed"])
    plain, bounds = without_bounds(document, AssumptionsSpec)
    spec = validate(plain, AssumptionsSpec)
    check_names(spec, document, near)
    return spec, bounds


def files_of(name_or_path: str) -> list[Path]:
    """Return the file of an assumption set and those that it extends; raises what `load_assumptions` raises of them."""
    return [file for file, _ in extended(find("assumptions", name_or_path, ".yaml"), "assumptions")]
