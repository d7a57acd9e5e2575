"""Orders of passes by hand, and how long their replay takes."""

import itertools

import pytest

from dsx.plans.pass_times import replay
from dsx.schedules.dual_pipe import dual_pipe
from dsx.schedules.order import FOLDED, IN_ROUNDS, MIRRORED, Pass, gpipe, one_forward_one_backward, passes_of
from dsx.schedules.schedules import SCHEDULES
from dsx.schedules.zero_bubble import greedy, zb_v, zero_bubble_h1

H1, H2 = zero_bubble_h1, greedy(lambda num_stages: 2 * num_stages - 1)
LETTERS = {"forward": "F", "backward": "B", "inputs": "I", "weights": "W"}


def text(order, num_stages=None):
    """An order as "F0 F1 B0"; with several chunks, the chunk of the stage as a letter: "F0a F0b"."""
    chunk = (lambda done: "abcdef"[done.chunk // num_stages]) if num_stages else lambda _: ""
    items = [[f"{LETTERS[done.kind]}{done.microbatch}{chunk(done)}" for done in passes_of(item)] for item in order]
    return " ".join("&".join(passes) for passes in items)


def test_passes_of_schedules_by_hand():
    first, second = one_forward_one_backward(2, 3)
    assert text(first) == "F0 F1 B0 F2 B1 B2"
    assert text(second) == "F0 B0 F1 B1 F2 B2"
    # Gpipe by hand.
    assert [text(order) for order in gpipe(2, 2)] == ["F0 F1 B0 B1"] * 2
    # Narayanan et al., SC21, figure 4, of two stages: groups of two microbatches, one chunk after the other.
    first, second = one_forward_one_backward(2, 2, 2)
    assert text(first, 2) == "F0a F1a F0b F1b B0b B1b B0a B1a"
    assert text(second, 2) == "F0a F1a F0b B0b F1b B1b B0a B1a"
    # Qi et al., arXiv 2401.10241, figure 2: of four stages the last one puts its weight gradients off by three.
    first, second, third, last = H1(4, 5)
    assert text(first) == "F0 F1 F2 F3 I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4"
    assert text(second) == "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4"
    assert text(third) == "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 I4 W2 W3 W4"
    assert text(last) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4"
    # Zero bubble h2 by hand.
    first, second = H2(2, 3)
    assert text(first) == "F0 F1 F2 I0 W0 I1 W1 I2 W2"
    assert text(second) == "F0 I0 F1 I1 F2 I2 W0 W1 W2"
    # Of four stages: the order of the code by DeepSeek, and its mirror image on the other half.
    orders = dual_pipe(4, 8)
    outer = "F0a F1a F2a F0b I0b W0b F1b F3a&B1b F2b&B0a B2b F3b&B1a B3b I2a W2a I3a W3a"
    inner = "F0a F0b F1a F1b F2a B0b F2b&B0a F3a&B1b F3b&B1a B2b B2a I3b I3a W3b W3a"
    assert [text(order, 4) for order in orders[:2]] == [outer, inner]
    other_way = str.maketrans("ab", "ba")
    assert [text(order, 4).translate(other_way) for order in orders[2:]] == [inner, outer]
    # Of two stages: the second one has the middle chunks; the first one ends with gradients of the first chunk.
    first, second = zb_v(2, 4)
    assert text(first, 2) == (
        "F0a F1a F2a F0b I0b W0b F1b I1b W1b F3a I0a W0a F2b I2b W2b I1a W1a F3b I3b W3b I2a W2a I3a W3a"
    )
    assert (
        text(second, 2)
        == "F0a F0b F1a F1b I0b W0b F2a I0a W0a F2b I1b W1b F3a I1a W1a F3b I2b W2b I2a I3b I3a W2a W3b W3a"
    )


@pytest.mark.parametrize(("num_stages", "more"), [*itertools.product([1, 2, 3, 8, 16], [0, 1, 10])])
def test_equal_passes_of_zb_v_wait_for_the_first_forward_alone(num_stages, more):
    num_microbatches = 2 * num_stages + more
    orders = zb_v(num_stages, num_microbatches)
    assert replay(orders, lambda *_: 1.0, holds=FOLDED).end == 6 * num_microbatches + num_stages - 1
    for stage, order in enumerate(orders):
        chunks = stage, 2 * num_stages - 1 - stage
        every = itertools.product(("forward", "inputs", "weights"), range(num_microbatches), chunks)
        assert sorted(order) == sorted(Pass(*done) for done in every)


@pytest.mark.parametrize(("num_stages", "more"), [*itertools.product([2, 3, 16], [0, 1, 10])])
def test_chunks_in_flight_of_zb_v(num_stages, more):
    """Twice as many of half a stage as the first stage of 1F1B; as many of the last chunk as the closed form has."""
    (schedule,) = [one for one in SCHEDULES if one.passes is zb_v]
    for stage, order in enumerate(zb_v(num_stages, 2 * num_stages + more)):
        of_both = [
            count(num_stages - stage, num_stages, 2 * num_stages + more)
            for count in (schedule.in_flight, schedule.in_flight_of_last)
        ]
        assert most_held(order) == sum(of_both) == 2 * num_stages
        assert most_held(order, 2 * num_stages - 1 - stage) == of_both[1]


@pytest.mark.parametrize(("num_stages", "more"), [*itertools.product([2, 4, 6, 8, 16], [0, 2, 10, 40])])
def test_the_bubble_of_dual_pipe_is_that_of_its_paper(num_stages, more):
    """Table 2 there, (p/2-1)(T_FB + T_B - 3 T_W), with T_F = T_W and T_B = 2 T_W, on the first stage."""
    seconds = {"forward": 1.0, "backward": 2.0, "inputs": 1.0, "weights": 1.0}
    num_microbatches = 2 * num_stages + more
    orders = dual_pipe(num_stages, num_microbatches)
    found = replay(orders, lambda kind, _: seconds[kind], holds=MIRRORED).end
    assert found == 3 * num_microbatches + (num_stages / 2 - 1) * (3 + 2 - 3)


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward, H1, H2])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*itertools.product([1, 2, 3, 5], [1, 2, 4, 7])])
def test_every_stage_runs_every_pass_of_its_chunk_once(schedule, num_stages, num_microbatches):
    kinds = ("forward", "inputs", "weights") if schedule in (H1, H2) else ("forward", "backward")
    for stage, order in enumerate(schedule(num_stages, num_microbatches)):
        assert sorted(order) == sorted(Pass(kind, at, stage) for kind in kinds for at in range(num_microbatches))


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*itertools.product([1, 2, 5, 16], [1, 4, 16, 33])])
def test_equal_stages_wait_for_all_others_once(schedule, num_stages, num_microbatches):
    seconds = {"forward": 1.0, "backward": 2.0}
    found = replay(schedule(num_stages, num_microbatches), lambda kind, _: seconds[kind]).end
    assert found == (num_microbatches + num_stages - 1) * 3.0


