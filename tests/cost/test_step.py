"""A step by hand: the pipeline, the data-parallel reduction and its cover, the update, the rates."""

from dataclasses import replace

import numpy as np
import pytest
from cost.records import WORKLOAD, choices, layer_costs, machine, make_assumptions

from dsx.cost.context import ChosenPlans
from dsx.cost.pipeline import in_flight, in_flight_of_embedding_and_head
from dsx.cost.stages import Stack
from dsx.cost.step import step_costs, with_effects
from dsx.plans.choices import SEARCHED_COLUMNS
from dsx.plans.enumerate import SearchedCodes
from dsx.schedules.schedules import SCHEDULES


def cost(layer=None, made=None, workload=WORKLOAD, cluster=None, assumptions=None):
    costs = step_costs(
        (layer or layer_costs(),), made or choices(), workload, cluster or machine(), assumptions or make_assumptions()
    )
    return {name: float(getattr(costs, name)[0]) for name in costs.__dataclass_fields__}


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-15)


def test_work_sends_and_bubble_of_a_stage():
    # Three layers on a stage, six microbatches.
    found = cost()
    assert found["compute_s"] == close(18 * 0.021)
    assert found["memory_s"] == close(18 * 0.003)
    assert found["tp_comm_s"] == close(18 * 0.004)
    assert found["cp_comm_s"] == close(18 * 0.002)
    assert (found["ep_comm_s"], found["recompute_s"], found["optimizer_s"]) == (0.0, 0.0, 0.0)
    # Sends and bubble.
    assert found["pp_comm_s"] == close(6 * 2 * SEND)
    assert found["bubble_s"] == close(3 * (3 * 0.030 + 2 * SEND))
    # No pipeline.
    found = cost(made=choices(pp=1.0))
    assert (found["pp_comm_s"], found["bubble_s"]) == (0.0, 0.0)
    assert found["compute_s"] == close(6 * 12 * 0.021)
    # A pipeline in one domain.
    assert cost(made=choices(pp_nvs=4.0))["pp_comm_s"] == close(6 * 2 * (1e-6 + 1e8 / 400e9))
    # Sends hide behind a microbatch.
    found = cost(assumptions=make_assumptions(pp_overlap=0.25))
    assert found["pp_comm_s"] == close(6 * 2 * SEND * 0.75)


SEND = 10e-6 + 1e8 / 50e9  # of 100 MB over a slow link


GATHER = 7 * 10e-6 + 7 / 8 * 4e9 / 50e9  # of 4 GB over eight GPUs, each alone in its domain: 70.07 ms


def test_reduction_behind_the_layers():
    # The last of three layers has nothing to hide behind, the others a layer of one microbatch each.
    assert GATHER > 0.020
    assert cost()["dp_comm_s"] == close(2 * GATHER + 2 * (GATHER - 0.010) + 2 * (GATHER - 0.020))
    # Reduction that the backward hides only.
    found = cost(layer_costs(forward_s=[0.060], backward_s=[0.100]))
    assert found["dp_comm_s"] == close(2 * GATHER + 2 * (GATHER - 0.060))
    # Reduction of one layer is not hidden.
    found = cost(layer_costs(forward_s=[1.0], backward_s=[1.0]), choices(pp=12.0))
    assert found["dp_comm_s"] == close(2 * GATHER)
    # Gradients of four bytes take twice as long.
    scatter = 7 * 10e-6 + 7 / 8 * 8e9 / 50e9
    found = cost(made=choices(pp=12.0), assumptions=make_assumptions(gradient_bytes=4.0))
    assert found["dp_comm_s"] == close(GATHER + scatter)
    # A reduction hides as far as the framework overlaps.
    found = cost(assumptions=make_assumptions(dp_overlap=0.5))["dp_comm_s"]
    assert found == close(2 * GATHER + 2 * (GATHER - 0.5 * 0.010) + 2 * (GATHER - 0.5 * 0.020))
    assert cost(assumptions=make_assumptions(dp_overlap=0.0, fsdp_overlap=1.0))["dp_comm_s"] == close(6 * GATHER)
    # No replicas reduce nothing.
    assert cost(made=choices(dp=1.0))["dp_comm_s"] == 0.0


