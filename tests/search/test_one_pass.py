"""The plans of an answer in one pass over two sets of plans are those of searches through all of them."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from search.test_key_bounds import problem_of

from dsx.results.ranked_by import wanted_by_role
from dsx.search.fastest import ANY, fastest, fastest_below, problems_of, spaces_of
from dsx.search.one_pass import OnePass, nearly_fastest

OPENED = {"recompute": ["none", "full"], "zero_stage": [1, 3], "offload": ["none"]}


@pytest.mark.parametrize(
    ("num_gpus", "resolution", "num_roles"), [(16, 0.2, 3), (20, 0.2, 3), (20, 0.0, 3), (28, 1e-3, 3), (20, 0.2, 1)]
)
@pytest.mark.sampled(1, 2)
def test_one_pass_has_the_plans_of_each_search(num_gpus, resolution, num_roles):
    problems = problems_of(ANY, problem_of("default", framework="megatron").searching(OPENED))
    spaces = spaces_of(problems, num_gpus, 2 * num_gpus, OPENED)
    told = []
    wants = partial(wanted_by_role, resolution=resolution)
    answer = OnePass(spaces, 3, wants, num_roles, lambda *_: None, lambda *one: told.append(one), None).plans()

    of_all, launched = fastest(spaces, 3).plans, fastest(spaces.as_launched, 3).plans
    seconds = [plan["step_time_s"] for plan in of_all]
    np.testing.assert_allclose([plan["step_time_s"] for plan in answer.of_all], seconds, rtol=1e-12)
    within = max(want.most_s for want in wants(seconds[0]))
    assert answer.as_launched == (launched[0]["step_time_s"] <= within)
    first, *later = told
    assert (first[0]["plan"], first[1]) == (launched[0]["plan"], True)
    assert [of_launched for _, of_launched in later] == ([] if answer.as_launched else [False])
    role_spaces, known = (spaces.as_launched, launched) if answer.as_launched else (spaces, of_all)
    wanted = [replace(want, most_s=min(want.most_s, within)) for want in wants(known[0]["step_time_s"])]
    looked = nearly_fastest(role_spaces.priced(slice(None)), role_spaces.varied, known, within)
    assert answer.of_roles is not None
    for want, plan in zip(wanted[:num_roles], answer.of_roles, strict=True):
        assert plan["step_time_s"] <= within
        assert want.rank(plan)[:2] == pytest.approx(want.rank(looked.best(want))[:2], rel=1e-12)
    assert answer.counts.candidates <= spaces.counted.candidates
    assert answer.counts.left_s == np.inf


def test_a_list_is_of_all_plans():
    problems = problems_of(ANY, problem_of("default", framework="megatron").searching(OPENED))
    spaces = spaces_of(problems, 20, 40, OPENED)
    wants = partial(wanted_by_role, resolution=0.2)
    first = []
    answer = OnePass(spaces, 4, wants, 0, lambda *one: first.append(one), lambda *_: pytest.fail("told"), None).plans()
    assert answer.plans is answer.of_all
    ((plan, least_s),) = first
    assert least_s <= answer.plans[0]["step_time_s"] <= plan["step_time_s"], "told before the variants are searched"
    assert [one["plan"] for one in answer.plans] == [one["plan"] for one in fastest(spaces, 4).plans]
    assert answer.of_roles == [] and not answer.as_launched


def test_a_search_says_when_it_looks_for_variants(monkeypatch):
    said = []
    monkeypatch.setattr("dsx.search.fastest.working", lambda what, _: said.append(what) or nullcontext())
    opened = {"recompute": ["none"], "zero_stage": [1], "offload": ["none", "optimizer"], "pp": [1]}
    problems = problems_of(ANY, problem_of("default", framework="megatron").searching(opened))
    fixed = {name: values for name, values in opened.items() if name != "offload"}
    fastest(spaces_of(problems, 8, 16, fixed), 1)
    assert said == ["pricing", "searching variants"]


def test_plans_that_are_too_slow_may_fit():
    """A job on 24 GPUs was said to have 4 feasible plans of 8, as the others are slower."""
    problems = problems_of(ANY, problem_of("default", framework="megatron").searching(OPENED))
    spaces = spaces_of(problems, 16, 32, OPENED)
    fastest_s = fastest(spaces, 1).plans[0]["step_time_s"]
    plans, counts = fastest_below(spaces, 1, 0.99 * fastest_s)
    assert not plans
    assert counts.candidates > counts.priced
    assert counts.feasible is None
