"""The notes of a row, and its words for recomputation: values for columns that published tables do not have.

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
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from dsx.config.assumption_set import Unfusable
from dsx.config.cluster_file import begins_with
from dsx.config.documents import load_document
from dsx.config.model_file import ModelSpec
from dsx.config.schema import Spec
from dsx.config.search_path import packaged_data
from dsx.config.values import Share
from dsx.runs.table import NodeNetwork, Values, node_network

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
