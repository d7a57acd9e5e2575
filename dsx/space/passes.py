"""The order in which each stage of a pipeline runs its passes, as data.

A pass takes one microbatch through one chunk of layers: its forward, its backward, or, where a schedule splits the
backward, the gradients of its inputs and those of its weights. The head is never split: the pass for the gradients
of inputs computes both of the head, which then keeps no logits. Measured peaks say so (`Schedule.weights_wait` of
`dsx.space.schedules`). Chunks are numbered in the order of the forward, and
`dsx.space.stage_chunks` says which stage has which.

The closed forms of `dsx.cost.pipeline` say how long such an order takes; `dsx.space.pass_times` replays it, and so is
their referee.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "inputs", "weights"]
Order = Sequence["Pass | Pair"]  # the passes of one stage, first to last


class Pass(NamedTuple):
    """One microbatch through one chunk; both count from 0."""

    kind: Kind
    microbatch: int
    chunk: int


class Pair(NamedTuple):
    """A forward and a backward that a stage runs side by side."""

    forward: Pass
    backward: Pass


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
