"""The sends between the stages of a pipeline, and what they add to the passes of a stage.

A forward ends with a send to the next stage, a backward with one to the stage before. The sender waits for the exposed
part; the rest delays the microbatch alone. A link takes what the outermost tier that it crosses says. So a stage at the
edge of a fast domain sends over a slow link for every microbatch, and the others may wait for it.

`MeanSends` is the formula of arXiv 2410.00273, with the mean link everywhere. Both have the same methods.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsx import arrays as xp
from dsx.cost.context import PipelineChoices, StageChoices, StepChoices
from dsx.cost.shapes import PerPlan
from dsx.records import Array, Bool
from dsx.schedules.closed_forms import Passes
from dsx.schedules.order import IN_ROUNDS, StageChunks

Choices = StepChoices | StageChoices | PipelineChoices


class SendDelays(NamedTuple):
    """The sends of `dsx.schedules.closed_forms.Delays`, seconds."""

    neighbour_s: PerPlan
    waits: Passes  # on the first chunk: the longest that this stage or an earlier one waits for
    longest_s: PerPlan


class StageSends(NamedTuple):
    """What sends add to the passes of one microbatch, seconds: on a stage the exposed parts, around it whole sends."""

    own: Passes  # all chunks of the stage
    first: Passes  # its first chunk
    last: Passes  # its last chunk
    before: Passes  # from the first stage to it; of the backward from it, without its own part
    after: Passes  # from it, without its own part, to the last stage; of the backward back to it
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
    """

    of_tier: tuple[PerPlan, ...]
    per_unit: tuple[PerPlan, ...]
    overlap: PerPlan | None
    stage_s: PerPlan
    own_way: OwnWay | None = None

    def around(self, position: PerPlan, choices: Choices, holds: StageChunks, interleaved: bool) -> StageSends:
        """Return the sends around stages; their positions broadcast. With `interleaved`, some have several chunks."""
        is_last, is_first = self._ends(position, choices)
        up, down = self._links(position, choices, interleaved and holds.in_rounds)
        before, none = self._before_s(position), xp.zeros_like(up)
        once = Passes(xp.where(is_last, none, up), xp.where(is_first, none, down))  # without a link around
        neighbour_s = xp.maximum(once.forward, once.backward)
        fast, *slow = self.of_tier
        waits_s = [self._exposed(choices.vpp * (fast + edge)) * edge for edge in slow]
        waits = Passes(self._longest(position, waits_s), self._longest(position - 1.0, waits_s))
        longest_s = self._longest(position, slow)
        if not holds.in_rounds:
            both = once.both
            exposed = self._exposed(2.0 * both)
            up, down, both = exposed * once.forward, exposed * once.backward, exposed * both
            own, first, last = Passes(both, both), Passes(up, down), Passes(down, up)
            before, after = Passes(before, before - down), Passes(before - down, before)
            return StageSends(
                own, first, last, before, after, SendDelays(neighbour_s, _longest(waits, first), longest_s)
            )
        own = once
        if interleaved:
            again = choices.vpp - 1.0
            own = Passes(once.forward + again * up, once.backward + again * down)
        else:
            up, down = once.forward, once.backward
        exposed = self._exposed_ways(own, self._forwards_first(position, choices) if interleaved else None)
        own, first, last = (
            Passes(exposed.forward * sent.forward, exposed.backward * sent.backward)
            for sent in (own, Passes(up, once.backward), Passes(once.forward, down))
        )
        after = self._before_s(choices.pp - 1.0) - before
        before, after = Passes(before, before - first.backward), Passes(after - last.forward, after)
        return StageSends(own, first, last, before, after, SendDelays(neighbour_s, _longest(waits, first), longest_s))

    def hops_s(self, position: PerPlan, choices: Choices) -> tuple[PerPlan, PerPlan]:
        """Return the hidden parts of the sends after a forward and a backward of a chunk, of several in rounds."""
        up, down = self._links(position, choices, around=True)
        own = self.around(position, choices, IN_ROUNDS, interleaved=True)
        return up - own.first.forward, down - own.last.backward

    def hidden(self) -> "LinkSends":
        """Return the same sends, all of which hide."""
        return self._replace(
            overlap=xp.ones_like(self.stage_s), stage_s=xp.full_like(self.stage_s, float("inf")), own_way=None
        )

    def whole_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> PerPlan:
        """Return the seconds of all sends of a microbatch one way."""
        once = self._before_s(choices.pp - 1.0)
        if holds.in_rounds:
            return choices.vpp * once + (choices.vpp - 1.0) * self._around_s(choices) if interleaved else once
        return once if holds.num_chains > 1 else 2.0 * once

    def exposed_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> PerPlan:
        """Return the seconds in which the mean stage waits for the sends of a microbatch, there and back."""
        mean_s = self.whole_s(choices, holds, interleaved) / choices.pp
        exposed = self._exposed_ways(Passes(mean_s, mean_s))
        return exposed.both * mean_s

    def middle_s(self, choices: Choices) -> PerPlan:
        """Return the seconds of a send between the two stages in the middle of a pipeline."""
        return self._link_s(0.5 * choices.pp - 1.0, 0.5 * choices.pp)

    def ends_s(self, choices: Choices) -> tuple[PerPlan, PerPlan]:
        """Return a bound below the seconds in which any stage waits for sends of a microbatch, and those of the last.

        A stage sends over a link like the first or like the last one at least.
        """
        none, one = xp.zeros_like(choices.pp), xp.ones_like(choices.pp)
        first, last = self._link_s(none, one), self._link_s(choices.pp - 2.0, choices.pp - 1.0)
        least = xp.minimum(first, last)
        return self._exposed(least) * least, self._exposed(last) * last

    def _exposed(self, seconds: PerPlan) -> PerPlan:
        """Return the exposed share of the sends of a microbatch on a stage, of which it has so many seconds."""
        return self._exposed_beside(self.stage_s, seconds)

    def _exposed_ways(self, sent: Passes, forwards_first: Bool[Array, "*#plans"] | None = None) -> Passes:
        """Return the exposed shares of the sends of a microbatch on a stage, of those after forwards and backwards.

        Of plans with `forwards_first` on the stage, sends hide behind passes of their own direction too.
        """
        both = sent.both
        if self.own_way is None or self.overlap is None:
            share = self._exposed(both)
            return Passes(share, share)
        plans, *passes_s = self.own_way
        if forwards_first is not None:
            plans = plans | forwards_first
        ways = zip(passes_s, sent[:2], strict=True)
        return Passes(
            *(
                self._exposed_beside(xp.where(plans, beside_s, self.stage_s), xp.where(plans, way_s, both))
                for beside_s, way_s in ways
            )
        )

    def _forwards_first(self, position: PerPlan, choices: Choices) -> Bool[Array, "*#plans"]:
        """Return whether stages of several chunks run all forwards before their first backward."""
        ahead = 2.0 * (choices.pp - 1.0 - position) + (choices.vpp - 1.0) * choices.pp
        return (choices.vpp > 1.0) & (choices.num_microbatches * choices.vpp - 1.0 <= ahead)

    def _exposed_beside(self, passes_s: PerPlan, seconds: PerPlan) -> PerPlan:
        if self.overlap is None:
            return 1.0
        return 1.0 - self.overlap * xp.minimum(passes_s / xp.where(seconds > 0.0, seconds, 1.0), 1.0)

    def _link_s(self, position: PerPlan, following: PerPlan) -> PerPlan:
        """Return the seconds of a send from a stage to the next one: of the outermost tier that the link crosses."""
        found, *slower = self.of_tier
        for seconds, each in zip(slower, self.per_unit, strict=True):
            found = xp.where(xp.floor(following / each) > xp.floor(position / each), seconds, found)
        return found

    def _longest(self, position: PerPlan, of_edges: Sequence[PerPlan]) -> PerPlan:
        """Return the most that an edge of a unit, on the way from the first stage to another one, has of a value."""
        found = [
            xp.where(position >= each, edge, xp.zeros_like(edge))
            for edge, each in zip(of_edges, self.per_unit, strict=True)
        ]
        return functools.reduce(xp.maximum, found)

    def _before_s(self, position: PerPlan) -> PerPlan:
        """Return the seconds of the sends from the first stage to another one."""
        return self._with_tiers(position, (xp.floor(position / each) for each in self.per_unit))

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
        one, none = xp.ones_like(choices.pp), xp.zeros_like(choices.pp)
        found = self._with_tiers(one, (xp.where(each < choices.pp, one, none) for each in self.per_unit))
        return xp.where(choices.vpp > 1.0, found, xp.zeros_like(found))

    def _with_tiers(self, links: PerPlan, crossing: Iterable[PerPlan]) -> PerPlan:
        """Return the seconds of so many links, of which so many cross each tier beyond the first."""
        first, *others = self.of_tier
        steps = zip(crossing, self.of_tier, others, strict=False)
        return functools.reduce(xp.add, [count * (above - below) for count, below, above in steps], links * first)


