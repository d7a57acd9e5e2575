"""Zero-bubble schedules, which split the backward: ZB-H1, greedy ones (Qi et al., arXiv 2401.10241), and ZB-V.

The gradients of weights wait for nothing and nothing waits for them, so they fill the time in which a stage would wait.

ZB-V has the shape of a V (Qi et al., arXiv 2405.15362, section 3.2). A stage holds two chunks: a near one, through
which a microbatch comes on its way to the last stage, and a far one on the way back. So the last chunk is on the first
stage, and all stages hold as much as the first one does in 1F1B. With passes of equal length a stage waits for nothing
but its first forward. The order is that of PyTorch's `torch.distributed.pipelining.ScheduleZBVZeroBubble`.
"""

from collections.abc import Callable

from dsx import arrays as xp
from dsx.schedules.closed_forms import ClosedForm, PipelineView, StageView, Wave, along, to_earlier, to_later
from dsx.schedules.order import Kind, Numbers, Order, Pass, check_chunks


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
        put_off = max(num_microbatches - stage, 0)
        orders.append(order + [Pass("weights", number, stage) for number in range(put_off, num_microbatches)])
    return orders


def zero_bubble_h1_s(pipe: PipelineView) -> Numbers:
    """Return the seconds of ZB-H1 with at least as many microbatches as stages.

    The first forward goes down and the first gradients go up, and so do the last ones.
    """
    of_stages = [_waves_h1(stage, pipe) for stage in pipe.stages]
    stage_s, first_inputs, last_forwards, last_inputs = zip(*of_stages, strict=True)
    down = [stage.earlier.forward for stage in pipe.stages]
    begins = to_earlier(down, first_inputs, pipe)
    # Of only p microbatches, the first stage runs the last forward before it gets its first gradients.
    behind = [
        xp.where((stage.position > 0.0) | (pipe.num_microbatches > pipe.pp), new, old)
        for stage, new, old in zip(pipe.stages, begins, down, strict=True)
    ]
    behind = to_later(behind, last_forwards, pipe)
    begins = [xp.maximum(new, old) for new, old in zip(behind, begins, strict=True)]
    begins = to_earlier(begins, last_inputs, pipe)
    return pipe.largest([begin + passes_s for begin, passes_s in zip(begins, stage_s, strict=True)])


def _waves_h1(stage: StageView, pipe: PipelineView) -> tuple[Numbers, Wave, Wave, Wave]:
    """Return the seconds of all passes of a stage, and its part of the first and last passes."""
    microbatches, passes = pipe.num_microbatches, stage.chunks
    ahead = pipe.pp - 1.0 - stage.position
    before_last = microbatches - 1.0 - ahead  # gradients of inputs before the last forward
    delayed = xp.maximum(before_last - stage.position, xp.zeros_like(before_last))
    waits = xp.zeros_like(before_last)  # for long sends, while forwards and gradients of inputs alternate
    if stage.delays:
        mean_s = pipe.bare_s / pipe.pp - passes.weights
        delays = stage.delays._replace(bare_s=stage.delays.bare_s - passes.weights)
        put_off = passes.weights * delayed / xp.maximum(before_last, xp.ones_like(before_last))
        waits = delays.alternating_s(passes.forward + passes.inputs + put_off, mean_s, before_last, 2.0)
    inputs = microbatches * passes.forward + (microbatches - 1.0) * passes.inputs
    inputs = inputs + (microbatches - 1.0 - stage.position) * passes.weights
    return (
        microbatches * passes.both + waits,
        Wave((ahead + 1.0) * passes.forward, passes.inputs, stage.earlier.inputs),
        Wave(
            (microbatches - 1.0) * passes.forward + before_last * passes.inputs + delayed * passes.weights + waits,
            passes.forward,
            stage.earlier.forward,
        ),
        Wave(inputs + waits, passes.inputs, stage.earlier.inputs),
    )