def test_gradients_that_ranks_share():
    # Its four members, all in one domain, and the eight replicas are one ring of 32 with 4 in a domain.
    layer = layer_costs(weight_bytes=[[3e9], [1e9]], group_size=[[1.0], [4.0]], group_share=[[1.0], [4.0]])
    alone = 7 * 10e-6 + 7 / 8 * 3e9 / 50e9
    shared = 7 * 10e-6 + 24 * 1e-6 + 31 / 32 * 1e9 / 200e9
    found = cost(layer, choices(pp=12.0))
    assert found["dp_comm_s"] == close(2 * (alone + shared))
    assert found["optimizer_bytes"] == close(6 * 3e9 / 8 + 6 * 1e9 / 32)
    # Gradients that tensor parallel ranks share once a step.
    found = cost(layer_costs(replicated_gradient_s=[0.005]), choices(pp=12.0))
    assert found["dp_comm_s"] == close(2 * GATHER + 0.005)
    found = cost(layer_costs(replicated_gradient_s=[0.005]), choices(dp=1.0))
    assert found["dp_comm_s"] == close(3 * 0.005)


def test_the_update_reads_and_writes_the_shard_or_whole_parameters():
    # 2e9 parameters a layer over eight replicas, three layers, 28 bytes each, at 1 TB/s.
    found = cost(assumptions=make_assumptions(optimizer_traffic_per_parameter=28.0))
    assert found["optimizer_s"] == close(3 * 2e9 / 8 * 28 / 1e12)
    # The update of whole parameters.
    made = make_assumptions(optimizer_traffic_per_parameter=28.0)
    found = cost(
        made=choices(zero_stage=0.0),
        workload=replace(WORKLOAD, searched=SearchedCodes(zero_stage=(0,))),
        assumptions=made,
    )
    assert found["optimizer_s"] == close(3 * 2e9 * 28 / 1e12)
    # Nothing is gathered where nothing is divided.
    assert searched(choices(dp=1.0, zero_stage=3.0), zero_stage=3)["weight_bytes"] == close(3 * 4e9)


def test_memory():
    found = cost()
    assert found["weight_bytes"] == close(3 * 4e9)
    assert found["gradient_bytes"] == close(3 * 4e9)
    assert found["optimizer_bytes"] == close(3 * 2e9 * 12 / 8)
    assert found["activation_bytes"] == close(3 * 1e9 * 4)  # as many microbatches in flight as stages
    assert found["peak_bytes"] == close(24e9 + 9e9 + 12e9)
    # An allocator holds more than activations.
    plain, found = cost(), cost(assumptions=make_assumptions(fragmentation=0.5, overhead=7.0))
    assert found["activation_bytes"] == plain["activation_bytes"]
    assert found["overhead_bytes"] == close(7.0 + 0.5 * plain["activation_bytes"])
    # Memory of other element sizes.
    found = cost(assumptions=make_assumptions(gradient_bytes=4.0, overhead=2e9, optimizer_bytes_per_parameter=8.0))
    assert found["weight_bytes"] == close(12e9)
    assert found["gradient_bytes"] == close(24e9)
    assert found["optimizer_bytes"] == close(6e9)
    assert found["overhead_bytes"] == close(2e9)
    assert found["peak_bytes"] == close(12e9 + 24e9 + 6e9 + 2e9 + 12e9)


@pytest.mark.parametrize(("stages", "microbatches", "held"), [(4, 6, 4), (4, 4, 4), (4, 3, 3), (12, 1, 1), (1, 6, 1)])
def test_microbatches_in_flight(stages, microbatches, held):
    found = cost(made=choices(pp=float(stages), num_microbatches=float(microbatches)))
    assert found["activation_bytes"] == close(12 / stages * 1e9 * held)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_a_single_stage_holds_one_microbatch_under_any_schedule(schedule):
    code = SCHEDULES.index(schedule)
    searched = SearchedCodes(schedule=(code,))
    made = choices(pp=1.0, num_microbatches=1.0, schedule=float(code))
    assert in_flight(np.asarray([0.0]), ChosenPlans(made, searched)).tolist() == [1.0]


