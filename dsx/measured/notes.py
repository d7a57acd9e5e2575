"""What the notes of a row say of columns that published tables do not have.

Two forms each are known: ``kernel=flash_attention2 + RMS kernel;`` for `kernels`, and for `node_network`
``4x100Gb RoCE per node``, or ``A100 nodes 400 Gb/s``, which counts for that GPU. A column of the table wins.
"""

import re
from collections.abc import Mapping
from typing import Any

from dsx.measured.machines import begins_with
from dsx.measured.node_network import node_network

_KERNELS = re.compile(r"\bkernels?=([^;]+)")
_RATE = r"([0-9]+(?:\.[0-9]+)?) ?([GT])b(?:/s|ps)?"
_PER_NODE = re.compile(rf"\b(?:([0-9]+) ?x ?)?{_RATE}(?: [\w-]+)? per node\b")
_OF_GPU = re.compile(rf"\b([A-Z]+[0-9]+\w*) nodes {_RATE}")


def read_notes(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of blank columns that the notes of a row, in `cells` by column, say."""
    notes = cells["notes"] or ""
    found = {"kernels": _kernels(notes), "node_network": _network(notes, cells["gpu"] or "")}
    return {column: value for column, value in found.items() if value is not None and cells[column] is None}


def _kernels(notes: str) -> str | None:
    match = _KERNELS.search(notes)
    return match[1].strip() if match else None


def _network(notes: str, gpu: str) -> Any:
    if match := _PER_NODE.search(notes):
        nics = f"{match[1]}x" if match[1] else ""
        return node_network(f"{nics}{match[2]} {match[3]}b/s")
    for match in _OF_GPU.finditer(notes):
        if begins_with(gpu, match[1]):
            return node_network(f"{match[2]} {match[3]}b/s")
    return None
