"""The seconds of a step of a pipeline: closed forms of the longest path through its passes.

A path goes down the stages with a forward, back up with a backward, and along the passes of a stage. A closed form is
the maximum over a few such paths. Each is seen from one stage: what comes before its first pass, its own passes, and
what comes after its last one. `tests/space/test_critical_path.py` compares the closed forms with a replay of the orders
in `dsx.space.passes`, and docs/model/pipeline.md says how far they are apart.

The closed forms are arithmetic on numbers or arrays; `xp` is NumPy, or a module with its functions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Passes(NamedTuple):
    """Seconds of a forward and of a backward."""

    forward: Any
    backward: Any
    weights: Any = 0.0  # the part of the backward that only computes weight gradients
    hidden: Any = 0.0  # the part of either that hides behind a pass of the opposite direction

    @property
    def both(self) -> Any:
        """The two together."""
        return self.forward + self.backward

    @property
    def inputs(self) -> Any:
        """The backward without weight gradients."""
        return self.backward - self.weights


class StageView(NamedTuple):
    """What one microbatch takes on a stage, before it and after it, with the sends that a stage waits for."""

    position: Any  # counted from 0
    own: Passes  # all chunks of the stage
    first: Passes  # its first chunk
    last: Passes  # its last chunk
    before: Passes  # the chunks before its first one: the first ones of the earlier stages
    after: Passes  # the chunks after its last one: the last ones of the later stages, or, mirrored, of the earlier ones


class PipelineView(NamedTuple):
    """A pipeline as its closed form needs it."""

    stages: Sequence[StageView]  # those that a longest path may stay on
    first: StageView
    last: StageView
    whole: Passes  # one microbatch through all chunks, with the hidden parts of its sends
    hop_s: Any  # the hidden part of one send, which delays a microbatch but keeps no stage busy
    weights_s: Any  # the part of a mean stage's backward that only computes weight gradients
    pp: Any
    vpp: Any
    num_microbatches: Any
    largest: Callable[[list[Any]], Any]  # the maximum over stages, from the values of `stages`
    of_earlier: Callable[[list[Any]], list[Any]]  # for each stage the maximum over the earlier ones, or -inf
    of_later: Callable[[list[Any]], list[Any]]  # likewise over the later ones


class AnyCut(NamedTuple):
    """What all cuts of a plan have in common, seconds of one microbatch with the sends that stages wait for."""

    whole_s: Any  # through all stages, with the hidden parts of its sends
    mean_s: Any  # on the mean stage
    largest_s: Any  # on a stage with only the largest layer
    last_s: Any  # on a stage with only the layers that the last stage always has
    pp: Any
    num_microbatches: Any


ClosedForm = Callable[[PipelineView, Any], Any]  # (pipeline, xp) -> seconds


def gpipe_s(pipe: PipelineView, xp: Any) -> Any:
    """Return the seconds of GPipe: one microbatch through all stages, and the others on the slowest ones."""
    del xp
    others = pipe.num_microbatches - 1.0
    slowest = [pipe.largest([stage.own[way] for stage in pipe.stages]) for way in (0, 1)]
    return pipe.whole.both + others * (slowest[0] + slowest[1])


def one_forward_one_backward_s(pipe: PipelineView, xp: Any) -> Any:
    """Return the seconds of 1F1B with one chunk per stage.

    One microbatch goes through all stages, and a slow stage runs the others. With n later stages it runs n forwards
    before its first backward, and n backwards after its last forward, so it waits for the later stages only where these
    take longer. If there are not so many microbatches, it runs all forwards before its first backward. Where sends take
    long, no stage is busy all the time: the p microbatches that the first stage holds make the round trip together.
    """
    many, whole = pipe.num_microbatches, pipe.whole.both
    rounds = xp.floor((many - 1.0) / pipe.pp)
    rest = many - 1.0 - rounds * pipe.pp

    def through(stage: StageView) -> Any:
        own, after = stage.own, stage.after.both
        later = pipe.pp - 1.0 - stage.position
        nothing = xp.zeros_like(own.both)
        fill = xp.maximum(after - later * own.forward, nothing)
        drain = xp.maximum(after - later * own.backward, nothing)
        alternating = whole + (many - 1.0) * own.both + (fill + drain - after)
        few = whole + (many - 1.0) * xp.maximum(own.forward, own.backward)
        longest = xp.where(many > later + 1.0, alternating, few)
        round_trips = (rounds + 1.0) * whole + rest * xp.maximum(own.both, whole / pipe.pp)
        return xp.where(many > pipe.pp, xp.maximum(longest, round_trips), longest)

    return pipe.largest([through(stage) for stage in pipe.stages])


def any_one_forward_one_backward_s(cut: AnyCut, xp: Any) -> Any:
    """Return a bound that 1F1B with one chunk per stage does not beat with any cut.

    A stage with n later stages causes at least (m - 1 - n) times itself and once the later stages, beyond a microbatch
    through all stages. If all of them caused less than (m - 1) mean stages, they would add up to less than all layers:
    weigh stage s with (m - 1) R / (m - 1 - n), where R is 1 less the weights of the earlier stages.
    """
    others = cut.num_microbatches - 1.0
    nothing = xp.zeros_like(cut.whole_s)
    full = xp.where(others >= cut.pp, others * cut.mean_s, nothing)
    rounds = xp.floor(others / cut.pp)
    rest = others - rounds * cut.pp
    round_trips = rounds * cut.whole_s + rest * xp.maximum(cut.mean_s, cut.whole_s / cut.pp)
    full = xp.maximum(full, xp.where(rounds > 0, round_trips, nothing))
    alone = xp.maximum((cut.num_microbatches - cut.pp) * cut.largest_s, others * cut.last_s)
    return cut.whole_s + xp.maximum(full, alone)


def interleaved_s(pipe: PipelineView, xp: Any) -> Any:
    """Return the seconds of interleaved 1F1B, with microbatches in groups of p and v chunks per stage.

    A stage with n later stages runs 2n + (v-1)p forwards of a chunk before it alternates. It begins once a forward
    comes down to it, with the p forwards of a heavier first stage before, and alternates once a microbatch went through
    all chunks and came back. In the middle of a step the slowest stage is busy: either from the second group on, or,
    if it is hardly slower, between the first and the last groups of the last stage.
    """
    pp, groups_of, chunks = pipe.pp, pipe.pp - 1.0, pipe.vpp
    many = pipe.num_microbatches
    passes = many * chunks
    per_round = (chunks - 1.0) * pp
    last = pipe.last
    mean_chunk_s = pipe.whole.both / (pp * chunks)

    def heavier(stage: StageView, way: int) -> Any:
        """Return the seconds that the p - 1 other microbatches of a group wait for the first stage, the heavier one."""
        more = pipe.first.first[way] - stage.first[way]
        return groups_of * xp.maximum(more, xp.zeros_like(more))

    def through(stage: StageView) -> Any:
        ahead = 2.0 * (groups_of - stage.position) + per_round
        done = xp.minimum(ahead + 1.0, passes) - per_round  # of the last chunk, and then of the first one again
        again = xp.maximum(done - pp, xp.zeros_like(done))

        def first_passes(way: int) -> Any:
            """Return the seconds of the passes up to the first backward, or from the last forward on."""
            rounds = pp * (stage.own[way] - stage.last[way])
            return rounds + (done - again) * stage.last[way] + again * stage.first[way]

        hops_before, hops_after = stage.position * pipe.hop_s, (groups_of - stage.position) * pipe.hop_s
        down, up = (stage.before[way] + hops_before + heavier(stage, way) for way in (0, 1))
        there = pipe.whole.forward + stage.after.backward + hops_after - first_passes(0)
        back = pipe.whole.backward + stage.after.forward + hops_after - first_passes(1)
        apart = xp.maximum(down, there) + xp.maximum(up, back)
        together = xp.maximum(down + up, xp.maximum(there + up, down + back))
        busy = many * stage.own.both
        second_group = stage.before.both + 2.0 * hops_before + (pp - 2.0 - stage.position) * last.last.backward
        lighter = stage.first.forward - last.first.forward
        second_group = second_group - pp * xp.maximum(lighter, xp.zeros_like(lighter))
        lag = xp.where(passes - 1.0 > ahead, apart, together)
        return busy + xp.where(many > pp, xp.maximum(lag, second_group), lag)

    on_last = (
        last.before.both + 2.0 * groups_of * pipe.hop_s + heavier(last, 0) + heavier(last, 1) + many * last.own.both
    )
    slowest = pipe.largest([stage.own.both for stage in pipe.stages])
    between = on_last - mean_chunk_s + (many - 2.0 * pp) * (slowest - last.own.both)
    longest = pipe.largest([through(stage) for stage in pipe.stages])
    return xp.where(many > 2.0 * pp, xp.maximum(longest, between), longest)
