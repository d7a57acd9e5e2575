"""A layer under a strategy: tensors, and operators over them, whose distributions are all known.

The blocks are inlined and the roles filled in (`dsx.graph.build`). What follows from it (collectives, backward, saved
tensors, work) is derived in the modules beside this one.
"""

from dataclasses import dataclass
from typing import Any

from dsx.graph.lexer import Place
from dsx.graph.match import Distribution, ordered
from dsx.graph.notation import Rule
from dsx.graph.operators import OperatorKind

PANELS = "panels"
RING = "ring"
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value or a weight, as it is produced."""

    name: str
    distribution: Distribution
    weight: bool = False
    data: bool = False  # given from outside the model: it has no gradient
    tied: bool = False  # a weight that another layer of the model has too


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor as an operator consumes it."""

    tensor: str
    distribution: Distribution
    made_again: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator; it is named after its first result."""

    kind: OperatorKind
    modifier: str
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    fuse: tuple[str, int] | None
    panelled: bool
    place: Place
    again: tuple[str, int] | None = None  # the region that selective recomputation makes again

    @property
    def name(self) -> str:
        """The name of the first result."""
        return self.outputs[0]

    @property
    def costs_nothing(self) -> bool:
        """Whether it only renames: no kernel runs."""
        return self.kind.shape == "view"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer under a strategy: tensors by name, operators in order."""

    name: str
    strategy: str
    definitions: dict[str, Any]
    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rules: tuple[Rule, ...]
    panelled: bool
    options: dict[str, bool]  # each that the layer or a block of it knows -> whether it is set
    blocks: dict[str, str]  # block parameter -> the block that it is

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the layer's tensors are divided by, in the order of AXES."""
        used = {axis for tensor in self.tensors.values() for axis in tensor.distribution.axes}
        used |= {axis for op in self.operators for arg in op.arguments for axis in arg.distribution.axes}
        return ordered(used)

    def producer(self, tensor: str) -> Operator | None:
        """Return the operator that makes `tensor`; None for an input or a weight."""
        return next((op for op in self.operators if tensor in op.outputs), None)
