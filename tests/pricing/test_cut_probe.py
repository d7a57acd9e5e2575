"""Cuts that probes find are those of the scan over stages."""

import numpy as np
import pytest
from laws.spaces import hardware, on
from pricing.test_optimal_cut import ENDS, MODELS, OPENED, problem_of, rows_of, some

from dsx.pricing.cut_probe import probed_cuts
from dsx.pricing.cut_scan import scanned_cuts
from dsx.pricing.cuts import price_cuts

# Two kinds of body layers, several of them on a stage.
BODY = ({"kind": "transformer", "count": 3}, {"kind": "transformer", "options": ("gated",), "count": 12})
CHAINS = MODELS | {"unlike": tuple(tuple(entry.items()) for entry in (ENDS[0], *BODY, ENDS[2]))}


@pytest.mark.parametrize("goal", ["fastest", "least memory"])
@pytest.mark.parametrize("capacity", [2e9, 5e9, 1e12])
@pytest.mark.parametrize("chain", CHAINS)
def test_probes_find_the_cuts_of_the_scan(chain, capacity, goal):
    machine = hardware(hbm_capacity=capacity)
    problem, _, where = rows_of(on(problem_of(CHAINS[chain]), machine), (12, 16), (24, 48), **OPENED)
    where = some(where, np.random.default_rng(0).permutation(len(where[1].positions))[:200])
    least_memory = goal == "least memory"
    cuts, fits, left = probed_cuts(problem, *where, least_memory)
    expected, expected_fits = scanned_cuts(problem, *where, np.float64, least_memory)
    np.testing.assert_array_equal(fits[~left], expected_fits[~left])
    there = np.flatnonzero(fits & ~left)
    assert len(there) > 0 or capacity < 1e12
    np.testing.assert_array_equal(cuts[there], expected[there])
    assert left.mean() < 0.1
    name = "peak_bytes" if least_memory else "step_time_s"
    one, other = (getattr(price_cuts(problem, *where, found).costs, name)[there] for found in (cuts, expected))
    np.testing.assert_allclose(one, other, rtol=1e-12)
