"""One order of all passes and transfers of a pipeline, when passes start and end, and what a schedule cannot run."""

import itertools
import time
from collections import Counter

import pytest

from dsx.errors import PlanError
from dsx.plans.pass_times import PassRun, StageTransfer, global_order, orders_of, replay
from dsx.schedules.order import MIRRORED, Pair, Pass, of_pipeline, one_forward_one_backward, passes_of
from dsx.schedules.schedules import SCHEDULES

BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}
STAGES, MICROBATCHES, CHUNKS = (1, 2, 3, 4, 8), (1, 2, 3, 4, 6, 8, 16, 18, 24), (1, 2, 3)
UNITS = {"forward": 1.0, "backward": 2.0, "inputs": 1.0, "weights": 1.0}


def runs(schedule, *pipeline):
    try:
        orders_of(schedule, *pipeline)
    except PlanError:
        return False
    return True


def pipelines(schedule):
    """The numbers of stages, microbatches and chunks that a schedule runs."""
    return [one for one in itertools.product(STAGES, MICROBATCHES, CHUNKS) if runs(schedule, *one)]


each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)


@each_schedule
def test_all_stages_can_follow_one_order(schedule):
    found = pipelines(schedule)
    assert {stages for stages, *_ in found} >= ({1, 2, 4, 8} if schedule.holds is MIRRORED else {*STAGES})
    assert not schedule.interleaved or {chunks for *_, chunks in found} == {*CHUNKS}
    for pipeline in found:
        check_order(schedule, *pipeline)


def check_order(schedule, num_stages, num_microbatches, num_chunks):
    found = global_order(schedule, num_stages, num_microbatches, num_chunks)
    orders = orders_of(schedule, num_stages, num_microbatches, num_chunks)
    holds = of_pipeline(schedule.holds, num_stages)
    chains = holds.chains(num_stages, num_chunks)
    stage_of, length = [stage for chain in chains for stage in chain], len(chains[0])
    for stage, order in enumerate(orders):
        assert [entry.item for entry in found if isinstance(entry, PassRun) and entry.stage == stage] == [*order]
    ran, sent = set(), Counter()
    for entry in found:
        if isinstance(entry, StageTransfer):
            assert entry.done in ran and entry.source == stage_of[entry.done.chunk] != entry.target
            sent[entry.done.kind != "forward", entry.done.microbatch, entry.done.chunk, entry.target] += 1
            continue
        for done in passes_of(entry.item):
            # What a pass takes comes from its own stage, or has been sent.
            step = -1 if done.kind == "forward" else 1
            place = done.chunk % length + step
            if done.kind != "weights" and 0 <= place < length and stage_of[done.chunk + step] != entry.stage:
                taken = (done.kind != "forward", done.microbatch, done.chunk + step, entry.stage)
                assert sent[taken] == 1
                del sent[taken]
        ran |= {*passes_of(entry.item)}
    assert not sent  # all that was sent is taken


@each_schedule
def test_a_transfer_comes_after_its_pass_and_before_all_that_start_then(schedule):
    pipeline = (4, 8, schedule.num_chunks)
    times = replay(orders_of(schedule, *pipeline), lambda kind, _: UNITS[kind], holds=schedule.holds)
    order = global_order(schedule, *pipeline)
    at = [
        times.ends[entry.done] if isinstance(entry, StageTransfer) else times.starts[passes_of(entry.item)[0]]
        for entry in order
    ]
    assert at == sorted(at)
    for (entry, now), (after, then) in itertools.pairwise(zip(order, at, strict=True)):
        assert now < then or not (isinstance(entry, PassRun) and isinstance(after, StageTransfer))
    assert order == global_order(schedule, *pipeline)


def test_an_order_by_hand():
    """1F1B of two stages and two microbatches."""
    first, second = (Pass("forward", 0, 0), Pass("forward", 1, 0)), (Pass("forward", 0, 1), Pass("forward", 1, 1))
    back, back_first = [Pass("backward", number, 1) for number in (0, 1)], Pass("backward", 0, 0)
    assert global_order(BY_NAME["1f1b"], 2, 2) == (
        PassRun(0, first[0]), StageTransfer(first[0], 0, 1), PassRun(0, first[1]), PassRun(1, second[0]),
        StageTransfer(first[1], 0, 1), PassRun(1, back[0]), StageTransfer(back[0], 1, 0), PassRun(0, back_first),
        PassRun(1, second[1]), PassRun(1, back[1]), StageTransfer(back[1], 1, 0), PassRun(0, Pass("backward", 1, 0)),
    )  # fmt: skip