class MeanSends(NamedTuple):
    """Sends that all take as long; the last stage sends in its forward too, and the first one in its backward.

    Attributes:
        chunk_s: Seconds in which a stage waits for the sends of a microbatch on a chunk, there and back.
        hidden_s: The rest of these sends.
    """

    chunk_s: PerPlan
    hidden_s: PerPlan

    def around(self, position: PerPlan, choices: Choices, holds: StageChunks, interleaved: bool) -> StageSends:
        """As for `LinkSends`."""
        del interleaved
        exposed_s = 0.5 * self.chunk_s
        later = holds.count(choices.pp, choices.vpp) - 1.0 - holds.last(position, choices.pp, choices.vpp)
        chunks = (choices.vpp * exposed_s, exposed_s, exposed_s, position * self.middle_s(choices))
        own, first, last, before = (Passes(seconds, seconds) for seconds in chunks)
        after_s = later * self.middle_s(choices)
        return StageSends(own, first, last, before, Passes(after_s, after_s))

    def hops_s(self, position: PerPlan, choices: Choices) -> tuple[PerPlan, PerPlan]:
        """As for `LinkSends`."""
        del choices
        hop_s = xp.zeros_like(position) + 0.5 * self.hidden_s
        return hop_s, hop_s

    def hidden(self) -> "MeanSends":
        """As for `LinkSends`."""
        return MeanSends(xp.zeros_like(self.chunk_s), self.chunk_s + self.hidden_s)

    def whole_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> PerPlan:
        """As for `LinkSends`."""
        del interleaved
        num_chunks = holds.count(choices.pp, choices.vpp)
        return num_chunks * (0.5 * self.chunk_s) + (num_chunks - 1.0) * (0.5 * self.hidden_s)

    def exposed_s(self, choices: Choices, holds: StageChunks, interleaved: bool) -> PerPlan:
        """As for `LinkSends`."""
        del holds, interleaved
        return choices.vpp * self.chunk_s

    def middle_s(self, choices: Choices) -> PerPlan:
        """As for `LinkSends`."""
        del choices
        return 0.5 * self.chunk_s + 0.5 * self.hidden_s

    def ends_s(self, choices: Choices) -> tuple[PerPlan, PerPlan]:
        """As for `LinkSends`."""
        del choices
        return self.chunk_s, self.chunk_s


