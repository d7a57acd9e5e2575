"""A row of a run table completed: what its notes say, defaults for its missing values, rules that a run obeys.

Each default is what most frameworks do by themselves, the same for every source. Uses are counted and shown, so that an
error can be traced to a default.

Notes, and words for recomputation, have values for columns that published tables do not have:

| column | pattern | example |
|---|---|---|
| `kernels` | torch, fused (the softmax), or flash attention | ``kernel=flash_attention2 + RMS kernel;`` |
| `node_network` | number, bandwidth and kind of the NICs of a node, in any order | ``4x100Gb RoCE per node`` |
| `node_network` | bandwidth of nodes with a GPU, which must be the row's | ``A100 nodes 400 Gb/s`` |
| `node_network` | bandwidth between nodes, or of each GPU's NIC | ``inter-node 800 Gb/s``, ``CX-7 400Gb/s/GPU`` |
| `node_network` | bandwidth of a kind of NIC alone: of one NIC | ``RoCE 400Gb/s`` |
| `etp` | degree of expert tensor parallelism | ``expert-TP=1`` |
| `dispatcher` | a library that sends a token once to each domain | ``DeepEP``, ``HybridEP`` |
| `cross_entropy` | fused or not | ``fused cross-entropy`` |
| `vpp` | chunks of a stage | ``VPP=6``, ``4 virtual stages`` |
| zero_replicas | ranks of a shard group; HSDP alone: of a node | ``ZeRO-1 shard group: 4``, ``DP 16 x FSDP 8`` |
| `microbatch` | the column counts sequences of a device: a replica has tp * cp times as many | ``per-device batch`` |

A value in the column itself wins. Other text is ignored, since notes are written for people. But where notes name
something that dsx prices, and neither these patterns nor a packaged model gave its value, the word is counted and
shown, so that the fact can be moved into a column.

Frameworks have words for what is recomputed: data/runs/recompute-words.yaml has what of dsx is nearest to each. A
policy that keeps named tensors is read as the regions that it recomputes, or as a share of the layers that keep
everything. Not modelled: policies that keep, offload or recompute each tensor on its own.
"""

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from math import prod

from pydantic import TypeAdapter

from dsx.config.assumption_set import Unfusable
from dsx.config.cluster_file import begins_with
from dsx.config.documents import load_document
from dsx.config.model_file import ModelSpec
from dsx.config.schema import Share, Spec
from dsx.config.search_path import packaged_data
from dsx.runs.table import FUSABLE, TIMES, NodeNetwork, UnmodelledError, Values, node_network
from dsx.text import Data

SHARDED_RECIPE = "selective op"  # what recipes of fully sharded data parallelism with fused attention call selective


class RecomputeWord(Spec):
    """What a word means: the value of `recompute`, the layers that keep everything, and what the host keeps."""

    recompute: str | None  # None: it names no value
    stored_share: Share = 0.0  # of the layers of a stage
    offload: str = "none"
    source: str


@cache
def recompute_words() -> dict[str, RecomputeWord]:
    """Return the words in lower case with their meanings; SpecError or a validation error for a faulty file."""
    data = load_document(packaged_data() / "runs" / "recompute-words.yaml").data
    return TypeAdapter(dict[str, RecomputeWord]).validate_python(data)


@dataclass(frozen=True, slots=True)
class Word:
    """Something that dsx prices, as notes name it, and where a row that is priced with it has it."""

    name: str
    pattern: str  # ignoring case
    column: str = ""  # stated or read from the notes
    option: str = ""  # or an option of a layer of the model
    mixed: bool = False  # or layers with and without experts


