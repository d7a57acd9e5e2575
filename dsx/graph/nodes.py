"""The nodes of a layer's graph: launches and collectives, and the tensors that they read and write.

A value is a tensor on one rank, written by one node. A view writes nothing: who reads its result reads the values of
its source. A value that a view splits into several tensors is these tensors from the start, since they may live for
different times.
"""

from dataclasses import dataclass
from typing import Any

from dsx.graph.launches import Part
from dsx.graph.match import Distribution
from dsx.graph.operator_work import Work
from dsx.graph.token_copies import TokenCopies

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one microbatch; `bytes` is its volume on one GPU."""

    kind: str
    axis: str
    bytes: Any
    tensor: str
    panelled: bool
    ring: bool = False  # block by block, while the kernel works on the previous block
    copies: TokenCopies | None = None  # of an all-to-all that moves several copies of each token
    # Position of the kernel that works on the same tensor, and could do so block by block beside the collective: the
    # one that makes what a reduce-scatter moves, else the one that needs the result. None if no kernel does.
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor on one rank; the name is unique in a graph."""

    name: str
    bytes: Any
    element_bytes: Any = 1  # of its data type; 1 for the state of a kernel, such as a mask
    distribution: Distribution | None = None  # None for the state of a kernel
    saved_as: tuple[str, str] | None = None  # its key among the saved tensors of a layer
    weight: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel, or a part of its backward."""

    name: str
    kernel: int  # position among the kernels of the layer
    direction: int
    part: Part
    work: Work
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Transferred:
    """A collective in its place, which belongs to a kernel and a direction."""

    name: str
    kernel: int
    direction: int
    collective: Collective
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    after_kernel: bool  # whether it moves what the kernel makes; else what it needs


Node = Launch | Transferred


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The graph of a layer for one microbatch: the nodes of both directions, in the order in which they run."""

    forward: tuple[Node, ...]
    backward: tuple[Node, ...]  # without recomputation
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_gradients: tuple[Value, ...]  # what the backward begins with
    input_gradients: tuple[Value, ...]  # whose sum is the gradient of the input
    weights: tuple[Value, ...]
    weight_gradients: dict[str, tuple[Value, ...]]  # weight -> values whose sum is its gradient

    def nodes(self, direction: int) -> tuple[Node, ...]:
        """Return the nodes of a direction."""
        return self.backward if direction == BACKWARD else self.forward
