"""The table of what network-agnostic plans and even cuts lose."""

import pytest


@pytest.fixture
def gains(benchmark_script):
    return benchmark_script("partition_gains")


@pytest.fixture
def plans(benchmark_script):
    return benchmark_script("gains.plans")


def plan(plans, stage_layers=(1, 2, 2, 2, 4), **costs):
    degrees = {name: 1 for name in ("tp", "tp2", "cp", "ep", "pp", "dp", "microbatch_size", "panels")}
    parts = dict.fromkeys(plans.PARTS, 0.0) | costs
    return plans.Plan(degrees | {"pp": 5, "dp": 2}, stage_layers, parts | {"step_time_s": sum(parts.values())})


def case(gains, cluster, **plans):
    return gains.Case("m", cluster, 10, **(dict.fromkeys(("aware", "flat", "free", "even", "recut")) | plans))


def test_the_tables_show_losses_and_clusters_without_a_plan(gains, plans):
    aware, slower = plan(plans, compute_s=8.0, bubble_s=2.0), plan(plans, compute_s=8.0, dp_comm_s=6.0)
    found = [case(gains, "a", aware=aware, flat=slower, free=aware), case(gains, "b")]
    text = gains.report(found)
    assert "| a | 1 | 40.0 (40.0) | 0.0 (0.0) | none | none |" in text
    assert "No plan fits into memory on b: m." in text
    stages = "pp=5 dp=2; stages 1, 3 x 2, 4"
    assert f"| m on a | 40.0 | {stages} | {stages} | data parallelism +60, bubble -20 |" in text


@pytest.mark.slow
def test_no_plan_is_better_than_the_optimal_one(gains):
    """`Model.on` raises if one is."""
    (found,) = gains.cases(["mpt-125m"], ["tpuv4-fat-tree"])
    assert found.loss("even") > 0.05  # twelve layers in four stages, and a head that is as heavy as four of them
    # Who takes the network for flat loses less than who ignores what it costs.
    assert found.loss("free") > found.loss("flat") >= 0.0
