"""What a launch must set, in no framework's words, and what a framework's writer is given and returns.

A run is a plan, and what its layers and assumptions imply, read from the layer and never from the name of its strategy:
whether tokens are divided between blocks, how context parallelism and experts exchange, which weights are divided how.
The rest is the plan's own columns and the element sizes, overlaps and dispatcher of the assumption set. Which kernels
a framework takes is not covered; `dsx.launching.writers` lists what a set assumes of them.

A layer layout is in the words of Megatron-LM, "Et|(t*2|)*30tL", which `dsx.plans.layer_layout` reads. Its parser
(megatron.core, PipelineParallelLayerLayout.parse_str_to_list) first writes out groups in brackets, then single letters;
groups do not nest.

Expandable segments of PyTorch's allocator are priced as less memory that the allocator holds and cannot use
(`fragmentation`; data/stacks, generic-2024). Source of the variables: utils.environment_utils of the recipes of
Megatron-Bridge 0.6.2, which sets them but for the registration of CUDA graphs at NCCL; Megatron Core asks for that too.

The model of a launch has sizes and options that are read from the layers that the model file lists.

    shape = architecture_of(spec, assumptions)
    shape.hidden, shape.heads, shape.unusual

Layers of one model differ in two things that frameworks take per layer: experts, and windows of attention. What else
differs, or is no field here, is `unusual`, in words. Not covered: constants that change no size, such as the base of
rotary positions and the epsilon of norms.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import HALF_FORMATS, DeviceSpec, HalfFormat
from dsx.config.model_file import (
    ALL_WEIGHTS,
    CHOSEN,
    EXPERTS,
    HEADS,
    KV_HEADS,
    PREDICTION,
    LayerKind,
    ModelSpec,
    has_experts,
)
from dsx.notation.expressions import names
from dsx.notation.model import Model, counted
from dsx.notation.work import DerivedLayer
from dsx.plans.plan import Plan
from dsx.text import DataView, printable, wrapped

GATED, GELU, SQUARED_RELU = "gated", "gelu", "squared_relu"
_BODY = "transformer"  # the layer definition that frameworks know
_LATENT, _EXPERTS = "latent-attention", "experts"  # blocks of it
_PLAIN_QUERIES, _UNGATED = "plain_queries", "ungated"  # options of these
_SINKS = "sinks"  # option of the core of attention
_BLOCKS = {_LATENT, _EXPERTS, "self-attention", "feed-forward"}
# Options of its layers that have a field; of the embedding and the head.
_OF_LAYERS = {"layernorm", "rotary", "qk_norm", "qkv_bias", "out_bias", "ff_bias", "ff_out_bias", "expert_bias"}
_OF_LAYERS |= {GATED, SQUARED_RELU, "dropout", "residual_dropout", "window", "full", "corrected", "limited", "shared"}
_OF_LAYERS |= {_PLAIN_QUERIES, _UNGATED, _SINKS}
_ENDS = ("embedding", "head")  # kinds of layers
_OF_ENDS = {"layernorm", "learned_positions", "tied", PREDICTION}


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: widths in elements."""

    query_rank: int | None  # None: queries are projected at once
    kv_rank: int
    nope: int  # head dimension without positions
    rope: int  # head dimension with positions
    value: int


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts of a model: widths in elements."""

    num: int
    chosen: int
    width: int
    shared: int  # width of all shared experts; 0 for none
    balanced: bool  # whether a bias per expert balances the loads
    biased: bool  # whether their multiplies have biases
    groups: int | None  # of experts
    chosen_groups: int | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and options of a model; the lists have an entry for each layer between embedding and head."""

    name: str
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int | None  # of the feed-forward network; None if all layers have experts
    vocabulary: int | None  # None: the set counts no embedding
    positions: int | None  # learned ones; None for none
    layernorm: bool  # else RMS norms
    activation: str  # GATED, GELU or SQUARED_RELU
    rotary: bool
    qk_norm: bool
    qkv_bias: bool
    sinks: bool  # a learned score of each head beside those of the keys
    bias: bool  # of the other multiplies
    dropout: bool  # of attention probabilities
    residual_dropout: bool
    tied: bool
    predictions: int  # layers of multi-token prediction, each as the last one
    causal: bool
    window: int | None  # positions
    windowed: tuple[bool, ...]
    with_experts: tuple[bool, ...]
    latent: Latent | None
    experts: ExpertSizes | None
    frozen: str  # weights that are not trained, in words; empty for none
    unusual: tuple[str, ...]