WORDS = (
    Word("bandwidth of NICs", r"[0-9] ?(?-i:[GT]b)(?:/s|ps|it/s)?\b", "node_network"),
    Word("interleaved pipeline", r"\binterleav(?:ed|ing)\b(?! attention| layers| sliding)", "vpp"),
    Word("expert tensor parallelism", r"\bexpert[- ](?:TP|tensor)|\bETP\b", "etp"),
    Word(
        "ZeRO groups",
        r"\bHSDP\b|\bshard[- ]group(?!: all)|\bZeRO-?[123]? group|FSDP group|FSDP[ =]?(?:[3-9]|[12][0-9])",
        "zero_replicas",
    ),
    Word("stages with fewer layers", r"\b(?:one|1|two|2) layers? (?:fewer|less)\b", "stage_layers"),
    Word("shared experts", r"\bshared expert", option="shared"),
    Word(
        "dense layers among experts",
        r"\b(?:first|dense) (?:[a-z0-9]+ )?layers? (?:dense|exist)|\bMoE (?:every|in)\b",
        mixed=True,
    ),
    Word("sliding-window attention", r"\bsliding[- ]window", option="window"),
    Word("kind of cross-entropy", r"\bfused (?:linear )?cross[- ]entropy|\bcut cross[- ]entropy", "cross_entropy"),
    Word("expert dispatcher", r"\b(?:DeepEP|HybridEP|flex dispatcher)\b", "dispatcher"),
    Word("asynchronous tensor parallelism", r"\bAsync ?TP(?!=0)"),
    Word("CUDA graphs", r"\bCUDA graphs?\b"),
    Word("weights kept after the forward", r"\bwithout reshard|\breshard_after_forward=(?:False|0)"),
    Word("packed sequences", r"\bpacked\b|\bpack_[a-z_]+=True"),
    Word("prediction of further tokens", r"\bw/ MTP\b|\bmulti-token prediction"),
    Word("dropped tokens", r"(?<!says )\btoken[- ]?drop(?:ped|ping)?\b|\bcapacity factor"),
    Word("offload", r"\boffload(?:ed|ing)?\b", "offload"),
)


def unread_words(notes: str, columns: Collection[str], model: ModelSpec) -> tuple[str, ...]:
    """Return the names of what the notes mention and the row is not priced with; `columns` are those it states."""
    options = {option for entry in model.sequence for option in entry.layer.options}
    is_mixed = len({"experts" in dict(entry.layer.blocks).values() for entry in model.sequence[1:-1]}) > 1
    named = (word for word in WORDS if re.search(word.pattern, notes, re.IGNORECASE))
    unread = (word for word in named if word.column not in columns and word.option not in options)
    return tuple(word.name for word in unread if not (word.mixed and is_mixed))


ZERO_GROUP = "zero_group"  # ranks of a ZeRO shard group, from which zero_replicas follows

