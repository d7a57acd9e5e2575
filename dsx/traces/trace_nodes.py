"""The nodes of a trace before they are numbered: what one pass of a microbatch runs on any rank of a stage.

A node refers to others by the pass that has them. Its texts have marks in place of the microbatch, so one description
serves all microbatches: `MICROBATCH` is the one of the pass, `PREVIOUS` the one that the chunk had before.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from dsx.traces.layer_nodes import Compute

MICROBATCH, PREVIOUS = "\x01", "\x02"  # repeated for each digit
_VERSION = "#"  # between the name of a buffer and what tells apart the nodes that write it

OWN = ("own",)  # the pass of the node itself
# Names a pass whose nodes others refer to: OWN, or (what it computes, chunk), of the same microbatch. What it computes
# is "forward" or "gradient", "receive forward" or "receive gradient", "gather forward" or "gather gradient". The
# "previous" pass of a purpose and chunk is of the microbatch before, the "last" one of the last one.
BasePass = tuple[object, ...]


def buffer_of(tensor: str) -> str:
    """Return the name of the buffer of a tensor, which may be one of its versions."""
    return tensor.partition(_VERSION)[0]


class Reference(NamedTuple):
    """A node of a pass: of the own one by its number, of another one by the tensor that it writes."""

    base: BasePass
    target: int | str


@dataclass(frozen=True, slots=True)
class Communication:
    """What a communication node sends where."""

    size: int  # bytes
    kind: str = ""  # of a collective; "" for a send or a receive
    axis: str = ""
    group: tuple[object, ...] = ()  # key of the groups of ranks (`dsx.traces.rank_groups`)
    peer: tuple[object, ...] = ()  # key of the rank at the other end
    tag: int = 0  # of a send or a receive within a pass; else its microbatch decides
    panels: int = 1
    routing: tuple[int, ...] = ()  # as that of `dsx.traces.layer_nodes.Move`


@dataclass(slots=True)
class TraceNode:
    """One node."""

    type: int
    name: str
    inputs: list[tuple[str, int]] = field(default_factory=list)  # tensors with their bytes
    outputs: list[tuple[str, int]] = field(default_factory=list)
    data_deps: list[Reference] = field(default_factory=list)
    compute: Compute | None = None
    kernel_text: str = ""
    op_type: str = ""
    panels: int = 1
    on_host: bool = False  # a computation of the host
    communication: Communication | None = None
    overlap: float | None = None  # share that may overlap with compute; None: it is a part of the compute stream
    partner: int | None = None  # number of the launch that it overlaps with
    transfer_bytes: int = 0  # of a load or a store
    duration_ns: float | None = None
