"""Cuts that probes find are those of the scan over stages, on NumPy and compiled."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from laws.spaces import hardware, on
from pricing.test_optimal_cut import ENDS, MODELS, OPENED, problem_of, rows_of, some

from dsx.pricing import compiled, cuts
from dsx.pricing import probe as cut_probe
from dsx.pricing.cuts import price_cuts
from dsx.pricing.optimal_cut import scanned_cuts
from dsx.pricing.probe import first_of_equals, probed_cuts
from dsx.pricing.row_costs import Rows

# Two kinds of body layers, several of them on a stage.
BODY = ({"kind": "transformer", "count": 3}, {"kind": "transformer", "options": ("gated",), "count": 12})
CHAINS = MODELS | {"unlike": tuple(tuple(entry.items()) for entry in (ENDS[0], *BODY, ENDS[2]))}
EVERY = OPENED | {
    "schedule": ["1f1b", "gpipe"],
    "zero_stage": [0, 1, 2, 3],
    "offload": ["none", "optimizer", "activations", "both"],
}


@pytest.fixture(params=["numpy", "compiled"])
def way(request, monkeypatch):
    """Fill the stages of few plans by compiled code too."""
    if request.param == "compiled":
        monkeypatch.setattr(cut_probe, "MANY", 0)
        monkeypatch.setattr(compiled, "TILE", 1 << 7)
    return request.param


def check(problem, where, least_memory):
    """Return which rows fit."""
    found, fits, left = probed_cuts(problem, *where, least_memory)
    expected, expected_fits = scanned_cuts(problem, *where, np.float64, least_memory)
    np.testing.assert_array_equal(fits[~left], expected_fits[~left])
    there = np.flatnonzero(fits & ~left)
    np.testing.assert_array_equal(found[there], expected[there])
    assert left.mean() < 0.1
    name = "peak_bytes" if least_memory else "step_time_s"
    one, other = (getattr(price_cuts(problem, *where, cut).costs, name)[there] for cut in (found, expected))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    return fits


@pytest.mark.sampled(0, 6)
@pytest.mark.parametrize("goal", ["fastest", "least memory"])
@pytest.mark.parametrize("capacity", [2e9, 5e9, 1e12])
@pytest.mark.parametrize("chain", CHAINS)
def test_probes_find_the_cuts_of_the_scan(chain, capacity, goal, way):
    machine = hardware(hbm_capacity=capacity)
    problem, _, where = rows_of(on(problem_of(CHAINS[chain]), machine), (12, 16), (24, 48), **OPENED)
    where = some(where, np.random.default_rng(0).permutation(len(where[1].positions))[:64])
    assert check(problem, where, goal == "least memory").any() or capacity < 1e12


@pytest.mark.sampled(0, 5)
@pytest.mark.parametrize("goal", ["fastest", "least memory"])
@pytest.mark.parametrize("chain", ["ends", "unlike"])
def test_probes_find_them_under_every_choice(chain, goal, way):
    """Schedules, ZeRO stages and offload side by side, at two hardware points with little and with much memory."""
    leaves = [on(problem_of(CHAINS[chain]), hardware(hbm_capacity=size)) for size in (5e9, 1e12)]
    named = [replace(leaf.hardware, name="") for leaf in leaves]
    both = replace(
        leaves[0],
        hardware=jax.tree.map(lambda *parts: np.concatenate(parts), *named),
        assumptions=jax.tree.map(lambda leaf: np.repeat(leaf, 2), leaves[0].assumptions),
    )
    problem, _, (table, rows) = rows_of(both, (12,), (24,), **EVERY)
    here = np.random.default_rng(1).permutation(len(rows.positions))[:400]
    rows = rows.take(here)
    rows = Rows(np.arange(len(here)) % 2, rows.positions, rows.choices)
    fits = check(problem, (table, rows), goal == "least memory")
    assert fits[1::2].all()


@pytest.mark.slow
def test_many_rows_have_the_prices_of_few(monkeypatch):
    problem, _, where = rows_of(problem_of(), (12, 24), (24, 48), **OPENED)
    where = some(where, np.arange(0, len(where[1].positions), 5)[:300])
    found, *_ = probed_cuts(problem, *where, least_memory=True)
    few = price_cuts(problem, *where, found).costs
    monkeypatch.setattr(cuts, "MANY", 0)
    many = price_cuts(problem, *where, found).costs
    for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


def test_equal_plans_are_found():
    columns = [np.array([1.0, 2.0, 1.0, 1.0, 2.0]), np.array([0.5, 0.5, 0.5, 0.25, 0.5])]
    first, which = first_of_equals(columns)
    assert first.tolist() == [0, 1, 3]
    assert which.tolist() == [0, 1, 0, 2, 1]
    first, which = first_of_equals([*columns, np.array([True, False, False, True, False])])
    assert (first.tolist(), which.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3, 1])
