"""`best` finds the fastest of all plans that fit, over all choices and, with one chunk per stage, over all cuts.

The referee prices every candidate of every strategy with every cut, or, with several chunks per stage, with the cuts
that these get; it has no bounds, leaves no key unpriced, drops no
value of a choice, and does not know that plans of different strategies may be the same.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import problem_with

from dsx.cost.interval import room
from dsx.plans.rules import OPTIMAL, optimal_cut_covers
from dsx.pricing.cuts import price_best_cuts, price_cuts
from dsx.pricing.row_costs import Rows, price_rows
from dsx.search import bounds as key_bounds
from dsx.search import fastest as searching
from dsx.search.fastest import ANY, fastest, problems_of, spaces_of
from dsx.search.spaces import Space

DENSE = {"kind": "transformer", "options": ["rotary", "gated"]}
EXPERTS = {"kind": "transformer", "options": ["rotary"], "ffn": "experts"}
DIMENSIONS = {"e": 1024, "h": 8, "g": 4, "k": 128, "f": 4096, "v": 50000}
OF_EXPERTS = {"x": 4, "topk": 2, "fx": 1024, "capacity_percent": 100}
STRATEGIES = ["1d", "1d-no-sp", "2d", "2d-ring", "ulysses"]
SCHEDULES = ["1f1b", "gpipe 1f1b", "1f1b zb-h1", "dualpipe 1f1b", "zb-h1 dualpipe", "zb-v 1f1b"]


@st.composite
def jobs(draw):
    """A model, a cluster, the optimizer, a job, and the values of its choices."""
    dense, experts = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    body = [{**DENSE, "count": dense}] * (dense > 0) + [{**EXPERTS, "count": experts}] * (experts > 0)
    ends = draw(st.booleans())
    head = {"kind": "head", "options": draw(st.sampled_from([[], ["tied"]]))}
    layers = [*[{"kind": "embedding"}] * ends, *(body or [DENSE]), *[head] * ends]
    model = layers, DIMENSIONS | (OF_EXPERTS if experts else {})
    system = {"hbm_capacity": draw(st.sampled_from([3e9, 4e9, 6e9, 20e9])), "fast_size": draw(st.sampled_from([2, 4]))}
    system["node"] = {"host_memory": draw(st.sampled_from(["1 TB", "2.5 GB", "1 GB"]))}
    opened = {
        "schedule": draw(st.sampled_from(SCHEDULES)).split(),
        "zero_stage": draw(st.sampled_from([[0], [1, 3], [2]])),
        "offload": draw(st.sampled_from([["none"], ["none", "both"], None])),
        "zero_replicas": draw(st.sampled_from([[1], None])),
        "stored_layers": draw(st.sampled_from([[0], [0, 1], None])),
        "vpp": draw(st.sampled_from([[1], [1, 2, 3]])),
        "recompute": draw(st.sampled_from([["none", "full"], ["full"], ["none", "norms", "feed-forward", "full"]])),
    }
    names = draw(st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=2, unique=True))
    # What is not named is searched last.
    named = {column: values for column, values in opened.items() if values}
    optimizer = draw(st.sampled_from(["adam", "muon"]))
    return model, system, optimizer, names, draw(st.sampled_from([4, 6])), draw(st.sampled_from([4, 6, 12])), named


def problem_for(model, system, names, optimizer="adam"):
    return problem_with(*model, names, ("default", ("optimizer", optimizer)), {"merged": True}, **system)


def every_cut(num_layers, num_stages):
    inner = itertools.combinations(range(1, num_layers), num_stages - 1)
    return [[0, *cut, *[num_layers] * (num_layers - num_stages + 1)] for cut in inner]


def all_rows(problem, num_gpus, batch, opened):
    space = Space(problem, [num_gpus], [batch], opened)
    positions, choices = space.blocks.rows(0, space.size)
    return space.table(problem), Rows(np.zeros_like(positions), positions, choices)


def by_brute_force(problem, num_gpus, batch, opened):
    """The least seconds of a plan that fits, with any cut, or those known for several chunks per stage."""
    usable = room(problem.hardware, problem.assumptions, np.array([float(num_gpus)]))
    table, rows = all_rows(problem, num_gpus, batch, opened)
    costs = [price_rows(problem, table, rows)]
    cut = problem.with_partition(OPTIMAL)
    table, rows = all_rows(cut, num_gpus, batch, opened)
    rows = rows.take(np.flatnonzero(optimal_cut_covers(rows.choices["schedule"])))
    several = rows.choices["vpp"] > 1
    costs.append(price_best_cuts(cut, table, rows.take(np.flatnonzero(several)), "fastest").costs)
    rows = rows.take(np.flatnonzero(~several))
    num_layers = int(cut.workload.stack.num_layers)
    cuts = [every_cut(num_layers, pp) for pp in rows.choices["pp"].tolist()]
    every = rows.take(np.repeat(np.arange(len(cuts)), [len(of_row) for of_row in cuts]))
    if len(every.positions):
        costs.append(price_cuts(cut, table, every, np.array([one for of_row in cuts for one in of_row])).costs)
    found = [np.inf]
    for of_rows in costs:
        fits = usable.holds(of_rows)
        found.append(of_rows.step_time_s[fits].min(initial=np.inf))
    return min(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("many", [1 << 30, 1], ids=["all keys are priced", "few keys are priced"])
@pytest.mark.parametrize(
    "examples", [pytest.param(6, marks=pytest.mark.slow), pytest.param(150, marks=pytest.mark.fuzz)]
)
def test_nothing_is_faster(monkeypatch, many, examples):
    monkeypatch.setattr(searching, "FEW_KEYS", many)
    monkeypatch.setattr(key_bounds, "_SCOUTS", 1)
    monkeypatch.setattr(key_bounds, "_SHARES", (1 / 8, 1 / 2))

    @settings(max_examples=examples)
    @given(job=jobs())
    def check(job):
        model, system, optimizer, names, num_gpus, batch, opened = job
        problem = problem_for(model, system, names, optimizer).searching(opened)
        expected = by_brute_force(problem, num_gpus, batch, opened)
        plans = fastest(spaces_of(problems_of(ANY, problem), num_gpus, batch, opened), 1).plans
        assert (plans[0]["step_time_s"] if plans else np.inf) == pytest.approx(expected, rel=1e-9)

    check()