@pytest.mark.parametrize(("name", "head"), [("1f1b", 4.0), ("zb-h1", 1.0)])
def test_the_head_holds_one_microbatch_where_gradients_of_weights_wait(name, head):
    (code,) = (number for number, schedule in enumerate(SCHEDULES) if schedule.name == name)
    searched = SearchedCodes(schedule=(0, code), vpp=(1, 2))
    made = choices(pp=4.0, schedule=float(code), vpp=1.0)
    held = in_flight_of_embedding_and_head(np.asarray([4.0]), ChosenPlans(made, searched))
    assert [float(np.ravel(one)[0]) for one in held] == [4.0, head]


def test_rates_and_recomputation():
    found = cost()
    step = found["step_time_s"]
    assert step == close(18 * 0.030 + found["pp_comm_s"] + found["bubble_s"] + found["dp_comm_s"])
    assert found["tokens_per_s"] == close(48 * 1000 / step)
    assert found["mfu"] == close(3 * 1e12 * 48 / (step * 32 * 1e15))
    assert found["training_days"] == close(8.64e9 / (48000 / step) / 86400)
    # Recomputation.
    plain = chosen()
    for mode, (extra, kept, beside) in enumerate([(0.0, 1e9, 0.0), (0.002, 6e8, 0.0), (0.010, 1e8, 0.0)]):
        found = chosen(recompute=mode)
        assert found["recompute_s"] == close(18 * extra)
        assert found["bubble_s"] == close(3 * (3 * (0.030 + extra) + 2 * SEND))
        assert found["activation_bytes"] == close(3 * kept * 4 + beside)
        assert found["compute_s"] == plain["compute_s"]


def searched(made, **values):
    """A step where columns of the choices have the values that they have, and the formulas of no other."""
    searched = SearchedCodes(**{name: (int(value),) for name, value in values.items()})
    return cost(made=made, workload=replace(WORKLOAD, searched=searched))


def chosen(**values):
    """The same choices priced alone, and among all that a column may have."""
    made = choices(**{name: float(value) for name, value in values.items()})
    alone = searched(made, **{name: value for name, value in values.items() if name in SEARCHED_COLUMNS})
    among = replace(
        WORKLOAD,
        searched=SearchedCodes(vpp=(1, 2, 3), zero_stage=(0, 1, 2, 3), recompute=(0, 1, 2), schedule=(0, 1, 2, 3)),
    )
    together = cost(made=made, workload=among)
    assert together == pytest.approx(alone, rel=1e-12, abs=1e-15, nan_ok=True)
    return alone


REDUCED = 2 * GATHER  # an all-reduce is a scatter and a gather


@pytest.mark.parametrize(
    ("stage", "seconds"),
    [
        (0, REDUCED + 2 * (REDUCED - 0.020)),
        (1, 2 * GATHER + 2 * (GATHER - 0.010) + 2 * (GATHER - 0.020)),
        (2, GATHER + 2 * (GATHER - 0.010) + 0.020 + 6 * 3 * (GATHER - 0.020)),
        (3, 0.010 + 6 * 3 * (GATHER - 0.010) + 0.020 + 6 * 3 * (2 * GATHER - 0.020)),
    ],
)
def test_what_zero_moves(stage, seconds):
    """Once a step or with each of six microbatches; what has no cover the first time is a layer's compute longer."""
    assert chosen(zero_stage=stage)["dp_comm_s"] == close(seconds)