_KERNELS = re.compile(r"\bkernel=(torch|fused|flash_attention[\w.]*)(\s*\+\s*RMS kernel)?\s*(?:;|$)")
_RATE = r"([1-9][0-9]{0,4}) ?([GT])b"
_PER_SECOND = r"(?:/s|ps|it/s)"
_END = r"(?=\s*(?:[,;.)]|$))"
_KIND = r"(?:RoCE|IB|InfiniBand|Ethernet|EFA)"
_NUMBER = r"(?<![\w.,])([1-9][0-9]{0,2}) ?x ?"
_NICS = (
    re.compile(rf"{_NUMBER}{_RATE}{_PER_SECOND}? {_KIND}(?: NICs?)? (?:per|a|in each) node\b"),
    re.compile(rf"\b{_KIND}:? {_NUMBER}{_RATE}{_PER_SECOND}?(?: NICs?)? (?:per|a|in each) node\b"),
    re.compile(rf"\b(?:per|each) node:? {_NUMBER}{_RATE}{_PER_SECOND}? {_KIND}\b"),
)
_NODES = re.compile(rf"\b([A-Z]+[0-9]+) nodes {_RATE}{_PER_SECOND}{_END}")
_BETWEEN = re.compile(rf"\binter-?node(?: bandwidth| network)?:? {_RATE}{_PER_SECOND}{_END}", re.IGNORECASE)
_OF_GPU = re.compile(rf"(?<!NVLink )(?<![\w.,x]){_RATE}{_PER_SECOND}(?:/| per )GPU\b(?! NVLink)")
_ONE_NIC = re.compile(rf"(?:\b{_KIND} {_RATE}{_PER_SECOND}{_END}|(?<![\w.,x]){_RATE}{_PER_SECOND} {_KIND}{_END})")
_EXPERT_TP = re.compile(
    r"\b(?:expert[- ](?:TP|tensor[- ]parallel(?:ism)?)|ETP)(?: size| degree| of)?\s*[=:]?\s*([1-9][0-9]{0,3})\b",
    re.IGNORECASE,
)
_CHUNKS = re.compile(
    r"\bVPP? ?= ?([1-9][0-9]{0,2})\b|\b([1-9][0-9]{0,2}) virtual (?:pipeline )?stages\b", re.IGNORECASE
)
_CROSS_ENTROPY = re.compile(r"\b(?:(un)|non-)?fused (?:linear )?cross[- ]entropy\b", re.IGNORECASE)
_ONCE = re.compile(r"\b(?:DeepEP|HybridEP)\b(?! (?:off|disabled))", re.IGNORECASE)
_PIPELINE = r"(?:PP|pipelin\w*|schedule|stages|1F1B)"
_INTERLEAVED = re.compile(
    rf"(?<!non-)(?<!not )(?<!without )\binterleaved {_PIPELINE}\b|\b1F1B[- ](?:I|interleaved)\b"
    r"|\binterleaving (?:degree )?(?:not|un)[- ]?(?:read|printed|stated|known)\b",
    re.IGNORECASE,
)
_SHARD_GROUP = re.compile(
    r"\b(?:shard(?:ing)?[- ]group|ZeRO-?[123]? group)(?: size| of)?\s*[:=]?\s*([1-9][0-9]{0,5})\b", re.IGNORECASE
)
# FSDP1 and FSDP2 are versions of a library.
_FSDP = re.compile(r"(?<![A-Za-z])FSDP(?![12](?![0-9]))(?: over)?[ =]?([1-9][0-9]{0,5})(?![0-9])", re.IGNORECASE)
_TIMES = re.compile(r"\s*x\s*(?:[a-z]+[ _])?", re.IGNORECASE)
_HYBRID = re.compile(r"\bHSDP\b|\bdata[- ]parallel(?:ism)? (?:across|over|between) (?:slices|nodes)\b", re.IGNORECASE)
_PER_DEVICE = re.compile(r"\bper[- _]device[- _]batch", re.IGNORECASE)


def read_notes(cells: Values) -> dict[str, object]:
    """Return the missing values of a row that its notes state; `cells` holds the row by column."""
    notes = cells["notes"] or ""
    loss = _CROSS_ENTROPY.search(notes)
    in_notes = {
        "cross_entropy": loss and ("unfused" if loss[1] else "fused"),
        "dispatcher": "once_per_domain" if _ONCE.search(notes) else None,
        "kernels": _kernels(notes),
        "node_network": _network(notes, cells),
        "etp": _first(_EXPERT_TP, notes),
        "vpp": _first(_CHUNKS, notes) if (cells["pp"] or 1) > 1 else None,
        ZERO_GROUP: _zero_group(notes, cells),
    }
    missing = {column: value for column, value in in_notes.items() if value is not None and cells.get(column) is None}
    members = (cells["tp"] or 1) * (cells["cp"] or 1)
    if members > 1 and cells["microbatch"] and _PER_DEVICE.search(notes):
        # The column counts sequences of a device, and what counts by device divides its activations by all of them, as
        # sequence parallelism does.
        microbatch, dp = cells["microbatch"] * members, cells["dp"]
        if not (dp and cells["global_batch"]) or cells["global_batch"] % (microbatch * dp) == 0:
            missing |= {"microbatch": microbatch, "sp": True}
    return missing


