"""DualPipe: two directions at once (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe).

One half of the microbatches enters at the first stage, the other half at the last one. So each stage holds the weights
of two chunks, and the stages i and p - 1 - i do the same at the same time. A forward and a backward of opposite
directions run side by side, and the collectives of each hide behind the compute of the other.

The order is that of `DualPipe.step`, whose steps are numbered here as there. Of the two chunks of a stage, a microbatch
comes through the near one first if it enters on the same half of the pipeline, else through the far one.
"""

from typing import Any, NamedTuple

from dsx import arrays as xp
from dsx.schedules.closed_forms import PipelineView, StageView, Wave, to_earlier, to_later
from dsx.schedules.order import Kind, Order, Pair, Pass


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


def _of_stage(stage: int, num_stages: int, each: int) -> Order:
    last = num_stages - 1 - stage
    position, is_second = min(stage, last), stage > last
    chunk_of = {0: num_stages + last, 1: stage} if is_second else {0: stage, 1: num_stages + last}  # near, far
    half = num_stages // 2
    later = half - 1 - position
    done: dict[tuple[Kind, int], int] = {}
    left: list[Pass] = []  # weight gradients that are put off
    order: list[Pass | Pair] = []

    def nth(kind: Kind, far: int) -> Pass:
        counted: Kind = "backward" if kind == "inputs" else kind
        number = done.setdefault((counted, far), 0)
        done[counted, far] += 1
        if kind == "inputs":
            left.append(Pass("weights", number, chunk_of[far]))
        return Pass(kind, number, chunk_of[far])

    def both(far: int) -> Pair:
        return Pair(nth("forward", far), nth("backward", 1 - far))

    order += [nth("forward", 0) for _ in range(2 * later)]  # 1
    for _ in range(position + 1):  # 2
        order += [nth("forward", 0), nth("forward", 1)]
    for _ in range(later):  # 3
        order += [nth("inputs", 1), left.pop(0), nth("forward", 1)]
    for number in range(each - num_stages + position + 1):  # 4
        apart = number == 0 and not later  # in the middle of the pipeline, to begin the other direction sooner
        order += [nth("forward", 0), nth("backward", 1)] if apart else [both(0)]
        order.append(both(1))
    for _ in range(later):  # 5
        order += [nth("backward", 1), both(1)]
    for number in range(position + 1):  # 6
        order.append(nth("inputs" if 2 * number > position else "backward", 1))
        order.append(nth("inputs" if 2 * number >= position else "backward", 0))
    for _ in range(later):  # 7
        order += [left.pop(0), nth("inputs", 0)]
    return order + left  # 8


def num_pairs(num_stages: Any, num_microbatches: Any) -> Any:
    """Return how many forwards and backwards a stage runs in pairs, the mean over the stages."""
    half = 0.5 * num_stages
    # Two in each round of step 4, one in each of step 5, and on the middle stages one less.
    return num_microbatches - 3.0 * half + 1.0 + 0.5 * (half - 1.0) - 1.0 / half


class _DualPipeWaves(NamedTuple):
    """What a stage of the first half runs, seconds, and its part of the waves that decide how long a step takes."""

    whole: Any  # all its passes
    forwards: Wave  # the first forward of the far chunks
    gradients: Wave  # the first gradients of the far chunks
    pairs: Wave  # near forwards with far backwards, the first ones
    pairs_back: Wave  # far forwards with near backwards, likewise
    last_pairs: Wave
    last_pairs_back: Wave
    last_far: Wave  # the last gradients of the far chunks
    last_near: Wave