def architecture_of(spec: ModelSpec, assumptions: AssumptionsSpec) -> Architecture:
    """Return the architecture of a model; `assumptions` may leave out layers, such as embedding and head."""
    entries = counted(spec, assumptions)
    ends = {option for entry in entries if entry.layer.kind in _ENDS for option in entry.options}
    layers = [entry.layer for entry in entries if entry.layer.kind not in _ENDS for _ in range(entry.count)]
    kinds = list(dict.fromkeys(layers))
    has = {option for kind in kinds for option in kind.options}
    sizes = spec.dimensions
    with_latent = any(_LATENT in dict(kind.blocks).values() for kind in kinds)
    with_experts = tuple(_has_experts(kind) for kind in layers)
    frozen = f"frozen weights, all but {', '.join(spec.trained)}" if spec.trained else "frozen weights, all of them"
    latent, experts = None, None
    if with_latent:
        rank = None if _PLAIN_QUERIES in has else sizes["rq"]
        latent = Latent(rank, *(sizes[name] for name in ("rkv", "nope", "rope", "kv")))
    if any(with_experts):
        groups = (sizes["ng"], sizes["tg"]) if "limited" in has else (None, None)
        shared = sizes["fs"] if "shared" in has else 0
        widths = sizes["x"], sizes["topk"], sizes["fx"], shared
        experts = ExpertSizes(*widths, "corrected" in has, "expert_bias" in has, *groups)
    return Architecture(
        name=spec.name,
        num_layers=len(layers),
        hidden=sizes["e"],
        heads=sizes.get(HEADS, 1),
        kv_heads=sizes.get(KV_HEADS, sizes.get(HEADS, 1)),
        head_dim=sizes.get("k", sizes.get("nope", 0) + sizes.get("rope", 0)),
        width=None if all(with_experts) else sizes.get("f"),
        vocabulary=sizes.get("v"),
        positions=sizes.get("positions") if "learned_positions" in ends else None,
        **{name: name in has for name in ("layernorm", "qkv_bias", "dropout", "residual_dropout")},
        activation=SQUARED_RELU if SQUARED_RELU in has else GATED if any(map(_is_gated, kinds)) else GELU,
        rotary="rotary" in has or with_latent,
        qk_norm="qk_norm" in has or with_latent,
        sinks=_SINKS in has,
        bias="out_bias" in has,
        tied="tied" in ends,
        predictions=int(PREDICTION in ends),
        causal="full" not in has,
        window=sizes.get("window") if "window" in has else None,
        windowed=tuple("window" in kind.options for kind in layers),
        with_experts=with_experts,
        latent=latent,
        experts=experts,
        frozen="" if ALL_WEIGHTS in spec.trained else frozen,
        unusual=tuple(_unusual(kinds, ends - layers[-1].options if PREDICTION in ends else ends)),
    )


def _has_experts(kind: LayerKind) -> bool:
    return _EXPERTS in dict(kind.blocks).values()


def _is_gated(kind: LayerKind) -> bool:
    # Experts are gated unless an option says otherwise.
    return not kind.options & {SQUARED_RELU, _UNGATED} if _has_experts(kind) else GATED in kind.options


def _unusual(kinds: Sequence[LayerKind], ends: set[str]) -> list[str]:
    """Return what no field says."""
    options = {option for kind in kinds for option in kind.options} - _OF_LAYERS
    blocks = {block for kind in kinds for _, block in kind.blocks} - _BLOCKS
    parts = [
        *(f"layers of the kind {kind}" for kind in dict.fromkeys(kind.kind for kind in kinds) if kind != _BODY),
        *(f"the option {option} of its layers" for option in sorted(options)),
        *(f"the option {option} of its embedding or head" for option in sorted(ends - _OF_ENDS)),
        *(f"the block {block}" for block in sorted(blocks)),
    ]
    body = [kind for kind in kinds if kind.kind == _BODY]
    if len({(_is_gated(kind), SQUARED_RELU in kind.options) for kind in body}) > 1:
        parts.append("another activation in some of its layers than in others")
    for option in sorted({"layernorm", "rotary", "qk_norm", "qkv_bias", "out_bias", _PLAIN_QUERIES, _SINKS}):
        if len({option in kind.options for kind in body}) > 1:
            parts.append(f"the option {option} of some of its layers, and not of others")
    return parts


Flag = tuple[str, str]  # (flag, value): "" for a flag without one, words for a flag with several


class Option(NamedTuple):
    """One setting."""

    flag: str  # "--tensor-model-parallel-size"
    value: str  # "" for a flag without one, words for a flag with several
    field: str  # "model.tensor_model_parallel_size", of Megatron-Bridge's ConfigContainer; "" if it has none
    setting: object = True  # the value of the field


