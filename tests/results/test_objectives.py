"""What plans of several jobs are ranked by."""

import pytest

from dsx.errors import UnknownNameError
from dsx.results.ranked_by import OBJECTIVES, objective_named, ranked_by_count

PLANS = [
    {"plan": {"num_gpus": gpus}, "tokens_per_s": rate, "step_time_s": step, "mfu": 0.4, "peak_bytes": size}
    | {"tokens_per_s_per_gpu": rate / gpus, "hardware": {"cluster": "b200-nvs8"}}
    for gpus, rate, step, size in [(8, 80.0, 4.0, 1), (16, 176.0, 5.0, 2), (8, 96.0, 7.0, 3), (16, 128.0, 3.0, 4)]
]


def order(name):
    return [PLANS.index(plan) for plan in ranked_by_count(PLANS, objective_named(name))]


def test_groups_of_the_same_gpus_follow_their_best_plans():
    assert order("tokens_per_s_per_gpu") == [2, 0, 1, 3]
    assert order("tokens_per_s") == [1, 3, 2, 0]
    assert order("step_time_s") == [3, 1, 0, 2]
    assert order("peak_bytes") == [0, 2, 1, 3]
    assert order("mfu") == [0, 2, 1, 3]


def test_clusters_are_groups_of_their_own():
    """The same number of GPUs of two clusters is two groups."""
    two = [plan | {"hardware": {"cluster": name}} for plan, name in zip(PLANS, ("a", "b", "b", "a"), strict=True)]
    ranked = ranked_by_count(two, objective_named("tokens_per_s"))
    assert [(plan["hardware"]["cluster"], plan["plan"]["num_gpus"]) for plan in ranked] == [
        ("b", 16), ("a", 16), ("b", 8), ("a", 8),
    ]  # fmt: skip


def test_unknown_names():
    assert {*OBJECTIVES} >= {"tokens_per_s_per_gpu", "step_time_s"}
    with pytest.raises(UnknownNameError, match=r"did you mean 'mfu'\?"):
        objective_named("mfus")
