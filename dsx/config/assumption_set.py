"""An assumption set: every parameter of the cost model that no data sheet states, each with its source.

The space and the cost model read the fields; no code branches on the name of a set. Reading a set checks that the
operator tables and blocks exist that it names; building a model checks its layer definitions and its strategy.

The evidence of a set is what measurements tell of it: its errors, what it was fitted to, what a user's runs may change.
A set that was never compared with measurements states none of it. data/measured/runs.yaml says in short what was
measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from dsx.config.cluster_file import AttentionKernels, Platform
from dsx.config.documents import Document, KeyPath, Plain, load_document, merged
from dsx.config.load import Assignment, Given, extended, override, statements, value_of
from dsx.config.schema import (
    Bounds,
    Bytes,
    Choice,
    Count,
    FileKind,
    Flag,
    Fraction,
    NonNegative,
    Positive,
    Seconds,
    Share,
    Sourced,
    Spec,
    bounds_of,
    validate,
    without_bounds,
)
from dsx.config.search_path import find, names, packaged_data
from dsx.config.stack import STACK, ConditionsSpec, naming, of_other_stack, with_conditions, with_stack
from dsx.errors import InputError, SpecError, did_you_mean

if TYPE_CHECKING:
    from dsx.config.framework_file import FrameworkSpec


class SizesSpec(Spec):
    """The least and the most of a size."""

    least: Positive
    most: Positive
    source: str


class ErrorsSpec(Spec):
    """How far off predictions of runs are that no number was fitted to."""

    median_error: Positive  # of step time, a share; the mean over sources
    sources: Count
    rows: Count
    date: str
    source: str


class MeasuredRunsSpec(Spec):
    """The sizes of measured runs, and errors by assumption set and kind of model ("dense", "experts")."""

    sizes: dict[str, SizesSpec]
    errors: dict[str, dict[str, ErrorsSpec]]


@cache
def measured_runs() -> MeasuredRunsSpec:
    """Return what the file has; SpecError for a faulty one."""
    return validate(load_document(packaged_data() / "measured" / "runs.yaml"), MeasuredRunsSpec)


class WhereSpec(Spec):
    """The plans that an interval is for; None matches any plan."""

    domains: Literal["one", "several"] | None = None  # number of fast domains of the job's GPUs
    experts: Flag | None = None  # whether the layers have experts
    thin: Annotated[int, Field(ge=0)] | None = None  # in at least so many ways, measurements have little like the plan


class TrainedOnSpec(Spec):
    """How many sources of measurements a set was fitted to, by what they have."""

    stack: dict[str, Count] = Field(default_factory=dict)
    generation: dict[str, Count] = Field(default_factory=dict)  # of devices
    kind: dict[Literal["dense", "experts"], Count] = Field(default_factory=dict)  # of models


# Of a log time; a factor of more than a hundred is a mistake.
Effect = Annotated[float, Field(ge=-math.log(100), le=math.log(100))]


class EffectsSpec(Spec):
    """Log factors on the time of kernels that a fit leaves to a stack and to a device generation."""

    stack: dict[str, Effect] = Field(default_factory=dict)
    generation: dict[str, Effect] = Field(default_factory=dict)
    # Standard deviations of the effects, and of the mean log error of a source beyond them.
    stack_deviation: NonNegative = 0.0
    generation_deviation: NonNegative = 0.0
    source_deviation: NonNegative = 0.0


class FreeSpec(Spec):
    """How far a user's runs may change a field."""

    deviation: Positive  # over users, as a share of the distance between the bounds
    between: Annotated[list[Plain], Field(min_length=2, max_length=2)]  # with the unit of the field


class MemoryIntervalSpec(Spec):
    """Quantiles of measured / predicted peak memory: 10 % of the measurements are below `low`, 90 % below `high`."""

    low: Positive
    median: Positive
    high: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.median <= self.high:
            quantiles = f"{self.low:g}, {self.median:g}, {self.high:g}"
            raise ValueError(f"low, median and high must be in order, but are {quantiles}")
        return self


class RatioSpec(Spec):
    """The 80 % interval of measured / predicted step time."""

    low: Positive
    high: Positive

    @field_validator("high")
    @classmethod
    def _above_low(cls, value: float, info: ValidationInfo) -> float:
        low = info.data.get("low")
        if low is not None and value < low:
            raise ValueError(f"{value:g} is less than low, {low:g}")
        return value