Sends = LinkSends | MeanSends


def _longest(some: Passes, others: Passes) -> Passes:
    """Return the longer sends of two, each way."""
    return Passes(*(xp.maximum(one, other) for one, other in zip(some[:2], others[:2], strict=True)))


def slow_senders(choices: StepChoices, both_sides: bool) -> list[PerPlan]:
    """Return the positions of the stages of an even cut that sends may make the slowest.

    Of the stages whose backward sends over a tier, the last one that has another one behind it delays the end of a step
    most, and the first one its start. Without such a stage it is the last one that sends both ways. With `both_sides`
    there is one whose forward sends over the tier too. Hidden sends delay the first stage most that runs a backward
    before its last forward.
    """
    none = xp.zeros_like(choices.pp)
    inner = xp.maximum(choices.pp - 2.0, none)
    found = [xp.clip(choices.pp - choices.num_microbatches + 1.0, xp.minimum(inner, none + 1.0), inner)]
    for each in (choices.pp_nvs, *choices.pp_outer):
        edge = each * xp.floor((choices.pp - 1.0) / each)
        found += [xp.where(edge > 0.0, xp.minimum(edge, inner), inner), xp.minimum(each, inner)]
        if both_sides:
            found.append(xp.clip(each - 1.0, none, inner))
    return found