def names_interleaving(cells: Values) -> bool:
    """Return whether a row calls its pipeline interleaved: its schedule, framework or notes."""
    return any(_INTERLEAVED.search(cells[column] or "") for column in ("schedule", "framework", "notes"))


def _kernels(notes: str) -> frozenset[Unfusable] | None:
    if (match := _KERNELS.search(notes)) is None:
        return None
    # Flash attention includes the softmax.
    fused: dict[Unfusable, bool] = {"softmax": match[1] != "torch", "norm": match[2] is not None}
    return frozenset(operator for operator, is_fused in fused.items() if is_fused)


def _network(notes: str, cells: Values) -> NodeNetwork | None:
    if (cells["n_gpus"] or math.inf) <= (cells["gpus_per_node"] or 1):
        return None  # one node
    for pattern in _NICS:
        if match := pattern.search(notes):
            return node_network(f"{match[1]}x{match[2]} {match[3]}b/s")
    for match in _NODES.finditer(notes):
        if begins_with(cells["gpu"] or "", match[1]):
            return node_network(f"{match[2]} {match[3]}b/s")
    if match := _BETWEEN.search(notes):
        return node_network(f"{match[1]} {match[2]}b/s")
    if (match := _OF_GPU.search(notes)) and cells["gpus_per_node"]:
        return node_network(f"{cells['gpus_per_node']}x{match[1]} {match[2]}b/s")
    if match := _ONE_NIC.search(notes):
        number, unit = (group for group in match.groups() if group is not None)
        return NodeNetwork(None, node_network(f"{number} {unit}b/s").bandwidth)
    return None


def _first(pattern: re.Pattern[str], notes: str) -> int | None:
    match = pattern.search(notes)
    return int(next(filter(None, match.groups()))) if match else None


def _zero_group(notes: str, cells: Values) -> int | None:
    """Return the ranks of a shard group; degrees of FSDP that are joined by a cross are multiplied."""
    if group := _first(_SHARD_GROUP, notes):
        return group
    degrees: list[int] = []
    end = 0
    for match in _FSDP.finditer(notes):
        if degrees and not _TIMES.fullmatch(notes, end, match.start()):
            break
        degrees.append(int(match[1]))
        end = match.end()
    if degrees:
        return math.prod(degrees)
    if not _HYBRID.search(notes) or not cells["gpus_per_node"]:
        return None
    return cells["gpus_per_node"] // (cells["tp"] or 1)


@dataclass(frozen=True, slots=True)
class Default:
    """The default of a column, and the rows in which the column matters."""

    rule: str  # in words
    value: Callable[[Values], object]  # from the values of earlier columns in DEFAULTS; None = stays missing
    matters: Callable[[Values], bool] = lambda values: True


def _has_experts(values: Values) -> bool:
    return (values["experts"] or 0) > 1  # one expert is a dense model


