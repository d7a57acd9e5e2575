"""The simplest and the leanest of nearly fastest plans, by bounds, are those of a search that prices every plan."""

import jax
import numpy as np
import pytest
from search.test_bounded import OPENED, problem_of

from dsx.plans.features import features_of
from dsx.pricing.one_plan import priced_plans
from dsx.pricing.row_costs import Rows
from dsx.search import bounds as bounded
from dsx.search import one_pass as searched
from dsx.search.fastest import fastest, problems_of, spaces_of
from dsx.search.one_pass import Wanted, nearly_fastest
from dsx.search.spaces import Space
from dsx.search.sweep import search_of

FEW = {"zero_stage": [1, 3], "schedule": ["1f1b"]}
VARIED = {"zero_replicas": [1, 2, 4], "stored_layers": [0, 2], "offload": ["none", "optimizer", "activations"]}
BYTES = "peak_bytes"


def cost_of(priced):
    return sum(features_of(priced["plan"]).values())


def every_plan(layers, capacity, opened):
    """All feasible plans of the space, each with its fastest cut, and with its even one."""
    problem = problem_of(layers, capacity=capacity).searching(opened)
    even = problem.with_partition("even")
    return [*plans_of(problem, opened), *plans_of(even, opened)]


def plans_of(problem, opened):
    space = Space(problem, [24], [48], opened)
    search = search_of(problem, space, space.table(problem))
    positions, choices = space.blocks.rows(0, space.size)
    rows = Rows(np.zeros_like(positions), positions, choices)
    return priced_plans(problem, search.rows(jax.local_devices()[0], rows, feasible=True))


@pytest.mark.parametrize(
    ("layers", "capacity", "opened"),
    [
        ("ends", 5e9, FEW),
        pytest.param("ends", 3e9, FEW | VARIED, marks=pytest.mark.fuzz),
        pytest.param(
            "two kinds", 5e9, FEW | {"offload": ["none", "optimizer"], "zero_replicas": [1, 2]}, marks=pytest.mark.fuzz
        ),
        pytest.param(
            "alike",
            2.5e9,
            {"offload": ["optimizer", "both"], "vpp": [1, 3], "schedule": ["1f1b"]},
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.slow
def test_the_best_of_all_nearly_fastest_plans(monkeypatch, layers, capacity, opened):
    monkeypatch.setattr(bounded, "_ROWS", 500)
    for name, rows in {"_FIRST": 64, "_MOST": 256, "_PRICED": 16, "_SAMPLED": (3, 1)}.items():
        monkeypatch.setattr(searched, name, rows)
    opened = OPENED | opened
    plans = every_plan(layers, capacity, opened)
    problems = problems_of("optimal", problem_of(layers, "even", capacity).searching(opened))
    spaces = spaces_of(problems, 24, 48, opened)
    assert spaces.counted.candidates > len({plan["plan"]["candidate"] for plan in plans}) > 100
    known = fastest(spaces, 3).plans
    step_s = known[0]["step_time_s"]
    assert step_s == pytest.approx(min(plan["step_time_s"] for plan in plans), rel=1e-12)
    wanted = [Wanted(step_s * (1 + within), simple) for within in (0.0, 0.02, 0.2, 1.0) for simple in (True, False)]
    looked = nearly_fastest(spaces.priced(slice(None)), spaces.varied, known, 2.0 * step_s)
    found = [*map(looked.best, wanted)]
    for want, plan in zip(wanted, found, strict=True):
        fast = [one for one in plans if one["step_time_s"] <= want.most_s * (1 + 1e-12)]
        cost = min(cost_of(one) for one in fast) if want.simple else None
        least = min(one[BYTES] for one in fast if cost is None or cost_of(one) == cost)
        assert plan["step_time_s"] <= want.most_s * (1 + 1e-12)
        assert cost is None or cost_of(plan) == cost
        np.testing.assert_allclose(plan[BYTES], least, rtol=1e-12)
    assert len({plan["plan"]["candidate"] for plan in found}) > 2


def test_even_cuts_are_searched_too():
    opened = OPENED | FEW | {"schedule": ["1f1b", "gpipe"]}
    problems = problems_of("any", problem_of("ends", "even", 5e9).searching(opened))
    spaces = spaces_of(problems, 24, 48, opened)
    plans = fastest(spaces, 1 << 20).plans  # every plan, as nothing is varied
    assert len(plans) > 100
    most_s = 1.2 * plans[0]["step_time_s"]
    wanted = [Wanted(most_s, simple=True), Wanted(most_s)]
    looked = nearly_fastest(spaces.priced(slice(None)), spaces.varied, plans[:1], most_s)
    found = [*map(looked.best, wanted)]
    fast = [plan for plan in plans if plan["step_time_s"] <= most_s]
    for want, plan in zip(wanted, found, strict=True):
        assert want.rank(plan)[:2] == pytest.approx(min(map(want.rank, fast))[:2], rel=1e-12)