def dual_pipe_s(pipe: PipelineView) -> Any:
    """Return the seconds of DualPipe; the stages of `pipe` are those of the first half.

    Forwards go down to the middle and, on the far chunks, back up; so do gradients. Then forwards and backwards of
    opposite directions run in pairs, and the last gradients go down and up once more.
    """
    of_stages = [_waves(stage, pipe) for stage in pipe.stages]
    begins = [stage.before.forward for stage in pipe.stages]
    begins = to_earlier(begins, [own.forwards for own in of_stages], pipe)
    begins = to_later(begins, [own.gradients for own in of_stages], pipe)
    down = to_later(begins, [own.pairs for own in of_stages], pipe)
    back = to_earlier(begins, [own.pairs_back for own in of_stages], pipe)
    begins = [xp.maximum(one, other) for one, other in zip(down, back, strict=True)]
    begins = to_later(begins, [own.last_pairs for own in of_stages], pipe)
    begins = to_earlier(begins, [own.last_pairs_back for own in of_stages], pipe)
    begins = to_later(begins, [own.last_far for own in of_stages], pipe)
    begins = to_earlier(begins, [own.last_near for own in of_stages], pipe)
    return pipe.largest([begin + own.whole for begin, own in zip(begins, of_stages, strict=True)])


def _waves(stage: StageView, pipe: PipelineView) -> _DualPipeWaves:
    """Return the waves of a stage from the numbers of passes in the steps of its order."""
    near, far, position, one = stage.first, stage.last, stage.position, xp.ones_like(stage.position)
    is_first = xp.where(position > 0.0, 0.0 * one, one)
    later = 0.5 * pipe.pp - 1.0 - position  # stages of the first half after it
    in_middle = xp.where(later > 0.0, 0.0 * one, one)
    turn = (
        in_middle * pipe.middle_s
    )  # from the near chunk of a middle stage to the far chunk of the other one, and back
    num_rounds = 0.5 * pipe.num_microbatches - pipe.pp + position + 1.0  # of step 4
    hidden = near.hidden + far.hidden
    pair, pair_back = near.forward + far.backward - hidden, turn + far.forward + near.backward - hidden
    apart = in_middle * hidden  # as the first pair of the middle stages runs one after the other
    filled = 2.0 * later * near.forward + (position + 1.0) * (near.forward + turn + far.forward)  # 1 and 2
    before_pairs = filled + later * (far.backward + far.forward)  # 1 to 3
    until_last_pair_back = before_pairs + num_rounds * (pair + pair_back) + apart + later * (far.backward + pair_back)
    whole = until_last_pair_back + (position + 1.0) * (far.backward + turn + near.backward) + later * near.backward
    # Of the weight gradients that are put off in step 6, every other one is of the near chunk, also the last one.
    far_weights = xp.floor(0.5 * (position + 1.0))
    last_far_weights = xp.floor(0.5 * xp.maximum(position + 1.0 - later, 0.0 * one))  # of step 8
    put_off = far_weights * far.weights + (position + 1.0 - far_weights + later) * near.weights
    last_put_off = last_far_weights * far.weights + (position + 1.0 - last_far_weights) * near.weights
    last_far = far.inputs + is_first * far.weights  # only the first stage computes both gradients
    of_last_far = last_far + turn + (1.0 + later) * near.inputs + put_off
    sends = stage.sends_s  # the sends of a pair go at the same time
    pairs_before = stage.before.forward + stage.after.backward - stage.before.hidden - stage.after.hidden - sends
    pairs_back_before = stage.after.forward + stage.before.backward - stage.before.hidden - stage.after.hidden - sends
    last_round = pair + pair_back + later * (far.backward + pair_back)
    runs_apart = xp.where(num_rounds > 1.0, 0.0 * one, one) * apart
    return _DualPipeWaves(
        whole=whole,
        forwards=Wave((2.0 * later + 1.0) * near.forward + turn, far.forward, stage.after.forward),
        gradients=Wave(filled + in_middle * near.forward, far.inputs + in_middle * far.weights, stage.after.inputs),
        pairs=Wave(
            before_pairs + position * (pair + pair_back) + (1.0 - is_first) * apart,
            pair + is_first * apart,
            pairs_before,
        ),
        pairs_back=Wave(before_pairs + pair + apart, pair_back, pairs_back_before),
        last_pairs=Wave(until_last_pair_back - last_round - runs_apart, pair + runs_apart, pairs_before),
        last_pairs_back=Wave(until_last_pair_back - pair_back, pair_back, pairs_back_before),
        last_far=Wave(whole - of_last_far, last_far, stage.after.inputs + (1.0 - is_first) * pipe.first.last.weights),
        last_near=Wave(whole - last_put_off - near.inputs, near.inputs, stage.before.inputs),
    )
