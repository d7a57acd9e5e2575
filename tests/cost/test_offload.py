"""Offload by hand: the memory that it frees, and the stalls for its transfers."""

from dataclasses import replace

import pytest
from cost.records import WORKLOAD, choices, layer_costs, machine, make_assumptions
from cost.test_step import SEND, close, cost

from dsx.cost.stages import Stack
from dsx.cost.step import step_costs
from dsx.plans.choices import CODES
from dsx.plans.enumerate import SearchedCodes

TIME_PARTS = (
    "compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s",
    "recompute_s", "optimizer_s",
)  # fmt: skip
LINK = 25e9  # half of 50 GB/s
ADAM = make_assumptions(optimizer_traffic_per_parameter=28.0)


def offloading(what, searched=CODES["offload"], layer=None, cluster=None, **changes):
    made = choices(offload=float(CODES["offload"].index(what)), **changes)
    codes = tuple(CODES["offload"].index(name) for name in searched)
    return cost(layer, made, replace(WORKLOAD, searched=SearchedCodes(offload=codes)), cluster, ADAM)


@pytest.mark.parametrize("what", CODES["offload"])
def test_alone_and_among_all_that_there_are_parts_add_up(what):
    assert offloading(what) == pytest.approx(offloading(what, (what,)), rel=1e-12, nan_ok=True)
    # Parts add up.
    # A layer of 30 ms, all of it in one of the parts.
    found = offloading(what, layer=layer_costs())
    assert found["step_time_s"] == close(sum(found[name] for name in TIME_PARTS))


def test_without_offload_and_at_the_ends_nothing_changes():
    assert offloading("none") == pytest.approx(cost(assumptions=ADAM), rel=1e-12, nan_ok=True)
    # Embedding and head are not offloaded.
    end = {"forward_s": [0.001], "backward_s": [0.002], "stash_bytes": [[9e9]] * 3}
    stack = Stack(counts=((12.0,),), segments=((1,),), first=(0,), last=(2,))
    kinds = (layer_costs(**end), layer_costs(), layer_costs(**end))
    searched = replace(WORKLOAD, stack=stack, searched=SearchedCodes(offload=(2,)))
    costs = step_costs(kinds, choices(offload=2.0), searched, machine(), ADAM)
    assert float(costs.activation_bytes[0]) == close(4 * (9e9 + 1e9) + 1e9)
    plain = step_costs(kinds, choices(), replace(searched, searched=SearchedCodes()), machine(), ADAM)
    assert float(costs.memory_s[0] - plain.memory_s[0]) == close(12 * 0.050)


def test_offloaded_optimizer_state_is_updated_on_the_host():
    found, plain = offloading("optimizer"), offloading("none")
    assert found["optimizer_bytes"] == 0.0
    assert plain["peak_bytes"] - found["peak_bytes"] == close(3 * 2e9 * 12 / 8)
    # The host updates.
    # 7.5e8 parameters: two bytes of gradient down, two of weight up at 25 GB/s, 28 read and written at 100 GB/s.
    found = offloading("optimizer")
    assert found["optimizer_s"] == close(3 * 2e9 / 8 * (4 / LINK + 28 / 1e11))
    assert found["memory_s"] == offloading("none")["memory_s"]
    # Replicas of the state are updated on every host.
    made = choices(offload=1.0, zero_replicas=2.0)
    searched = replace(WORKLOAD, searched=SearchedCodes(offload=(1,), zero_replicas=(2,)))
    found = cost(made=made, workload=searched, assumptions=ADAM)
    assert found["optimizer_s"] == close(2 * offloading("optimizer")["optimizer_s"])


def test_the_passes_stall_for_transfers_that_they_do_not_hide():
    # 1 GB takes 40 ms: 30 more than the forward, 20 more than the backward. The last of three layers stays.
    found, plain = offloading("activations"), offloading("none")
    assert found["memory_s"] - plain["memory_s"] == close(12 * 0.050)
    assert found["bubble_s"] == close(3 * (3 * 0.030 + 2 * 0.050 + 2 * SEND))
    assert found["optimizer_s"] == plain["optimizer_s"]
    # Passes that hide all transfers do not stall.
    found = offloading("activations", cluster=machine(host_bandwidth=2e11))
    assert found["step_time_s"] == close(offloading("none")["step_time_s"])
    # A layer of each microbatch stays and one is in transfer.
    assert offloading("activations")["activation_bytes"] == close((4 + 1) * 1e9)
    assert offloading("activations", pp=1.0)["activation_bytes"] == close(2e9)
    # Nothing of a stage of one layer is transferred.
    assert offloading("activations", pp=12.0)["activation_bytes"] == close(
        offloading("none", pp=12.0)["activation_bytes"]
    )
    # Both is one and the other.
    both, optimizer, activations = (offloading(what) for what in ("both", "optimizer", "activations"))
    for name in ("optimizer_bytes", "optimizer_s"):
        assert both[name] == optimizer[name]
    for name in ("activation_bytes", "memory_s", "bubble_s"):
        assert both[name] == activations[name]


@pytest.mark.parametrize("what", ["optimizer", "activations", "both"])
def test_memory_never_grows_and_time_never_falls_with_a_slower_link(what):
    assert offloading(what)["peak_bytes"] <= offloading("none")["peak_bytes"]
    times = [offloading(what, cluster=machine(host_bandwidth=b))["step_time_s"] for b in (1e12, 1e11, 1e10)]
    assert times == sorted(times)


def test_stored_layers_stall_longer():
    """A recomputed layer transfers 0.1 GB, which overlaps; a stored one transfers ten times as much.

    The last layer stays, a stored one if there is any.
    """
    for stored in range(4):
        made = choices(offload=2.0, recompute=2.0, stored_layers=float(stored))
        searched = replace(WORKLOAD, searched=SearchedCodes(offload=(2,), recompute=(2,), stored_layers=()))
        found = cost(made=made, workload=searched)
        assert found["memory_s"] == close(18 * 0.003 + 6 * max(stored - 1, 0) * 0.050)
        whole, largest = stored * 1e9 + (3 - stored) * 1e8, 1e9 if stored else 1e8
        assert found["activation_bytes"] == close(4 * largest + min(whole - largest, largest))
