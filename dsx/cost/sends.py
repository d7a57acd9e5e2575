"""The sends between the stages of a pipeline, and what they add to the passes of a stage.

A forward ends with a send to the next stage, a backward with one to the stage before. The sender waits for the exposed
part; the other part delays the microbatch alone. A link takes what the outermost tier that it crosses says. So a stage
at the edge of a fast domain sends over a slow link for every microbatch, and the others may wait for it. A backward
sends a gradient only where a weight before it is trained (`Sends.first_back`).

`MeanSends` is the formula of arXiv 2410.00273, with the mean link everywhere. Both have the same methods.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.cost.context import PipelineChoices, StageChoices, StepChoices
from dsx.records import Array, Bool
from dsx.schedules.closed_forms import Passes, forwards_ahead
from dsx.schedules.order import IN_ROUNDS, StageChunks

Choices = StepChoices | StageChoices | PipelineChoices


class SendDelays(NamedTuple):
    """The sends of `dsx.schedules.closed_forms.Delays`, seconds."""

    neighbour_s: PerPlan
    waits: Passes  # on the first chunk: the longest that this stage or an earlier one waits for
    longest: Passes


class StageSends(NamedTuple):
    """What sends add to the passes of one microbatch, seconds: on a stage the exposed parts, around it whole sends."""

    chunks: Passes  # all chunks of the stage
    first: Passes  # its first chunk
    last: Passes  # its last chunk
    earlier: Passes  # from the first stage to it; of the backward from it, without its own part
    later: Passes  # from it, without its own part, to the last stage; of the backward back to it
    delays: SendDelays | None = None  # if sends differ from stage to stage


class OwnWay(NamedTuple):
    """Passes that follow each other in one direction: a send hides behind those of its own direction alone.

    `plans` are those whose schedules run all passes so; of others with several chunks, some stages do. `forward_s` and
    `backward_s` are the passes of a microbatch on the mean stage.
    """

    plans: Bool[Array, "*#plans"]
    forward_s: PerPlan
    backward_s: PerPlan


class LinkSends(NamedTuple):
    """Sends that each take what their link takes.

    Attributes:
        of_tier: Seconds of a send on a link that crosses each tier, innermost first.
        per_unit: Stages in a unit of each tier below the outermost one.
        overlap: Share of the sends of a stage that hides, at most behind a microbatch; None if none do.
        stage_s: Seconds of a microbatch on the mean stage.
        own_way: Where passes of one direction follow each other; None if nowhere.
        first_back: The first chunk whose results have a gradient: those after it send gradients back. None: all do.
    """

    of_tier: tuple[PerPlan, ...]
    per_unit: tuple[PerPlan, ...]
    overlap: PerPlan | None
    stage_s: PerPlan
    own_way: OwnWay | None = None
    first_back: PerPlan | None = None

    def around(self, position: PerPlan, choices: Choices, holds: StageChunks, interleaved: bool) -> StageSends:
        """Return the sends around stages; their positions broadcast. With `interleaved`, some have several chunks."""
        is_last, is_first = self._ends(position, choices)
        up, down = self._links(position, choices, interleaved and holds.in_rounds)
        earlier_s, zero = self._earlier_s(position), xp.zeros_like(up)
        once = Passes(xp.where(is_last, zero, up), xp.where(is_first, zero, down))  # without a link around
        final = holds.last(position, choices.pp, choices.vpp)
        fast, *slow = self.of_tier
        waits_s = [self._exposed(choices.vpp * (fast + edge)) * edge for edge in slow]
        waits = Passes(self._longest(position, waits_s), self._longest_back(position - 1.0, waits_s))
        longest = Passes(self._longest(position, slow), self._longest_back(position, slow))
        neighbour_s = xp.maximum(once.forward, once.backward)
        if self.first_back is not None:
            of_next = self._sent_back(once.forward, xp.maximum(position + 1.0, final))
            neighbour_s = xp.maximum(of_next, self._sent_back(once.backward, xp.maximum(position, final)))
        if not holds.in_rounds:
            exposed = self._exposed(2.0 * once.both)
            up, down, there_and_back = exposed * once.forward, exposed * once.backward, exposed * once.both
            chunks, first, last = Passes(there_and_back, there_and_back), Passes(up, down), Passes(down, up)
            before_s, after_s = earlier_s, earlier_s
            if self.first_back is not None:
                first, last = Passes(up, self._sent_back(down, position)), Passes(down, self._sent_back(up, final))
                chunks = Passes(there_and_back, first.backward + last.backward)
                turned = holds.count(choices.pp, choices.vpp) - 1.0 - self.first_back
                before_s = earlier_s - self._earlier_s(xp.minimum(position, self.first_back))
                after_s = self._earlier_s(xp.clip(turned, zero, position))
            earlier, later = Passes(earlier_s, before_s - first.backward), Passes(earlier_s - down, after_s)
        else:
            once = once._replace(backward=self._sent_back(once.backward, position))
            sent, forwards_first = once, None
            if interleaved:
                further = choices.vpp - 1.0
                further_back = further
                if self.first_back is not None:
                    before = xp.floor((self.first_back - position) / choices.pp)
                    further_back = further - xp.clip(before, zero, further)
                sent = Passes(once.forward + further * up, once.backward + further_back * down)
                down = self._sent_back(down, final)
                # Such stages of several chunks run all forwards before their first backward.
                passes = choices.num_microbatches * choices.vpp
                ahead = forwards_ahead(position, choices.pp, choices.vpp)
                forwards_first = (choices.vpp > 1.0) & (passes - 1.0 <= ahead)
            else:
                up, down = once.forward, once.backward
            exposed = self._exposed_ways(sent, forwards_first)
            chunks, first, last = (
                Passes(exposed.forward * way.forward, exposed.backward * way.backward)
                for way in (sent, Passes(up, once.backward), Passes(once.forward, down))
            )
            later_s = self._earlier_s(choices.pp - 1.0) - earlier_s
            before_s, after_s = earlier_s, later_s
            if self.first_back is not None:
                in_last_round = self.first_back - (choices.vpp - 1.0) * choices.pp
                before_s = earlier_s - self._earlier_s(xp.minimum(position, self.first_back))
                start = xp.clip(in_last_round, position, xp.maximum(position, choices.pp - 1.0))
                after_s = later_s - (self._earlier_s(start) - earlier_s)
            earlier, later = Passes(earlier_s, before_s - first.backward), Passes(later_s - last.forward, after_s)
        waits = Passes(*(xp.maximum(*seconds) for seconds in zip(waits[:2], first[:2], strict=True)))
        delays = SendDelays(neighbour_s, waits, longest)
        return StageSends(chunks, first, last, earlier, later, delays)

    def hops_s(self, position: PerPlan, choices: Choices) -> tuple[PerPlan, PerPlan]:
        """Return the hidden parts of the sends after a forward and a backward of a chunk, of several in rounds."""
        up, down = self._links(position, choices, around=True)
        stage = self.around(position, choices, IN_ROUNDS, interleaved=True)
        final = IN_ROUNDS.last(position, choices.pp, choices.vpp)
        return up - stage.first.forward, self._sent_back(down, final) - stage.last.backward

    def hidden(self) -> "LinkSends":
        """Return the same sends, all of which hide."""
        return self._replace(
            overlap=xp.ones_like(self.stage_s), stage_s=xp.full_like(self.stage_s, float("inf")), own_way=None
        )

    def all_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> Passes:
        """Return the seconds of all sends of a microbatch, there and back."""
        last, around_s = choices.pp - 1.0, self._around_s(choices) if interleaved else xp.zeros_like(choices.pp)

        def before_s(chunk: PerPlan, once: PerPlan) -> PerPlan:
            """Return the seconds of the sends from the first chunk to another one."""
            if not holds.in_rounds:
                there_s = self._earlier_s(xp.minimum(chunk, last))
                back_s = once - self._earlier_s(xp.clip(2.0 * last + 1.0 - chunk, xp.zeros_like(last), last))
                return there_s if holds.num_chains > 1 else there_s + back_s
            rounds = xp.floor(chunk / choices.pp)
            return rounds * (once + around_s) + self._earlier_s(chunk - rounds * choices.pp)

        once = self._earlier_s(last)
        if holds.in_rounds:
            all_s = choices.vpp * once + (choices.vpp - 1.0) * around_s if interleaved else once
        else:
            all_s = once if holds.num_chains > 1 else 2.0 * once
        if self.first_back is None:
            return Passes(all_s, all_s)
        final = holds.count(choices.pp, choices.vpp) - 1.0
        return Passes(all_s, all_s - before_s(xp.minimum(self.first_back, final), once))

    def exposed_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> PerPlan:
        """Return the seconds in which the mean stage waits for the sends of a microbatch, there and back."""
        mean_s, mean_back_s = (seconds / choices.pp for seconds in self.all_s(choices, holds, interleaved)[:2])
        exposed = self._exposed_ways(Passes(mean_s, mean_back_s))
        if self.first_back is None:
            return exposed.both * mean_s
        return exposed.forward * mean_s + exposed.backward * mean_back_s

    def middle_s(self, choices: Choices) -> PerPlan:
        """Return the seconds of a send between the two stages in the middle of a pipeline."""
        return self._link_s(0.5 * choices.pp - 1.0, 0.5 * choices.pp)

    def ends_s(self, choices: Choices) -> tuple[PerPlan, PerPlan]:
        """Return a bound below the seconds in which any stage waits for sends of a microbatch, and those of the last.

        A stage sends over a link like the first or like the last one at least, unless gradients are not sent back.
        """
        if self.first_back is not None:
            return xp.zeros_like(choices.pp), xp.zeros_like(choices.pp)
        first = self._link_s(xp.zeros_like(choices.pp), xp.ones_like(choices.pp))
        last = self._link_s(choices.pp - 2.0, choices.pp - 1.0)
        least = xp.minimum(first, last)
        return self._exposed(least) * least, self._exposed(last) * last

    def _exposed(self, seconds: PerPlan) -> PerPlan:
        """Return the exposed share of the sends of a microbatch on a stage, of which it has so many seconds."""
        return self._exposed_beside(self.stage_s, seconds)

    def _exposed_ways(self, sent: Passes, forwards_first: Bool[Array, "*#plans"] | None = None) -> Passes:
        """Return the exposed shares of the sends of a microbatch on a stage, of those after forwards and backwards.

        Of plans with `forwards_first` on the stage, sends hide behind passes of their own direction too.
        """
        if self.own_way is None or self.overlap is None:
            share = self._exposed(sent.both)
            return Passes(share, share)
        plans, *passes_s = self.own_way
        if forwards_first is not None:
            plans = plans | forwards_first
        there_and_back = sent.both
        return Passes(
            *(
                self._exposed_beside(xp.where(plans, pass_s, self.stage_s), xp.where(plans, way_s, there_and_back))
                for pass_s, way_s in zip(passes_s, sent[:2], strict=True)
            )
        )

    def _exposed_beside(self, passes_s: PerPlan, seconds: PerPlan) -> PerPlan:
        if self.overlap is None:
            return 1.0
        return 1.0 - self.overlap * xp.minimum(passes_s / xp.where(seconds > 0.0, seconds, 1.0), 1.0)

    def _link_s(self, position: PerPlan, following: PerPlan) -> PerPlan:
        """Return the seconds of a send from a stage to the next one: of the outermost tier that the link crosses."""
        link_s, *slower = self.of_tier
        for seconds, stages in zip(slower, self.per_unit, strict=True):
            link_s = xp.where(xp.floor(following / stages) > xp.floor(position / stages), seconds, link_s)
        return link_s

    def _sent_back(self, seconds: PerPlan, chunk: PerPlan) -> PerPlan:
        """Return the seconds of the send back from a chunk: none if no weight before it is trained."""
        return seconds if self.first_back is None else xp.where(chunk > self.first_back, seconds, 0.0 * seconds)

    def _longest_back(self, position: PerPlan, of_edges: Sequence[PerPlan]) -> PerPlan:
        """Return the same as `_longest` of the edges over which gradients are sent back."""
        if self.first_back is None:
            return self._longest(position, of_edges)
        passed = [
            xp.where(xp.floor(position / stages) > xp.floor(self.first_back / stages), edge, 0.0 * edge)
            for edge, stages in zip(of_edges, self.per_unit, strict=True)
        ]
        return functools.reduce(xp.maximum, passed)

    def _longest(self, position: PerPlan, of_edges: Sequence[PerPlan]) -> PerPlan:
        """Return the most that an edge of a unit, on the way from the first stage to another one, has of a value."""
        passed = [
            xp.where(position >= stages, edge, xp.zeros_like(edge))
            for edge, stages in zip(of_edges, self.per_unit, strict=True)
        ]
        return functools.reduce(xp.maximum, passed)

    def _earlier_s(self, position: PerPlan) -> PerPlan:
        """Return the seconds of the sends from the first stage to another one."""
        return self._with_tiers(position, (xp.floor(position / stages) for stages in self.per_unit))

    def _links(self, position: PerPlan, choices: Choices, around: bool) -> tuple[PerPlan, PerPlan]:
        """Return the seconds of a send to the next stage, and to the one before; with `around` also from end to end."""
        up, down = self._link_s(position, position + 1.0), self._link_s(position - 1.0, position)
        if not around:
            return up, down
        is_last, is_first = self._ends(position, choices)
        ends_s = self._around_s(choices)
        return xp.where(is_last, ends_s, up), xp.where(is_first, ends_s, down)

    def _ends(self, position: PerPlan, choices: Choices) -> tuple[Bool[Array, "*#plans"], Bool[Array, "*#plans"]]:
        """Return whether stages are the last one, and the first one."""
        return xp.asarray(position >= choices.pp - 1.0), xp.asarray(position <= 0.0)

    def _around_s(self, choices: Choices) -> PerPlan:
        """Return the seconds of a send from the last stage to the first one, for a next chunk."""
        ones, zero = xp.ones_like(choices.pp), xp.zeros_like(choices.pp)
        link_s = self._with_tiers(ones, (xp.where(stages < choices.pp, ones, zero) for stages in self.per_unit))
        return xp.where(choices.vpp > 1.0, link_s, xp.zeros_like(link_s))

    def _with_tiers(self, links: PerPlan, crossing: Iterable[PerPlan]) -> PerPlan:
        """Return the seconds of so many links, of which so many cross each tier beyond the first."""
        first, *outer = self.of_tier
        steps = zip(crossing, self.of_tier, outer, strict=False)
        return functools.reduce(xp.add, [count * (above - below) for count, below, above in steps], links * first)


class MeanSends(NamedTuple):
    """Sends that all take as long; the last stage sends in its forward too, and the first one in its backward.

    Attributes:
        chunk_s: Seconds in which a stage waits for the sends of a microbatch on a chunk, there and back.
        hidden_s: The other seconds of these sends.
        first_back: As for `LinkSends`.
    """

    chunk_s: PerPlan
    hidden_s: PerPlan
    first_back: PerPlan | None = None

    def around(self, position: PerPlan, choices: Choices, holds: StageChunks, interleaved: bool) -> StageSends:
        """As for `LinkSends`."""
        del interleaved
        exposed_s, middle_s = 0.5 * self.chunk_s, self.middle_s(choices)
        later = holds.count(choices.pp, choices.vpp) - 1.0 - holds.last(position, choices.pp, choices.vpp)
        parts = choices.vpp * exposed_s, exposed_s, exposed_s, position * middle_s, later * middle_s
        share = self._share_back(choices, holds)
        chunks, first, last, ahead, behind = (Passes(seconds, share * seconds) for seconds in parts)
        return StageSends(chunks, first, last, ahead, behind)

    def hops_s(self, position: PerPlan, _choices: Choices) -> tuple[PerPlan, PerPlan]:
        """As for `LinkSends`."""
        hop_s = xp.zeros_like(position) + 0.5 * self.hidden_s
        return hop_s, hop_s

    def hidden(self) -> "MeanSends":
        """As for `LinkSends`."""
        return self._replace(chunk_s=xp.zeros_like(self.chunk_s), hidden_s=self.chunk_s + self.hidden_s)

    def all_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> Passes:
        """As for `LinkSends`."""
        del interleaved
        num_chunks = holds.count(choices.pp, choices.vpp)
        all_s = num_chunks * (0.5 * self.chunk_s) + (num_chunks - 1.0) * (0.5 * self.hidden_s)
        return Passes(all_s, self._share_back(choices, holds) * all_s)

    def exposed_s(self, choices: Choices, holds: StageChunks, _interleaved: bool) -> PerPlan:
        """As for `LinkSends`."""
        return choices.vpp * self.chunk_s * (0.5 + 0.5 * self._share_back(choices, holds))

    def _share_back(self, choices: Choices, holds: StageChunks) -> PerPlan:
        """Return the share of the links over which gradients are sent back."""
        if self.first_back is None:
            return 1.0
        links, zero = holds.count(choices.pp, choices.vpp) - 1.0, xp.zeros_like(choices.pp)
        return xp.maximum(links - self.first_back, zero) / xp.maximum(links, zero + 1.0)

    def middle_s(self, _choices: Choices) -> PerPlan:
        """As for `LinkSends`."""
        return 0.5 * self.chunk_s + 0.5 * self.hidden_s

    def ends_s(self, _choices: Choices) -> tuple[PerPlan, PerPlan]:
        """As for `LinkSends`."""
        least_s = self.chunk_s if self.first_back is None else 0.5 * self.chunk_s
        return least_s, least_s


Sends = LinkSends | MeanSends


def slow_senders(choices: StepChoices, both_sides: bool) -> list[PerPlan]:
    """Return the positions of the stages of an even cut that sends may make the slowest.

    Of the stages whose backward sends over a tier, the last one that has another one behind it delays the end of a step
    most, and the first one its start. Without such a stage it is the last one that sends both ways. With `both_sides`
    there is one whose forward sends over the tier too. Hidden sends delay the first stage most that runs a backward
    before its last forward.
    """
    zero = xp.zeros_like(choices.pp)
    inner = xp.maximum(choices.pp - 2.0, zero)
    senders = [xp.clip(choices.pp - choices.num_microbatches + 1.0, xp.minimum(inner, zero + 1.0), inner)]
    for stages in (choices.pp_nvs, *choices.pp_outer):
        edge = stages * xp.floor((choices.pp - 1.0) / stages)
        senders += [xp.where(edge > 0.0, xp.minimum(edge, inner), inner), xp.minimum(stages, inner)]
        if both_sides:
            senders.append(xp.clip(stages - 1.0, zero, inner))
    return senders
