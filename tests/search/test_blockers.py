"""Spaces without a candidate: which settings exclude all of them, and the nearest value that does not."""

import pytest

from dsx.config.sweep_fields import Limit
from dsx.search.blockers import blockers
from dsx.search.spaces import Space
from dsx.verbs.job import load_inputs, split_overrides


def blame(
    model="llama-3-8b", fix=None, limit=None, fixed=(), num_gpus=64, batch=256, cluster="h100-nvs8", partition="even"
):
    overrides = split_overrides([f"assumptions.fixed.{one}" for one in fixed])
    problem = load_inputs(model, cluster, "default", overrides).problem([], None, partition=partition)
    assert not Space(problem.searching(fix or {}), [num_gpus], [batch], fix, limit).size
    found = blockers(problem, [num_gpus], [batch], fix, limit)
    assert all(blocker.rule for blocker in found)
    return [(blocker.section, blocker.setting, blocker.nearest, blocker.alone) for blocker in found]


@pytest.mark.parametrize(
    ("column", "values", "nearest"),
    [
        ("tp", [3], "tp = 2"),
        ("cp", [2], "cp = 1"),
        ("ep", [7], "ep = 1"),
        ("pp", [5], "pp = 4"),
        ("pp", [100, 50], "pp = 32"),
        ("dp", [7], "dp = 8"),
        ("microbatch_size", [3], "microbatch_size = 2"),
        ("panels", [4], "panels = 1"),
        ("tp_nvs", [16], "tp_nvs = 8"),
        ("num_microbatches", [7], "num_microbatches = 8"),
        ("zero_replicas", [3], "zero_replicas = 2"),
        ("vpp", [3], "vpp = 2"),
    ],
)
def test_one_value_that_no_candidate_has(column, values, nearest):
    text = f"{column} = {' or '.join(map(str, values))}"
    few = ("recompute=none", "offload=none", "schedule=1f1b") if column == "num_microbatches" else ()
    assert blame(fix={column: values}, fixed=few) == [("fix", text, nearest, True)]


def test_degrees_stored_layers_and_orders_that_leave_no_plan():
    fix = {"tp": [8, 16], "pp": [16, 32], "vpp": [1]}
    setting = "tp = 8 or 16 and pp = 16 or 32"
    assert blame(fix=fix) == [("fix", setting, "pp = 8", True)]
    # Rules of stored layers and orders.
    fix = {"recompute": ["full"], "pp": [4], "stored_layers": [40]}
    assert blame(fix=fix) == [("fix", "stored_layers = 40", "stored_layers = 7", True)]
    # An order numbers the replicas of an ep group consecutively.
    fix = {"order": ["tp-cp-ep-pp-dp"], "ep": [8], "tp": [1], "pp": [2]}
    assert blame("mixtral-8x7b", fix, cluster="dgx-a100-superpod") == [
        ("fix", "tp = 1", "tp = 8", True),
        ("fix", "ep = 8", "ep = 1", True),
        ("fix", "order = tp-cp-ep-pp-dp", "order = tp-cp-ep-dp-pp", True),
    ]


@pytest.mark.parametrize(("ep", "nearest"), [(7, 8), (16, 8)])
def test_ep_divides_the_experts_and_the_ranks(ep, nearest):
    assert blame("mixtral-8x7b", fix={"ep": [ep]}) == [("fix", f"ep = {ep}", f"ep = {nearest}", True)]


@pytest.mark.parametrize(
    ("fix", "setting", "nearest"),
    [
        ({"vpp": [18]}, "vpp = 18", "vpp = 17"),
        ({"schedule": ["zb-h1"]}, "schedule = zb-h1", "schedule = 1f1b"),
        ({"pp": [64]}, "pp = 64", "pp = 32"),
    ],
)
def test_choices_without_an_optimal_cut(fix, setting, nearest):
    assert blame(fix=fix, partition="optimal") == [("fix", setting, nearest, True)]


def test_wrong_settings_are_named():
    assert blame(fix={"vpp": [2], "pp": [1]}) == [
        ("fix", "pp = 1", "pp = 2", True),
        ("fix", "vpp = 2", "vpp = 1", True),
    ]
    assert blame(fix={"stored_layers": [4]}, fixed=("recompute=none",)) == [
        ("fixed", "recompute = none", "recompute = selective or full", True),
        ("fix", "stored_layers = 4", "stored_layers = 0", True),
    ]
    # Each of several wrong settings is named.
    assert blame(fix={"pp": [5, 7], "vpp": [3], "tp": [3], "dp": [16]}) == [
        ("fix", "tp = 3", "tp = 2", False),
        ("fix", "pp = 5 or 7", "pp = 4", False),
        ("fix", "vpp = 3", "vpp = 2", False),
    ]
    # Limits and fixed choices of an assumption set.
    assert blame(limit={"pp": [Limit(">=", 100)]}) == [("limit", "pp >= 100", "pp = 32", True)]
    assert blame(fixed=("vpp=3",)) == [("fixed", "vpp = 3", "vpp = 2", True)]
    assert blame(limit={"zero_replicas": [Limit(">=", 2), Limit("<=", 4)]}, fixed=("zero_replicas=1",)) == [
        ("fixed", "zero_replicas = 1", "zero_replicas = 2", True),
        ("limit", "zero_replicas >= 2 and zero_replicas <= 4", "zero_replicas = 1", True),
    ]
    # No blocker if the job alone has no plan.
    assert blame(fix={"pp": [4]}, num_gpus=7, batch=9) == []