def greedy(held_by: Callable[[int], int]) -> Callable[..., list[Order]]:
    """Return a schedule that splits the backward and holds at most `held_by(num_stages)` microbatches on a stage.

    A stage that is free runs gradients of inputs if it can, else a forward if it may hold one more microbatch, else
    weight gradients: the rule of Qi et al. (arXiv 2401.10241, section 3.1), for passes of equal length.
    """

    def orders(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
        check_chunks("a zero-bubble schedule", num_chunks)
        most_held = held_by(num_stages)
        done: list[dict[Kind, int]] = [{"forward": 0, "inputs": 0, "weights": 0} for _ in range(num_stages)]
        passes: list[list[Pass]] = [[] for _ in range(num_stages)]

        def next_pass(stage: int) -> Kind | None:
            """Return what a stage runs now, if anything; every pass takes one unit of time."""
            forwards, inputs, weights = done[stage].values()
            if inputs < (forwards if stage == num_stages - 1 else done[stage + 1]["inputs"]):
                return "inputs"
            arrived = num_microbatches if stage == 0 else done[stage - 1]["forward"]
            if forwards < arrived and forwards - weights < most_held:
                return "forward"
            return "weights" if weights < inputs else None

        while any(len(order) < 3 * num_microbatches for order in passes):
            chosen: list[Kind | None] = [next_pass(stage) for stage in range(num_stages)]
            for stage, kind in enumerate(chosen):
                if kind:
                    passes[stage].append(Pass(kind, done[stage][kind], stage))
                    done[stage][kind] += 1
        return [*passes]

    return orders


def filled_s(filled: float) -> ClosedForm:
    """Return the closed form of a schedule that fills the bubble with `filled` weight gradients per other stage.

    A step is no shorter than a path without weight gradients: down the stages, all microbatches on the last one, up.
    """

    def seconds(pipe: PipelineView) -> Numbers:
        slowest = pipe.largest([stage.chunks.both for stage in pipe.stages])
        further = pipe.microbatch.both - slowest - filled * (pipe.pp - 1.0) * pipe.weights_s
        filling = pipe.num_microbatches * slowest + xp.maximum(further, xp.zeros_like(further))
        on_last = (pipe.num_microbatches - 1.0) * (pipe.last.chunks.both - pipe.weights_s)
        return xp.maximum(filling, pipe.microbatch.both - (pipe.pp - 1.0) * pipe.weights_s + on_last)

    return seconds


def zb_v(num_stages: int, num_microbatches: int, num_chunks: int = 2) -> list[Order]:
    """Return the order of each stage; raises ValueError for fewer than 2p microbatches, or other than two chunks."""
    if num_chunks != 2 or num_microbatches < 2 * num_stages:
        raise ValueError(
            f"ZB-V has two chunks per stage, and twice as many microbatches as stages or more; not {num_microbatches} "
            f"microbatches on {num_stages} stages with {num_chunks} chunks"
        )
    return [_of_stage(stage, num_stages, num_microbatches) for stage in range(num_stages)]


def _of_stage(stage: int, num_stages: int, num_microbatches: int) -> Order:
    later, chunks = num_stages - 1 - stage, (stage, 2 * num_stages - 1 - stage)
    done: dict[tuple[Kind, int], int] = {}
    order: list[Pass] = []

    def run(far: int, *kinds: Kind) -> None:
        for kind in kinds:
            number = done.setdefault((kind, far), 0)
            done[kind, far] += 1
            order.append(Pass(kind, number, chunks[far]))

    for _ in range(2 * later + 1):
        run(0, "forward")
    for _ in range(stage):
        run(1, "forward")
        run(0, "forward")
    for _ in range(later + 1):
        run(1, "forward", "inputs", "weights")
    for number in range(num_microbatches - num_stages):
        if number < num_microbatches - num_stages - later:
            run(0, "forward")
        run(0, "inputs", "weights")
        run(1, "forward", "inputs", "weights")
    for _ in range(stage):
        run(0, "inputs")
        run(1, "inputs")
    for _ in range(later + 1):
        run(0, "inputs", "weights")
    for far in (1, 0):
        for _ in range(stage):
            run(far, "weights")
    return order


def zb_v_s(pipe: PipelineView) -> Numbers:
    """Return the seconds of ZB-V: the first microbatch goes down and up, twice, and so does the last one."""
    stage_s, waves = zip(*(_waves(stage, pipe) for stage in pipe.stages), strict=True)
    begins = along([stage.earlier.forward for stage in pipe.stages], waves, pipe, later=False)
    return pipe.largest([begin + passes_s for begin, passes_s in zip(begins, stage_s, strict=True)])


def _waves(stage: StageView, pipe: PipelineView) -> tuple[Numbers, tuple[Wave, ...]]:
    """Return the seconds of all passes of a stage, and its part of the waves that decide how long a step takes."""
    near, far, position, microbatches = stage.first, stage.last, stage.position, pipe.num_microbatches
    later = pipe.pp - 1.0 - position
    down, up = stage.earlier, stage.later
    ahead = (2.0 * later + 1.0) * near.forward  # up to the first forward of the far chunk
    filled = ahead + position * (near.forward + far.forward)
    begun = filled + (later + 1.0) * far.both
    a_round = near.both + far.both
    stage_s = microbatches * a_round
    rounds = microbatches - pipe.pp
    ended = begun + rounds * a_round - later * near.forward  # in the last rounds no near forward is left
    put_off = position * (near.weights + far.weights)
    before_far_inputs = ended + position * (near.inputs + far.inputs) - far.inputs
    in_round = ended - far.weights - far.inputs  # the first stage runs its last ones in the last round
    # Forwards and gradients of inputs of the first microbatch, and of the last one.
    return stage_s, (
        Wave(ahead, far.forward, up.forward),
        Wave(filled + far.forward, far.inputs, up.inputs),
        Wave(begun + near.forward, near.inputs, down.inputs),
        Wave(begun + (rounds - later - 1.0) * a_round, near.forward, down.forward),
        Wave(ended - far.both, far.forward, up.forward),
        Wave(xp.where(position > 0.0, before_far_inputs, in_round), far.inputs, up.inputs),
        Wave(stage_s - put_off - near.both + near.forward, near.inputs, down.inputs),
    )
