"""Replays the traces of all ranks, node by node: the independent check of the closed formulas of `dsx.cost`.

A rank has a host, a compute stream, and a stream for each of: the asynchronous collectives of an axis, panels, sends,
loads, stores. Streams run in order, and a node starts when

- the host has issued it: `dispatch_latency` after it issued the one before; it never waits for the GPU;
- the compute stream has done all computation before it in the program, as a library's streams wait for the one that
  issues to them;
- what it depends on is there, and its stream is free;
- for a collective, all its ranks have reached it.

Launches and inline collectives hold the compute stream; the result of an inline one is there when it no longer does.
Asynchronous communication runs on its own stream for all of its time. A send also holds the compute stream for the part
that cannot overlap. A collective does so when its result is needed, or at the end of the program: frameworks that do
not overlap a reduction run it after the backward, and pass on the gradients of a stage before. Time in which the
compute stream waits for something else counts as held. A send does not wait for its receiver; a receive is done when
its send is, and takes no time of a stream. A multiply in n panels starts panel i when the collectives of the panel are
there and panel i - 1 is done.

Ranks run through their nodes in program order as far as they can. Since all streams are in order and times only add up
and take maxima, the order in which ranks are looked at does not matter. If none can go on, ranks wait for each other in
a cycle, or for what no rank does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dsx.errors import TraceError
from dsx.traces.columns import node_text
from dsx.traces.rank_program import (
    FIRST_AXIS,
    HOST,
    IN_PANELS,
    INLINE,
    LAUNCH,
    LOADS,
    NOTHING,
    PANEL,
    PANELS,
    RECEIVE,
    RECEIVES,
    SEND,
    SENDS,
    SHARED,
    STORES,
    EventKey,
    RankProgram,
    RankTimes,
    StepTimes,
)

_MOST_NAMED = 12  # ranks of a cycle
_NOT_DONE = -1.0
_STREAM_NAMES = {SENDS: "sends", LOADS: "loads", STORES: "stores", PANELS: "panels"}

# Takes an event: rank, stream, name, start and duration in seconds.
Emit = Callable[[int, str, str, float, float], None]


class _Waiting(NamedTuple):
    """A rank that cannot go on."""

    program: RankProgram
    row: int  # of the node in the program that it waits at
    missing: tuple[int, ...]  # ranks that it waits for

    def text(self, other: int) -> str:
        """Return that it waits for another rank."""
        trace, row = self.program.trace, self.program.rows[self.row]
        waits = f"rank {trace.rank} waits at {node_text(trace, row)} for"
        if self.program.roles[self.row] == RECEIVE:
            return f"{waits} a send from rank {other} with tag {trace.comm_tag[row]}"
        return f"{waits} rank {other}"


@dataclass(slots=True, eq=False)
class _OpenCollective:
    """A collective: the ranks that reached it, and when."""

    missing: int  # ranks that have not reached it, or whose stream is not known to be free
    start: float = 0.0
    end: float = _NOT_DONE
    members: "list[tuple[_Rank, int]]" = field(default_factory=list)  # with the row of each
    followers: "list[_OpenCollective]" = field(default_factory=list)  # the next ones on the streams of the members


class _Rank:
    """How far a rank is; nodes are positions in its program, called rows."""

    __slots__ = ("at", "blocked", "done", "free", "host", "owed", "panel_ends", "program", "tails", "waits")

    def __init__(self, program: RankProgram, num_streams: int) -> None:
        self.program = program
        self.at = 0  # row of the next node
        self.blocked = -1  # row of the node that the next one waits for
        self.host = 0.0  # seconds when the host can issue again
        self.free = 0.0  # seconds when the compute stream is free
        self.done = [_NOT_DONE] * len(program.roles)  # seconds when the result of each node is there
        self.tails: list[float | _OpenCollective] = [0.0] * num_streams  # when a stream is free, or its last collective
        self.waits = [0.0] * num_streams  # seconds in which the compute stream computed nothing
        self.panel_ends: dict[int, list[float]] = {}  # of the multiplies in panels
        # Seconds for which asynchronous collectives still hold the compute stream, by row, the first ones first.
        self.owed: dict[int, float] = {}

    def idle(self, seconds: float) -> None:
        """Let a wait of the compute stream count for what collectives hold of it."""
        for row in list(self.owed):
            remaining = self.owed[row] - seconds
            if remaining > 0.0:
                self.owed[row] = remaining
                return
            seconds = -remaining
            del self.owed[row]

    def hold(self, row: int) -> float:
        """Return the seconds for which a collective holds the compute stream now that its result is needed."""
        seconds = self.owed.pop(row, 0.0)
        self.waits[self.program.streams[row]] += seconds
        return seconds


class Replay:
    """A replay of ranks from their programs.

    `waited_for` has the ranks of each group that have a program; `axes` names the mesh axes of the programs. `emit`
    gets an event for each node, in no order.
    """

    def __init__(
        self,
        programs: Sequence[RankProgram],
        waited_for: Mapping[str, Sequence[int]],
        axes: Sequence[str],
        emit: Emit | None = None,
    ) -> None:
        self._axes, self._waited_for, self._emit = axes, waited_for, emit
        self._ranks = [_Rank(program, FIRST_AXIS + len(axes)) for program in programs]
        self._ready = self._ranks[::-1]  # ranks that may go on
        self._joints: dict[EventKey, _OpenCollective] = {}  # collectives that some ranks have reached
        self._sent: dict[EventKey, float] = {}  # end of the sends that were not received
        self._awaited: dict[EventKey, tuple[_Rank, int, float]] = {}  # receives before their sends

    def run(self) -> StepTimes:
        """Return the times of the ranks; raises TraceError if they wait for each other, or for what never comes."""
        while self._ready:
            self._advance(self._ready.pop())
        stalled = [rank for rank in self._ranks if rank.at < len(rank.done) or _NOT_DONE in rank.done]
        waiting = {rank.program.trace.rank: self._waiting(rank) for rank in stalled}
        for stall in waiting.values():
            for other in stall.missing:
                if other not in waiting:
                    raise TraceError(f"the replay cannot go on: {stall.text(other)}, which ends without that")
        if waiting:
            path, rank = list[int](), next(iter(waiting))
            while rank not in path:
                path.append(rank)
                rank = waiting[rank].missing[0]
            around = path[path.index(rank) :]
            texts = [waiting[rank].text(waiting[rank].missing[0]) for rank in around[:_MOST_NAMED]]
            texts += [f"and {len(around) - len(texts)} more"] if len(around) > len(texts) else []
            raise TraceError("the replay cannot go on, since ranks wait for each other: " + "; ".join(texts))
        times = sorted(map(self._times, self._ranks), key=lambda times: times.rank)
        return StepTimes(tuple(times), sum(len(rank.done) for rank in self._ranks))

    def _advance(self, rank: _Rank) -> None:
        """Run through the nodes of a rank until one of them must wait for another rank."""
        program, done, waits, emit = rank.program, rank.done, rank.waits, self._emit
        roles, deps, streams = program.roles, program.deps, program.streams
        issue_s, held_s, reduced = program.issue_s, program.held_s, program.panels.reduced
        row, host, free, owed = rank.at, rank.host, rank.free, rank.owed
        num_nodes = len(roles)
        while row < num_nodes:
            role, needs = roles[row], deps[row]
            # When what the node depends on is there, and which of it comes last.
            ready, last = 0.0, 0
            if needs is not None:
                for dep in needs:
                    seconds = done[dep]
                    if seconds < 0.0:
                        rank.at, rank.host, rank.free, rank.blocked = row, host, free, dep
                        return
                    if seconds > ready and (role != IN_PANELS or roles[dep] != PANEL):
                        ready, last = seconds, dep
            if role == RECEIVE:
                key = program.keys[row]
                if (end := self._sent.pop(key, None)) is None:
                    self._awaited[key] = rank, row, ready
                else:
                    done[row] = max(end, ready)
                row += 1
                continue
            host += issue_s[row]
            if role == LAUNCH or role == INLINE or role == IN_PANELS or (held_s[row] > 0.0 and role != SHARED):
                if ready > free or host > free:
                    if owed:
                        rank.idle(max(ready, host) - free)
                    if ready > free:
                        waits[streams[last]] += ready - free
                        free = ready
                    if host > free:
                        waits[HOST] += host - free
                        free = host
                if owed and needs is not None:
                    for dep in needs:
                        free += rank.hold(dep)
            if role == LAUNCH:
                if emit is not None:
                    emit(program.trace.rank, "compute", program.name(row), free, held_s[row])
                free += held_s[row]
                done[row] = free
            elif role == INLINE:
                rank.at, rank.host, rank.free = row, host, free
                self._reach(rank, row, free)
                return
            elif role == IN_PANELS:
                free = self._multiply_in_panels(rank, row, free)
            elif role == NOTHING:
                done[row] = ready
            else:
                if row in reduced:
                    # The multiply in panels is over on the compute stream; the panel that it takes ended before that.
                    panels = ((dep, rank.panel_ends.get(dep)) for dep in needs or ())
                    ends = [done[dep] if of is None else of[min(reduced[row], len(of) - 1)] for dep, of in panels]
                    ready = max([host, *ends])
                else:
                    ready = max(free, host, ready)
                self._start(rank, row, ready)
                if held_s[row] > 0.0:
                    if role == SHARED:
                        owed[row] = held_s[row]
                    else:
                        waits[streams[row]] += held_s[row]
                        free += held_s[row]
            row += 1
        rank.at, rank.host, rank.free = row, host, free

    def _start(self, rank: _Rank, row: int, ready: float) -> None:
        """Start asynchronous communication on its stream, when the stream is free after `ready`."""
        role, program = rank.program.roles[row], rank.program
        stream = PANELS if role == PANEL else program.streams[row]
        if stream >= PANELS:
            self._reach(rank, row, ready, stream)
            return
        tail = rank.tails[stream]
        start = tail if isinstance(tail, float) and tail > ready else ready
        end = rank.tails[stream] = rank.done[row] = start + program.seconds[row]
        if self._emit is not None:
            self._emit(program.trace.rank, _STREAM_NAMES[stream], program.name(row), start, program.seconds[row])
        if role == SEND:
            if (awaited := self._awaited.pop(program.keys[row], None)) is None:
                self._sent[program.keys[row]] = end
            else:
                receiver, receive, reached = awaited
                self._is_done(receiver, receive, max(end, reached))

    def _reach(self, rank: _Rank, row: int, ready: float, stream: int | None = None) -> None:
        """Let a rank reach a collective, on a stream of its own or on the compute stream; the last rank starts it."""
        key = rank.program.keys[row]
        joint = self._joints.get(key)
        if joint is None:
            joint = self._joints[key] = _OpenCollective(len(self._waited_for[key[0]]))
        joint.members.append((rank, row))
        is_known = True  # whether the stream is known to be free
        if stream is not None:
            tail = rank.tails[stream]
            rank.tails[stream] = joint
            if isinstance(tail, _OpenCollective):
                is_known = tail.end >= 0.0
                ready = max(ready, tail.end)
                if not is_known:
                    tail.followers.append(joint)
        joint.start = max(joint.start, ready)
        if is_known:
            joint.missing -= 1
            if not joint.missing:
                self._finish(joint)

    def _finish(self, joint: _OpenCollective) -> None:
        """Run a collective that all its ranks have reached, and those that only waited for it."""
        starting = [joint]
        while starting:
            joint = starting.pop()
            start = joint.start
            longest = max([rank.program.seconds[row] for rank, row in joint.members])
            joint.end = start + longest
            del self._joints[joint.members[0][0].program.keys[joint.members[0][1]]]
            for rank, row in joint.members:
                program = rank.program
                if self._emit is not None:
                    axis = self._axes[program.streams[row] - FIRST_AXIS] or "collectives"
                    self._emit(program.trace.rank, axis, program.name(row), start, longest)
                if program.roles[row] == INLINE:
                    free = start + program.held_s[row]
                    rank.waits[program.streams[row]] += free - rank.free
                    rank.free = rank.done[row] = free
                    rank.at = row + 1
                    self._ready.append(rank)
                else:
                    self._is_done(rank, row, joint.end)
            joint.members = []
            for follower in joint.followers:
                follower.start = max(follower.start, joint.end)
                follower.missing -= 1
                if not follower.missing:
                    starting.append(follower)

    def _is_done(self, rank: _Rank, row: int, end: float) -> None:
        """Note the end of a node, and let its rank go on if it waits for it."""
        rank.done[row] = end
        if rank.blocked == row:
            rank.blocked = -1
            self._ready.append(rank)

    def _multiply_in_panels(self, rank: _Rank, row: int, start: float) -> float:
        """Run a multiply in panels, and return its end; `start` is when its first panel could start."""
        program, done = rank.program, rank.done
        brought = program.panels.brought[row]
        panel_s, end, ends = program.seconds[row] / len(brought), start, []
        for panel in brought:
            end = max([end, *(done[dep] for dep in panel)])
            if self._emit is not None:
                self._emit(program.trace.rank, "compute", program.name(row), end, panel_s)
            end += panel_s
            ends.append(end)
        done[row], rank.panel_ends[row] = end, ends
        waited = end - start - program.seconds[row]
        collectives = [dep for panel in brought for dep in panel]
        in_all = sum(program.seconds[dep] for dep in collectives)
        for dep in collectives if in_all > 0.0 else ():
            rank.waits[program.streams[dep]] += waited * program.seconds[dep] / in_all
        return end

    def _times(self, rank: _Rank) -> RankTimes:
        waits, program = rank.waits, rank.program
        for row in list(rank.owed):
            rank.free += rank.hold(row)
        end = max(rank.done, default=0.0)
        if end > rank.free:
            # What is left of asynchronous communication when all else is done.
            waits[program.streams[rank.done.index(end)]] += end - rank.free
        return RankTimes(
            rank=program.trace.rank,
            step_s=max(end, rank.free),
            compute_s=sum(
                held for role, held in zip(program.roles, program.held_s, strict=True) if role in (LAUNCH, IN_PANELS)
            ),
            comm_s={axis: waits[FIRST_AXIS + place] for place, axis in enumerate(self._axes)},
            send_s=waits[SENDS],
            bubble_s=waits[RECEIVES],
            offload_s=waits[LOADS] + waits[STORES],
            host_s=waits[HOST],
        )

    def _waiting(self, rank: _Rank) -> _Waiting:
        """Return what a rank that cannot go on waits for."""
        row = rank.blocked if rank.blocked >= 0 else rank.at
        if row >= len(rank.done):
            row = rank.done.index(_NOT_DONE)
        program = rank.program
        if program.roles[row] == RECEIVE:
            return _Waiting(program, row, (program.keys[row][0],))
        seen: set[EventKey] = set()
        cause, at = rank, row
        while (key := cause.program.keys[at]) not in seen:
            seen.add(key)
            members = self._joints[key].members
            reached = {member.program.trace.rank for member, _ in members}
            missing = tuple(other for other in self._waited_for[key[0]] if other not in reached)
            if missing:
                return _Waiting(program, row, missing)
            # All ranks have reached it, and the stream of one of them has an earlier one.
            cause, at = next(
                (member, first) for member, row_of in members if (first := _first_open(member, row_of)) < row_of
            )
        return _Waiting(program, row, (cause.program.trace.rank,))


def _first_open(rank: _Rank, row: int) -> int:
    """Return the first collective on the stream of the one at `row` that has not run."""
    roles, streams = rank.program.roles, rank.program.streams
    return next(
        first
        for first in range(row + 1)
        if rank.done[first] < 0.0
        and (roles[first] == roles[row] == PANEL or (roles[first], streams[first]) == (roles[row], streams[row]))
    )
