"""The order in which each stage of a pipeline runs its passes, and the chunks of layers that it holds, as data.

A pass takes one microbatch through one chunk of layers: its forward, its backward, or, where a schedule splits the
backward, the gradients of its inputs and those of its weights. The head is never split: the pass for the gradients
of inputs computes both of the head, which then keeps no logits. Measured peaks say so (`Schedule.weights_wait` of
`dsx.schedules.schedules`). Chunks are numbered in the order of the forward.

The closed forms of `dsx.schedules.closed_forms` say how long such an order takes; `dsx.plans.pass_times` replays it,
and so is their referee.

A chain has the chunks of a model, first to last, each on a stage. A microbatch goes through one chain. The first chunk
of stage i is chunk i. Where stages hold their chunks in rounds, stage i of p has the chunks i, p + i, 2p + i, ...
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from dsx import arrays as xp

if TYPE_CHECKING:
    from dsx.records import ArrayLike as Numbers  # which loads JAX
else:
    Numbers = object  # floats that broadcast

Kind = Literal["forward", "backward", "inputs", "weights"]


class Pass(NamedTuple):
    """One microbatch through one chunk; both count from 0."""

    kind: Kind
    microbatch: int
    chunk: int


class Pair(NamedTuple):
    """A forward and a backward that a stage runs side by side."""

    forward: Pass
    backward: Pass


Order = Sequence[Pass | Pair]  # the passes of one stage, first to last


def passes_of(item: Pass | Pair) -> tuple[Pass, ...]:
    """Return the one or two passes of an entry of an order."""
    return tuple(item) if isinstance(item, Pair) else (item,)


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order of each stage: all forwards, then all backwards (Huang et al., arXiv 1811.06965, figure 2)."""
    check_chunks("gpipe", num_chunks)
    microbatches = range(num_microbatches)
    return [
        [Pass("forward", number, stage) for number in microbatches]
        + [Pass("backward", number, stage) for number in microbatches]
        for stage in range(num_stages)
    ]


def one_forward_one_backward(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order of each stage in 1F1B; with several chunks per stage, interleaved (Narayanan et al., SC21).

    A stage runs forwards until the first backward can come, then alternates, then drains. Interleaved, it takes the
    microbatches in groups of `num_stages` through one chunk after the other, so these divide `num_microbatches`;
    raises ValueError if they do not.
    """
    if num_chunks > 1 and num_microbatches % num_stages:
        raise ValueError(f"{num_microbatches} microbatches are no groups of {num_stages}")
    group, total = num_stages * num_chunks, num_microbatches * num_chunks

    def nth(kind: Kind, number: int, stage: int) -> Pass:
        chunk = number % group // num_stages if num_chunks > 1 else 0
        chunk = chunk if kind == "forward" else num_chunks - 1 - chunk
        within = number // group * num_stages + number % num_stages if num_chunks > 1 else number
        return Pass(kind, within, chunk * num_stages + stage)

    orders: list[Order] = []
    for stage in range(num_stages):
        later = num_stages - 1 - stage
        ahead = min(total, later if num_chunks == 1 else 2 * later + (num_chunks - 1) * num_stages)
        order = [nth("forward", number, stage) for number in range(ahead)]
        for number in range(total - ahead):
            order += [nth("forward", ahead + number, stage), nth("backward", number, stage)]
        orders.append(order + [nth("backward", number, stage) for number in range(total - ahead, total)])
    return orders


def check_chunks(name: str, num_chunks: int) -> None:
    """Raise ValueError for several chunks per stage under a schedule that has one."""
    if num_chunks > 1:
        raise ValueError(f"{name} has one chunk per stage, not {num_chunks}")


@dataclass(frozen=True, slots=True)
class StageChunks:
    """The chunks of the stages of a pipeline; functions of numbers or arrays."""

    chains: Callable[[int, int], list[list[int]]]  # (p, chunks per stage) -> the stage of each chunk of each chain
    count: Callable[[Numbers, Numbers], Numbers]  # (p, chunks per stage) -> chunks of a chain
    last: Callable[[Numbers, Numbers, Numbers], Numbers]  # (stage, p, chunks per stage) -> the last chunk of a stage
    stage_of: Callable[[Numbers, Numbers], Numbers]  # (chunk, p) -> stage
    num_chains: int = 1  # with two, a stage holds a chunk of each, and each has half of the microbatches

    def two_chunks(self, num_stages: Numbers) -> Numbers:
        """Return 1.0 where a stage that does not hold chunks in rounds has two, else 0.0: two chains of one stage."""
        ones = xp.ones_like(num_stages)
        return xp.where(num_stages > self.num_chains - 1.0, ones, 0.0 * ones)

    @property
    def in_rounds(self) -> bool:
        """Whether stage i holds chunks i, p + i, ..."""
        return self is IN_ROUNDS


IN_ROUNDS = StageChunks(
    chains=lambda num_stages, num_chunks: [[*range(num_stages)] * num_chunks],
    count=lambda num_stages, num_chunks: num_stages * num_chunks,
    last=lambda stage, num_stages, num_chunks: (num_chunks - 1) * num_stages + stage,
    stage_of=lambda chunk, num_stages: chunk - num_stages * xp.floor(chunk / num_stages),
)

# Two chains in opposite directions: stages i and p - 1 - i hold the same two chunks, i and p - 1 - i.
MIRRORED = StageChunks(
    chains=lambda num_stages, _: [[*range(num_stages)], [*range(num_stages)][::-1]],
    count=lambda num_stages, _: num_stages,
    last=lambda stage, num_stages, _: num_stages - 1 - stage,
    stage_of=lambda chunk, num_stages: xp.minimum(chunk, num_stages - 1 - chunk),
    num_chains=2,
)

# A chain that turns back on the last stage, in the shape of a V: stage i holds chunks i and 2p - 1 - i.
FOLDED = StageChunks(
    chains=lambda num_stages, _: [[*range(num_stages), *range(num_stages)[::-1]]],
    count=lambda num_stages, _: 2 * num_stages,
    last=lambda stage, num_stages, _: 2 * num_stages - 1 - stage,
    stage_of=lambda chunk, num_stages: xp.minimum(chunk, 2 * num_stages - 1 - chunk),
)


def of_pipeline(holds: StageChunks, num_stages: int) -> StageChunks:
    """Return which chunks the stages of a pipeline hold, from those of its schedule: one stage has one chain."""
    return holds if num_stages > 1 else IN_ROUNDS