@pytest.mark.parametrize(("stage", "divided"), [(0, ()), (1, ("o",)), (2, ("o", "g")), (3, ("o", "g", "w"))])
def test_what_zero_divides(stage, divided):
    found = chosen(zero_stage=stage)
    assert found["optimizer_bytes"] == close(3 * 2e9 * 12 / (8 if "o" in divided else 1))
    assert found["gradient_bytes"] == close(3 * 4e9 / (8 if "g" in divided else 1))
    assert found["weight_bytes"] == close(3 * 4e9 / 8 + 2 * 4e9 if "w" in divided else 3 * 4e9)


@pytest.mark.parametrize(("stage", "dp", "transient"), [(1, 8, 1e9), (2, 8, 3e9), (3, 8, 3e9), (2, 1, 1e9)])
def test_gradients_are_whole_until_they_are_scattered(stage, dp, transient):
    layer = layer_costs(working_bytes=[[1e9]] * 3, scattered_bytes=[[3e9]] * 3)
    workload = replace(WORKLOAD, searched=SearchedCodes(zero_stage=(stage,)))
    found = cost(layer, choices(zero_stage=float(stage), dp=float(dp)), workload)
    assert found["activation_bytes"] == close(4 * 3 * 1e9 + transient)


def test_chunks_and_schedules():
    plain, chunked = chosen(), chosen(vpp=3)
    assert chunked["bubble_s"] == close(3 * (3 * 0.030 / 3 + 2 * SEND))
    assert chunked["pp_comm_s"] == close(3 * plain["pp_comm_s"])
    # Of four stages with three chunks, the first has 2 * 3 + 2 * 4 + 1 chunks in flight.
    assert chunked["activation_bytes"] == close(3 * 1e9 * 15 / 3)
    # Schedules.
    assert chosen(schedule=1)["activation_bytes"] == close(3 * 1e9 * 6)  # GPipe: all microbatches
    assert chosen(schedule=1)["bubble_s"] == close(chosen()["bubble_s"])
    assert chosen(schedule=2)["bubble_s"] == close(3 * (3 * 0.030 + 2 * SEND) - 2 * 3 * 3 * 0.008)
    assert chosen(schedule=2)["activation_bytes"] == close(chosen()["activation_bytes"])
    # Zero-bubble H2: a third weight gradient of each other stage, if there are many microbatches.
    many = chosen(schedule=3, num_microbatches=32)
    assert many["bubble_s"] == close(3 * (3 * 0.030 + 2 * SEND) - 3 * 3 * 3 * 0.008)
    # Of six, five more on the last stage leave out its weight gradients, and one leaves out those of three stages.
    assert chosen(schedule=3)["bubble_s"] == close(3 * (3 * 0.030 + 2 * SEND) - (5 + 3) * 3 * 0.008)
    # It holds 2 * 4 - 1 microbatches, of which there are six.
    assert chosen(schedule=3)["activation_bytes"] == close(3 * 1e9 * 6)
    assert many["activation_bytes"] == close(3 * 1e9 * 7)
    assert chosen(schedule=3, pp=1)["activation_bytes"] == close(12 * 1e9)


def test_embedding_and_head():
    """The first and the last stage have a layer more; the others wait for the slower of the two."""
    alone = {"memory_s": [0.0], "tp_comm_s": [0.0], "cp_comm_s": [0.0]}
    embedding = layer_costs(**alone, forward_s=[0.001], backward_s=[0.002], compute_s=[0.003], stash_bytes=[[1e8]] * 3)
    head = layer_costs(**alone, forward_s=[0.006], backward_s=[0.010], compute_s=[0.016], stash_bytes=[[9e9]] * 3)
    stack = Stack(counts=((12.0,),), segments=((1,),), first=(0,), last=(2,))
    costs = step_costs(
        (embedding, layer_costs(), head), choices(), replace(WORKLOAD, stack=stack), machine(), make_assumptions()
    )
    found = {name: float(getattr(costs, name)[0]) for name in costs.__dataclass_fields__}
    whole = 12 * 0.030 + 0.003 + 0.016
    slowest = 3 * 0.030 + 0.016
    assert found["compute_s"] == close(6 / 4 * (12 * 0.021 + 0.003 + 0.016))
    assert found["bubble_s"] == close(6 * (slowest - whole / 4) + whole - slowest + 3 * 2 * SEND)
    # The last stage keeps one microbatch of three layers and the logits, the first four of three and the ids.
    first, last = 4 * (3e9 + 1e8), 3e9 + 9e9
    assert found["activation_bytes"] == close(max(first, last))
    assert found["weight_bytes"] == close(4 * 4e9)
    parts = [name for name in found if name.endswith("_s") and name not in ("step_time_s", "tokens_per_s")]
    assert found["step_time_s"] == close(sum(found[name] for name in parts))


