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

from dsx.space.passes import passes_of
from dsx.space.schedules import Schedule

_GROUPS = 5  # of as many microbatches as stages
_AT_ONCE = 64  # plans whose times fit into a cache together
_NOT_YET = -1  # the place of a pass that no level has so far


class _Level(NamedTuple):
    """Passes that need only earlier levels; places of passes are those of their times, the first is 1."""

    rows: slice  # places of the passes
    before: np.ndarray  # places of the passes that their stages run before; 0 for none
    needed: np.ndarray  # places of the passes whose results they take; 0 for none
    sends: np.ndarray  # rows of `_Timed.hops_s` of their sends
    seconds: np.ndarray  # rows of `_Timed.chunks_s`


class _Timed(NamedTuple):
    """The seconds of the passes of N plans."""

    chunks_s: np.ndarray  # [2C, N] forwards of the chunks, then backwards
    hops_s: np.ndarray  # [1 + 2S, N] none, then those of forwards of each stage, then of backwards

    def end_s(self, levels: Sequence[_Level]) -> np.ndarray:
        """Return when the last of all passes ends, [N]."""
        ends = np.zeros((levels[-1].rows.stop, self.hops_s.shape[1]), self.chunks_s.dtype)
        for level in levels:
            begin = np.maximum(ends[level.before], ends[level.needed] + self.hops_s[level.sends])
            ends[level.rows] = begin + self.chunks_s[level.seconds]
        return ends.max(axis=0)


def replayed_s(
    schedule: Schedule,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    hops_s: np.ndarray,
    pp: np.ndarray,
    vpp: np.ndarray,
    num_microbatches: np.ndarray,
) -> np.ndarray:
    """Return the [N] seconds of the pipelines of plans; -inf where microbatches are no groups of as many as stages.

    Args:
        schedule: whose order is replayed; it holds chunks in rounds.
        forward_s: [R, S, N] of a microbatch on a chunk, with what a send keeps its stage busy; `backward_s` likewise.
        hops_s: [2S, N] seconds by which a send delays a microbatch beyond that: after forwards of each stage, then
            after backwards.
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
            hops = hops_s.reshape(2, -1, len(pp))[:, :stages, rows].reshape(2 * stages, -1)
            timed = _Timed(np.concatenate([*ways]), np.concatenate([np.zeros_like(hops[:1]), hops]))
            found[rows] = timed.end_s(_levels(schedule, stages, chunks, min(groups, _GROUPS)))
            if groups > _GROUPS:
                of_group = found[rows] - timed.end_s(_levels(schedule, stages, chunks, _GROUPS - 1))
                found[rows] += (groups - _GROUPS) * of_group
    return found


@lru_cache(maxsize=512)
def _levels(schedule: Schedule, num_stages: int, num_chunks: int, groups: int) -> tuple[_Level, ...]:
    """Return the passes of a pipeline by level."""
    orders = schedule.passes(num_stages, groups * num_stages, num_chunks)
    num_passes = 2 * num_stages * num_chunks
    items = [[done for item in order for done in passes_of(item)] for order in orders]
    backward, microbatch, chunk = np.array(
        [[(done.kind != "forward", done.microbatch, done.chunk) for done in passes] for passes in items], np.int64
    ).transpose(2, 0, 1)
    # The passes of a microbatch form a chain: its forwards, then its backwards from the last chunk on.
    link = np.where(backward, num_passes - 1 - chunk, chunk)
    source = np.where(backward, num_stages + (chunk + 1) % num_stages, (chunk - 1) % num_stages)
    sends = np.where((link == 0) | (link == num_passes // 2), 0, 1 + source)
    seconds = chunk + backward * (num_passes // 2)
    places = np.full((groups * num_stages, num_passes + 1), _NOT_YET)  # by link, after that of no pass
    places[:, 0] = 0
    stages = np.arange(num_stages)
    at, last = np.zeros_like(stages), np.zeros_like(stages)  # of each stage: its next pass, the place of its last one
    found: list[_Level] = []
    first = 1
    while len(stages):
        now = stages, at[stages]
        needed = places[microbatch[now], link[now]]
        ready = needed != _NOT_YET
        run, now = stages[ready], (stages[ready], at[stages[ready]])
        rows = slice(first, first + len(run))
        found.append(_Level(rows, last[run], needed[ready], sends[now], seconds[now]))
        last[run] = np.arange(rows.start, rows.stop)
        places[microbatch[now], link[now] + 1] = last[run]
        first, at[run] = rows.stop, at[run] + 1
        stages = stages[at[stages] < len(items[0])]
    return tuple(found)
