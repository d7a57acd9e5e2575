"""When each pass of a pipeline starts and ends: a replay, event by event, of the orders that its schedule can run.

It is the referee of the closed forms of `dsx.schedules.closed_forms`. The times of a replay also put all passes and the
transfers between stages into one order, which every stage can follow without waiting for another one forever.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsx.errors import PlanError
from dsx.plans.rules import RULES, Limits
from dsx.schedules.order import (
    IN_ROUNDS,
    Kind,
    Order,
    Pair,
    Pass,
    StageChunks,
    of_pipeline,
    one_forward_one_backward,
    passes_of,
)
from dsx.schedules.schedules import SCHEDULES, Schedule

# What a schedule asks of stages, chunks and microbatches. These rules compare a plan with no limit.
_REASONS = ("chunks_without_1f1b", "microbatches_not_in_groups", "stages_not_in_groups", "microbatches_too_few")
_RULES = tuple(rule for rule in RULES if rule.name in _REASONS)
_NO_LIMITS = Limits(num_layers=0, nvs_size=0)


def orders_of(schedule: Schedule, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> list[Order]:
    """Return the order in which each stage runs its passes.

    One stage runs each microbatch forward and backward, whatever the schedule. Raises
    PlanError if a rule of plans says that the schedule does not run so many stages, microbatches or chunks per stage.
    """
    number = SCHEDULES.index(schedule)
    plan = {"schedule": number, "pp": num_stages, "vpp": num_chunks, "num_microbatches": num_microbatches}
    for rule in _RULES:
        if not rule.holds(plan, _NO_LIMITS):
            raise PlanError(rule.message(plan, _NO_LIMITS))
    passes = one_forward_one_backward if num_stages == 1 else schedule.passes
    return passes(num_stages, num_microbatches, num_chunks)


# Of the passes that `global_order` replays; a whole backward takes as long as its two parts.
_UNITS: Mapping[Kind, float] = {"forward": 1.0, "backward": 2.0, "inputs": 1.0, "weights": 1.0}


@dataclass(frozen=True, slots=True)
class PassTimes:
    """When each pass starts and ends, in the unit of time of the replay."""

    starts: Mapping[Pass, float]
    ends: Mapping[Pass, float]

    @property
    def end(self) -> float:
        """When the last pass ends."""
        return max(self.ends.values())


class PassRun(NamedTuple):
    """A stage runs an entry of its order."""

    stage: int
    item: Pass | Pair


class StageTransfer(NamedTuple):
    """A stage sends the result of a pass to another stage: activations of a forward, else their gradients."""

    done: Pass
    source: int
    target: int


def replay(
    orders: Sequence[Order],
    seconds: Callable[[Kind, int], float],
    send_s: float = 0.0,
    holds: StageChunks = IN_ROUNDS,
    hidden: Callable[[int, int], float] = lambda forward, backward: 0.0,
) -> PassTimes:
    """Return when each pass starts and ends.

    Every stage runs its passes in their order, each as soon as what it needs is there; sends take `send_s` and hold up
    no one else. `seconds(kind, chunk)` is how long a pass takes, and `hidden(forward chunk, backward chunk)` what a
    pair of passes saves. `holds` says which stage has which chunk. Raises ValueError if a stage runs a pass of a chunk
    that it does not hold, or if stages wait for each other.
    """
    items = [[passes_of(item) for item in order] for order in orders]
    num_chunks = max(done.chunk for order in items for passes in order for done in passes) + 1
    chains = holds.chains(len(items), max(num_chunks // len(items) // holds.num_chains, 1))
    length, stage_of = len(chains[0]), [stage for chain in chains for stage in chain]
    for stage, order in enumerate(items):
        for done in (done for passes in order for done in passes):
            if done.chunk >= len(stage_of) or stage_of[done.chunk] != stage:
                raise ValueError(f"stage {stage} runs {_name(done)}, but does not hold that chunk")
    starts: dict[Pass, float] = {}
    ends: dict[Pass, float] = {}
    results: dict[Pass, float] = {}  # when what a pass computes is there
    at, clock = [0] * len(items), [0.0] * len(items)
    waiting: dict[Pass, list[int]] = {}  # stages, by the result that they wait for
    runnable = [*range(len(items))]
    while runnable:
        stage = runnable.pop()
        while at[stage] < len(items[stage]):
            passes = items[stage][at[stage]]
            needed = [need for done in passes if (need := _needed(done, length)) is not None]
            missing = next((need for need in needed if need not in results), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            arrived = (results[need] + send_s * (stage_of[need.chunk] != stage) for need in needed)
            begin = max((clock[stage], *arrived))
            lasts = -hidden(*(done.chunk for done in passes)) if len(passes) > 1 else 0.0
            for done in passes:
                lasts += seconds(done.kind, done.chunk)
            clock[stage] = begin + lasts
            for done in passes:
                starts[done], ends[done] = begin, clock[stage]
                result = _result(done)
                results[result] = clock[stage]
                runnable += waiting.pop(result, ())
            at[stage] += 1
    if waiting:
        heads = {stage: (items[stage][at[stage]], need) for need, stages in waiting.items() for stage in stages}
        raise ValueError(_wait_for_each_other(heads, stage_of, items))
    return PassTimes(starts, ends)


def global_order(
    schedule: Schedule, num_stages: int, num_microbatches: int, num_chunks: int = 1
) -> tuple[PassRun | StageTransfer, ...]:
    """Return all passes of all stages, and all transfers between stages, in one order that all of them can follow.

    It is that of a replay in which a forward takes as long as either part of a backward, and sends take no time. A
    transfer comes when its pass has ended, before all passes that start then or later. Raises PlanError if the schedule
    does not run such a pipeline.
    """
    orders = orders_of(schedule, num_stages, num_microbatches, num_chunks)
    holds = of_pipeline(schedule.holds, num_stages)
    times = replay(orders, lambda kind, chunk: _UNITS[kind], holds=holds)
    chains = holds.chains(num_stages, num_chunks)
    length, stage_of = len(chains[0]), [stage for chain in chains for stage in chain]
    entries: list[tuple[float, bool, int, int, PassRun | StageTransfer]] = []
    for stage, order in enumerate(orders):
        for number, item in enumerate(order):
            for done in passes_of(item):
                receiver = _receiver(done, length)
                if receiver is not None and stage_of[receiver] != stage:
                    sent = StageTransfer(done, stage, stage_of[receiver])
                    entries.append((times.ends[done], False, stage, number, sent))
            entries.append((times.starts[passes_of(item)[0]], True, stage, number, PassRun(stage, item)))
    return tuple(entry for *_, entry in sorted(entries, key=lambda entry: entry[:4]))


def _needed(done: Pass, length: int) -> Pass | None:
    """Return the pass whose result a pass takes, in chains of `length` chunks; None if it begins with data."""
    kind, microbatch, chunk = done
    if kind == "forward":
        return Pass("forward", microbatch, chunk - 1) if chunk % length else None
    if kind == "weights":
        return Pass("inputs", microbatch, chunk)
    at_end = chunk % length == length - 1
    return Pass("forward", microbatch, chunk) if at_end else Pass("inputs", microbatch, chunk + 1)


def _receiver(done: Pass, length: int) -> int | None:
    """Return the chunk that takes the result of a pass; None if none does, or another pass of its own chunk."""
    place = done.chunk % length
    if done.kind == "forward":
        return done.chunk + 1 if place < length - 1 else None
    return done.chunk - 1 if place and done.kind != "weights" else None


def _result(done: Pass) -> Pass:
    """Return a pass by its result: a whole backward has the gradients of its inputs too."""
    return done._replace(kind="inputs") if done.kind == "backward" else done


def _wait_for_each_other(
    heads: Mapping[int, tuple[Sequence[Pass], Pass]], stage_of: Sequence[int], items: Sequence[Sequence[Sequence[Pass]]]
) -> str:
    """Return which passes wait for each other; `heads` has what each stage waits with, and the pass it waits for."""
    path: list[int] = [min(heads)]
    while (following := stage_of[heads[path[-1]][1].chunk]) in heads and following not in path:
        path.append(following)
    cycle = path[path.index(following) :] if following in path else path
    texts = [
        f"stage {stage} waits with {' and '.join(map(_name, heads[stage][0]))} for {_name(heads[stage][1])}"
        for stage in cycle
    ]
    last = heads[cycle[-1]][1]
    if last not in (_result(done) for passes in items[following] for done in passes):
        texts.append(f"stage {following} never runs {_name(last)}")
    return f"the stages wait for each other: {'; '.join(texts)}"


def _name(done: Pass) -> str:
    return f"{done.kind} {done.microbatch} of chunk {done.chunk}"
