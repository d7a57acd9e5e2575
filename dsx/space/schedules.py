"""Pipeline schedules, one record each: what a schedule adds to the work of the stages, and its names elsewhere.

`dsx.space.critical_path`, `dsx.space.zero_bubble` and `dsx.space.dual_pipe` have the seconds of a step. With p equal
stages and m microbatches, they are those of m microbatches of a stage and the bubble: (p-1)(T_F + T_B) in 1F1B and
GPipe, with T_B the whole backward, and a v-th of it with v chunks per stage (Narayanan et al., SC21, section 2.2).
Zero-bubble H1 fills the drain with weight gradients and saves 2(p-1)T_W (Qi et al., 2024, table 2, which counts T_W
apart from T_B). H2 starts more forwards early and saves another (p-1)T_W. DualPipe has (p/2-1)(T_FB + T_B - 3T_W), with
T_FB a forward and a backward side by side (arXiv 2412.19437, table 2). ZB-V has none but the first forwards of the
earlier stages if T_F = T_W = T_B / 2 (arXiv 2405.15362, section 3.2).
Microbatches in flight on a stage, with `ahead` the stages from it to the last one, both included: all m in GPipe;
`ahead` in 1F1B; p in H1 and 2p - 1 in H2, until the gradients of weights are computed; with v chunks 2(`ahead` - 1) +
(v-1)p + 1 chunks (Korthikanti et al., 2022, section 4). In DualPipe a stage holds as many of each of its chunks as 1F1B
on the stage of that chunk: p + 1. In ZB-V it holds 2p, as many of the far chunk.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsx.space.critical_path import (
    AnyCut,
    ClosedForm,
    any_one_forward_one_backward_s,
    gpipe_s,
    interleaved_s,
    one_forward_one_backward_s,
)
from dsx.space.dual_pipe import dual_pipe, dual_pipe_s, num_pairs
from dsx.space.passes import Order, gpipe, one_forward_one_backward
from dsx.space.stage_chunks import FOLDED, IN_ROUNDS, MIRRORED, StageChunks
from dsx.space.zb_v import zb_v, zb_v_s
from dsx.space.zero_bubble import filled_s, greedy, zero_bubble_h1, zero_bubble_h1_s


def _ahead(ahead: Any, num_stages: Any, num_microbatches: Any) -> Any:
    del num_stages, num_microbatches
    return ahead


def _all(ahead: Any, num_stages: Any, num_microbatches: Any) -> Any:
    del ahead, num_stages
    return num_microbatches


def _as_many_as_stages(ahead: Any, num_stages: Any, num_microbatches: Any) -> Any:
    del ahead, num_microbatches
    return num_stages


def _with_far_chunk(ahead: Any, num_stages: Any, num_microbatches: Any) -> Any:
    del num_microbatches
    return num_stages + ahead - 1.0


def _of_far_chunk(ahead: Any, num_stages: Any, num_microbatches: Any) -> Any:
    del num_microbatches
    return num_stages - ahead + 1.0


def _nearly_twice_as_many(ahead: Any, num_stages: Any, num_microbatches: Any) -> Any:
    del ahead, num_microbatches
    return 2.0 * num_stages - 1.0


class PutOff(NamedTuple):
    """What a stage holds when most gradients of weights are put off, in microbatches.

    A microbatch waits if it has all gradients of inputs, and lacks those of weights. The stage keeps what it has
    recomputed of it. The head never waits (`dsx.space.passes`).
    """

    waiting: Any  # of the first or only chunk, with the microbatch whose backward runs
    held: Any = None  # of that chunk, waiting or not; None: as many as the stage ever holds
    waiting_of_last: Any = 0.0  # of the last of two chunks
    held_of_last: Any = 0.0


def _put_off_h1(position: Any, num_stages: Any) -> PutOff:
    del num_stages
    return PutOff(position + 1.0)


def _put_off_h2(position: Any, num_stages: Any) -> PutOff:
    return PutOff(position + num_stages)


def _put_off_v(position: Any, num_stages: Any) -> PutOff:
    """Return what a stage holds after its last forward."""
    return PutOff(position + 1.0, num_stages, position, position)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a schedule hides, as passes of opposite directions run side by side."""

    axes: tuple[str, ...]  # whose collectives hide behind the rest of both passes
    sends: bool  # whether all of a send hides
    num_pairs: Callable[[Any, Any], Any]  # (p, m) -> pairs of passes of a stage in a step, the mean over stages


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which the stages of a pipeline run forwards and backwards."""

    name: str
    passes: Callable[[int, int, int], list[Order]]  # (p, m, chunks per stage) -> the order of each stage
    in_flight: Callable[[Any, Any, Any], Any]  # (ahead, p, m) -> microbatches whose activations a stage holds
    step_s: ClosedForm  # seconds of all passes
    interleaved_s: ClosedForm | None = None  # the same with several chunks per stage; None if it cannot have several
    exact: bool = True  # whether the closed forms are those of a replay, but for rare unequal stages; else not searched
    weight_versions: int = 1  # versions of its weights that a stage keeps
    num_chunks: int = 1  # chunks per stage, unless it is interleaved
    holds: StageChunks = IN_ROUNDS  # which chunks a stage holds
    # Of the last one of two chunks that are not in rounds; then `in_flight` is of the first one.
    in_flight_of_last: Callable[[Any, Any, Any], Any] | None = None
    overlap: Overlap | None = None
    # Whether microbatches in flight may only wait for gradients of weights. The head keeps nothing of these: measured
    # peaks of ZB-1p are 2 to 8 % above those of 1F1B (Qi et al., arXiv 2401.10241, table 4). With it, those of ZB-2p
    # are predicted to 1 %; if later stages held fewer microbatches, as 1F1B's do, 3 to 12 % too low.
    weights_wait: bool = False
    put_off: Callable[[Any, Any], PutOff] | None = None  # (position, p); None if weights never wait for a pass to end
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
    any_cut_s: Callable[[AnyCut, Any], Any] | None = None
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

    def chunks_in_flight(self, ahead: Any, pp: Any, vpp: Any) -> Any:
        """Return the microbatches whose activations a stage of `vpp` chunks holds."""
        return (2.0 * ahead - 1.0 + (vpp - 1.0) * pp) / vpp


# The position of a schedule is its code.
SCHEDULES: tuple[Schedule, ...] = (
    # Interleaved 1F1B is 1f1b with vpp above 1.
    Schedule(
        "1f1b",
        one_forward_one_backward,
        _ahead,
        one_forward_one_backward_s,
        interleaved_s,
        any_cut_s=any_one_forward_one_backward_s,
        megatron_lm=(),
        aliases=("1f1b-i", "interleaved"),
    ),
    Schedule("gpipe", gpipe, _all, gpipe_s, least_in_all=2, sends_own_way=True),
    # ZB-1p and ZB-2p are the automatic schedules with the memory of H1 and H2 (Qi et al., arXiv 2401.10241, section 3).
    Schedule(
        "zb-h1",
        zero_bubble_h1,
        _as_many_as_stages,
        zero_bubble_h1_s,
        weights_wait=True,
        put_off=_put_off_h1,
        always_splits=True,
        sends_own_way=True,
        by_waves=True,
        least_microbatches=1,
        aliases=("zb-1p",),
    ),
    Schedule(
        "zb-h2",
        greedy(lambda num_stages: 2 * num_stages - 1),
        _nearly_twice_as_many,
        filled_s(3.0),
        exact=False,
        weights_wait=True,
        put_off=_put_off_h2,
        always_splits=True,
        sends_own_way=True,
        aliases=("zb-2p",),
    ),
    Schedule(
        "dualpipe",
        dual_pipe,
        _ahead,
        dual_pipe_s,
        holds=MIRRORED,
        in_flight_of_last=_of_far_chunk,
        overlap=Overlap(("ep",), sends=True, num_pairs=num_pairs),
        by_waves=True,
        uneven_stages=True,
        least_microbatches=2,
        microbatches_in=2,
    ),
    Schedule(
        "zb-v",
        zb_v,
        _with_far_chunk,
        zb_v_s,
        num_chunks=2,
        holds=FOLDED,
        in_flight_of_last=_of_far_chunk,
        put_off=_put_off_v,
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