def test_the_head_of_an_interleaved_pipeline_holds_one_microbatch():
    """Its chunk is the last one, whose backward follows at once; that of the embedding comes twice in the warm-up."""
    nothing = layer_costs(stash_bytes=[[0.0]] * 3, weight_bytes=[[0.0]])
    stack = Stack(counts=((12.0,),), segments=((1,),), first=(0,), last=(2,))
    workload = replace(WORKLOAD, stack=stack, searched=SearchedCodes(vpp=(1, 3)))

    def stash(embedding, head, vpp):
        ends = [replace(nothing, stash_bytes=np.asarray([[size]] * 3)) for size in (embedding, head)]
        made = choices(vpp=vpp, num_microbatches=16.0)
        costs = step_costs((ends[0], layer_costs(), ends[1]), made, workload, machine(), make_assumptions())
        return float(costs.activation_bytes[0])

    first, last = 3e9 * (2 * 3 + 2 * 4 + 1) / 3, 3e9 * (2 * 4 + 1) / 3
    assert stash(0.0, 0.0, 3.0) == close(first)
    assert stash(1e9, 0.0, 3.0) == close(first + 7e9)
    assert stash(0.0, 9e9, 3.0) == close(max(first, last + 9e9))
    assert stash(1e9, 0.0, 1.0) == close(4 * (3e9 + 1e9))


@pytest.mark.parametrize("changes", [{}, {"schedule": 1.0}, {"schedule": 2.0}, {"schedule": 3.0}, {"vpp": 3.0}])
@pytest.mark.parametrize("pp", [1.0, 2.0, 4.0])
def test_a_second_stage_that_pipelines_divide_changes_nothing(pp, changes):
    """It holds the body layers of the first one, without the embedding, and keeps no more microbatches."""
    ends = {"stash_bytes": [[1e8]] * 3, "weight_bytes": [[1e8]]}
    kinds = (layer_costs(**ends, forward_s=[0.001]), layer_costs(), layer_costs(**ends, forward_s=[0.006]))
    stack = Stack(counts=((12.0,),), segments=((1,),), first=(0,), last=(2,))
    made = choices(pp=pp, dp=32.0 / pp, **changes)
    opened = SearchedCodes(schedule=(0, 1, 2, 3), vpp=())
    some, all_of_them = (
        step_costs(
            kinds,
            made,
            replace(WORKLOAD, stack=replace(stack, divided=divided), searched=opened),
            machine(),
            make_assumptions(),
        )
        for divided in (True, False)
    )
    for name in some.__dataclass_fields__:
        np.testing.assert_equal(float(getattr(some, name)[0]), float(getattr(all_of_them, name)[0]))


@pytest.mark.parametrize(("name", "longer"), [("1f1b", 0.0), ("zb-h1", 0.001)])
def test_the_backward_of_the_head_is_never_split(name, longer):
    (code,) = (number for number, schedule in enumerate(SCHEDULES) if schedule.name == name)
    stack, searched = Stack(counts=((12.0,),), segments=((0,),), last=(1,)), SearchedCodes(schedule=(code,))
    made, kind = choices(schedule=float(code)), layer_costs(split_s=[0.001])
    body, head = with_effects((kind, kind), made, stack, searched, make_assumptions())
    assert body.weight_gradient_s.tolist() == [close(0.008 + longer)]
    assert head.weight_gradient_s.tolist() == [0.0]
    assert (head.backward_s.tolist(), body.backward_s.tolist()) == ([0.020], [close(0.020 + longer)])