# The flags of Megatron-LM that are not the names of their fields; some say the contrary.
_FLAGS = {
    "model.add_bias_linear": "--disable-bias-linear",
    "model.gated_linear_unit": "--swiglu",
    "model.num_moe_experts": "--num-experts",
    "model.share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "model.virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "mixed_precision.fp4": "--fp4-format",
    "mixed_precision.fp8": "--fp8-format",
    "comm_overlap.overlap_p2p_comm": "--no-overlap-p2p-communication",
}
Settings = tuple[list[Option], list[str]]  # options, and what they cannot express


def option(field: str, setting: object = True) -> Option:
    """Return the setting of a field, with its flag of Megatron-LM: a bare one for a truth, words for a list."""
    flag = _FLAGS.get(field, f"--{field.rpartition('.')[2].replace('_', '-')}")
    bare = isinstance(setting, bool) or setting is None
    value = " ".join(map(str, setting)) if isinstance(setting, list) else str(setting)
    return Option(flag, "" if bare else value, field, setting)


def options(settings: Mapping[str, object]) -> list[Option]:
    """Return the settings of fields, without those that are None."""
    return [option(field, setting) for field, setting in settings.items() if setting is not None]


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """A plan in the words of a framework; `str(launch)` of flags can be pasted behind a command."""

    options: tuple[Option, ...]  # of a command line; none for a framework that reads a configuration
    lost: tuple[str, ...]  # what the settings do not express, one thing each
    none_since: str = ""  # why there are no settings; empty if there are some
    left: tuple[str, ...] = ()  # what the program of the user does, one thing each
    framework: str = "megatron_lm"  # whose words they are
    title: str = "Megatron-LM flags"  # what they are, for people
    configuration: DataView = field(default_factory=dict)  # sections of settings

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Pairs of a flag and its value, or of a setting and its value."""
        of_sections = _settings(self.configuration)
        return (*((option.flag, option.value) for option in self.options if option.flag), *of_sections)

    @property
    def arguments(self) -> list[str]:
        """The flags as words of a command line, or the settings as words."""
        return [word for flag in self.flags for word in words_of(flag)]

    def __str__(self) -> str:
        return shlex.join(self.arguments)


def words_of(flag: Flag) -> tuple[str, ...]:
    """Return a flag as words of a command line, and a setting as one word."""
    name, value = flag
    return (name, *value.split()) if name.startswith("-") else (f"{name}={value}",)


def _settings(configuration: DataView, above: str = "") -> list[Flag]:
    """Return the settings of a configuration by their path."""
    flags: list[Flag] = []
    for name, value in configuration.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        flags += _settings(value, f"{above}{name}.") if isinstance(value, Mapping) else [(f"{above}{name}", text)]
    return flags


HYBRID_EP = "blackwell"  # the generation whose experts are dispatched with HybridEP, with DeepEP on earlier ones


@dataclass(frozen=True, slots=True)
class ExpertRun:
    """How the experts of a model are divided and reached."""

    num: int
    chosen: int | None  # experts of a token
    groups: int | None  # of experts; a token chooses from some
    chosen_groups: int | None
    capacity_percent: int  # room of an expert, of its even share
    exchanges: frozenset[str]  # kinds of collectives over ep in the forward
    tp: int  # ranks that divide one expert
    layers: tuple[tuple[bool, int], ...]  # runs of body layers with and without experts


@dataclass(frozen=True, slots=True)
class LaunchRun:
    """What a launch must set."""

    plan: Plan
    assumptions: AssumptionsSpec
    device: DeviceSpec
    num_layers: int  # of the body
    sequence_parallel: bool  # whether tensor parallel ranks share out the tokens between blocks
    exchanges: tuple[tuple[str, str], ...]  # (RING or kind of collective, tensor) over cp in the forward
    experts: ExpertRun | None
    chunks: tuple[int, ...]  # body layers of each chunk of an uneven pipeline; empty if all have the same number
    foreign: tuple[str, ...]  # divisions of weights and activations that no framework on Megatron Core has
    regions: frozenset[str]  # that recomputation of some regions finds in the layers
    predictions: int  # layers of multi-token prediction
    vocabulary: int  # logits of a token; 0 if none are counted
    narrow_head: bool  # whether logits come of a multiply in `linear_dtype`
    unshared_experts: bool  # experts beside tensor parallel ranks that all have every token

    def __getitem__(self, column: str) -> object:
        return self.plan[column]

    def number(self, column: str) -> int:
        """Return a column of whole numbers."""
        return int(self.plan[column])

    @property
    def chunk_layers(self) -> list[int]:
        """The body layers of each chunk; an even pipeline may count embedding and head as a layer each."""
        if self.chunks:
            return [*self.chunks]
        chunks = self.number("pp") * self.number("vpp")
        if self.num_layers % chunks == 0:
            return [self.num_layers // chunks] * chunks
        sizes = [(self.num_layers + 2) // chunks] * chunks
        sizes[0] -= 1
        sizes[-1] -= 1
        return sizes


def run_of(plan: Plan, model: Model, assumptions: AssumptionsSpec, device: DeviceSpec) -> LaunchRun:
    """Return what a launch of a plan must set; `plan` has every column by name, `model` is under its strategy."""
    layer, tp = model.body_layer, int(plan["tp"])
    # Between blocks: tokens that are routed to experts can be divided without sequence parallelism.
    sequence_parallel = tp > 1 and "tp" in names(layer.boundary_bytes)
    # Layers of the body alone, of which `stage_layers` also counts those before and after.
    sizes = plan.layers
    first, last = len(model.first), len(model.first) + model.num_body_layers
    begins = accumulate(sizes, initial=0)
    chunks = [max(min(at + size, last) - max(at, first), 0) for at, size in zip(begins, sizes, strict=False)]
    return LaunchRun(
        plan=plan,
        assumptions=assumptions,
        device=device,
        num_layers=model.num_body_layers,
        sequence_parallel=sequence_parallel,
        exchanges=layer.exchanges("cp"),
        experts=_experts(tp, model),
        chunks=tuple(chunks) if len(set(chunks)) > 1 else (),
        foreign=tuple(_foreign_layout(plan, layer)),
        regions=frozenset(name for kind in model.kinds for name in kind.region_names),
        predictions=model.num_predictions,
        vocabulary=model.dimensions.get("v", 0) if model.last else 0,
        narrow_head=any(
            tensor.weight and not tensor.wide and any(dim.letter == "v" for dim in tensor.distribution.dims)
            for head in model.last
            for tensor in head.tensors.values()
        ),
        unshared_experts=tp > 1 and not sequence_parallel and EXPERTS in layer.letters,
    )


def _experts(tp: int, model: Model) -> ExpertRun | None:
    layers = [layer for layer in model.kinds if EXPERTS in layer.letters]
    if not layers or not has_experts(model.dimensions):
        return None
    layer, sizes = layers[0], model.dimensions
    grouped = {"ng", "tg"} <= layer.letters
    runs = groupby(((EXPERTS in kind.letters, count) for kind, count in model.body), key=itemgetter(0))
    return ExpertRun(
        num=sizes[EXPERTS],
        chosen=sizes[CHOSEN] if CHOSEN in layer.letters else None,
        groups=sizes["ng"] if grouped else None,
        chosen_groups=sizes["tg"] if grouped else None,
        capacity_percent=sizes["capacity_percent"] if "capacity_percent" in layer.letters else 100,
        exchanges=frozenset(kind for kind, _ in layer.exchanges("ep")),
        tp=tp if "tp" in layer.expert_axes else 1,
        layers=tuple((has, sum(count for _, count in run)) for has, run in runs),
    )


def _foreign_layout(plan: Plan, layer: DerivedLayer) -> list[str]:
    tp, tp2, panels = (int(plan[name]) for name in ("tp", "tp2", "panels"))
    divisions = {
        f"weights divided in two dimensions (tp={tp} by tp2={tp2}): {{}} divides one, by tp": tp2 > 1,
        f"multiplies in {panels} panels: {{}} gathers an operand whole": panels > 1 and max(tp, tp2) > 1,
        "the hidden dimension divided by tp: {} keeps it whole between blocks": (
            tp > 1 and any(dim.letter == "e" and "tp" in dim.axes for dim in layer.divided)
        ),
    }
    return [division for division, is_foreign in divisions.items() if is_foreign]


_WIDTH = 110  # columns of a comment

SCRIPT = "launch.sh"  # what starts a run, with any framework


class Refused(NamedTuple):
    """A part of a plan that a framework cannot run."""

    part: str  # the value, and why not
    nearest: str  # the nearest that it can; "" if nothing is near


@dataclass(frozen=True, slots=True)
class Request:
    """A plan to be launched."""

    run: LaunchRun
    shape: Architecture
    title: str  # the model, the GPUs and the plan, in a line
    domain: int  # GPUs of a fast domain
    host: int | None = None  # GPUs of a host; None if the cluster does not state them


@dataclass(frozen=True, slots=True)
class WrittenLaunch:
    """Launch files by name, the one that starts the run first, and what they leave to a program or do not express."""

    files: dict[str, str]
    lost: tuple[str, ...]
    left: tuple[str, ...] = ()  # to the program of the user


# Takes the request and the lines that are already known to belong at the head.
Writer = Callable[[Request, "list[str]"], WrittenLaunch]


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that has launch files."""

    title: str  # as people write it
    limits: str  # its file in data/frameworks
    software: tuple[str, ...]  # platforms of devices that it runs on
    refused: Callable[[Request], list[Refused]]  # beyond `limits`, `software` and `no_model`
    no_model: Callable[[Architecture], list[Refused]]  # what of a model it has in none
    write: Writer
    settings: Callable[[LaunchRun, ModelSpec], LaunchSettings]  # of a plan alone
    half_formats: tuple[HalfFormat, ...] = HALF_FORMATS  # that it trains in
    needs: tuple[str, ...] = ()  # environment variables without which the script does not start, with examples

    def without_format(self, device: DeviceSpec) -> list[Refused]:
        """Return the 16-bit numbers of a device, if the framework does not train in them."""
        if device.half_format in self.half_formats:
            return []
        formats = " and ".join(self.half_formats).upper()
        part = f"{device.name}, whose numbers of 16 bits are {device.half_format.upper()}: {self.title} has {formats}"
        return [Refused(part, f"a device with {formats}")]


