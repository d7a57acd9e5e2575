"""What of the data-parallel reduction overlaps, by hand: once a step, every microbatch, and beside chunks."""

from dataclasses import replace

import pytest
from cost.records import WORKLOAD, choices, layer_costs, machine, make_assumptions

from dsx.cost.step import step_costs
from dsx.plans.enumerate import SearchedCodes
from dsx.schedules.schedules import SCHEDULES

# Of 4 GB over eight GPUs, each alone in its domain. Without latency, so that sends of no bytes take no time.
GATHER = 7 / 8 * 4e9 / 50e9
FORWARD, BACKWARD = 0.010, 0.020  # of a layer
LAYERS, MICROBATCHES = 12, 6


def reduced(once, repeated, layer=None, **changes):
    """The exposed seconds of the reduction, where these shares of what could overlap do."""
    return float(step(once, repeated, layer, **changes).dp_comm_s[0])


def step(once, repeated, layer=None, **changes):
    """The costs of a step."""
    made = choices(**{"pp": 1.0} | changes)
    names = ("zero_stage", "vpp", "schedule")
    searched = SearchedCodes(**{name: (int(getattr(made, name)[0]),) for name in names})
    return step_costs(
        (layer or layer_costs(),),
        made,
        replace(WORKLOAD, searched=searched),
        machine(net_latency=0.0),
        make_assumptions(dp_overlap=once, fsdp_overlap=repeated),
    )


def close(value):
    return pytest.approx(value, rel=1e-12)


def test_what_of_each_stage_of_zero_overlaps():
    others = LAYERS - 1
    once = 2 * GATHER + others * (GATHER - 0.5 * FORWARD) + others * (GATHER - 0.5 * BACKWARD)
    assert reduced(0.5, 0.0, zero_stage=1.0) == reduced(0.5, 1.0, zero_stage=1.0) == close(once)
    # Stage 2 gathers once and scatters with every microbatch.
    gathered = GATHER + (LAYERS - 1) * (GATHER - 0.5 * FORWARD)
    scattered = MICROBATCHES * LAYERS * (GATHER - 0.25 * BACKWARD)
    last = 0.25 * BACKWARD  # the last scatter of the step has no pass left
    assert reduced(0.5, 0.25, zero_stage=2.0) == close(gathered + scattered + last)
    # The share of what happens once does not change what every microbatch repeats.
    assert reduced(0.0, 0.25, zero_stage=2.0) == close(LAYERS * GATHER + scattered + last)
    # Stage 3 repeats everything.
    gathered = MICROBATCHES * LAYERS * (GATHER - 0.25 * FORWARD) + 0.25 * FORWARD
    scattered = MICROBATCHES * LAYERS * (2 * GATHER - 0.25 * BACKWARD) + 0.25 * BACKWARD
    found = gathered + scattered
    assert reduced(0.0, 0.25, zero_stage=3.0) == reduced(1.0, 0.25, zero_stage=3.0) == close(found)


# Short collectives: of 400 MB, hidden by little.
SMALL = layer_costs(weight_bytes=[[4e8]], boundary_bytes=[0.0])
SHORT = 7 / 8 * 4e8 / 50e9  # 7 ms
LONG = layer_costs(weight_bytes=[[4e10]], boundary_bytes=[0.0])
LASTING = 7 / 8 * 4e10 / 50e9  # 700 ms: more than passes of all microbatches


def test_chunks_of_interleaved_stages_run_beside_the_reduction():
    """Two of three chunks reduce while another runs its group of four microbatches: three more passes each."""
    passes = 1 + 2 / 3 * 3
    layers = LAYERS / 4
    found = reduced(1.0, 0.0, LONG, pp=4.0, vpp=3.0)
    hidden = (layers - 1) * passes * (FORWARD + BACKWARD)
    assert found == close(2 * layers * LASTING - hidden)
    # Of six passes three are beside the reduction, and half of what six sends and the first ones take longer.
    waiting = layer_costs(weight_bytes=[[4e10]], boundary_bytes=[1e9])
    found, sent = (step(0.5, 0.0, layer, pp=4.0, vpp=3.0) for layer in (LONG, waiting))
    waits = float(sent.step_time_s[0] - sent.dp_comm_s[0] - (found.step_time_s[0] - found.dp_comm_s[0]))
    assert waits > MICROBATCHES * 3 * 2 * 1e9 / 50e9
    assert found.dp_comm_s[0] - sent.dp_comm_s[0] == close(0.5 * 3 / MICROBATCHES * waits)


def test_waits_and_chunks_hide_no_more_than_could_overlap():
    waiting = layer_costs(weight_bytes=[[4e8]], boundary_bytes=[1e10])
    assert reduced(1.0, 0.0, waiting, pp=4.0, vpp=3.0) == close(2 * SHORT)
    assert reduced(0.0, 0.0, waiting, pp=4.0, vpp=3.0) == close(2 * LAYERS / 4 * SHORT)
    # Chunks hide no more than there is.
    found = reduced(1.0, 0.0, SMALL, pp=4.0, vpp=3.0)
    assert found == close(2 * SHORT)  # of the first gathered and the last reduced layer
    # A group has no more microbatches than the step.
    passes = 1 + 2 / 3 * 1
    found = step(1.0, 0.0, LONG, pp=4.0, vpp=3.0, num_microbatches=2.0)
    # Stages wait between their chunks.
    waits = found.step_time_s[0] - found.dp_comm_s[0] - (2 + 3 / 3) * 3 * (FORWARD + BACKWARD)
    assert waits > 0
    hidden = 2 * passes * (FORWARD + BACKWARD) + passes / 2 * waits
    assert found.dp_comm_s[0] == close(2 * 3 * LASTING - hidden)


@pytest.mark.parametrize("schedule", [schedule for schedule in SCHEDULES if not schedule.interleaved][:2])
def test_only_interleaved_schedules_have_chunks_beside(schedule):
    code = float(SCHEDULES.index(schedule))
    found = reduced(1.0, 0.0, LONG, pp=4.0, schedule=code)
    assert found == close(2 * 3 * LASTING - 2 * (FORWARD + BACKWARD))


def test_what_every_microbatch_repeats_has_its_own_pass_alone():
    """Stage 2 of ZeRO: the gather has more passes beside it, the scatter of each microbatch has not."""
    beside = 2 * (1 + 2 / 3 * 3) * FORWARD
    found, apart = (reduced(1.0, share, LONG, pp=4.0, vpp=3.0, zero_stage=2.0) for share in (1.0, 0.0))
    assert reduced(0.0, 1.0, LONG, pp=4.0, vpp=3.0, zero_stage=2.0) - found == close(beside)
    # Each scatter overlaps with the backward of its layer, and the last one of the step with nothing.
    assert apart - found == close((MICROBATCHES * LAYERS / 4 - 1) * BACKWARD)
