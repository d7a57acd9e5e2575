"""The seconds of a step of a pipeline: closed forms of the longest path through its passes.

A path goes down the stages with a forward, back up with a backward, and along the passes of a stage. A closed form is
the maximum over a few such paths. Each is seen from one stage: what comes before its first pass, its own passes, and
what comes after its last one. `tests/plans/test_critical_path.py` compares the closed forms with a replay of the orders
in `dsx.schedules.order`, and docs/model/pipeline.md says how far they are apart.

The seconds of a pipeline whose stages run their passes in a fixed order, from the waves that pass along the stages.

A stage that never waits runs all its passes in one go. Where a microbatch comes from a neighbour too late for that, the
whole stage as well could have begun later. A wave is one pass of one microbatch on stage after stage. If it is known
how much a stage runs before its pass of a wave, the wave delays the beginnings of the stages by a running maximum, and
a few waves in turn give the seconds of a step. These are a bound below the longest path through all passes, and equal
to it unless it follows other waves.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dsx import arrays as xp


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

    def plus(self, other: "Passes") -> "Passes":
        """Return forwards and backwards together."""
        return Passes(self.forward + other.forward, self.backward + other.backward)


class Delays(NamedTuple):
    """What sends of a stage and of others delay on it, seconds."""

    bare_s: Any  # one microbatch on the stage without sends
    neighbour_s: Any  # the longest send between the stage and a neighbour
    # One microbatch on the first chunk, with the longest sends that this stage or an earlier one waits for; None of the
    # first stage.
    earlier: Passes | None
    longest_s: Any  # the longest send over an edge between this stage and the first one

    def earlier_s(self, first: Passes, way: int) -> Any:
        """Return the seconds of a pass on the first chunk, or of what takes longer on an earlier stage, or its send."""
        return first[way] if self.earlier is None else xp.maximum(self.earlier[way], self.longest_s)

    def alternating_s(self, own: Any, mean_s: Any, behind: tuple[Any, float]) -> Any:
        """Return the seconds by which so many microbatches of alternating passes take longer than those passes.

        `own` and `mean_s` are the seconds of both passes, on the stage and on the mean one. A forward goes to a
        neighbour, like the mean stage, and a backward comes back from it. `behind` has the number
        of microbatches, and how many of them are under way together.
        """
        many, together = behind
        there_and_back = self.bare_s + xp.minimum(self.bare_s, mean_s) + 2.0 * self.neighbour_s
        longer = xp.maximum(there_and_back - together * own, xp.zeros_like(own))
        return xp.floor(xp.maximum(many, xp.zeros_like(many)) / together) * longer


class StageView(NamedTuple):
    """What one microbatch takes on a stage, before it and after it, with the sends that a stage waits for."""

    position: Any  # counted from 0
    own: Passes  # all chunks of the stage
    first: Passes  # its first chunk
    last: Passes  # its last chunk
    # From the start of a microbatch until it is on its first chunk, and back from there: the first chunks of the
    # earlier stages, and all sends. What its own passes have of these sends is not in it.
    before: Passes
    # Likewise from its last chunk to the end: the last chunks of the later stages, or, mirrored, of the earlier ones.
    after: Passes
    sends_s: Any = 0.0  # the sends before it, one way
    delays: Delays | None = None  # if sends differ from stage to stage
    ends: bool = False  # whether it is known to be the last stage


class PipelineView(NamedTuple):
    """A pipeline as its closed form needs it."""

    stages: Sequence[StageView]  # those that a longest path may stay on
    first: StageView
    last: StageView
    whole: Passes  # one microbatch through all chunks, with its sends
    bare_s: Any  # without them, there and back
    middle_s: Any  # a send between the two stages in the middle
    weights_s: Any  # the part of a mean stage's backward that only computes weight gradients
    pp: Any
    vpp: Any
    num_microbatches: Any
    largest: Callable[[list[Any]], Any]  # the maximum over stages, from the values of `stages`
    of_earlier: Callable[[list[Any]], list[Any]]  # for each stage the maximum over the earlier ones, or -inf
    of_later: Callable[[list[Any]], list[Any]]  # likewise over the later ones


class AnyCut(NamedTuple):
    """What all cuts of a plan have in common, seconds of one microbatch with the sends that stages wait for."""

    whole_s: Any  # through all stages, with its sends
    mean_s: Any  # on the mean stage
    largest_s: Any  # on a stage with only the largest layer
    last_s: Any  # on a stage with only the layers that the last stage always has
    pp: Any
    num_microbatches: Any


ClosedForm = Callable[[PipelineView], Any]  # pipeline -> seconds


def gpipe_s(pipe: PipelineView) -> Any:
    """Return the seconds of GPipe: one microbatch through all stages, and the others on the slowest ones."""
    others = pipe.num_microbatches - 1.0

    def seconds(stage: StageView, way: int) -> Any:
        return xp.maximum(stage.own[way], stage.delays.longest_s) if stage.delays else stage.own[way]

    slowest = [pipe.largest([seconds(stage, way) for stage in pipe.stages]) for way in (0, 1)]
    return pipe.whole.both + others * (slowest[0] + slowest[1])


def one_forward_one_backward_s(pipe: PipelineView) -> Any:
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
        if stage.ends:
            return whole + (many - 1.0) * own.both
        few = whole + (many - 1.0) * xp.maximum(own.forward, own.backward)
        fill, drain = (xp.maximum(after - later * seconds, xp.zeros_like(seconds)) for seconds in own[:2])
        return xp.where(many > later + 1.0, whole + (many - 1.0) * own.both + (fill + drain - after), few)

    def others_through(stage: StageView, delays: Delays) -> Any:
        """Return the seconds of the other microbatches on a stage that sends delay."""
        own, after = stage.own, stage.after.both
        later = pipe.pp - 1.0 - stage.position
        mean_s, behind = pipe.bare_s / pipe.pp, many - 1.0 - later
        # The last forward comes after a backward, and then makes a round trip.
        once, again = (delays.alternating_s(own.both, mean_s, (behind - trip, 2.0)) for trip in (1.0, 0.0))
        if stage.ends:
            return (many - 1.0) * own.both + again
        few = (many - 1.0) * xp.maximum(own.forward, own.backward)
        # Forwards of the fill are as long as those of earlier stages, backwards of the drain too.
        there, back = (later * delays.earlier_s(own, way) for way in (0, 1))
        waits = xp.maximum(after, there) + xp.maximum(once, back - after + again)
        return xp.where(many > later + 1.0, (many - 1.0 - later) * own.both + waits, few)

    others_s = [others_through(stage, stage.delays) for stage in pipe.stages if stage.delays]
    longest = whole + pipe.largest(others_s) if others_s else pipe.largest([through(stage) for stage in pipe.stages])
    slowest = rest * pipe.largest([stage.own.both for stage in pipe.stages])
    if pipe.first.delays:
        # So many of the last stages alone make a shorter round trip.
        link_s = (whole - pipe.bare_s) / xp.maximum(pipe.pp - 1.0, xp.ones_like(many))
        last = xp.maximum(slowest, rest * whole / pipe.pp - (1.0 - rest / pipe.pp) * link_s)
    else:
        last = xp.maximum(slowest, rest * (whole / pipe.pp))
    round_trips = (rounds + 1.0) * whole + last
    return xp.where(many > pipe.pp, xp.maximum(longest, round_trips), longest)


def any_one_forward_one_backward_s(cut: AnyCut) -> Any:
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
    round_trips = rounds * cut.whole_s + rest * cut.mean_s
    full = xp.maximum(full, xp.where(rounds > 0, round_trips, nothing))
    alone = xp.maximum((cut.num_microbatches - cut.pp) * cut.largest_s, others * cut.last_s)
    return cut.whole_s + xp.maximum(full, alone)


def interleaved_s(pipe: PipelineView) -> Any:
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

    def heavier(stage: StageView, way: int, ahead: Any) -> Any:
        """Return the seconds that others wait for an earlier stage, a heavier one.

        The p - 1 other microbatches of a group wait for the first stage, all passes `ahead` for longer sends.
        """
        more = pipe.first.first[way] - stage.first[way]
        longer = groups_of * xp.maximum(more, xp.zeros_like(more))
        if not stage.delays:
            return longer
        return xp.maximum(longer, ahead * (stage.delays.earlier_s(stage.first, way) - stage.first[way]))

    def through(stage: StageView) -> Any:
        ahead = 2.0 * (groups_of - stage.position) + per_round
        first_ones = xp.minimum(ahead, passes - 1.0)  # forwards that wait for sends, likewise backwards at the end
        done = first_ones + 1.0 - per_round  # of the last chunk, and then of the first one again
        again = xp.maximum(done - pp, xp.zeros_like(done))

        def first_passes(way: int) -> Any:
            """Return the seconds of the passes up to the first backward, or from the last forward on."""
            rounds = pp * (stage.own[way] - stage.last[way])
            return rounds + (done - again) * stage.last[way] + again * stage.first[way]

        down, up = (stage.before[way] + heavier(stage, way, first_ones) for way in (0, 1))
        there = pipe.whole.forward + stage.after.backward - first_passes(0)
        back = pipe.whole.backward + stage.after.forward - first_passes(1)
        apart = xp.maximum(down, there) + xp.maximum(up, back)
        together = xp.maximum(down + up, xp.maximum(there + up, down + back))
        busy = many * stage.own.both
        if stage.delays:
            behind = passes - ahead, 3.0
            a_chunk = stage.delays._replace(bare_s=stage.delays.bare_s / chunks)
            busy = busy + a_chunk.alternating_s(stage.own.both / chunks, mean_chunk_s, behind)
        second_group = stage.before.both + (pp - 2.0 - stage.position) * last.last.backward
        lighter = stage.first.forward - last.first.forward
        second_group = second_group - pp * xp.maximum(lighter, xp.zeros_like(lighter))
        lag = xp.where(passes - 1.0 > ahead, apart, together)
        return busy + xp.where(many > pp, xp.maximum(lag, second_group), lag)

    on_last = last.before.both + heavier(last, 0, per_round) + heavier(last, 1, per_round) + many * last.own.both
    slowest = pipe.largest([stage.own.both for stage in pipe.stages])
    between = on_last - mean_chunk_s + (many - 2.0 * pp) * (slowest - last.own.both)
    longest = pipe.largest([through(stage) for stage in pipe.stages])
    return xp.where(many > 2.0 * pp, xp.maximum(longest, between), longest)


class Wave(NamedTuple):
    """One pass on one stage, seconds; the passes of a wave go from stage to stage, to later or to earlier ones."""

    start: Any  # what the stage runs before
    own: Any
    before: Any  # the passes of the wave on all earlier stages, with their sends


def to_later(begins: Sequence[Any], wave: Sequence[Wave], pipe: PipelineView) -> list[Any]:
    """Return when the stages begin behind a wave to later stages; without it they begin at `begins`."""
    leaves = [begin + own.start - own.before for begin, own in zip(begins, wave, strict=True)]
    comes = [time + own.before for time, own in zip(pipe.of_earlier(leaves), wave, strict=True)]
    return _delayed(begins, wave, comes)


def to_earlier(begins: Sequence[Any], wave: Sequence[Wave], pipe: PipelineView) -> list[Any]:
    """Return when the stages begin behind a wave to earlier stages; without it they begin at `begins`."""
    passed = [own.before + own.own for own in wave]
    leaves = [begin + own.start + there for begin, own, there in zip(begins, wave, passed, strict=True)]
    comes = [time - there for time, there in zip(pipe.of_later(leaves), passed, strict=True)]
    return _delayed(begins, wave, comes)


def _delayed(begins: Sequence[Any], wave: Sequence[Wave], comes: Sequence[Any]) -> list[Any]:
    return [xp.maximum(begin, time - own.start) for begin, own, time in zip(begins, wave, comes, strict=True)]