def uneven_weights(run: LaunchRun) -> dict[str, bool]:
    """Return what PyTorch lacks where weights or activations are of other bytes than 2 or 4, and whether they are."""
    weights, activations = run.assumptions.weight_bytes, run.assumptions.activation_bytes
    part = f"weights of {weights} and activations of {activations} bytes per element"
    return {part: weights not in (2, 4) or weights != activations}


def uneven_sequence(run: LaunchRun, parts: int, why: str) -> list[Refused]:
    """Return that the tokens of a sequence are no multiple of `parts`, if they are none."""
    length = run.number("sequence_length")
    nearest = max(round(length / parts), 1) * parts
    refused = Refused(f"sequence_length={length}, which must be a multiple of {why}", f"sequence_length={nearest}")
    return [refused] if length % parts else []


def template(name: str) -> str:
    """Return the text of a launch file with the names of what a plan fills in, in braces."""
    return (files("dsx.launching") / "templates" / name).read_text(encoding="utf-8")


def exported(variables: Mapping[str, str]) -> str:
    """Return environment variables as lines of a script."""
    return "".join(f"export {name}={value}\n" for name, value in variables.items())


def commented(lines: list[str]) -> str:
    """Return lines as comments of a script, wrapped; names of files cannot end a comment."""
    text = ""
    for line in lines:
        hanging = "    " if line.startswith("  - ") else "  "
        comment = wrapped(printable(" ".join(line.split("\n"))), hanging=hanging, width=_WIDTH)
        text += "".join(f"# {part}".rstrip() + "\n" for part in comment.split("\n"))
    return text


