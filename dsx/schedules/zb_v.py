"""ZB-V: a zero-bubble schedule in the shape of a V (Qi et al., arXiv 2405.15362, section 3.2).

A stage holds two chunks: a near one, through which a microbatch comes on its way to the last stage, and a far one on
the way back. So the last chunk is on the first stage, and all stages hold as much as the first one does in 1F1B. With
passes of equal length a stage waits for nothing but its first forward. The order is that of PyTorch's
`torch.distributed.pipelining.ScheduleZBVZeroBubble`.
"""

from dsx import arrays as xp
from dsx.schedules.closed_forms import PipelineView, StageView, Wave, along
from dsx.schedules.order import Kind, Numbers, Order, Pass


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
