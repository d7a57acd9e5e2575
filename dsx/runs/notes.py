"""Values in the notes of a row, for columns that published tables do not have.

| column | pattern | example |
|---|---|---|
| `kernels` | torch, fused (the softmax), or flash attention | ``kernel=flash_attention2 + RMS kernel;`` |
| `node_network` | number, bandwidth and kind of the NICs of a node, in any order | ``4x100Gb RoCE per node`` |
| `node_network` | bandwidth of nodes with a GPU, which must be the row's | ``A100 nodes 400 Gb/s`` |
| `node_network` | bandwidth between nodes, or of each GPU's NIC | ``inter-node 800 Gb/s``, ``CX-7 400Gb/s/GPU`` |
| `node_network` | bandwidth of a kind of NIC alone: that of one NIC | ``RoCE 400Gb/s`` |
| `etp` | degree of expert tensor parallelism | ``expert-TP=1`` |
| `dispatcher` | a library that sends a token once to each domain | ``DeepEP``, ``HybridEP`` |
| `cross_entropy` | fused or not | ``fused cross-entropy`` |
| `vpp` | chunks of a stage | ``VPP=6``, ``4 virtual stages`` |
| zero_replicas | ranks of a shard group; HSDP alone: those of a node | ``ZeRO-1 shard group: 4``, ``DP 16 x FSDP 8`` |
| `microbatch` | the column counts sequences of a device: a replica has tp * cp times as many | ``per-device batch`` |

Other text is ignored, since notes are written for people (`dsx.runs.note_words` counts what it may have meant). A value
in the column itself wins.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from dsx.runs.node_network import NodeNetwork, node_network
from dsx.spec.assumptions import Unfusable
from dsx.spec.device_names import begins_with

ZERO_GROUP = "zero_group"  # ranks of a ZeRO shard group, of which zero_replicas follows

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


def read_notes(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the missing values of a row that its notes state; `cells` holds the row by column."""
    notes = cells["notes"] or ""
    loss = _CROSS_ENTROPY.search(notes)
    found = {
        "cross_entropy": loss and ("unfused" if loss[1] else "fused"),
        "dispatcher": "once_per_domain" if _ONCE.search(notes) else None,
        "kernels": _kernels(notes),
        "node_network": _network(notes, cells),
        "etp": _first(_EXPERT_TP, notes),
        "vpp": _first(_CHUNKS, notes) if (cells["pp"] or 1) > 1 else None,
        ZERO_GROUP: _zero_group(notes, cells),
    }
    missing = {column: value for column, value in found.items() if value is not None and cells.get(column) is None}
    return missing | _of_replica(notes, cells)


def _of_replica(notes: str, cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the microbatch of a replica where the column counts sequences of a device; nothing if they are equal.

    What counts by device divides its activations by all of them, as sequence parallelism does.
    """
    members = (cells["tp"] or 1) * (cells["cp"] or 1)
    if members == 1 or not cells["microbatch"] or not _PER_DEVICE.search(notes):
        return {}
    whole, dp = cells["microbatch"] * members, cells["dp"]
    divides = not (dp and cells["global_batch"]) or cells["global_batch"] % (whole * dp) == 0
    return {"microbatch": whole, "sp": True} if divides else {}


def names_interleaving(cells: Mapping[str, Any]) -> bool:
    """Return whether a row calls its pipeline interleaved: its schedule, framework or notes."""
    return any(_INTERLEAVED.search(cells[column] or "") for column in ("schedule", "framework", "notes"))


def _kernels(notes: str) -> frozenset[Unfusable] | None:
    match = _KERNELS.search(notes)
    if match is None:
        return None
    # Flash attention includes the softmax.
    named: dict[Unfusable, bool] = {"softmax": match[1] != "torch", "norm": match[2] is not None}
    return frozenset(operator for operator, found in named.items() if found)


def _network(notes: str, cells: Mapping[str, Any]) -> NodeNetwork | None:
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
        number, unit = (one for one in match.groups() if one is not None)
        return NodeNetwork(None, node_network(f"{number} {unit}b/s").bandwidth)
    return None


def _first(pattern: re.Pattern[str], notes: str) -> int | None:
    match = pattern.search(notes)
    return int(next(filter(None, match.groups()))) if match else None


def _zero_group(notes: str, cells: Mapping[str, Any]) -> int | None:
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