def _virtual_stages(values: Values) -> int:
    """Return the chunks of a stage; in an interleaved schedule without a degree, chunks have two layers if possible.

    Published interleaved plans have chunks of one to four layers, most of them two (MegaScale, arXiv 2402.15627,
    section 6: six chunks on each of eight stages of 96 layers; NVIDIA's recipes of NeMo). Embedding and head count as
    layers where the layers alone do not divide.
    """
    layers, pp = values["layers"], values["pp"]
    if not layers or pp == 1 or not names_interleaving(values):
        return 1
    per_stage = next((count // pp for count in (layers, layers + 2) if count % pp == 0), layers // pp)
    chunks = [count for count in range(2, per_stage + 1) if per_stage % count == 0]
    return max((count for count in chunks if 2 * count <= per_stage), default=chunks[0] if chunks else 1)


def _expert_tensor_parallel(values: Values) -> int:
    """Return tp where it can divide the experts too, which is Megatron-Core's default, else 1."""
    tp, ranks = values["tp"], values["tp"] * values["cp"] * (values["dp"] or 1)
    divides = (values["ffn_hidden"] or 0) % tp == 0 and ranks % (values["ep"] * tp) == 0
    return tp if values["sp"] and divides else 1


# In this order: a default may use the columns above it.
DEFAULTS: dict[str, Default] = {
    "heads": Default("hidden / 128", lambda v: v["hidden"] and max(v["hidden"] // 128, 1)),
    "kv_heads": Default("heads", lambda v: v["heads"]),
    "experts": Default("0, a dense model", lambda v: 0, matters=lambda v: bool(v["topk"])),
    "topk": Default("2", lambda v: 2, matters=_has_experts),
    "gated_mlp": Default("1 with experts, else 0", _has_experts),
    "ffn_hidden": Default("4 * hidden", lambda v: v["hidden"] and 4 * v["hidden"]),
    "vocab": Default("51200, the padded vocabulary of GPT-2", lambda v: 51200),
    "gpus_per_node": Default("8", lambda v: 8),
    "precision": Default("bf16", lambda v: "bf16"),
    # Short sequences have small score matrices; fused attention, which never stores them, came with long sequences.
    "flash": Default("1 where seq > 2048, else 0", lambda v: (v["seq"] or 0) > 2048),
    # Layers with neither gates nor experts have layer norms, and every framework has a fused kernel for those.
    "kernels": Default(
        "a fused one for each norm and softmax",
        lambda v: FUSABLE,
        matters=lambda v: v["gated_mlp"] or _has_experts(v) or not v["flash"],
    ),
    "tp": Default("1", lambda v: 1),
    "pp": Default("1", lambda v: 1),
    "cp": Default("1", lambda v: 1, matters=lambda v: (v["n_gpus"] or 1) > 1),
    # With a remainder the product of the degrees is not n_gpus, which a rule below reports.
    "dp": Default(
        "n_gpus / (tp * pp * cp)", lambda v: v["n_gpus"] and max(v["n_gpus"] // (v["tp"] * v["pp"] * v["cp"]), 1)
    ),
    "ep": Default("1", lambda v: 1, matters=_has_experts),
    "vpp": Default(
        "1; with an interleaved schedule chunks of two layers", _virtual_stages, matters=lambda v: v["pp"] > 1
    ),
    "sp": Default(
        "1 where tp > 1 and tp * cp divides seq",
        lambda v: v["tp"] > 1 and (v["seq"] or 0) % (v["tp"] * v["cp"]) == 0,
        matters=lambda v: v["tp"] > 1,
    ),
    "etp": Default(
        "tp where sp, ffn_hidden and the ranks allow it, else 1",
        _expert_tensor_parallel,
        matters=lambda v: _has_experts(v) and v["tp"] > 1,
    ),
    "zero_stage": Default("1, a distributed optimizer", lambda v: 1, matters=lambda v: (v["dp"] or 1) > 1),
    # Sharded weights in a pipeline are PyTorch's parallelisms: torch.distributed.pipelining cuts a batch into as many
    # microbatches as there are chunks, unless a configuration states the number (TorchTitan, ParallelismConfig).
    "microbatch": Default(
        "1; with zero_stage 3 and pp > 1 as many microbatches as pp * vpp chunks",
        lambda v: (
            1
            if v["zero_stage"] < 3 or v["pp"] == 1
            else max((v["global_batch"] or 0) // (v["dp"] * v["pp"] * v["vpp"]), 1)
        ),
    ),
    # dsx.runs.predict infers it.
    "recompute": Default("the fastest value under which the run fits", lambda v: "none"),
}


def fill(values: Values) -> tuple[Data, tuple[str, ...]]:
    """Return a row's values with the missing ones filled, and the columns whose default matters in this row."""
    filled, used = dict(values), []
    for column, default in DEFAULTS.items():
        if filled[column] is None:
            filled[column] = default.value(filled)
            if filled[column] is not None and default.matters(filled):
                used.append(column)
    if not _has_experts(filled):
        filled |= {"experts": 0, "topk": 1, "etp": 1}
    return filled, tuple(used)


@dataclass(frozen=True, slots=True)
class RowRule:
    """A condition on the columns of a row, which its message shows with their values."""

    reason: str  # if it does not hold
    columns: tuple[str, ...]
    holds: Callable[[Values], bool]


NEEDED = ("layers", "hidden", "seq", "gpu", "n_gpus", "global_batch")  # they have no default


def _divides(parts: str, multiple: str, unless: Callable[[Values], bool] = lambda values: False) -> RowRule:
    """Return the rule that the product of `parts` divides the product of `multiple`, as in "ep * etp", "experts"."""
    columns, multiples = parts.split(" * "), multiple.split(" * ")

    def holds(values: Values) -> bool:
        return unless(values) or prod(map(values.__getitem__, multiples)) % prod(map(values.__getitem__, columns)) == 0

    return RowRule(f"{parts} does not divide {multiple}", (*columns, *multiples), holds)


# Embedding and head count as layers of a pipeline here, since stages may be uneven.
RULES = (
    RowRule(
        "tp * pp * cp * dp is not n_gpus",
        ("tp", "pp", "cp", "dp", "n_gpus"),
        lambda v: v["tp"] * v["pp"] * v["cp"] * v["dp"] == v["n_gpus"],
    ),
    _divides("ep", "tp * cp * dp"),
    RowRule("etp is neither 1 nor tp", ("etp", "tp"), lambda v: v["etp"] in (1, v["tp"])),
    _divides("ep * etp", "tp * cp * dp"),
    RowRule("ep without experts", ("ep", "experts"), lambda v: v["ep"] == 1 or v["experts"] > 1),
    _divides("ep", "experts"),
    RowRule("experts without a topk", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] > 0),
    RowRule("topk is more than experts", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] <= v["experts"]),
    _divides("microbatch * dp", "global_batch"),
    RowRule(
        "pp * vpp is more than layers with embedding and head",
        ("pp", "vpp", "layers"),
        lambda v: v["pp"] * v["vpp"] <= v["layers"] + 2,
    ),
    RowRule("vpp without pp", ("vpp", "pp"), lambda v: v["vpp"] == 1 or v["pp"] > 1),
    _divides("kv_heads", "heads"),
    _divides("tp", "heads"),
    RowRule(
        "neither of tp and kv_heads divides the other",
        ("tp", "kv_heads"),
        lambda v: v["kv_heads"] % v["tp"] == 0 or v["tp"] % v["kv_heads"] == 0,
    ),
    _divides("tp", "ffn_hidden", unless=lambda v: bool(v["experts"])),
    _divides("cp", "seq"),
    RowRule(
        "tp * cp does not divide seq, with sp",
        ("tp", "cp", "seq"),
        lambda v: not v["sp"] or v["seq"] % (v["tp"] * v["cp"]) == 0,
    ),
    RowRule(
        "tp * cp does not divide the tokens that are routed to experts",
        ("tp", "cp", "microbatch", "seq"),
        lambda v: v["experts"] <= 1 or v["microbatch"] * v["seq"] % (v["tp"] * v["cp"]) == 0,
    ),
    RowRule(
        "out of memory, but with a time",
        ("oom", *TIMES),
        lambda v: not v["oom"] or all(v[column] is None for column in TIMES),
    ),
)


def check_possible(values: Values) -> None:
    """Raise UnmodelledError if a filled row cannot be a training run."""
    if blank := [column for column in NEEDED if values[column] is None]:
        raise UnmodelledError("a column without a default is blank", ", ".join(blank))
    for rule in RULES:
        if not rule.holds(values):
            raise UnmodelledError(rule.reason, ", ".join(f"{column}={values[column]}" for column in rule.columns))
