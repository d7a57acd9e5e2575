"""Layers that save all activations while others are recomputed: a linear mix of two modes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from cost.records import WORKLOAD, choices, layer_costs
from cost.test_step import close, cost

from dsx.plans.choices import CODES
from dsx.plans.codes import SearchedCodes

WORKING = [[1e8], [3e8], [1e9]]


def mixed(stored, mode="full", **changes):
    """Three layers on a stage, some of which save all activations."""
    code = CODES["recompute"].index(mode)
    made = choices(stored_layers=float(stored), recompute=float(code), **changes)
    return cost(
        layer_costs(working_bytes=WORKING),
        made,
        replace(WORKLOAD, searched=SearchedCodes(recompute=(code,), stored_layers=())),
    )


def pure(mode, **changes):
    code = CODES["recompute"].index(mode)
    made = choices(recompute=float(code), **changes)
    return cost(layer_costs(working_bytes=WORKING), made, replace(WORKLOAD, searched=SearchedCodes(recompute=(code,))))


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("stages", [1.0, 4.0, 12.0])
def test_none_and_all_are_the_pure_modes(mode, stages):
    assert mixed(0, mode, pp=stages) == pytest.approx(pure(mode, pp=stages), rel=1e-12, nan_ok=True)
    assert mixed(12 / stages, mode, pp=stages) == pytest.approx(pure("none", pp=stages), rel=1e-12, nan_ok=True)


def test_one_layer_of_three():
    found = mixed(1)
    assert found["recompute_s"] == close(6 * 2 * 0.010)
    # Four microbatches of one stored layer and two inputs, and the transient of a recomputed layer.
    assert found["activation_bytes"] == close(4 * (1e9 + 2 * 1e8) + 1e9)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_time_falls_and_memory_grows_with_every_layer(mode):
    costs = [mixed(stored, mode) for stored in range(4)]
    times = [found["step_time_s"] - found["dp_comm_s"] for found in costs]
    assert times == sorted(times, reverse=True)
    steps = [later - sooner for sooner, later in pairwise(times)]
    assert steps == pytest.approx([steps[0]] * 3, rel=1e-9)
    # If all layers are stored, no transient of recomputation is left.
    assert [found["peak_bytes"] for found in costs[:3]] == sorted(found["peak_bytes"] for found in costs[:3])
