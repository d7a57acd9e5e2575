"""Zero-bubble schedules, which split the backward (Qi et al., arXiv 2401.10241).

The gradients of weights wait for nothing and nothing waits for them, so they fill the time in which a stage would wait.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dsx import arrays as xp
from dsx.schedules.closed_forms import ClosedForm, PipelineView, StageView, Wave, to_earlier, to_later
from dsx.schedules.order import Kind, Order, Pass, check_chunks


def zero_bubble_h1(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order of each stage in ZB-H1 (section 2.2 and figure 2 there).

    It is that of 1F1B, but stage i computes the weight gradients of a microbatch i microbatches later. So a later stage
    returns its first gradients sooner, and all stages hold as many microbatches.
    """
    check_chunks("zb-h1", num_chunks)
    orders: list[Order] = []
    for stage in range(num_stages):
        ahead = min(num_stages - 1 - stage, num_microbatches)
        order = [Pass("forward", number, stage) for number in range(ahead)]
        for number in range(num_microbatches):
            if ahead + number < num_microbatches:
                order.append(Pass("forward", ahead + number, stage))
            order.append(Pass("inputs", number, stage))
            if number >= stage:
                order.append(Pass("weights", number - stage, stage))
        first_left = max(num_microbatches - stage, 0)
        orders.append(order + [Pass("weights", number, stage) for number in range(first_left, num_microbatches)])
    return orders


def zero_bubble_h1_s(pipe: PipelineView) -> Any:
    """Return the seconds of ZB-H1 with at least as many microbatches as stages.

    The first forward goes down and the first gradients go up, and so do the last ones.
    """
    of_stages = [_waves_h1(stage, pipe) for stage in pipe.stages]
    whole, first_inputs, last_forwards, last_inputs = zip(*of_stages, strict=True)
    down = [stage.before.forward for stage in pipe.stages]
    begins = to_earlier(down, first_inputs, pipe)
    # Of only p microbatches, the first stage runs the last forward before it gets its first gradients.
    behind = [
        xp.where((stage.position > 0.0) | (pipe.num_microbatches > pipe.pp), new, old)
        for stage, new, old in zip(pipe.stages, begins, down, strict=True)
    ]
    behind = to_later(behind, last_forwards, pipe)
    begins = [xp.maximum(new, old) for new, old in zip(behind, begins, strict=True)]
    begins = to_earlier(begins, last_inputs, pipe)
    return pipe.largest([begin + own for begin, own in zip(begins, whole, strict=True)])


def _waves_h1(stage: StageView, pipe: PipelineView) -> tuple[Any, Wave, Wave, Wave]:
    """Return the seconds of all passes of a stage, and its part of the first and last passes."""
    many, own = pipe.num_microbatches, stage.own
    ahead = pipe.pp - 1.0 - stage.position
    before_last = many - 1.0 - ahead  # gradients of inputs before the last forward
    delayed = xp.maximum(before_last - stage.position, xp.zeros_like(before_last))
    waits = xp.zeros_like(before_last)  # for long sends, while forwards and gradients of inputs alternate
    if stage.delays:
        delays, mean_s = stage.delays, pipe.bare_s / pipe.pp - own.weights
        delays = delays._replace(bare_s=delays.bare_s - own.weights)
        put_off = own.weights * delayed / xp.maximum(before_last, xp.ones_like(before_last))
        waits = delays.alternating_s(own.forward + own.inputs + put_off, mean_s, (before_last, 2.0))
    return (
        many * own.both + waits,
        Wave((ahead + 1.0) * own.forward, own.inputs, stage.before.inputs),
        Wave(
            (many - 1.0) * own.forward + before_last * own.inputs + delayed * own.weights + waits,
            own.forward,
            stage.before.forward,
        ),
        Wave(
            many * own.forward + (many - 1.0) * own.inputs + (many - 1.0 - stage.position) * own.weights + waits,
            own.inputs,
            stage.before.inputs,
        ),
    )


def greedy(held_by: Callable[[int], int]) -> Callable[..., list[Order]]:
    """Return a schedule that splits the backward and holds at most `held_by(num_stages)` microbatches on a stage.

    A stage that is free runs gradients of inputs if it can, else a forward if it may hold one more microbatch, else
    weight gradients: the rule of Qi et al. (arXiv 2401.10241, section 3.1), for passes of equal length.
    """

    def orders(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
        check_chunks("a zero-bubble schedule", num_chunks)
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
        self.done: dict[Kind, int] = {"forward": 0, "inputs": 0, "weights": 0}
        self.order: list[Pass] = []

    def next_pass(self, stages: "Sequence[_Stage]", num_microbatches: int) -> Kind | None:
        """Return what the stage runs now, if anything."""
        last = self.position == self.num_stages - 1
        forwards, inputs, weights = self.done.values()
        arrived = forwards if last else stages[self.position + 1].done["inputs"]
        if inputs < arrived:
            return "inputs"
        given = num_microbatches if self.position == 0 else stages[self.position - 1].done["forward"]
        if forwards < given and forwards - weights < self.most_held:
            return "forward"
        return "weights" if weights < inputs else None

    def run(self, kind: Kind | None) -> None:
        """Run a pass of the next microbatch."""
        if kind:
            self.order.append(Pass(kind, self.done[kind], self.position))
            self.done[kind] += 1


def filled_s(filled: float) -> ClosedForm:
    """Return the closed form of a schedule that fills the bubble with `filled` weight gradients per other stage.

    A step is no shorter than a path without weight gradients: down the stages, all microbatches on the last one, up.
    """

    def seconds(pipe: PipelineView) -> Any:
        slowest = pipe.largest([stage.own.both for stage in pipe.stages])
        others = pipe.whole.both - slowest - filled * (pipe.pp - 1.0) * pipe.weights_s
        filling = pipe.num_microbatches * slowest + xp.maximum(others, xp.zeros_like(others))
        on_last = (pipe.num_microbatches - 1.0) * (pipe.last.own.both - pipe.weights_s)
        return xp.maximum(filling, pipe.whole.both - (pipe.pp - 1.0) * pipe.weights_s + on_last)

    return seconds
