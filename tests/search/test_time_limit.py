"""A search that ends early has plans that are no faster than the fastest, and a bound that is no slower."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from search.test_key_bounds import problem_of

import dsx
from dsx import progress
from dsx.progress import time_limit
from dsx.search import bounds as bounded
from dsx.search import fastest as searching
from dsx.search.fastest import ANY, fastest, fastest_below, problems_of, spaces_of

JOB = {"num_gpus": 8, "global_batch_size": 16}


@pytest.mark.sampled(0, 2)
@pytest.mark.parametrize("few_keys", [1, 1 << 30])
def test_what_is_known_when_time_is_over(monkeypatch, few_keys):
    opened = {"recompute": ["none", "full"], "zero_stage": [1, 3]}  # others are searched as variants
    problems = problems_of(ANY, problem_of("default", framework="megatron").searching(opened))
    fastest_s = fastest(spaces_of(problems, 16, 32, opened), 3).plans[0]["step_time_s"]
    monkeypatch.setattr(searching, "FEW_KEYS", few_keys)
    monkeypatch.setattr(bounded, "_ROWS", 256)
    monkeypatch.setattr(bounded, "_FIRST", 4)
    ended = []
    for asked in (*range(0, 100, 11), 1 << 20):
        clock = itertools.count()  # a second each time that it is looked at
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda clock=clock: float(next(clock))))
        spaces = spaces_of(problems, 16, 32, opened)
        with time_limit(asked):
            plans, counts = fastest_below(spaces, 3, np.inf)
        assert plans[0]["step_time_s"] >= fastest_s * (1 - 1e-12)
        assert min(counts.left_s, plans[0]["step_time_s"]) <= fastest_s * (1 + 1e-12)
        assert counts.priced >= len(plans)
        assert counts.feasible is None or counts.feasible >= len(plans)
        ended.append(counts.left_s < np.inf)
    assert ended[0]
    assert ended == sorted(ended, reverse=True)
    assert not ended[-1]


@pytest.mark.slow
def test_an_answer_in_a_given_time():
    job = dsx.Job("llama-3-8b", "h100-nvs8", **JOB)
    whole = dsx.best(job, fix="tp=2 recompute=none")
    assert "timed_out" not in whole.to_data()
    in_time = dsx.best(job, fix="tp=2 recompute=none", time_limit="1 h").to_data()
    least_s = in_time.pop("least_s")
    assert not in_time.pop("timed_out")
    assert least_s == min(plan["step_time_s"] for plan in whole.priced)  # placed as launched or not
    assert in_time == whole.to_data()
    ended = dsx.best(job, fix="tp=2 recompute=none", time_limit="1 ns")
    assert ended.timed_out
    assert ended.least_s <= least_s <= ended.step_time_s
    assert "--time-limit 1e-09 s ended the search" in str(ended)
    with pytest.raises(dsx.errors.InputError, match=r"no leanest was found in 1e-09 s: give a longer time_limit"):
        _ = ended.leanest