@pytest.mark.parametrize(("num_stages", "num_chunks", "groups"), [*itertools.product([2, 4, 8], [2, 3], [1, 2, 5])])
def test_chunks_divide_the_fill(num_stages, num_chunks, groups):
    seconds = {"forward": 1.0, "backward": 2.0}
    num_microbatches = groups * num_stages
    found = replay(
        one_forward_one_backward(num_stages, num_microbatches, num_chunks), lambda kind, _: seconds[kind]
    ).end
    assert found == (num_microbatches * num_chunks + num_stages - 1) * 3.0


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(2, 100), (4, 100), (8, 200)])
def test_sends_lengthen_the_round_trip_of_1f1b(num_stages, num_microbatches):
    """A stage holds p microbatches while one goes to the last stage and back: 2 (p-1) sends for p microbatches."""
    send_s, step = 0.25, 3.0
    seconds = {"forward": 1.0, "backward": 2.0}
    orders = one_forward_one_backward(num_stages, num_microbatches)
    longer = one_forward_one_backward(num_stages, num_microbatches + num_stages)
    per_round = (
        replay(longer, lambda kind, _: seconds[kind], send_s).end
        - replay(orders, lambda kind, _: seconds[kind], send_s).end
    )
    assert per_round == pytest.approx(num_stages * step + 2 * (num_stages - 1) * send_s)


@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_zero_bubble_h2_leaves_the_start_of_the_stages(num_stages):
    """With T_F = T_B = T_W a stage has no bubble; the stages begin one forward after the other."""
    num_microbatches = 4 * num_stages
    found = replay(H2(num_stages, num_microbatches), lambda *_: 1.0).end
    assert found == 3 * num_microbatches + num_stages - 1


@pytest.mark.parametrize(("num_stages", "more"), [*itertools.product([2, 4, 6, 16], [0, 2, 18])])
def test_dual_pipe_runs_every_pass_of_both_its_chunks_once(num_stages, more):
    each = num_stages + more // 2
    for stage, order in enumerate(dual_pipe(num_stages, 2 * each)):
        found = [done for item in order for done in passes_of(item)]
        for chunk in (stage, 2 * num_stages - 1 - stage):
            of_chunk = [done for done in found if done.chunk == chunk]
            whole, inputs = (
                [done.microbatch for done in of_chunk if done.kind == kind] for kind in ("backward", "inputs")
            )
            assert sorted(whole + inputs) == [*range(each)]
            for kind, numbers in (("forward", range(each)), ("weights", sorted(inputs))):
                assert sorted(done.microbatch for done in of_chunk if done.kind == kind) == [*numbers]


