"""DualPipe: two directions at once (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe).

One half of the microbatches enters at the first stage, the other half at the last one. So each stage holds the weights
of two chunks, and the stages i and p - 1 - i do the same at the same time. A forward and a backward of opposite
directions run side by side, and the collectives of each hide behind the compute of the other.

The order is that of `DualPipe.step`, whose steps are numbered here as there. Of the two chunks of a stage, a microbatch
comes through the near one first if it enters on the same half of the pipeline, else through the far one.
"""

from dsx import arrays as xp
from dsx.schedules.closed_forms import PipelineView, StageView, Wave, along, to_earlier, to_later
from dsx.schedules.order import Kind, Numbers, Order, Pair, Pass


def dual_pipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order of each stage.

    Chunks 0 to p-1 are those of the first direction, p to 2p-1 of the second; both have the microbatches 0 to m/2-1.
    Raises ValueError if the stages are not even, or the microbatches are not even or fewer than twice the stages.
    """
    if num_chunks > 1 or num_stages % 2 or num_microbatches % 2 or num_microbatches < 2 * num_stages:
        raise ValueError(
            f"DualPipe runs an even number of stages, with an even number of microbatches, twice as many as stages or "
            f"more, and one chunk; not {num_microbatches} microbatches on {num_stages} stages with {num_chunks} chunks"
        )
    return [_of_stage(stage, num_stages, num_microbatches // 2) for stage in range(num_stages)]


def _of_stage(stage: int, num_stages: int, of_direction: int) -> Order:
    last = num_stages - 1 - stage
    position, is_second = min(stage, last), stage > last
    chunk_of = {0: num_stages + last, 1: stage} if is_second else {0: stage, 1: num_stages + last}  # near, far
    half = num_stages // 2
    later = half - 1 - position
    done: dict[tuple[Kind, int], int] = {}
    put_off: list[Pass] = []  # weight gradients
    order: list[Pass | Pair] = []

    def nth(kind: Kind, far: int) -> Pass:
        counted: Kind = "backward" if kind == "inputs" else kind
        number = done.setdefault((counted, far), 0)
        done[counted, far] += 1
        if kind == "inputs":
            put_off.append(Pass("weights", number, chunk_of[far]))
        return Pass(kind, number, chunk_of[far])

    def both(far: int) -> Pair:
        return Pair(nth("forward", far), nth("backward", 1 - far))

    order += [nth("forward", 0) for _ in range(2 * later)]  # 1
    for _ in range(position + 1):  # 2
        order += [nth("forward", 0), nth("forward", 1)]
    for _ in range(later):  # 3
        order += [nth("inputs", 1), put_off.pop(0), nth("forward", 1)]
    for number in range(of_direction - num_stages + position + 1):  # 4
        apart = number == 0 and not later  # in the middle of the pipeline, to begin the other direction sooner
        order += [nth("forward", 0), nth("backward", 1)] if apart else [both(0)]
        order.append(both(1))
    for _ in range(later):  # 5
        order += [nth("backward", 1), both(1)]
    for number in range(position + 1):  # 6
        order.append(nth("inputs" if 2 * number > position else "backward", 1))
        order.append(nth("inputs" if 2 * number >= position else "backward", 0))
    for _ in range(later):  # 7
        order += [put_off.pop(0), nth("inputs", 0)]
    return order + put_off  # 8


def num_pairs(num_stages: Numbers, num_microbatches: Numbers) -> Numbers:
    """Return how many forwards and backwards a stage runs in pairs, the mean over the stages."""
    half = 0.5 * num_stages
    # Two in each round of step 4, one in each of step 5, and on the middle stages one less.
    return num_microbatches - 3.0 * half + 1.0 + 0.5 * (half - 1.0) - 1.0 / half


def dual_pipe_s(pipe: PipelineView) -> Numbers:
    """Return the seconds of DualPipe; the stages of `pipe` are those of the first half.

    Forwards go down to the middle and, on the far chunks, back up; so do gradients. Then forwards and backwards of
    opposite directions run in pairs, and the last gradients go down and up once more.
    """
    stage_s, fill, pairs, drain = zip(*(_waves(stage, pipe) for stage in pipe.stages), strict=True)
    begins = along([stage.earlier.forward for stage in pipe.stages], fill, pipe, later=False)
    down, back = zip(*pairs, strict=True)
    at_once = zip(to_later(begins, down, pipe), to_earlier(begins, back, pipe), strict=True)
    begins = [xp.maximum(*times) for times in at_once]
    begins = along(begins, drain, pipe, later=True)
    return pipe.largest([begin + passes_s for begin, passes_s in zip(begins, stage_s, strict=True)])


def _waves(
    stage: StageView, pipe: PipelineView
) -> tuple[Numbers, tuple[Wave, Wave], tuple[Wave, Wave], tuple[Wave, ...]]:
    """Return what a stage of the first half runs, seconds, and its part of the waves that decide how long a step takes.

    These are the first forward and the first gradients of the far chunks; then, at once, the first pairs of near
    forwards with far backwards, and of far forwards with near backwards; then the last ones of either, and the last
    gradients of the far and of the near chunks. They follow from the numbers of passes in the steps of its order.
    """
    near, far, position, ones = stage.first, stage.last, stage.position, xp.ones_like(stage.position)
    zero = 0.0 * ones
    is_first = xp.where(position > 0.0, zero, ones)
    later = 0.5 * pipe.pp - 1.0 - position  # stages of the first half after it
    in_middle = xp.where(later > 0.0, zero, ones)
    # From the near chunk of a middle stage to the far chunk of the other one, and back.
    turn = in_middle * pipe.middle_s
    num_rounds = 0.5 * pipe.num_microbatches - pipe.pp + position + 1.0  # of step 4
    hidden = near.hidden + far.hidden
    pair, pair_back = near.forward + far.backward - hidden, turn + far.forward + near.backward - hidden
    apart = in_middle * hidden  # as the first pair of the middle stages runs one after the other
    filled = 2.0 * later * near.forward + (position + 1.0) * (near.forward + turn + far.forward)  # 1 and 2
    before_pairs = filled + later * (far.backward + far.forward)  # 1 to 3
    until_last_pair_back = before_pairs + num_rounds * (pair + pair_back) + apart + later * (far.backward + pair_back)
    stage_s = until_last_pair_back + (position + 1.0) * (far.backward + turn + near.backward) + later * near.backward
    # Of the weight gradients that are put off in step 6, every other one is of the near chunk, also the last one.
    far_weights = xp.floor(0.5 * (position + 1.0))
    last_far_weights = xp.floor(0.5 * xp.maximum(position + 1.0 - later, zero))  # of step 8
    put_off = far_weights * far.weights + (position + 1.0 - far_weights + later) * near.weights
    last_put_off = last_far_weights * far.weights + (position + 1.0 - last_far_weights) * near.weights
    last_far = far.inputs + is_first * far.weights  # only the first stage computes both gradients
    of_last_far = last_far + turn + (1.0 + later) * near.inputs + put_off
    down, up, sends = stage.earlier, stage.later, stage.sends_s  # the sends of a pair go at the same time
    pairs_before = down.forward + up.backward - down.hidden - up.hidden - sends
    pairs_back_before = up.forward + down.backward - down.hidden - up.hidden - sends
    last_round = pair + pair_back + later * (far.backward + pair_back)
    runs_apart = xp.where(num_rounds > 1.0, zero, ones) * apart
    first_pairs = before_pairs + position * (pair + pair_back) + (1.0 - is_first) * apart
    return (
        stage_s,
        (
            Wave((2.0 * later + 1.0) * near.forward + turn, far.forward, up.forward),
            Wave(filled + in_middle * near.forward, far.inputs + in_middle * far.weights, up.inputs),
        ),
        (
            Wave(first_pairs, pair + is_first * apart, pairs_before),
            Wave(before_pairs + pair + apart, pair_back, pairs_back_before),
        ),
        (
            Wave(until_last_pair_back - last_round - runs_apart, pair + runs_apart, pairs_before),
            Wave(until_last_pair_back - pair_back, pair_back, pairs_back_before),
            Wave(stage_s - of_last_far, last_far, up.inputs + (1.0 - is_first) * pipe.first.last.weights),
            Wave(stage_s - last_put_off - near.inputs, near.inputs, down.inputs),
        ),
    )