def lost_lines(title: str, lost: Sequence[str]) -> list[str]:
    """Return what a framework does not express as lines of a head."""
    if not lost:
        return [f"{title} expresses everything of the plan."]
    head = f"{title} does not express, so that the run differs from the one that was priced:"
    return [head, *(f"  - {part}" for part in lost)]


_LEAST = 3  # equal chunks in a row that are written as a group


def layout_text(body: Sequence[int], predictions: int = 0) -> str:
    """Return the layout of a pipeline whose chunks have so many layers of the body; empty for none.

    The layers of multi-token prediction are on the stage of the loss.
    """
    if not body:
        return ""
    first, *further = ["t" if size == 1 else f"t*{size}" if size else "" for size in body]
    text = f"E{first}|" if further else f"E{first}"
    for letters, chunks in groupby(further[:-1]):
        count = len([*chunks])
        # A group needs a letter before its bar: "|*3" would end three chunks too.
        text += f"({letters}|)*{count}" if count >= _LEAST else f"{letters}|" * count
    return text + (further[-1] if further else "") + "m" * predictions + "L"


_SEGMENTED = 0.1  # of the activations: the stacks with expandable segments are at most there, those without are above


def allocator_variables(run: LaunchRun) -> dict[str, str]:
    """Return the environment variables of the allocator; none where another was priced, or without CUDA."""
    if run.assumptions.fragmentation > _SEGMENTED or run.device.software != "cuda":
        return {}
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"}
