"""Missing recomputation: none where a run fits, else the fastest value that does, and who counts as inferred."""

from dataclasses import replace

import numpy as np
import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.runs.predict import MARGIN, TRIED, is_inferred, predict, with_recompute
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

ASSUMED = load_assumptions("uncalibrated")


@pytest.fixture(scope="module")
def blank(tmp_path_factory):
    """Return a run without a value of recompute, and the bytes and seconds under each value."""
    file = tmp_path_factory.mktemp("tables") / "runs.csv"
    (setup,) = setups(read_runs(write(file, {"recompute": "", "microbatch": "8"})))
    tried = [replace(setup, plan=setup.plan | {"recompute": value}, filled=()) for value in ("none", *TRIED)]
    found = predict(tried, ASSUMED)
    return setup, dict(zip(("none", *TRIED), zip(found.peak_bytes, found.step_time_s, strict=True), strict=True))


def on_gpu_of(setup, size):
    """Return the setup on a GPU of `size` bytes, of which the inference uses more by its margin."""
    device = setup.cluster.device.model_copy(update={"hbm_capacity": size / MARGIN})
    return replace(setup, cluster=setup.cluster.model_copy(update={"device": device}))


@pytest.mark.parametrize("limit", ["none", "norms", "feed-forward", "full"])
def test_the_fastest_value_that_fits_is_taken(blank, limit):
    setup, costs = blank
    room = 1.0001 * costs[limit][0]
    (found,) = with_recompute([on_gpu_of(setup, room)], ASSUMED)
    fitting = {value: seconds for value, (size, seconds) in costs.items() if size <= room}
    value = found.plan["recompute"]
    assert costs[value][1] == pytest.approx(min(fitting.values()), rel=1e-12) and value in fitting
    assert value != "none" or limit == "none"


def test_a_blank_cell_is_inferred_and_stated_values_are_left_alone(blank):
    setup, costs = blank
    (found,) = with_recompute([on_gpu_of(setup, 1e9)], ASSUMED)
    assert found.plan["recompute"] == min(TRIED, key=lambda value: costs[value][0])
    # A stated value and a run out of memory are left alone.
    setup, _ = blank
    stated = on_gpu_of(replace(setup, filled=()), 1e9)
    ran_out = on_gpu_of(replace(setup, run=replace(setup.run, oom=True)), 1e9)
    assert with_recompute([stated, ran_out], ASSUMED) == [stated, ran_out]
    assert not is_inferred(stated) and not is_inferred(ran_out)
    # An inferred run fits with the margin and a stated one without.
    setup, costs = blank
    size = 0.99 * costs["none"][0]  # of the GPU
    made = on_gpu_of(setup, MARGIN * size)
    found = predict([made, replace(made, filled=())], ASSUMED)
    np.testing.assert_array_equal(found.fits, [True, False])
    assert found.inferred_recompute == ("none", None)
