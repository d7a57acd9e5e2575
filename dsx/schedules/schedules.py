"""Pipeline schedules, one record each: what a schedule adds to the work of the stages, and its names elsewhere.

`dsx.schedules.closed_forms`, `dsx.schedules.zero_bubble` and `dsx.schedules.dual_pipe` have the seconds of a step. With
p equal stages and m microbatches, they are those of m microbatches of a stage and the bubble: (p-1)(T_F + T_B) in 1F1B
and GPipe, with T_B the whole backward, and a v-th of it with v chunks per stage (Narayanan et al., SC21, section 2.2).
Zero-bubble H1 fills the drain with weight gradients and saves 2(p-1)T_W (Qi et al., 2024, table 2, which counts T_W
apart from T_B). H2 starts more forwards early and saves another (p-1)T_W. DualPipe has (p/2-1)(T_FB + T_B - 3T_W), with
T_FB a forward and a backward side by side (arXiv 2412.19437, table 2). ZB-V has none but the first forwards of the
earlier stages if T_F = T_W = T_B / 2 (arXiv 2405.15362, section 3.2). Microbatches in flight on a stage, with `ahead`
the stages from it to the last one, both included: all m in GPipe; `ahead` in 1F1B; p in H1 and 2p - 1 in H2, until the
gradients of weights are computed; with v chunks 2(`ahead` - 1) + (v-1)p + 1 chunks (Korthikanti et al., 2022, section
4). In DualPipe a stage holds as many of each of its chunks as 1F1B on the stage of that chunk: p + 1. In ZB-V it holds
2p, as many of the far chunk.

The order of a pipeline whose stages have several unlike chunks is replayed for many plans at once (`replayed_s`). While
one stage runs a long chunk another runs a short one, so the longest path moves between stages as often as chunks
alternate. A closed form of a few paths misses it by up to a fourth. All plans of as many stages, chunks and
microbatches run the same passes in the same order; only their seconds differ. So the passes are put into levels, each
of which needs only earlier ones, and a level is one operation on arrays. `dsx.plans.pass_times` replays one plan event
by event, and is the referee.

Beyond `_GROUPS` groups of microbatches each further group takes as long as the last one that is replayed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dsx.schedules.closed_forms import (
    AnyCut,
    ClosedForm,
    any_one_forward_one_backward_s,
    gpipe_s,
    interleaved_s,
    one_forward_one_backward_s,
)
from dsx.schedules.dual_pipe import dual_pipe, dual_pipe_s, num_pairs
from dsx.schedules.order import (
    FOLDED,
    IN_ROUNDS,
    MIRRORED,
    Numbers,
    Order,
    StageChunks,
    gpipe,
    one_forward_one_backward,
    passes_of,
)
from dsx.schedules.zero_bubble import filled_s, greedy, zb_v, zb_v_s, zero_bubble_h1, zero_bubble_h1_s

InFlight = Callable[[Numbers, Numbers, Numbers], Numbers]  # (ahead, p, m) -> microbatches


class PutOff(NamedTuple):
    """What a stage holds when most gradients of weights are put off, in microbatches.

    A microbatch waits if it has all gradients of inputs, and lacks those of weights. The stage keeps what it has
    recomputed of it. The head never waits (`dsx.schedules.order`).
    """

    waiting: Numbers  # of the first or only chunk, with the microbatch whose backward runs
    held: Numbers = 0.0  # of the first of two chunks, waiting or not
    waiting_of_last: Numbers = 0.0  # of the last of two chunks
    held_of_last: Numbers = 0.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a schedule hides, as passes of opposite directions run side by side."""

    axes: tuple[str, ...]  # whose collectives hide behind the rest of both passes
    sends: bool  # whether all of a send hides
    num_pairs: Callable[
        [Numbers, Numbers], Numbers
    ]  # (p, m) -> pairs of passes of a stage in a step, the mean over stages


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which the stages of a pipeline run forwards and backwards."""

    name: str
    passes: Callable[[int, int, int], list[Order]]  # (p, m, chunks per stage) -> the order of each stage
    in_flight: InFlight  # whose activations a stage holds
    step_s: ClosedForm  # seconds of all passes
    interleaved_s: ClosedForm | None = None  # the same with several chunks per stage; None if it cannot have several
    exact: bool = True  # whether the closed forms are those of a replay, but for rare unequal stages; else not searched
    num_chunks: int = 1  # chunks per stage, unless it is interleaved
    holds: StageChunks = IN_ROUNDS  # which chunks a stage holds
    # Of the last one of two chunks that are not in rounds; then `in_flight` is of the first one.
    in_flight_of_last: InFlight | None = None
    overlap: Overlap | None = None
    # Whether microbatches in flight may only wait for gradients of weights. The head keeps nothing of these: measured
    # peaks of ZB-1p are 2 to 8 % above those of 1F1B (Qi et al., arXiv 2401.10241, table 4). With it, those of ZB-2p
    # are predicted to 1 %; if later stages held fewer microbatches, as 1F1B's do, 3 to 12 % too low.
    weights_wait: bool = False
    put_off: Callable[[Numbers, Numbers], PutOff] | None = (
        None  # (position, p); None if weights never wait for a pass to end
    )
    always_splits: bool = False  # whether gradients of inputs and of weights are passes of their own in every backward
    # Whether forwards follow forwards, and gradients of inputs each other, where these decide how long a step takes: a
    # send hides behind passes of its own direction.
    sends_own_way: bool = False
    by_waves: bool = False  # whether the closed forms need both ends of each run of equal stages
    # Whether a search tries numbers of stages that do not divide the layers; then the last stages hold fewer of them.
    uneven_stages: bool = False
    # What it can run. Stages are a multiple of the number of chains.
    least_microbatches: int = 0  # for each stage
    least_in_all: int = 1  # with fewer it runs what another schedule runs
    microbatches_in: int = 1  # groups of so many
    # A bound below `step_s` of any cut. The optimal cut is known where there is one: then `step_s` is the largest of
    # what each stage causes with its own layers.
    any_cut_s: Callable[[AnyCut], Numbers] | None = None
    megatron_lm: tuple[tuple[str, str], ...] | None = None  # launch flags; None if Megatron-LM does not have it
    aliases: tuple[str, ...] = ()  # other names in run tables

    @property
    def optimal_cut(self) -> bool:
        """Whether the optimal cut is known for it."""
        return self.any_cut_s is not None

    @property
    def interleaved(self) -> bool:
        """Whether a stage may have several chunks."""
        return self.interleaved_s is not None

    def chunks_in_flight(self, ahead: Numbers, pp: Numbers, vpp: Numbers) -> Numbers:
        """Return the microbatches whose activations a stage of `vpp` chunks holds."""
        return (2.0 * ahead - 1.0 + (vpp - 1.0) * pp) / vpp


# The position of a schedule is its code.
SCHEDULES: tuple[Schedule, ...] = (
    # Interleaved 1F1B is 1f1b with vpp above 1.
    Schedule(
        "1f1b",
        one_forward_one_backward,
        lambda ahead, _, __: ahead,
        one_forward_one_backward_s,
        interleaved_s,
        any_cut_s=any_one_forward_one_backward_s,
        megatron_lm=(),
        aliases=("1f1b-i", "interleaved"),
    ),
    Schedule("gpipe", gpipe, lambda _, __, microbatches: microbatches, gpipe_s, least_in_all=2, sends_own_way=True),
    # ZB-1p and ZB-2p are the automatic schedules with the memory of H1 and H2 (Qi et al., arXiv 2401.10241, section 3).
    Schedule(
        "zb-h1",
        zero_bubble_h1,
        lambda _, num_stages, __: num_stages,
        zero_bubble_h1_s,
        weights_wait=True,
        put_off=lambda position, _: PutOff(position + 1.0),
        always_splits=True,
        sends_own_way=True,
        by_waves=True,
        least_microbatches=1,
        aliases=("zb-1p",),
    ),
    Schedule(
        "zb-h2",
        greedy(lambda num_stages: 2 * num_stages - 1),
        lambda _, num_stages, __: 2.0 * num_stages - 1.0,
        filled_s(3.0),
        exact=False,
        weights_wait=True,
        put_off=lambda position, num_stages: PutOff(position + num_stages),
        always_splits=True,
        sends_own_way=True,
        aliases=("zb-2p",),
    ),
    Schedule(
        "dualpipe",
        dual_pipe,
        lambda ahead, _, __: ahead,
        dual_pipe_s,
        holds=MIRRORED,
        in_flight_of_last=lambda ahead, num_stages, _: num_stages - ahead + 1.0,
        overlap=Overlap(("ep",), sends=True, num_pairs=num_pairs),
        by_waves=True,
        uneven_stages=True,
        least_microbatches=2,
        microbatches_in=2,
    ),
    Schedule(
        "zb-v",
        zb_v,
        lambda ahead, num_stages, _: num_stages + ahead - 1.0,
        zb_v_s,
        num_chunks=2,
        holds=FOLDED,
        in_flight_of_last=lambda ahead, num_stages, _: num_stages - ahead + 1.0,
        # After the last forward.
        put_off=lambda position, num_stages: PutOff(position + 1.0, num_stages, position, position),
        always_splits=True,
        by_waves=True,
        least_microbatches=2,
    ),
)


def names_of(schedules: Iterable[Schedule]) -> str:
    """Return the names of schedules as an enumeration in words."""
    return " and ".join(schedule.name for schedule in schedules)


def codes_where(holds: Callable[[Schedule], bool]) -> list[int]:
    """Return the codes of the schedules that satisfy a predicate."""
    return [code for code, schedule in enumerate(SCHEDULES) if holds(schedule)]


_GROUPS = 5  # of as many microbatches as stages
_AT_ONCE = 64  # plans whose times fit into a cache together
_NOT_YET = -1  # the place of a pass that no level has so far


class _PassLevel(NamedTuple):
    """Passes that need only earlier levels; places of passes are those of their times, the first is 1."""

    rows: slice  # places of the passes
    earlier: np.ndarray  # places of the passes that their stages run before; 0 for none
    needed: np.ndarray  # places of the passes whose results they take; 0 for none
    sends: np.ndarray  # rows of `_Timed.hops_s` of their sends
    seconds: np.ndarray  # rows of `_Timed.chunks_s`


class _Timed(NamedTuple):
    """The seconds of the passes of N plans."""

    chunks_s: np.ndarray  # [2C, N] forwards of the chunks, then backwards
    hops_s: np.ndarray  # [1 + 2S, N] none, then those of forwards of each stage, then of backwards

    def end_s(self, levels: Sequence[_PassLevel]) -> np.ndarray:
        """Return when the last of all passes ends, [N]."""
        ends = np.zeros((levels[-1].rows.stop, self.hops_s.shape[1]), self.chunks_s.dtype)
        for level in levels:
            begin = np.maximum(ends[level.earlier], ends[level.needed] + self.hops_s[level.sends])
            ends[level.rows] = begin + self.chunks_s[level.seconds]
        return ends.max(axis=0)


def replayed_s(
    schedule: Schedule, forward_s: np.ndarray, backward_s: np.ndarray, hops_s: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Return the [N] seconds of the pipelines of plans; -inf where microbatches are no groups of as many as stages.

    Args:
        schedule: whose order is replayed; it holds chunks in rounds.
        forward_s: [R, S, N] of a microbatch on a chunk, with what a send keeps its stage busy; `backward_s` likewise.
        hops_s: [2S, N] seconds by which a send delays a microbatch beyond that: after forwards of each stage, then
            after backwards.
        sizes: [3, N] stages, chunks per stage, and microbatches.
    """
    num_plans, sizes = sizes.shape[1], sizes.astype(np.int64)
    seconds = np.full(num_plans, -np.inf)
    for stages, chunks, microbatches in np.unique(sizes, axis=1).T.tolist():
        if microbatches % stages:
            continue
        equal = np.flatnonzero((sizes.T == (stages, chunks, microbatches)).all(axis=1))
        groups = microbatches // stages
        for rows in np.split(equal, range(_AT_ONCE, len(equal), _AT_ONCE)):
            ways = (way[:chunks, :stages, rows].reshape(chunks * stages, -1) for way in (forward_s, backward_s))
            hops = hops_s.reshape(2, -1, num_plans)[:, :stages, rows].reshape(2 * stages, -1)
            timed = _Timed(np.concatenate([*ways]), np.concatenate([np.zeros_like(hops[:1]), hops]))
            seconds[rows] = timed.end_s(_levels(schedule, stages, chunks, min(groups, _GROUPS)))
            if groups > _GROUPS:
                of_group = seconds[rows] - timed.end_s(_levels(schedule, stages, chunks, _GROUPS - 1))
                seconds[rows] += (groups - _GROUPS) * of_group
    return seconds


@lru_cache(maxsize=512)
def _levels(schedule: Schedule, num_stages: int, num_chunks: int, groups: int) -> tuple[_PassLevel, ...]:
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
    levels: list[_PassLevel] = []
    first = 1
    while len(stages):
        now = stages, at[stages]
        needed = places[microbatch[now], link[now]]
        ready = needed != _NOT_YET
        run, now = stages[ready], (stages[ready], at[stages[ready]])
        rows = slice(first, first + len(run))
        levels.append(_PassLevel(rows, last[run], needed[ready], sends[now], seconds[now]))
        last[run] = np.arange(rows.start, rows.stop)
        places[microbatch[now], link[now] + 1] = last[run]
        first, at[run] = rows.stop, at[run] + 1
        stages = stages[at[stages] < len(items[0])]
    return tuple(levels)