def most_held(order, of_chunk=None):
    """Return how many microbatches a stage holds at most, from their forward until all gradients are computed."""
    passes = [done for item in order for done in passes_of(item) if of_chunk in (None, done.chunk)]
    held = itertools.accumulate(
        {"forward": 1, "backward": -1, "inputs": 0, "weights": -1}[done.kind] for done in passes
    )
    return max(held)


@pytest.mark.parametrize(
    "schedule", [one for one in SCHEDULES if one.holds is IN_ROUNDS and one.exact], ids=lambda one: one.name
)
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*itertools.product([1, 2, 5, 8], [1, 3, 8, 20])])
def test_microbatches_in_flight_are_those_of_the_closed_form(schedule, num_stages, num_microbatches):
    for stage, order in enumerate(schedule.passes(num_stages, num_microbatches, 1)):
        in_flight = schedule.in_flight(num_stages - stage, num_stages, num_microbatches)
        assert most_held(order) == min(in_flight, num_microbatches)


@pytest.mark.parametrize(("num_stages", "more"), [*itertools.product([2, 4, 16], [0, 2, 18])])
def test_chunks_in_flight_of_dual_pipe(num_stages, more):
    """Each chunk holds as many as the stage of that chunk in 1F1B; a stage holds p + 1 (table 2 of the paper)."""
    num_microbatches = 2 * num_stages + more
    (schedule,) = [one for one in SCHEDULES if one.passes is dual_pipe]
    for stage, order in enumerate(dual_pipe(num_stages, num_microbatches)):
        assert most_held(order) == num_stages + 1
        position = min(stage, num_stages - 1 - stage)
        near, far = (stage, 2 * num_stages - 1 - stage)[:: 1 if stage == position else -1]
        for chunk, count in ((near, schedule.in_flight), (far, schedule.in_flight_of_last)):
            assert most_held(order, chunk) == count(num_stages - position, num_stages, num_microbatches)


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
        H2(2, 2, 2)
    with pytest.raises(ValueError, match="zb-h1 has one chunk"):
        H1(2, 2, 2)
    for wrong in ((2, 3), (2, 4, 1), (2, 4, 3)):
        with pytest.raises(ValueError, match="ZB-V has two chunks per stage"):
            zb_v(*wrong)
    for wrong in ((3, 6), (4, 7), (4, 6), (4, 8, 2)):
        with pytest.raises(ValueError, match="DualPipe runs an even number of stages"):
            dual_pipe(*wrong)


@pytest.mark.parametrize(("holds", "num_chunks"), [(IN_ROUNDS, 1), (IN_ROUNDS, 3), (MIRRORED, 1), (FOLDED, 2)])
def test_the_chunks_of_a_stage(holds, num_chunks):
    """A stage finds its first and last chunk, and those are on it."""
    chain, *_ = holds.chains(6, num_chunks)
    assert len(chain) == holds.count(6, num_chunks)
    for stage in range(6):
        own = {of_chain.index(stage) for of_chain in holds.chains(6, num_chunks)}
        last = holds.last(stage, 6, num_chunks)
        assert stage in own and (chain[last] == stage or last in own)


def test_the_stage_of_a_chunk():
    assert [IN_ROUNDS.stage_of(chunk, 3) for chunk in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [MIRRORED.stage_of(chunk, 4) for chunk in range(4)] == [0, 1, 1, 0]
    assert [FOLDED.stage_of(chunk, 2) for chunk in range(4)] == [0, 1, 1, 0]


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zb-v"])
def test_gradients_of_weights_that_are_put_off_are_those_of_the_order(name):
    """Counted pass by pass: of each chunk, microbatches with gradients of inputs and none of weights."""
    (schedule,) = (one for one in SCHEDULES if one.name == name)
    for num_stages, num_microbatches in ((2, 12), (4, 16), (7, 30)):
        for stage, order in enumerate(schedule.passes(num_stages, num_microbatches, schedule.num_chunks)):
            waiting, held = [0, 0], [0, 0]
            most = (0, [], [])
            for done in order:
                far = done.chunk // num_stages
                held[far] += done.kind == "forward"
                waiting[far] += done.kind == "inputs"
                if sum(waiting) > most[0]:
                    most = sum(waiting), [*waiting], [*held]
                waiting[far] -= done.kind == "weights"
                held[far] -= done.kind == "weights"
            _, waiting, held = most
            found = schedule.put_off(stage, num_stages)
            assert found.waiting + found.waiting_of_last == sum(waiting)
            if (
                len({done.chunk for done in order}) == 2 and stage > 0
            ):  # the first only has the pass that runs, of either
                assert [found.waiting, found.held, found.held_of_last] == [waiting[0], *held]
