"""A layer under a strategy: its tensors and operators, each with a known distribution.

`dsx.graph.build` has inlined the blocks and filled in the roles. Other modules of this package derive collectives,
backward, saved tensors and work from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsx.graph.lexer import Place
from dsx.graph.match import Distribution, ordered
from dsx.graph.notation import Rule
from dsx.graph.operators import OperatorKind
from dsx.graph.regions import RegionPath

PANELS = "panels"
RING = "ring"
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value or a weight, in the distribution in which it is produced."""

    name: str
    distribution: Distribution
    weight: bool = False
    data: bool = False  # comes from outside the model and has no gradient
    tied: bool = False  # a weight that the layer shares with another layer of the model
    wide: bool = False  # a weight whose multiplies run in 16 bits, where others run in fewer


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor in the distribution in which an operator consumes it."""

    tensor: str
    distribution: Distribution
    regathered: bool  # the mark ~: the backward redistributes the tensor once more instead of keeping the copy
    place: Place


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator, named after its first result."""

    kind: OperatorKind
    modifier: str
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    fuse: tuple[str, int] | None
    panelled: bool
    place: Place
    regions: RegionPath = ()  # the ``recompute`` regions that it is in

    @property
    def name(self) -> str:
        """The name of the first result."""
        return self.outputs[0]

    @property
    def costs_nothing(self) -> bool:
        """Whether it is a view, for which no kernel runs."""
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
    options: dict[str, bool]  # option that the layer or one of its blocks declares -> whether it is set
    blocks: dict[str, str]  # block parameter -> block
    single: frozenset[str] = frozenset()  # dimensions of which the model has one, such as a single expert

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the layer's tensors are divided by, in the order of AXES."""
        used = {axis for tensor in self.tensors.values() for axis in tensor.distribution.axes}
        used |= {axis for op in self.operators for arg in op.arguments for axis in arg.distribution.axes}
        return ordered(used)

    def producer(self, tensor: str) -> Operator | None:
        """Return the operator that makes `tensor`; None for an input or a weight."""
        return next((op for op in self.operators if tensor in op.outputs), None)


def widened(layer: Layer, weights: Sequence[str]) -> Layer:
    """Return a layer in which multiplies by some weights run in 16 bits.

    A weight is named as in its definition, with that of its block or layer in front where others have the name too.
    """

    def listed(name: str) -> bool:
        whole = f".{layer.name.partition('[')[0]}.{name}"  # without the options of the layer
        return any(whole.endswith(f".{weight}") for weight in weights)

    tensors = {
        name: replace(tensor, wide=True) if tensor.weight and listed(name) else tensor
        for name, tensor in layer.tensors.items()
    }
    return replace(layer, tensors=tensors)
