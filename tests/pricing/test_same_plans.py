"""Plans of several strategies that are one: what is left out costs what is kept costs, and nothing else is left out."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from laws.spaces import SYSTEM
from validation.cases import cluster_spec

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import ModelSpec
from dsx.notation.library import strategy_names
from dsx.plans.choices import KEY_COLUMNS
from dsx.plans.enumerate import BOXES
from dsx.pricing.keys import first_of_each_plan, numbered, price_keys
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.search.spaces import Space

DIMENSIONS = {"e": 1024, "h": 8, "g": 4, "k": 128, "f": 2048, "v": 50000}
EXPERTS = {"x": 8, "topk": 2, "fx": 512, "capacity_percent": 100}
BODIES = {
    "dense": {"kind": "transformer", "options": ["rotary", "gated"], "count": 4},
    "experts": {"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": 4},
}
COSTS = ("forward_s", "backward_s", "compute_s", "memory_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "boundary_bytes")
COSTS += ("recompute_s", "weight_gradient_s", "replicated_gradient_s", "weight_bytes", "group_size", "group_share")
PLAN = [name for name in KEY_COLUMNS if name != "strategy"]


@cache
def problem_of(body, strategies):
    spec = {"name": body, "source": "a test", "default_sequence_length": 2048}
    spec["dimensions"] = DIMENSIONS | (EXPERTS if body == "experts" else {})
    spec["layers"] = [{"kind": "embedding"}, BODIES[body], {"kind": "head"}]
    return make_problem(
        ModelSpec.model_validate(spec),
        cluster_spec(SYSTEM),
        load_assumptions("uncalibrated"),
        strategies,
        ProblemOptions(merged=True),
    )


def keys_of(problem):
    return Space(replace(problem, merged=False), [16], [16]).keys


def rows(keys, where=slice(None)):
    return list(zip(*(keys[name][where].tolist() for name in KEY_COLUMNS), strict=True))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("first", "second", "axis"),
    [
        ("1d", "2d", "cp"), ("2d", "2d-ring", "cp"), ("2d", "ulysses", "cp"),
        ("1d", "1d-no-sp", "tp"), ("2d", "2d-no-sp", "tp"), ("2d", "2d-expert-tp", "tp"),
    ],
)  # fmt: skip
def test_strategies_are_the_same_where_the_degree_of_the_axis_in_which_they_differ_is_one(body, first, second, axis):
    problem = problem_of(body, (first, second))
    keys = keys_of(problem)
    left = first_of_each_plan(problem, keys)
    before, after = ([{row[1:] for row in rows(of, of["strategy"] == code)} for code in (0, 1)] for of in (keys, left))
    position = PLAN.index(axis)
    both = {row for row in before[0] & before[1] if row[position] == 1 or second_is_first(body, second)}
    assert both
    # Each of them is left once, unless neither strategy needs less memory for it, and all other plans are left.
    table, position = price_keys(problem, keys), {row: number for number, row in enumerate(rows(keys))}
    for row in after[0] & after[1] & both:
        one, other = position[0, *row], position[1, *row]
        assert not no_more_memory(table, one, other) and not no_more_memory(table, other, one)
    assert both <= after[0] | after[1]
    assert (before[0] - both, before[1] - both) == (after[0] - both, after[1] - both)


def second_is_first(body, second):
    """Whether the second strategy shards this model as the first one does."""
    return second == "2d-expert-tp" and body == "dense"


@pytest.mark.parametrize("body", ["dense", pytest.param("experts", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_what_is_left_out_costs_what_is_kept(body):
    names = tuple(dict.fromkeys(["1d", *strategy_names()]))
    problem = problem_of(body, names)
    keys = keys_of(problem)
    left = first_of_each_plan(problem, keys)
    kept = set(rows(left))
    dropped = [row for row in rows(keys) if row not in kept]
    position = {row: number for number, row in enumerate(rows(keys))}
    table = price_keys(problem, keys)
    assert len(dropped) > 50
    same = {}
    for row in dropped:
        # Another strategy has the same plan, with all costs, and needs no more memory.
        candidates = [position[code, *rest] for code, *rest in kept if tuple(rest) == row[1:]]
        found = [one for one in candidates if costs_alike(table, one, position[row])]
        found = [one for one in found if no_more_memory(table, one, position[row])]
        assert found, row
        same.setdefault(row[0], []).append(found)
    assert len(same) > 4


def costs_alike(table, one, other):
    return all(
        np.allclose(getattr(kind, name)[..., one], getattr(kind, name)[..., other], rtol=1e-12, atol=0)
        for kind in table
        for name in COSTS
    )


def no_more_memory(table, one, other):
    return all(
        (getattr(kind, name)[..., one] <= getattr(kind, name)[..., other] * (1 + 1e-12)).all()
        for kind in table
        for name in ("stash_bytes", "working_bytes", "scattered_bytes")
    )


def test_kept_keys_and_numbers_of_rows():
    problem = problem_of("dense", ("1d", "2d"))
    keys = keys_of(problem)
    keys[BOXES] = 1 << keys["strategy"].astype(np.int64)
    left = first_of_each_plan(problem, keys)
    both = {row[1:] for row in rows(keys, keys["strategy"] == 0)} & {
        row[1:] for row in rows(keys, keys["strategy"] == 1)
    }
    for row, boxes in zip(rows(left), left[BOXES].tolist(), strict=True):
        assert boxes == (3 if row[1:] in both else 1 << row[0])
    # Numbers of rows.
    columns = [np.array([5, 1, 5, 0]), np.array([2, 2, 2, 70000])]
    first, second, third, fourth = numbered(columns)
    assert first == third and len({first, second, fourth}) == 3
    wide = [np.arange(1 << 8) % 251 for _ in range(12)]
    assert len(set(numbered(wide).tolist())) == 251
