"""Orders of passes by hand, and how long their replay takes."""

import itertools

import pytest
from space.replay import replay

from dsx.space.passes import Pass, gpipe, one_forward_one_backward, stage_of, zero_bubble
from dsx.space.schedules import SCHEDULES

H1, H2 = zero_bubble(lambda num_stages: num_stages), zero_bubble(lambda num_stages: 2 * num_stages - 1)
ZERO_BUBBLE = [schedule.passes for schedule in SCHEDULES if "zb" in schedule.name]
LETTERS = {"forward": "F", "backward": "B", "weights": "W"}


def text(order, num_stages=None):
    """An order as "F0 F1 B0"; with several chunks, the chunk of the stage as a letter: "F0a F0b"."""
    chunk = (lambda done: "abcdef"[done.chunk // num_stages]) if num_stages else lambda _: ""
    return " ".join(f"{LETTERS[done.kind]}{done.microbatch}{chunk(done)}" for done in order)


def test_1f1b_by_hand():
    first, second = one_forward_one_backward(2, 3)
    assert text(first) == "F0 F1 B0 F2 B1 B2"
    assert text(second) == "F0 B0 F1 B1 F2 B2"


def test_gpipe_by_hand():
    assert [text(order) for order in gpipe(2, 2)] == ["F0 F1 B0 B1"] * 2


def test_interleaved_1f1b_by_hand():
    """Narayanan et al., SC21, figure 4, of two stages: groups of two microbatches, one chunk after the other."""
    first, second = one_forward_one_backward(2, 2, 2)
    assert text(first, 2) == "F0a F1a F0b F1b B0b B1b B0a B1a"
    assert text(second, 2) == "F0a F1a F0b B0b F1b B1b B0a B1a"


def test_zero_bubble_by_hand():
    """The last stage puts its weight gradients off, so that the first can begin its backwards early."""
    first, second = H1(2, 2)
    assert text(first) == "F0 F1 B0 W0 B1 W1"
    assert text(second) == "F0 B0 F1 B1 W0 W1"


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward, H1, H2])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*itertools.product([1, 2, 3, 5], [1, 2, 4, 7])])
def test_every_stage_runs_every_pass_of_its_chunk_once(schedule, num_stages, num_microbatches):
    kinds = ("forward", "backward", "weights") if schedule in (H1, H2) else ("forward", "backward")
    for stage, order in enumerate(schedule(num_stages, num_microbatches)):
        assert sorted(order) == sorted(Pass(kind, at, stage) for kind in kinds for at in range(num_microbatches))


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*itertools.product([1, 2, 5, 16], [1, 4, 16, 33])])
def test_equal_stages_wait_for_all_others_once(schedule, num_stages, num_microbatches):
    seconds = {"forward": 1.0, "backward": 2.0}
    found = replay(schedule(num_stages, num_microbatches), lambda kind, _: seconds[kind])
    assert found == (num_microbatches + num_stages - 1) * 3.0


@pytest.mark.parametrize(("num_stages", "num_chunks", "groups"), [*itertools.product([2, 4, 8], [2, 3], [1, 2, 5])])
def test_chunks_divide_the_fill(num_stages, num_chunks, groups):
    seconds = {"forward": 1.0, "backward": 2.0}
    num_microbatches = groups * num_stages
    found = replay(one_forward_one_backward(num_stages, num_microbatches, num_chunks), lambda kind, _: seconds[kind])
    assert found == (num_microbatches * num_chunks + num_stages - 1) * 3.0


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(2, 100), (4, 100), (8, 200)])
def test_sends_lengthen_the_round_trip_of_1f1b(num_stages, num_microbatches):
    """A stage holds p microbatches while one goes to the last stage and back: 2 (p-1) sends for p microbatches."""
    send_s, step = 0.25, 3.0
    seconds = {"forward": 1.0, "backward": 2.0}
    orders = one_forward_one_backward(num_stages, num_microbatches)
    longer = one_forward_one_backward(num_stages, num_microbatches + num_stages)
    per_round = replay(longer, lambda kind, _: seconds[kind], send_s) - replay(
        orders, lambda kind, _: seconds[kind], send_s
    )
    assert per_round == pytest.approx(num_stages * step + 2 * (num_stages - 1) * send_s)


@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_zero_bubble_h2_leaves_the_start_of_the_stages(num_stages):
    """With T_F = T_B = T_W a stage has no bubble; the stages begin one forward after the other."""
    num_microbatches = 4 * num_stages
    found = replay(H2(num_stages, num_microbatches), lambda *_: 1.0)
    assert found == 3 * num_microbatches + num_stages - 1


def most_held(order):
    """Return how many microbatches a stage holds at most, from their forward to their backward."""
    held = itertools.accumulate({"forward": 1, "backward": -1, "weights": 0}[done.kind] for done in order)
    return max(held)


@pytest.mark.parametrize(
    "schedule", [schedule for schedule in SCHEDULES if schedule.passes not in ZERO_BUBBLE], ids=lambda one: one.name
)
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*itertools.product([1, 2, 5, 8], [1, 3, 8, 20])])
def test_microbatches_in_flight_are_those_of_the_closed_form(schedule, num_stages, num_microbatches):
    for stage, order in enumerate(schedule.passes(num_stages, num_microbatches, 1)):
        assert most_held(order) == min(schedule.in_flight(num_stages - stage, num_microbatches), num_microbatches)


@pytest.mark.parametrize(("num_stages", "num_chunks"), [*itertools.product([2, 4, 8], [2, 3])])
def test_chunks_in_flight_are_those_of_the_closed_form(num_stages, num_chunks):
    schedule = SCHEDULES[0]
    for stage, order in enumerate(schedule.passes(num_stages, 4 * num_stages, num_chunks)):
        chunks = schedule.chunks_in_flight(num_stages - stage, num_stages, num_chunks) * num_chunks
        assert most_held(order) == round(chunks)


def test_what_a_schedule_cannot_run():
    with pytest.raises(ValueError, match="3 microbatches are no groups of 2"):
        one_forward_one_backward(2, 3, 2)
    with pytest.raises(ValueError, match="gpipe has one chunk per stage, not 2"):
        gpipe(2, 2, 2)
    with pytest.raises(ValueError, match="zero-bubble schedule has one chunk"):
        H1(2, 2, 2)


def test_the_stage_of_a_chunk():
    assert [stage_of(chunk, 3) for chunk in range(7)] == [0, 1, 2, 0, 1, 2, 0]
