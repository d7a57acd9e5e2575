"""The order in which each stage of a pipeline runs its passes, as data.

A pass takes one microbatch through one chunk of layers: its forward, its backward, or, where a schedule splits the
backward, the gradients of the activations (then called the backward) and those of the weights. Chunks are numbered in
the order of the forward; with v chunks per stage, stage i of p has the chunks i, p + i, 2p + i, ...

The closed forms of `dsx.cost.pipeline` say how long such an order takes; `tests/space/replay.py` runs it, and so is
their referee.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "weights"]
Order = list["Pass"]  # the passes of one stage, first to last


class Pass(NamedTuple):
    """One microbatch through one chunk; both count from 0."""

    kind: Kind
    microbatch: int
    chunk: int


def stage_of(chunk: int, num_stages: int) -> int:
    """Return the stage that has a chunk."""
    return chunk % num_stages


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order of each stage: all forwards, then all backwards (Huang et al., arXiv 1811.06965, figure 2)."""
    _check_chunks("gpipe", num_chunks)
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


def zero_bubble(held_by: Callable[[int], int]) -> Callable[..., list[Order]]:
    """Return a schedule that splits the backward and holds at most `held_by(num_stages)` microbatches on a stage.

    A stage that is free runs a backward if it can, else a forward if it may hold one more microbatch, else weight
    gradients: the rule of Qi et al. (arXiv 2401.10241, section 3.1), for passes of equal length.
    """

    def orders(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
        _check_chunks("a zero-bubble schedule", num_chunks)
        stages = [_Stage(stage, num_stages, held_by(num_stages)) for stage in range(num_stages)]
        while any(len(stage.order) < 3 * num_microbatches for stage in stages):
            chosen: list[tuple[_Stage, Kind | None]] = [
                (stage, stage.next_pass(stages, num_microbatches)) for stage in stages
            ]
            for stage, kind in chosen:
                stage.run(kind)
        return [stage.order for stage in stages]

    return orders


class _Stage:
    """A stage at some moment; every pass takes one unit of time."""

    def __init__(self, position: int, num_stages: int, most_held: int) -> None:
        self.position, self.num_stages, self.most_held = position, num_stages, most_held
        self.done: dict[Kind, int] = {"forward": 0, "backward": 0, "weights": 0}
        self.order: Order = []

    def next_pass(self, stages: "Sequence[_Stage]", num_microbatches: int) -> Kind | None:
        """Return what the stage runs now, if anything."""
        last = self.position == self.num_stages - 1
        forwards, backwards, weights = self.done.values()
        arrived = forwards if last else stages[self.position + 1].done["backward"]
        if backwards < arrived:
            return "backward"
        given = num_microbatches if self.position == 0 else stages[self.position - 1].done["forward"]
        if forwards < given and forwards - weights < self.most_held:
            return "forward"
        return "weights" if weights < backwards else None

    def run(self, kind: Kind | None) -> None:
        """Run a pass of the next microbatch."""
        if kind:
            self.order.append(Pass(kind, self.done[kind], self.position))
            self.done[kind] += 1


def _check_chunks(name: str, num_chunks: int) -> None:
    if num_chunks > 1:
        raise ValueError(f"{name} has one chunk per stage, not {num_chunks}")
