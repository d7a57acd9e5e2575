"""The seconds of a pipeline whose stages have several unlike chunks: its order replayed for many plans at once.

While one stage runs a long chunk another runs a short one, so the longest path moves between stages as often as chunks
alternate. A closed form of a few paths misses it by up to a fourth. All plans of as many stages, chunks and
microbatches run the same passes in the same order; only their seconds differ. So the passes are put into levels, each
of which needs only earlier ones, and a level is one operation on arrays. `dsx.space.pass_times` replays one plan event
by event, and is the referee.

Beyond `_GROUPS` groups of microbatches each further group takes as long as the last one that is replayed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dsx.space.passes import Pass, passes_of
from dsx.space.schedules import Schedule

_GROUPS = 5  # of as many microbatches as stages
_AT_ONCE = 64  # plans whose times fit into a cache together


class _Level(NamedTuple):
    """Passes that need only earlier levels; places of passes are those of their times, the first is 1."""

    rows: slice  # places of the passes
    before: np.ndarray  # places of the passes that their stages run before; 0 for none
    needed: np.ndarray  # places of the passes whose results they take; 0 for none
    sent: np.ndarray  # [passes, 1] 1.0 where that result comes from another stage
    seconds: np.ndarray  # rows of `_Timed.chunks_s`


class _Timed(NamedTuple):
    """The seconds of the passes of N plans."""

    chunks_s: np.ndarray  # [2C, N] forwards of the chunks, then backwards
    hop_s: np.ndarray  # [N] by which a send delays a microbatch

    def end_s(self, levels: Sequence[_Level]) -> np.ndarray:
        """Return when the last of all passes ends, [N]."""
        ends = np.zeros((levels[-1].rows.stop, len(self.hop_s)), self.chunks_s.dtype)
        for level in levels:
            begin = np.maximum(ends[level.before], ends[level.needed] + level.sent * self.hop_s)
            ends[level.rows] = begin + self.chunks_s[level.seconds]
        return ends.max(axis=0)


def replayed_s(
    schedule: Schedule,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    hop_s: np.ndarray,
    pp: np.ndarray,
    vpp: np.ndarray,
    num_microbatches: np.ndarray,
) -> np.ndarray:
    """Return the [N] seconds of the pipelines of plans; -inf where microbatches are no groups of as many as stages.

    Args:
        schedule: whose order is replayed; it holds chunks in rounds.
        forward_s: [R, S, N] of a microbatch on a chunk, with what a send keeps its stage busy; `backward_s` likewise.
        hop_s: [N] seconds by which a send delays a microbatch beyond that.
        pp: [N] stages; `vpp` chunks per stage, and `num_microbatches`, likewise.
    """
    found = np.full(len(pp), -np.inf)
    sizes = np.stack([pp, vpp, num_microbatches]).astype(np.int64)
    for stages, chunks, many in np.unique(sizes, axis=1).T.tolist():
        if many % stages:
            continue
        here = np.flatnonzero((sizes.T == (stages, chunks, many)).all(axis=1))
        groups = many // stages
        for rows in np.split(here, range(_AT_ONCE, len(here), _AT_ONCE)):
            ways = (way[:chunks, :stages, rows].reshape(chunks * stages, -1) for way in (forward_s, backward_s))
            timed = _Timed(np.concatenate([*ways]), hop_s[rows])
            found[rows] = timed.end_s(_levels(schedule, stages, chunks, min(groups, _GROUPS)))
            if groups > _GROUPS:
                of_group = found[rows] - timed.end_s(_levels(schedule, stages, chunks, _GROUPS - 1))
                found[rows] += (groups - _GROUPS) * of_group
    return found


@lru_cache(maxsize=512)
def _levels(schedule: Schedule, num_stages: int, num_chunks: int, groups: int) -> tuple[_Level, ...]:
    """Return the passes of a pipeline by level."""
    orders = schedule.passes(num_stages, groups * num_stages, num_chunks)
    last = num_stages * num_chunks - 1
    items = [[done for item in order for done in passes_of(item)] for order in orders]
    level_of: dict[Pass, int] = {}
    inputs: dict[Pass, tuple[Pass | None, Pass | None]] = {}
    at = [0] * num_stages
    runnable = [*range(num_stages)]
    waiting: dict[Pass, int] = {}  # the stage that waits for a pass
    while runnable:
        stage = runnable.pop()
        while at[stage] < len(items[stage]):
            done = items[stage][at[stage]]
            needed = _needed(done, last)
            if needed is not None and needed not in level_of:
                waiting[needed] = stage
                break
            before = items[stage][at[stage] - 1] if at[stage] else None
            inputs[done] = before, needed
            level_of[done] = 1 + max((level_of[one] for one in (before, needed) if one is not None), default=-1)
            if done in waiting:
                runnable.append(waiting.pop(done))
            at[stage] += 1
    by_level: list[list[Pass]] = [[] for _ in range(1 + max(level_of.values()))]
    for done, level in level_of.items():
        by_level[level].append(done)
    places: dict[Pass | None, int] = {None: 0}
    found: list[_Level] = []
    for passes in by_level:
        first = len(places)
        places |= {done: first + number for number, done in enumerate(passes)}
        befores, neededs = zip(*(inputs[done] for done in passes), strict=True)
        sent = [need is not None and need.chunk != done.chunk for done, need in zip(passes, neededs, strict=True)]
        found.append(
            _Level(
                slice(first, first + len(passes)),
                np.array([places[one] for one in befores]),
                np.array([places[one] for one in neededs]),
                np.array(sent, np.float64)[:, None],
                np.array([done.chunk + (done.kind != "forward") * (last + 1) for done in passes]),
            )
        )
    return tuple(found)


def _needed(done: Pass, last: int) -> Pass | None:
    """Return the pass whose result a forward or a whole backward takes, in a chain of `last` + 1 chunks."""
    kind, microbatch, chunk = done
    if kind == "forward":
        return Pass(kind, microbatch, chunk - 1) if chunk else None
    return Pass("forward", microbatch, chunk) if chunk == last else Pass(kind, microbatch, chunk + 1)
