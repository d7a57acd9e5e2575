"""What ZeRO divides and which collectives it adds, against section 7 of Rajbhandari et al., 2020, as a table."""

import pytest

from dsx.notation.model import (
    NUM_STAGES,
    OF_REPLICAS,
    OF_REPLICATED,
    OF_STAGE,
    OF_TIED,
    StepCollective,
    accompanying,
    divides,
)

FORWARD, BACKWARD = 0, 1
AG, RS, AR = "all-gather", "reduce-scatter", "all-reduce"

# (kind, what it moves, direction, how often)
COLLECTIVES = {
    0: {(AR, "gradients", BACKWARD, "step")},
    1: {(AG, "weights", FORWARD, "step"), (RS, "gradients", BACKWARD, "step")},
    2: {(AG, "weights", FORWARD, "step"), (RS, "gradients", BACKWARD, "microbatch")},
    3: {
        (AG, "weights", FORWARD, "microbatch"),
        (AG, "weights", BACKWARD, "microbatch"),
        (RS, "gradients", BACKWARD, "microbatch"),
    },
}
DIVIDED = {0: set(), 1: {"optimizer"}, 2: {"optimizer", "gradient"}, 3: {"optimizer", "gradient", "weight"}}


def test_every_stage_of_zero_is_in_the_tables():
    assert [*range(NUM_STAGES)] == [*COLLECTIVES] == [*DIVIDED]
    assert len(OF_STAGE) == NUM_STAGES


@pytest.mark.parametrize("stage", COLLECTIVES)
def test_the_collectives_of_a_stage(stage):
    found = [(one.kind, one.of, one.direction, one.every) for one in OF_STAGE[stage]]
    assert sorted(found) == sorted(COLLECTIVES[stage])
    assert {one.ranks for one in OF_STAGE[stage]} == {"shards"}


@pytest.mark.parametrize("stage", DIVIDED)
def test_what_a_stage_divides(stage):
    assert {state for state in ("optimizer", "gradient", "weight") if divides(stage, state)} == DIVIDED[stage]


@pytest.mark.parametrize("stage", COLLECTIVES)
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_a_pass_is_accompanied_by_the_collectives_of_its_direction(stage, direction):
    wanted = [one for one in COLLECTIVES[stage] if one[2] == direction]
    found = [(one.kind, one.of, one.direction, one.every) for one in accompanying(stage, direction)]
    assert sorted(found) == sorted(wanted)


def test_gradients_are_moved_in_the_backward_and_weights_are_gathered_where_they_are_used():
    for collectives in OF_STAGE:
        for one in collectives:
            assert (one.of == "gradients") == (one.kind in (RS, AR))
            assert one.direction == BACKWARD or one.of == "weights"


def test_a_microbatch_moves_what_its_stage_divides_and_a_step_what_it_keeps_whole():
    for stage, collectives in enumerate(OF_STAGE):
        for one in collectives:
            state = "weight" if one.of == "weights" else "gradient"
            assert (one.every == "microbatch") == divides(stage, state)


@pytest.mark.parametrize(("one", "ranks"), [(OF_REPLICAS, "replicas"), (OF_REPLICATED, "tensor"), (OF_TIED, "ends")])
def test_other_sums_of_gradients_are_all_reduced_once_a_step(one, ranks):
    assert one == StepCollective(AR, "gradients", ranks, BACKWARD, "step")