class IntervalSpec(RatioSpec):
    """That interval for the plans of `where`."""

    where: WhereSpec = WhereSpec()


class AdaptedSpec(RatioSpec):
    """What is left of the errors after the set is adapted to so many runs of a cluster and framework, or more."""

    runs: Count
    resolution: NonNegative | None = None  # as that of the set


_MISSPELT = 0.95  # similarity from which on a name counts as a misspelt one


def check_names(spec: "AssumptionsSpec", document: Document, near: Path | None) -> None:
    """Raise SpecError that lists the missing tables, and the block names that look misspelt.

    Only some measured runs need the tables of `unfused_operators`, so a fault of theirs would appear late. A block may
    be in the folder of a user's own layer, so a block name is a fault only if it is nearly that of a known block.
    """
    faults: list[tuple[KeyPath, object]] = []
    tables: dict[KeyPath, str] = {("operators", index): name for index, name in enumerate(spec.operators)}
    tables |= {("unfused_operators", operator): name for operator, name in spec.unfused_operators.items()}
    for path, name in tables.items():
        try:
            operators = load_document(find("operators", name, ".yaml", near)).data
        except InputError as error:
            faults.append((path, error))
            continue
        if path[0] == "unfused_operators" and path[1] not in operators:
            fault = f"the table {name!r} has no operator {path[1]!r} (it has: {', '.join(operators)})"
            faults.append((path, fault))
    definitions = names("layers", ".layer")
    for table in ("set", "unfused_attention", "set_in_runs"):
        for parameter, block in getattr(spec, table).items():
            if not isinstance(block, str) or block in definitions:
                continue
            if near_names := get_close_matches(block, definitions, 1, _MISSPELT):
                faults.append(((table, parameter), f"there is no block {block!r}; did you mean {near_names[0]!r}?"))
    if faults:
        raise SpecError("\n".join(document.message(*fault) for fault in faults))


FRAMEWORK = "framework"
MOST_SPECIALISED = 6  # fields that a few runs can determine


class AlgorithmsSpec(Spec):
    """The algorithms that a library has for each collective; the fastest one counts."""

    all_gather: Annotated[list[Literal["ring", "hierarchical"]], Field(min_length=1), Sourced]
    reduce_scatter: Annotated[list[Literal["ring", "hierarchical"]], Field(min_length=1), Sourced]
    all_reduce: Annotated[list[Literal["ring", "tree", "hierarchical"]], Field(min_length=1), Sourced]
    all_to_all: Annotated[list[Literal["ring", "exchange"]], Field(min_length=1), Sourced]
    broadcast: Annotated[list[Literal["ring", "tree"]], Field(min_length=1), Sourced]
    reduce: Annotated[list[Literal["ring", "tree"]], Field(min_length=1), Sourced]


Optimizer = Literal["adam", "muon"]  # of the matrices of the body
MUON: Optimizer = "muon"
Dispatcher = Literal["once_per_copy", "once_per_domain"]
DISPATCHERS: tuple[str, ...] = get_args(Dispatcher)
Unfusable = Literal["norm", "softmax"]  # operators of which a measured run may state that they are not one kernel


def _setting(value: object) -> object:
    if value is True or isinstance(value, str):
        return value
    raise ValueError(f"expected true, which sets an option, or the name of a block, got {value!r}")


SettingValue = Annotated[bool | str, BeforeValidator(_setting)]  # of an option, of a block parameter


@dataclass(frozen=True)
class _Statement:
    """How a set was stated, which is no part of what it states."""

    documents: tuple[Document, ...] = field(default=(), compare=False)  # files and overrides, without the stack
    # All fields with their places, those of the stack and of the framework too.
    document: Document = field(default=Document({}, {(): "assumptions"}), compare=False)
    changed: frozenset[str] = field(default=frozenset(), compare=False)  # fields that a copy has otherwise
    stack_given: bool = field(default=False, compare=False)  # whether an override names the stack
    framework: "FrameworkSpec | None" = field(default=None, compare=False)  # that it is resolved for


