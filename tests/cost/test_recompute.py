"""Layers that are recomputed: values that a layer tells apart, and mixes of two modes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from cost.records import WORKLOAD, choices, layer_costs
from cost.test_step import close, cost
from notation.definitions import packaged

from dsx.cost.recomputation import modes_of, values_with_effect
from dsx.plans.choices import CODES, FULL_CODE, VALUES
from dsx.plans.enumerate import SearchedCodes

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


DENSE, EXPERTS = "transformer gated", "transformer ffn=experts"
UNFUSED = "transformer core=unfused-attention-core"


def names(codes):
    return [VALUES[code] for code in codes]


def test_regions_make_modes_and_values_have_effects():
    groups = modes_of([packaged(DENSE, "1d")], range(len(VALUES)))
    assert [VALUES[group[0]] for group in groups] == ["none", "full", "norms", "feed-forward", "norms+feed-forward"]
    assert sorted(code for group in groups for code in group) == [*range(len(VALUES))]
    # Strategies that differ in their regions tell more values apart.
    layers = [packaged(text, "1d") for text in (DENSE, UNFUSED)]
    both, plain = (modes_of(some, [0, 1, 2]) for some in (layers, layers[:1]))
    assert both == ((0,), (1,), (2,))
    assert plain == ((0, 1), (2,))
    # Values with an effect on all layers of a model.
    found = names(values_with_effect([packaged(DENSE, "1d"), packaged(EXPERTS, "1d")]))
    assert len(found) == 2 * 2 * 3 + 1
    assert {"none", "full", "norms+feed-forward+experts", "expert-activation+feed-forward"} <= {*found}
    assert "selective" not in found
    assert "selective" in names(values_with_effect([packaged(UNFUSED, "1d")]))
    # Norms whose results are kept gathered, as their reader took them: to compute them again frees nothing.
    kept_gathered = packaged("transformer-2410.00273", "1d")
    assert names(values_with_effect([kept_gathered])) == ["none", "full"]
    assert VALUES[FULL_CODE] == "full"
