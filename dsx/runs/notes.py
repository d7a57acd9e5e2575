"""Values in the notes of a row, for columns that published tables do not have.

| column | pattern | example |
|---|---|---|
| `kernels` | torch, fused (the softmax), or flash attention | ``kernel=flash_attention2 + RMS kernel;`` |
| `node_network` | number, bandwidth and kind of the NICs of a node | ``4x100Gb RoCE per node`` |
| `node_network` | bandwidth of nodes with a GPU, which must be the row's | ``A100 nodes 400 Gb/s`` |

Other text is ignored, since notes are written for people. A value in the column itself wins.
"""

import re
from collections.abc import Mapping
from typing import Any

from dsx.runs.machines import begins_with
from dsx.runs.node_network import NodeNetwork, node_network
from dsx.spec.assumptions import Unfusable

_KERNELS = re.compile(r"\bkernel=(torch|fused|flash_attention[\w.]*)(\s*\+\s*RMS kernel)?\s*(?:;|$)")
_RATE = r"([1-9][0-9]{0,4}) ?([GT])b"
_NICS = re.compile(rf"(?<![\w.,])([1-9][0-9]{{0,2}})x{_RATE}(?:/s)? (?:RoCE|IB|InfiniBand|Ethernet|EFA) per node\b")
_NODES = re.compile(rf"\b([A-Z]+[0-9]+) nodes {_RATE}/s(?=\s*(?:[,;.)]|$))")


def read_notes(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the missing values of a row that its notes state; `cells` holds the row by column."""
    notes, gpu = cells["notes"] or "", cells["gpu"] or ""
    found = {"kernels": _kernels(notes), "node_network": _network(notes, gpu)}
    return {column: value for column, value in found.items() if value is not None and cells[column] is None}


def _kernels(notes: str) -> frozenset[Unfusable] | None:
    match = _KERNELS.search(notes)
    if match is None:
        return None
    # Flash attention includes the softmax.
    named: dict[Unfusable, bool] = {"softmax": match[1] != "torch", "norm": match[2] is not None}
    return frozenset(operator for operator, found in named.items() if found)


def _network(notes: str, gpu: str) -> NodeNetwork | None:
    if match := _NICS.search(notes):
        return node_network(f"{match[1]}x{match[2]} {match[3]}b/s")
    for match in _NODES.finditer(notes):
        if begins_with(gpu, match[1]):
            return node_network(f"{match[2]} {match[3]}b/s")
    return None