def test_starts_ends_and_transfers_by_hand():
    order = global_order(BY_NAME["zb-v"], 2, 4, 2)
    transfers = [entry for entry in order if isinstance(entry, StageTransfer)]
    assert {transfer.done.chunk for transfer in transfers if transfer.done.kind == "forward"} == {0, 2}
    # Starts and ends.
    orders = orders_of(BY_NAME["1f1b"], 2, 2)
    times = replay(orders, lambda kind, chunk: UNITS[kind] * (1 + chunk), send_s=0.5)
    assert times.starts[Pass("forward", 0, 1)] == 1.5 and times.ends[Pass("forward", 0, 1)] == 3.5
    assert times.starts[Pass("backward", 0, 0)] == 8.0  # after 4 seconds on the second stage, and the send
    assert times.end == 16.0
    pairs = replay(orders_of(BY_NAME["dualpipe"], 2, 4), lambda *_: 1.0, 0.0, MIRRORED, lambda *_: 0.5)
    one = next(item for item in orders_of(BY_NAME["dualpipe"], 2, 4)[0] if isinstance(item, Pair))
    assert pairs.ends[one.forward] - pairs.starts[one.backward] == 1.5


def test_stages_that_wait_for_each_other_are_named():
    orders = one_forward_one_backward(2, 1)
    first = orders[0][::-1], orders[1]
    cycle = (
        "the stages wait for each other: stage 0 waits with backward 0 of chunk 0 for inputs 0 of chunk 1; "
        "stage 1 waits with forward 0 of chunk 1 for forward 0 of chunk 0"
    )
    with pytest.raises(ValueError, match=f"^{cycle}$"):
        replay(first, lambda *_: 1.0)
    with pytest.raises(ValueError, match="for inputs 0 of chunk 1; stage 1 never runs inputs 0 of chunk 1"):
        replay((orders[0], orders[1][:1]), lambda *_: 1.0)
    with pytest.raises(ValueError, match="stage 0 runs forward 0 of chunk 1, but does not hold that chunk"):
        replay(orders[::-1], lambda *_: 1.0)
    with pytest.raises(ValueError, match="stage 1 waits with forward 0 of chunk 1 for forward 0 of chunk 0"):
        replay(([], orders[1]), lambda *_: 1.0)


@pytest.mark.parametrize(
    ("name", "pipeline", "cause"),
    [
        ("1f1b", (4, 6, 2), "vpp=2 runs microbatches in groups of pp, but pp=4 does not divide the 6 microbatches"),
        ("gpipe", (2, 2, 2), "vpp=2, but a stage has 1 with schedule=gpipe and pp=2"),
        ("gpipe", (2, 1, 1), "schedule=gpipe on 2 stages needs at least 2 microbatches"),
        ("zb-h1", (4, 3, 1), "schedule=zb-h1 on 4 stages needs at least 4 microbatches"),
        ("zb-v", (2, 4, 1), "vpp=1, but a stage has 2 with schedule=zb-v and pp=2"),
        ("zb-v", (1, 4, 2), "vpp=2, but a stage has 1 with schedule=zb-v and pp=1"),
        ("zb-v", (4, 7, 2), "schedule=zb-v on 4 stages needs at least 8 microbatches, in groups of 1, not 7"),
        ("dualpipe", (3, 6, 1), "pp=3 with schedule=dualpipe, which needs an even number of stages"),
        ("dualpipe", (4, 9, 1), "schedule=dualpipe on 4 stages needs at least 8 microbatches, in groups of 2, not 9"),
    ],
)
def test_what_a_schedule_cannot_run_is_the_rule_of_plans(name, pipeline, cause):
    with pytest.raises(PlanError, match=cause):
        orders_of(BY_NAME[name], *pipeline)


@each_schedule
def test_every_pipeline_that_plans_may_have_has_an_order(schedule):
    """Where the rules allow a pipeline, the order of the schedule is made and replays."""
    for num_stages, many, chunks in itertools.product(range(1, 7), range(1, 15), CHUNKS):
        if runs(schedule, num_stages, many, chunks):
            orders = orders_of(schedule, num_stages, many, chunks)
            held = of_pipeline(schedule.holds, num_stages)
            assert replay(orders, lambda kind, _: UNITS[kind], holds=held).end >= 3 * many * chunks


def test_a_large_pipeline_is_quick():
    for name in ("1f1b", "dualpipe"):
        start = time.process_time()
        assert len(global_order(BY_NAME[name], 16, 512)) > 24_000
        assert time.process_time() - start < 0.5
