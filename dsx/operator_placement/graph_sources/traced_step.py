"""The operators of a step as a framework traces them: plain records of work and tensors, whoever traced them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# How an operator may be fused (`elementwise_fusion`): a view moves nothing and has all elements of what it is of, a
# part has some that lie together; a spread makes more elements of fewer ones, or of none; a transpose, and what is
# elementwise, compute each element by itself; the others reduce, or are kernels of their own.
Role = Literal["view", "part", "spread", "transpose", "elementwise", "reduction", "alone"]


@dataclass(frozen=True, slots=True)
class Multiply:
    """`batch` multiplies of (rows x contracted) by (contracted x columns)."""

    rows: float
    columns: float
    contracted: float
    batch: float
    flops: float  # of all of them; less than the sizes say where zeros of a padding are left out
    attention: bool = False  # inside a fused kernel of attention
    backward: bool = False  # of that kernel


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one launch computes and moves."""

    vector_flops: float
    num_bytes: float
    multiplies: tuple[Multiply, ...] = ()
    runs: float = 1.0  # how often it runs


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator; tensors are numbers."""

    id: str
    kind: str
    role: Role
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    read_bytes: tuple[float, ...]  # of each input
    written_bytes: float
    elements: float  # of its largest tensor: what its kernel loops over
    vector_flops: float = 0.0
    multiplies: tuple[Multiply, ...] = ()
    inside: tuple[Kernel, ...] = ()  # of a loop or a branch, in place of all other work


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The operators of a step, each after those that it takes from."""

    operators: tuple[TracedOperator, ...]
    tensor_bytes: tuple[float, ...]
    inputs: Mapping[int, str]  # tensors from outside of the step, with their names
    outputs: frozenset[int]  # tensors that the step returns
    updates: Mapping[int, int] = field(default_factory=dict)  # input -> its new value, which the step returns
