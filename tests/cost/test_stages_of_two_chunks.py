"""Schedules whose stages hold two chunks that are not in rounds, by hand: DualPipe and ZB-V."""

from dataclasses import replace

import pytest
from cost.records import WORKLOAD, choices, layer_costs, machine, make_assumptions

from dsx.cost.stages import Stack
from dsx.cost.step import step_costs
from dsx.plans.enumerate import SearchedCodes
from dsx.schedules.schedules import SCHEDULES

CODES = {schedule.name: code for code, schedule in enumerate(SCHEDULES)}
PARTS = ("compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s")


def exchanging(seconds=0.006):
    """10 ms forward, 20 ms backward with 8 ms for weight gradients; all communication is an expert exchange."""
    parts = {"compute_s": [0.030 - seconds], "memory_s": [0.0], "tp_comm_s": [0.0], "cp_comm_s": [0.0]}
    return layer_costs(**parts, ep_comm_s=[seconds])


def cost(schedule, layer=None, stack=WORKLOAD.stack, searched=None, **changed):
    """12 layers, or those of `stack`."""
    code = CODES[schedule]
    costs = step_costs(
        (layer or exchanging(),) * (len(stack.first) + 1 + len(stack.last)),
        choices(schedule=float(code), **changed),
        replace(WORKLOAD, stack=stack, searched=searched or SearchedCodes(schedule=(code,))),
        machine(),
        make_assumptions(),
    )
    return {name: float(getattr(costs, name)[0]) for name in costs.__dataclass_fields__}


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-15)


def test_dual_pipe_hides_the_exchange_of_its_pairs():
    """Two stages of six layers: of six microbatches three run a forward and a backward side by side."""
    found = cost("dualpipe", pp=2.0, num_microbatches=6.0)
    assert found["ep_comm_s"] == close(6 * 6 * 0.006 - 3 * 6 * 0.006)
    assert found["bubble_s"] == close(4 * (10e-6 + 1e8 / 50e9))  # sends to the other stage: one way a round
    assert found["pp_comm_s"] == 0.0
    passes = found["step_time_s"] - found["dp_comm_s"] - found["optimizer_s"]
    assert passes == close(6 * 6 * 0.030 - 3 * 6 * 0.006 + found["bubble_s"])


@pytest.mark.parametrize("exchange", [0.004, 0.012, 0.020, 0.030])
def test_a_pair_takes_as_long_as_its_exchange_and_as_the_rest(exchange):
    pairs = 400 - 3
    found = cost("dualpipe", exchanging(exchange), pp=2.0, num_microbatches=400.0)
    assert found["ep_comm_s"] == close(6 * (400 * exchange - pairs * min(exchange, 0.030 - exchange)))


@pytest.mark.parametrize("name", ["dualpipe", "zb-v"])
@pytest.mark.parametrize("stack", [WORKLOAD.stack, Stack(((10.0,),), ((1,),), (0,), (2,))], ids=["alike", "ends"])
def test_parts_add_up(name, stack):
    two = 2.0 if name == "zb-v" else 1.0
    for pp, many in ((1.0, 6.0), (2.0, 4.0), (2.0, 20.0)):
        found = cost(name, stack=stack, pp=pp, num_microbatches=many, vpp=two if pp > 1 else 1.0)
        parts = (*PARTS, "recompute_s", "optimizer_s")
        assert sum(found[part] for part in parts) == pytest.approx(found["step_time_s"], rel=1e-9)


def test_memory_of_two_chunks():
    """Weights and gradients twice; the optimizer state is divided over twice as many ranks. p + 1 chunks in flight."""
    one = cost("1f1b", pp=4.0, num_microbatches=8.0)
    two = cost("dualpipe", pp=4.0, num_microbatches=8.0)
    assert two["weight_bytes"] == close(2 * one["weight_bytes"])
    assert two["gradient_bytes"] == close(2 * one["gradient_bytes"])
    assert two["optimizer_bytes"] == close(one["optimizer_bytes"])
    assert two["activation_bytes"] == close(5 / 4 * one["activation_bytes"])
    # Zb v holds as much as the first stage of 1f1b.
    one = cost("1f1b", pp=2.0, num_microbatches=8.0)
    folded = cost("zb-v", pp=2.0, num_microbatches=8.0, vpp=2.0)
    for part in ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"):
        assert folded[part] == close(one[part])
    # Of twelve layers two are ends that count as layers: 3, 3, 3, 3, so both stages have six.
    stack = Stack(((10.0,),), ((1,),), (0,), (2,))
    folded = cost("zb-v", stack=stack, pp=2.0, num_microbatches=400.0, vpp=2.0)
    one = cost("1f1b", stack=stack, pp=2.0, num_microbatches=400.0)
    assert folded["bubble_s"] < one["bubble_s"]
    assert folded["peak_bytes"] == close(one["peak_bytes"])


@pytest.mark.parametrize("name", ["dualpipe", "zb-v"])
def test_one_stage_is_the_same_under_every_schedule(name):
    assert cost(name, pp=1.0) == pytest.approx(cost("1f1b", pp=1.0), rel=1e-12, nan_ok=True)


def test_schedules_side_by_side_cost_what_each_costs_alone():
    searched = SearchedCodes(schedule=(CODES["1f1b"], CODES["zb-h1"], CODES["dualpipe"]))
    for name in ("1f1b", "zb-h1", "dualpipe"):
        together = cost(name, searched=searched, pp=2.0, num_microbatches=8.0)
        assert together == pytest.approx(cost(name, pp=2.0, num_microbatches=8.0), rel=1e-12, nan_ok=True)


def test_of_passes_side_by_side_one_has_the_head():
    """In ZeRO 3 it, a layer of the other pass, and the next one of each. Both stages hold the same layers."""
    kinds = tuple(layer_costs(weight_bytes=[[size]]) for size in (2e9, 4e9, 10e9))
    code, stack = CODES["dualpipe"], Stack(((10.0,),), ((1,),), (0,), (2,))
    searched = SearchedCodes(schedule=(code,), zero_stage=(3,))
    made = choices(schedule=float(code), pp=2.0, zero_stage=3.0)
    found = step_costs(kinds, made, replace(WORKLOAD, stack=stack, searched=searched), machine(), make_assumptions())
    stored = (2e9 + 10 * 4e9 + 10e9) / (2 * 8)
    assert found.weight_bytes[0] == close(stored + 10e9 + 3 * 4e9)