class AssumptionsSpec(Spec):
    """What the cost model counts, with which efficiencies, and the fixed choices."""

    file_kind = FileKind("assumptions", "an assumption set", "--assumptions", "assumptions")
    former_keys: ClassVar[Mapping[str, str]] = {
        "blocks": "set: {core: unfused-attention-core}",
        "unfused_blocks": "unfused_attention: {core: unfused-attention-core}",
        "told_apart": "resolution: 0.2",
        "contracted_half": "tile_latency: 1.5 us",
        "host_memory_bandwidth": "node: {gpus: 8, host_memory_bandwidth: 410 GB/s}' in the cluster file, or "
        "'--set cluster.node.host_memory_bandwidth=410 GB/s",
    }
    keys_of_file = ("extends",)
    open_keys = ("fixed",)  # columns that the set searches; this package does not know the columns

    name: str
    description: str
    source: str
    calibrated: Flag  # whether it was fitted to measurements
    # The software that plans are priced for, whose fields win over those of the sets that this one extends; a measured
    # run has that of its own software. None: no stack, for runs either.
    stack: Annotated[str | None, Sourced] = None

    layers: dict[str, str]  # layer kind of a model -> layer definition; if empty, a kind names its definition
    uncounted_layers: list[str]  # layer kinds without cost and weights
    # Option -> true, block parameter -> block, for all layers that declare it.
    set: dict[str, SettingValue] = Field(default_factory=dict)
    unfused_attention: dict[str, SettingValue] = Field(default_factory=dict)  # for runs with unfused attention
    set_in_runs: dict[str, SettingValue] = Field(default_factory=dict)  # for runs: what a plan chooses by its strategy
    operators: list[str]  # operator tables; a later one wins
    # Operator -> the table that replaces it for runs without a fused kernel for it.
    unfused_operators: dict[Unfusable, str] = Field(default_factory=dict)
    uncounted: list[str]  # operators without cost
    default_strategy: str  # of a plan that names none
    # Of a plan that names none and breaks rules of the default one: the first whose rules it keeps.
    other_strategies: list[str] = Field(default_factory=list)
    # The strategies of a search that names none; None: all that its framework runs and that apply to the model.
    searched_strategies: list[str] | None = None
    framework: str = "any"  # of a search that names none: its name or file
    # Placement of a group where the plan does not state it: ranks in order, or one member in each fast domain.
    default_placement: Annotated[Literal["rank_order", "apart"], Sourced] = "rank_order"
    # Whether groups may lie unevenly on fast domains, and plans leave GPUs of them free; else shares divide their
    # degrees and fill a domain as far as the GPU count allows.
    uneven_domains: Annotated[bool, Sourced] = True
    fixed: dict[str, Choice]  # candidate columns that are not searched -> their value

    # Factor on the time of every kernel, and what a fit found for the stack and the device generation beside it.
    kernel_slowdown: Positive = 1.0
    effects: EffectsSpec = EffectsSpec()

    # Platforms of the devices that its numbers are from; used on another one, a search says so. Empty: of any device.
    platforms: Annotated[list[Platform], Sourced] = Field(default_factory=list)

    # What matrix_efficiency is a share of: matrix_flops, or what a single large multiply sustains of it.
    matrix_ceiling: Annotated[Literal["data_sheet", "sustained"], Sourced] = "data_sheet"
    matrix_efficiency: Fraction  # reached share of that
    sustained_share: Fraction = 1.0  # of matrix_flops, of a device that states none
    # A device limited to a share p of its full power has the clock p ** clock_exponent, relative to its full clock.
    clock_exponent: Share
    vector_efficiency: Fraction  # reached share of vector_flops
    # Further factors on matrix_efficiency (dsx.cost.roofline): contracted size, tiles of the result and the waves in
    # which they run, fused attention kernels, 8 bits.
    tile_latency: Seconds  # of a tile that computes nothing: its first operands are loaded, its result is written
    tile_half: NonNegative  # elements: side of a tile whose loads take as long as its multiplies
    tile_quantisation: Share  # share of a tile's work outside the result that counts
    wave_quantisation: Share  # share of the last wave's idle time that counts
    tiles: list[tuple[Count, Count]]  # (rows, columns), the best first; empty: tiles fit any result
    # Newest generation of fused attention kernels that the software has.
    attention_kernels: AttentionKernels = 0.0
    # Factor for the multiplies of activations in a fused kernel, where the device lists none that the software has.
    attention_efficiency: Fraction
    attention_gradient_efficiency: Fraction  # the same in the backward
    attention_half: NonNegative  # elements: head dimension at which these multiplies have half the efficiency
    linear_dtype: Annotated[Literal["bf16", "fp8", "fp4", "int8"], Sourced]  # of multiplies with a weight
    # Weights whose multiplies stay in 16 bits all the same, by their names in layer definitions.
    sixteen_bit_weights: list[str] = Field(default_factory=list)
    fp8_efficiency: Fraction  # factor for multiplies in 8 bits or fewer
    cast_traffic: NonNegative  # bytes of traffic to cast an element of an operand to 8 bits or fewer
    grouped_efficiency: Fraction  # factor for one multiply per expert: uneven loads, and the cost of grouping
    hbm_efficiency: Fraction  # of hbm_bandwidth
    # Share of the `unfused` traffic of operators that counts: 0 if the framework fuses all of them.
    unfused_share: Share
    nvs_efficiency: Fraction  # of the bandwidth inside a fast domain
    net_efficiency: Fraction  # of the bandwidth between fast domains
    host_efficiency: Fraction  # of host_bandwidth
    host_memory_efficiency: Fraction  # of host_memory_bandwidth, by transfers and by an update of the optimizer
    host_memory_share: Fraction  # of host_memory that a job has: not the operating system, the loader of the data
    launch_latency: Seconds  # of one launch
    launch_hidden: Share  # of a launch, by its kernel's memory traffic: 1 is max(launch + compute, memory)
    # What is launched: each operator once in either direction, or as many kernels as it has work for.
    launches: Annotated[Literal["operators", "kernels"], Sourced]

    dispatch_latency: Seconds  # host time to issue one kernel or collective; the host issues one at a time

    # Share of the overlappable communication that overlaps compute: gathers and scatters of an axis with the multiply
    # that takes or makes the tensor, all-to-alls with the kernel that needs it, a send with a microbatch on a stage,
    # the data-parallel reduction with the passes of a layer.
    tp_overlap: Share
    cp_overlap: Share
    ep_overlap: Share
    # Whether an all-to-all to experts sends each copy of a token over the network, or a token once to each fast domain.
    dispatcher: Annotated[Dispatcher, Sourced] = "once_per_copy"
    # Panels of a multiply: the collectives of the first one before the kernel, which then hides those of all panels
    # (first_apart), or those of each panel beside the kernel of the panel before (pipelined).
    panel_overlap: Annotated[Literal["first_apart", "pipelined"], Sourced] = "pipelined"
    pp_overlap: Share
    # Whether a send between stages takes what its link takes, or the mean of all links of the pipeline.
    pipeline_sends: Annotated[Literal["of_links", "mean"], Sourced] = "of_links"
    dp_overlap: Share
    fsdp_overlap: Share  # the same for the weights and gradients that ZeRO stages 2 and 3 transfer in every microbatch

    conditions: ConditionsSpec = ConditionsSpec()  # what some of these overlaps, and a short dispatch latency, need

    call_latency: Seconds  # of starting one collective or send
    relay: NonNegative  # extra time, as a share, of a byte that one GPU both receives from and sends to its NIC
    bulk_latency: Positive  # hop latency of the protocol for large messages, relative to the latency of the tier
    eager_nvs_latency: Positive  # the same for small messages inside a fast domain
    eager_net_latency: Positive  # the same for small messages between fast domains
    eager_bandwidth: Fraction  # of the protocol for small messages, relative to one GPU's links
    tree_latency: Positive  # hop latency of a tree, relative to a ring
    tree_bandwidth: Fraction  # bandwidth of a tree, relative to a ring
    protocols: Annotated[list[Literal["bulk", "eager"]], Field(min_length=1), Sourced]  # the fastest one counts
    algorithms: AlgorithmsSpec

    # Whether the backward of a fused kernel reads the tensors that the forward saved, or those that it consumed.
    fused_backward_reads: Annotated[Literal["stored", "consumed"], Sourced]
    # Whether reducing gradients of parameters that are replicated over a tensor parallel axis costs time.
    charge_replicated_gradients: Flag
    # Whether memory includes transient tensors of a layer's backward: gradients and regathered tensors.
    charge_transients: Flag

    activation_bytes: Count  # bytes per element
    weight_bytes: Count  # bytes per element
    gradient_bytes: Count  # bytes per element
    fp8_saved_bytes: Count  # bytes per element of the operand that a multiply in 8 bits or fewer keeps
    cross_entropy_bytes: Count  # bytes per logit that the cross-entropy keeps for its backward
    optimizer_bytes_per_parameter: NonNegative  # bytes of optimizer state
    # Bytes of the gradient that an offloaded optimizer keeps on the host for each parameter, beside its state.
    host_gradient_bytes: NonNegative
    optimizer_traffic_per_parameter: NonNegative  # bytes that one update reads and writes
    # The optimizer of the matrices of the body; the two fields above are those of Adam, which has all other weights.
    optimizer: Annotated[Optimizer, Sourced] = "adam"
    muon_bytes_per_parameter: NonNegative = 8.0  # bytes of Muon's state
    muon_traffic_per_parameter: NonNegative = 24.0  # bytes that one update reads and writes, besides its multiplies
    muon_steps: Positive = 5.0  # Newton-Schulz steps of an update
    muon_bytes: NonNegative = 2.0  # per element that is orthogonalised, or gathered from a shard
    muon_tp_bytes: NonNegative = 4.0  # per element that is gathered over tensor parallel ranks
    accumulation_traffic_per_parameter: NonNegative  # bytes that gradient accumulation reads and writes per microbatch
    overhead: Bytes  # memory of the framework on every GPU
    fragmentation: NonNegative  # unused memory that the allocator holds, as a share of the activations

    # A search keeps a plan that would fit if its peak memory were larger by this share; a single plan needs no margin.
    memory_margin: NonNegative = 0.0

    # Known errors; a set that was never compared with measurements states none.
    interval: list[IntervalSpec] = Field(default_factory=list)  # a plan has the first entry that matches it
    memory_interval: MemoryIntervalSpec | None = None  # of measured / predicted peak memory
    # Relative difference of step time below which the measurements cannot rank two plans of a job.
    resolution: NonNegative | None = None
    noise: Positive | None = None  # standard deviation of log(measured / predicted) after adaptation to a user's runs
    specialise: dict[str, FreeSpec] = Field(default_factory=dict)  # fields to adapt to a user's runs
    adapted: list[AdaptedSpec] = Field(default_factory=list)  # the errors that are left then, the fewest runs first
    trained_on: TrainedOnSpec = TrainedOnSpec()

    _statement: _Statement = PrivateAttr(default=_Statement())

    def fault(self, path: KeyPath, text: object) -> SpecError:
        """Return the error of what is stated at `path`, with the file and line: of the set, stack or framework."""
        return self._statement.document.fault(path, text)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, which it has with any stack, and for every plan."""
        values = dict(update or {})
        if "conditions" not in values and (free := self.conditions.stated.keys() & values.keys()):
            values["conditions"] = self.conditions.model_copy(update=dict.fromkeys(free))
        copied = super().model_copy(update=values, deep=deep)
        copied._statement = replace(self._statement, changed=self._statement.changed | {*(update or ())})
        return copied

    def settled(self, values: Mapping[str, object], conditions: ConditionsSpec) -> Self:
        """Return a copy with what conditions decide, and those that are left; with any stack they are decided anew."""
        return super().model_copy(update={**values, "conditions": conditions})

    def of_stack(self, name: str) -> Self:
        """Return the set with another stack; a set that names none is the same for every stack."""
        if self.stack is None or name == self.stack:
            return self
        documents = of_other_stack(self._statement.documents, name, f"stack {name!r}")
        return self._stated_anew(with_stack(documents), _Statement(tuple(documents)))

    def run_by(self, framework: "FrameworkSpec", generation: str | None = None) -> Self:
        """Return the set for plans of a framework: with its stack, and with what it can have no other way.

        `generation` is the family of the devices that it runs on, on which it may have less.

        The stack is the one that an override names. Else it is that of the framework, unless the set itself names
        this framework, and a stack in the same file or in one that extends it. The set's own fields win over both. A
        set that names no stack is the same for every framework, and so is one that was read from a result set.
        """
        statement, documents = self._statement, self._statement.documents
        if self.stack is None or not documents:
            return self
        of_stack, of_framework = naming(documents, STACK), naming(documents, FRAMEWORK)
        names_both = of_framework is not None and documents[of_framework].data[FRAMEWORK] == framework.name
        names_both = names_both and of_stack is not None and of_framework is not None and of_stack <= of_framework
        if framework.stack is not None and not (statement.stack_given or names_both):
            documents = of_other_stack(documents, framework.stack, f"framework {framework.name!r}: stack")
        return self._stated_anew(
            with_stack(documents, framework.on(generation).fields),
            replace(statement, changed=statement.changed - {STACK, FRAMEWORK}, framework=framework),
        )

    @property
    def of_framework(self) -> "FrameworkSpec | str":
        """The framework that the set is resolved for, else the name of that of its searches."""
        return self._statement.framework or self.framework

    def _stated_anew(self, documents: Sequence[Document], statement: _Statement) -> Self:
        """Return the set of other documents, with the fields that this copy has otherwise."""
        document, _ = without_bounds(merged([*map(with_conditions, documents)]), type(self))
        restated = validate(document, type(self))
        kept = {name: getattr(self, name) for name in self._statement.changed - {STACK, FRAMEWORK}}
        named = {} if statement.framework is None else {FRAMEWORK: statement.framework.name}
        restated._statement = replace(statement, document=document, changed=frozenset())
        return restated.model_copy(update=kept | named)

    @field_validator("specialise")
    @classmethod
    def _a_few_numbers(cls, value: dict[str, FreeSpec]) -> dict[str, FreeSpec]:
        numbers = [name for name, info in cls.model_fields.items() if info.annotation is float]
        for name, free in value.items():
            if name not in numbers:
                raise ValueError(f"{name!r} is not a real number of an assumption set{did_you_mean(name, numbers)}")
            bounds_of(cls.model_fields[name], free.between)
        if len(value) > MOST_SPECIALISED:
            raise ValueError(f"a few runs cannot determine {len(value)} fields, only up to {MOST_SPECIALISED}")
        return value


def load_assumptions(
    reference: Given, overrides: Sequence[Assignment] = (), near: Path | None = None
) -> AssumptionsSpec:
    """Return an assumption set, given by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError with all faults of the file; if it has none, with all operator tables and
    blocks that it names and that do not exist. They are searched from `near`, as for building a model.
    """
    return load_fitted(reference, overrides, near)[0]


def load_fitted(
    reference: Given, overrides: Sequence[Assignment] = (), near: Path | None = None
) -> tuple[AssumptionsSpec, dict[str, Bounds]]:
    """Return an assumption set, given by name, path or content, and the bounds of its fitted fields.

    Raises what `load_assumptions` raises.
    """
    statement = reference._statement if isinstance(reference, AssumptionsSpec) else _Statement()
    documents = statement.documents or tuple(statements(AssumptionsSpec, reference, near))
    for path, value in overrides:  # the stack of the last override that names one
        if path == STACK:
            place = f"--set assumptions.{STACK}"
            documents = tuple(of_other_stack(documents, str(value_of(value, place)), place))
    document = merged(with_stack(documents))
    assignments = [(path, value) for path, value in overrides if path != STACK]
    changed = override(document, assignments, AssumptionsSpec)
    kept = {key: value for key, value in changed.data.items() if document.data.get(key) != value}
    if kept:
        documents = (Document(kept, changed.places), *documents)
    plain, bounds = without_bounds(with_conditions(changed), AssumptionsSpec)
    spec = validate(plain, AssumptionsSpec)
    named = {path for path, _ in overrides}
    spec._statement = _Statement(documents, plain, stack_given=statement.stack_given or STACK in named)
    check_names(spec, changed, near)
    if statement.framework is not None and FRAMEWORK not in named:
        spec = spec.run_by(statement.framework)
    return spec, bounds


def files_of(name_or_path: str) -> list[Path]:
    """Return the file of an assumption set and those that it extends; raises what `extended` raises."""
    return [file for file, _ in extended(find("assumptions", name_or_path, ".yaml"), AssumptionsSpec)]
