"""The seconds of a step of a pipeline: closed forms of the longest path through its passes.

A path goes down the stages with a forward, back up with a backward, and along the passes of a stage. A closed form is
the maximum over a few such paths. Each is seen from one stage: what comes before its first pass, its own passes, and
what comes after its last one. `tests/plans/test_critical_path.py` compares the closed forms with a replay of the orders
in `dsx.schedules.order`, and docs/model/pipeline.md says how far they are apart.

Where stages run their passes in a fixed order, waves pass along the stages. A stage that never waits runs all its
passes in one go. Where a microbatch comes from a neighbour too late for that, the whole stage as well could have begun
later. A wave is one pass of one microbatch on stage after stage. If it is known how much a stage runs before its pass
of a wave, the wave delays the beginnings of the stages by a running maximum, and a few waves in turn give the seconds
of a step. These are a bound below the longest path through all passes, and equal to it unless it follows other waves.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dsx import arrays as xp
from dsx.schedules.order import Numbers


class Passes(NamedTuple):
    """Seconds of a forward and of a backward."""

    forward: Numbers
    backward: Numbers
    weights: Numbers = 0.0  # the part of the backward that only computes weight gradients
    hidden: Numbers = 0.0  # the part of either that hides behind a pass of the opposite direction

    @property
    def both(self) -> Numbers:
        """The two together."""
        return self.forward + self.backward

    @property
    def inputs(self) -> Numbers:
        """The backward without weight gradients."""
        return self.backward - self.weights

    def plus(self, other: "Passes") -> "Passes":
        """Return forwards and backwards together."""
        return Passes(self.forward + other.forward, self.backward + other.backward)


class Delays(NamedTuple):
    """What sends of a stage and of others delay on it, seconds."""

    bare_s: Numbers  # one microbatch on the stage without sends
    neighbour_s: Numbers  # the longest send between the stage and a neighbour
    # One microbatch on the first chunk, with the longest sends that this stage or an earlier one waits for; None of the
    # first stage.
    earlier: Passes | None
    longest: Passes  # the longest send over an edge between this stage and the first one

    def earlier_s(self, first: Passes, way: int) -> Numbers:
        """Return the seconds of a pass on the first chunk, or of what takes longer on an earlier stage, or its send."""
        return first[way] if self.earlier is None else xp.maximum(self.earlier[way], self.longest[way])

    def alternating_s(self, passes_s: Numbers, mean_s: Numbers, behind: Numbers, together: float) -> Numbers:
        """Return the seconds by which `behind` microbatches of alternating passes take longer than those passes.

        `passes_s` and `mean_s` are the seconds of both passes, on the stage and on the mean one. A forward goes to a
        neighbour, like the mean stage, and a backward comes back from it. So many microbatches are under way together.
        """
        there_and_back = self.bare_s + xp.minimum(self.bare_s, mean_s) + 2.0 * self.neighbour_s
        longer = xp.maximum(there_and_back - together * passes_s, xp.zeros_like(passes_s))
        return xp.floor(xp.maximum(behind, xp.zeros_like(behind)) / together) * longer


class StageView(NamedTuple):
    """What one microbatch takes on a stage, before it and after it, with the sends that a stage waits for."""

    position: Numbers  # counted from 0
    chunks: Passes  # all chunks of the stage
    first: Passes  # its first chunk
    last: Passes  # its last chunk
    # From the start of a microbatch until it is on its first chunk, and back from there: the first chunks of the
    # earlier stages, and all sends. What its own passes have of these sends is not in it.
    earlier: Passes
    # Likewise from its last chunk to the end: the last chunks of the later stages, or, mirrored, of the earlier ones.
    later: Passes
    sends_s: Numbers = 0.0  # the sends before it, one way
    delays: Delays | None = None  # if sends differ from stage to stage
    ends: bool = False  # whether it is known to be the last stage


class PipelineView(NamedTuple):
    """A pipeline as its closed form needs it."""

    stages: Sequence[StageView]  # those that a longest path may stay on
    first: StageView
    last: StageView
    microbatch: Passes  # one through all chunks, with its sends
    bare_s: Numbers  # without them, there and back
    middle_s: Numbers  # a send between the two stages in the middle
    weights_s: Numbers  # the part of a mean stage's backward that only computes weight gradients
    pp: Numbers
    vpp: Numbers
    num_microbatches: Numbers
    largest: Callable[[Sequence[Numbers]], Numbers]  # the maximum over stages, from the values of `stages`
    of_earlier: Callable[[Sequence[Numbers]], Sequence[Numbers]]  # for each stage the maximum over earlier ones
    of_later: Callable[[Sequence[Numbers]], Sequence[Numbers]]  # likewise over later ones; -inf without any
    returns: Numbers | None = None  # whether gradients come back to the first stage; None: for all plans


class AnyCut(NamedTuple):
    """What all cuts of a plan have in common, seconds of one microbatch with the sends that stages wait for."""

    model_s: Numbers  # through all stages, with its sends
    mean_s: Numbers  # on the mean stage
    largest_s: Numbers  # on a stage with only the largest layer
    last_s: Numbers  # on a stage with only the layers that the last stage always has
    pp: Numbers
    num_microbatches: Numbers
    returns: bool = True  # whether gradients come back to the first stage


ClosedForm = Callable[[PipelineView], Numbers]  # pipeline -> seconds


def gpipe_s(pipe: PipelineView) -> Numbers:
    """Return the seconds of GPipe: one microbatch through all stages, and the others on the slowest ones."""
    further = pipe.num_microbatches - 1.0

    def seconds(stage: StageView, way: int) -> Numbers:
        return xp.maximum(stage.chunks[way], stage.delays.longest[way]) if stage.delays else stage.chunks[way]

    forward, backward = (pipe.largest([seconds(stage, way) for stage in pipe.stages]) for way in (0, 1))
    return pipe.microbatch.both + further * (forward + backward)


def one_forward_one_backward_s(pipe: PipelineView) -> Numbers:
    """Return the seconds of 1F1B with one chunk per stage.

    One microbatch goes through all stages, and a slow stage runs the others. With n later stages it runs n forwards
    before its first backward, and n backwards after its last forward, so it waits for the later stages only where these
    take longer. If there are not so many microbatches, it runs all forwards before its first backward. Where sends take
    long, no stage is busy all the time: the p microbatches that the first stage holds make the round trip together.
    """
    microbatches, round_trip = pipe.num_microbatches, pipe.microbatch.both
    rounds = xp.floor((microbatches - 1.0) / pipe.pp)
    in_last_round = microbatches - 1.0 - rounds * pipe.pp

    def through(stage: StageView) -> Numbers:
        passes, later_s, later = stage.chunks, stage.later.both, pipe.pp - 1.0 - stage.position
        if stage.ends:
            return round_trip + (microbatches - 1.0) * passes.both
        short = round_trip + (microbatches - 1.0) * xp.maximum(passes.forward, passes.backward)
        fill, drain = (xp.maximum(later_s - later * seconds, xp.zeros_like(seconds)) for seconds in passes[:2])
        return xp.where(
            microbatches > later + 1.0,
            round_trip + (microbatches - 1.0) * passes.both + (fill + drain - later_s),
            short,
        )

    def others_through(stage: StageView, delays: Delays) -> Numbers:
        """Return the seconds of the other microbatches on a stage that sends delay."""
        passes, later_s, later = stage.chunks, stage.later.both, pipe.pp - 1.0 - stage.position
        mean_s, behind = pipe.bare_s / pipe.pp, microbatches - 1.0 - later
        # The last forward comes after a backward, and then makes a round trip.
        once, further = (delays.alternating_s(passes.both, mean_s, behind - trip, 2.0) for trip in (1.0, 0.0))
        if stage.ends:
            return (microbatches - 1.0) * passes.both + further
        short = (microbatches - 1.0) * xp.maximum(passes.forward, passes.backward)
        # Forwards of the fill are as long as those of earlier stages, backwards of the drain too.
        fill, drain = (later * delays.earlier_s(passes, way) for way in (0, 1))
        waits = xp.maximum(later_s, fill) + xp.maximum(once, drain - later_s + further)
        return xp.where(microbatches > later + 1.0, (microbatches - 1.0 - later) * passes.both + waits, short)

    others_s = [others_through(stage, stage.delays) for stage in pipe.stages if stage.delays]
    if others_s:
        longest = round_trip + pipe.largest(others_s)
    else:
        longest = pipe.largest([through(stage) for stage in pipe.stages])
    slowest = in_last_round * pipe.largest([stage.chunks.both for stage in pipe.stages])
    if pipe.first.delays:
        # So many of the last stages alone make a shorter round trip.
        link_s = (round_trip - pipe.bare_s) / xp.maximum(pipe.pp - 1.0, xp.ones_like(microbatches))
        shorter = in_last_round * round_trip / pipe.pp - (1.0 - in_last_round / pipe.pp) * link_s
    else:
        shorter = in_last_round * (round_trip / pipe.pp)
    round_trips = (rounds + 1.0) * round_trip + xp.maximum(slowest, shorter)
    seconds = xp.where(microbatches > pipe.pp, xp.maximum(longest, round_trips), longest)
    return seconds if pipe.returns is None else xp.where(pipe.returns, seconds, longest)


def any_one_forward_one_backward_s(cut: AnyCut) -> Numbers:
    """Return a bound that 1F1B with one chunk per stage does not beat with any cut.

    A stage with n later stages causes at least (m - 1 - n) times itself and once the later stages, beyond a microbatch
    through all stages. If all of them caused less than (m - 1) mean stages, they would add up to less than all layers:
    weigh stage s with (m - 1) R / (m - 1 - n), where R is 1 less the weights of the earlier stages.
    """
    further, zero = cut.num_microbatches - 1.0, xp.zeros_like(cut.model_s)
    full = xp.where(further >= cut.pp, further * cut.mean_s, zero)
    rounds = xp.floor(further / cut.pp)
    round_trips = rounds * cut.model_s + (further - rounds * cut.pp) * cut.mean_s
    if cut.returns:
        full = xp.maximum(full, xp.where(rounds > 0, round_trips, zero))
    alone = xp.maximum((cut.num_microbatches - cut.pp) * cut.largest_s, further * cut.last_s)
    return cut.model_s + xp.maximum(full, alone)


def forwards_ahead(position: Numbers, pp: Numbers, vpp: Numbers) -> Numbers:
    """Return how many forwards of a chunk an interleaved stage runs before it alternates: 2n + (v-1)p, n later ones."""
    return 2.0 * (pp - 1.0 - position) + (vpp - 1.0) * pp


def interleaved_s(pipe: PipelineView) -> Numbers:
    """Return the seconds of interleaved 1F1B, with microbatches in groups of p and v chunks per stage.

    A stage begins once a forward comes down to it, with the p forwards of a heavier first stage before, and alternates
    once a microbatch went through all chunks and came back. In the middle of a step the slowest stage is busy: either
    from the second group on, or, if it is hardly slower, between the first and the last groups of the last stage.
    """
    pp, groups_of, chunks, microbatches, last = pipe.pp, pipe.pp - 1.0, pipe.vpp, pipe.num_microbatches, pipe.last
    passes = microbatches * chunks
    per_round = (chunks - 1.0) * pp
    mean_chunk_s = pipe.microbatch.both / (pp * chunks)

    def heavier(stage: StageView, way: int, ahead: Numbers) -> Numbers:
        """Return the seconds that others wait for an earlier stage, a heavier one.

        The p - 1 other microbatches of a group wait for the first stage, all passes `ahead` for longer sends.
        """
        more = pipe.first.first[way] - stage.first[way]
        longer = groups_of * xp.maximum(more, xp.zeros_like(more))
        if not stage.delays:
            return longer
        return xp.maximum(longer, ahead * (stage.delays.earlier_s(stage.first, way) - stage.first[way]))

    def through(stage: StageView) -> Numbers:
        ahead = forwards_ahead(stage.position, pp, chunks)
        first_ones = xp.minimum(ahead, passes - 1.0)  # forwards that wait for sends, likewise backwards at the end
        done = first_ones + 1.0 - per_round  # of the last chunk, and then of the first one again
        of_first = xp.maximum(done - pp, xp.zeros_like(done))

        def first_passes(way: int) -> Numbers:
            """Return the seconds of the passes up to the first backward, or from the last forward on."""
            rounds = pp * (stage.chunks[way] - stage.last[way])
            return rounds + (done - of_first) * stage.last[way] + of_first * stage.first[way]

        down, up = (stage.earlier[way] + heavier(stage, way, first_ones) for way in (0, 1))
        fill = pipe.microbatch.forward + stage.later.backward - first_passes(0)
        back = pipe.microbatch.backward + stage.later.forward - first_passes(1)
        apart = xp.maximum(down, fill) + xp.maximum(up, back)
        together = xp.maximum(down + up, xp.maximum(fill + up, down + back))
        busy = microbatches * stage.chunks.both
        if stage.delays:
            a_chunk = stage.delays._replace(bare_s=stage.delays.bare_s / chunks)
            busy = busy + a_chunk.alternating_s(stage.chunks.both / chunks, mean_chunk_s, passes - ahead, 3.0)
        second_group = stage.earlier.both + (pp - 2.0 - stage.position) * last.last.backward
        lighter = stage.first.forward - last.first.forward
        second_group = second_group - pp * xp.maximum(lighter, xp.zeros_like(lighter))
        lag = xp.where(passes - 1.0 > ahead, apart, together)
        return busy + xp.where(microbatches > pp, xp.maximum(lag, second_group), lag)

    waits_of_last = heavier(last, 0, per_round), heavier(last, 1, per_round)
    on_last = last.earlier.both + waits_of_last[0] + waits_of_last[1] + microbatches * last.chunks.both
    slowest = pipe.largest([stage.chunks.both for stage in pipe.stages])
    between = on_last - mean_chunk_s + (microbatches - 2.0 * pp) * (slowest - last.chunks.both)
    longest = pipe.largest([through(stage) for stage in pipe.stages])
    return xp.where(microbatches > 2.0 * pp, xp.maximum(longest, between), longest)


class Wave(NamedTuple):
    """One pass on one stage, seconds; the passes of a wave go from stage to stage, to later or to earlier ones."""

    start: Numbers  # what the stage runs before
    pass_s: Numbers
    earlier_s: Numbers  # the passes of the wave on all earlier stages, with their sends


def to_later(begins: Sequence[Numbers], wave: Sequence[Wave], pipe: PipelineView) -> list[Numbers]:
    """Return when the stages begin behind a wave to later stages; without it they begin at `begins`."""
    leaves = [begin + stage.start - stage.earlier_s for begin, stage in zip(begins, wave, strict=True)]
    comes = [time + stage.earlier_s for time, stage in zip(pipe.of_earlier(leaves), wave, strict=True)]
    return _delayed(begins, wave, comes)


def to_earlier(begins: Sequence[Numbers], wave: Sequence[Wave], pipe: PipelineView) -> list[Numbers]:
    """Return when the stages begin behind a wave to earlier stages; without it they begin at `begins`."""
    passed = [stage.earlier_s + stage.pass_s for stage in wave]
    leaves = [begin + stage.start + seconds for begin, stage, seconds in zip(begins, wave, passed, strict=True)]
    comes = [time - seconds for time, seconds in zip(pipe.of_later(leaves), passed, strict=True)]
    return _delayed(begins, wave, comes)


def _delayed(begins: Sequence[Numbers], wave: Sequence[Wave], comes: Sequence[Numbers]) -> list[Numbers]:
    return [xp.maximum(begin, time - stage.start) for begin, stage, time in zip(begins, wave, comes, strict=True)]


def along(
    begins: Sequence[Numbers], waves: Iterable[Sequence[Wave]], pipe: PipelineView, later: bool
) -> Sequence[Numbers]:
    """Return when the stages begin behind alternating waves, the first one to `later` stages or to earlier ones.

    `waves` has the waves of each stage; without them the stages begin at `begins`.
    """
    for wave in zip(*waves, strict=True):
        begins = (to_later if later else to_earlier)(begins, wave, pipe)
        later = not later
    return begins
