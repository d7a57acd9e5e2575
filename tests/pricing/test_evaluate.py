"""One plan: its evaluation beyond the price."""

import re
from dataclasses import replace

import numpy as np
import pytest
from laws.spaces import hardware, on, priced, problem_of, space_of
from priced import evaluate_plan

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.errors import PlanError
from dsx.pricing.one_plan import named_row, operator_costs, priced_plans
from dsx.pricing.problem import ProblemOptions, make_problem

PROBLEM = problem_of("default", ("1d",))
SETTINGS = ["tp=4", "pp=3", "dp=2", "microbatch_size=2", "nvs.tp=4", "nvs.dp=2"]


def evaluate(*settings, problem=PROBLEM, num_gpus=24, batch=24):
    return evaluate_plan(problem, settings, num_gpus, batch)


def test_plans_that_fit_or_not_say_what_they_break():
    plan = evaluate(*SETTINGS).plan
    assert (plan["strategy"], plan["recompute"], plan["schedule"]) == ("1d", "none", "1f1b")
    assert (plan["tp"], plan["pp"], plan["dp"], plan["cp"], plan["num_microbatches"]) == (4, 3, 2, 1, 6)
    assert (plan["num_gpus"], plan["global_batch_size"], plan["sequence_length"]) == (24, 24, 2048)
    # A plan that fits breaks nothing.
    evaluation = evaluate(*SETTINGS, problem=on(PROBLEM, hardware(hbm_capacity=1e12)))
    assert evaluation.fits
    assert evaluation.broken == ()
    # A plan that does not fit says what is largest.
    evaluation = evaluate(*SETTINGS, problem=on(PROBLEM, hardware(hbm_capacity=1e9)))
    assert not evaluation.fits
    (violation,) = evaluation.broken
    assert violation.reason.name == "memory"
    assert "exceed the 1.00 GB of a GPU by" in violation.detail
    parts = {
        name: evaluation.costs[name] for name in evaluation.costs if name.endswith("_bytes") and name != "peak_bytes"
    }
    assert f"the largest part is {max(parts, key=parts.get)} with" in violation.detail
    # A plan that breaks other rules may fit.
    shares = ["nvs.dp=2", "nvs.tp=1", "nvs.pp=1"]
    evaluation = evaluate("tp=4", "pp=3", "dp=2", *shares, problem=on(PROBLEM, hardware(hbm_capacity=1e12)))
    assert [violation.reason.name for violation in evaluation.broken] == ["domain_not_filled"]
    assert evaluation.fits
    assert evaluation.costs["step_time_s"] > evaluate(*SETTINGS).costs["step_time_s"]
    # A plan that is not well formed.
    with pytest.raises(PlanError, match=", but num_gpus=24"):
        evaluate("tp=4")


def test_default_placement_of_the_assumption_set():
    named = evaluate(*SETTINGS)
    assert named.filled == {}
    ranked = evaluate("tp=4", "pp=3", "dp=2", "microbatch_size=2")
    assert ranked.filled == {"nvs.tp": 4, "nvs.dp": 2}
    assert (ranked.plan, ranked.costs) == (named.plan, pytest.approx(named.costs, rel=0, nan_ok=True))
    partly = evaluate("tp=4", "pp=3", "dp=2", "microbatch_size=2", "nvs.dp=2")
    assert partly.filled == {"nvs.tp": 4}
    assert (partly.plan, partly.costs) == (named.plan, pytest.approx(named.costs, rel=0, nan_ok=True))
    apart = problem_of("paper-2410.00273", ("1d",))
    left_out = evaluate("tp=4", "pp=3", "dp=2", problem=apart)
    assert left_out.filled == {}
    assert left_out.plan["tp_nvs"] == left_out.plan["dp_nvs"] == 1


def test_kernels_add_up_to_the_layer():
    """Without host delays, kernels over all microbatches and layers of a stage add up to the step."""
    for strategies in (("1d",), ("2d",), ("summa",)):
        problem = problem_of("default", strategies)
        at_once = replace(problem.assumptions, dispatch_latency=0.0 * problem.assumptions.dispatch_latency)
        problem = replace(problem, assumptions=at_once)
        evaluation = evaluate("tp=2", "dp=12", "nvs.tp=2", "nvs.dp=4", problem=problem)
        kernels = operator_costs(problem, evaluation.plan)
        times = 12 * evaluation.plan["num_microbatches"]
        for column in ("compute_s", "memory_s", "tp_comm_s", "cp_comm_s"):
            total = times * sum(
                kernel[direction][column] for kernel in kernels for direction in ("forward", "backward")
            )
            assert total == pytest.approx(evaluation.costs[column], rel=1e-12), column
        saved = 12 * sum(kernel["saved_bytes"] for kernel in kernels)
        # In addition to what is saved there is the largest transient of a layer.
        assert saved <= evaluation.costs["activation_bytes"] < 1.2 * saved


def test_the_traffic_of_a_kernel_is_what_is_timed():
    """Rotary positions as several kernels: hidden and exposed traffic add up to all traffic."""
    assumptions, cluster = load_assumptions("default"), load_cluster("h100-nvs8")
    problem = make_problem(load_model("llama-3-8b"), cluster, assumptions, ["1d"])
    plan = evaluate_plan(problem, ["tp=8", "dp=2", "nvs.tp=8"], 16, 16).plan
    (rotary,) = [one["forward"] for one in operator_costs(problem, plan) if one["name"] == "self-attention.q.2"]
    seconds = rotary["memory_s"] + rotary["compute_s"] - assumptions.launch_latency
    _, priced_with = problem.at_point(0)
    seconds = seconds / priced_with.kernel_slowdown
    assert rotary["bytes"] == pytest.approx(
        seconds * cluster.device.hbm_bandwidth * assumptions.hbm_efficiency, rel=1e-9
    )
    assert rotary["bytes"] == (2 + 8 * assumptions.unfused_share) * 2 * 8192 * 4096 / 8


def test_rows_of_a_search_as_evaluations():
    problem, space = problem_of("default"), space_of("default")
    rows = {name: column[:3] for name, column in priced(problem, space).items()}
    for row, shown in enumerate(priced_plans(problem, rows)):
        assert shown["plan"] == named_row(problem, rows, row)
        assert shown["plan"]["strategy"] in problem.strategies
        assert shown["step_time_s"] == rows["step_time_s"][row]
        assert shown["fits"]
        assert shown["reject"] == []
    assert priced_plans(problem, {name: column[:0] for name, column in rows.items()}) == []
    assert np.ndim(rows["tp"]) == 1


@pytest.mark.parametrize(
    ("model", "settings", "batch"),
    [
        ("mixtral-8x7b", ["ep=1024", "dp=1024"], 1024),  # 8 experts
        ("llama-3-8b", ["tp=1024"], 1024),  # 8 key-value heads
        ("llama-3-8b", ["dp=1024"], 1500),  # 476 sequences that no replica has
        ("llama-3-8b", ["dp=512", "pp=2"], 1024),
    ],
)
def test_a_plan_that_leaves_work_out_has_no_speed(model, settings, batch):
    problem = make_problem(load_model(model), load_cluster("h100-nvs8"), load_assumptions("default"), ["1d"])
    found = evaluate_plan(problem, settings, 1024, batch)
    whole = "pp=2" in settings
    speeds = [found.costs[name] for name in ("mfu", "tokens_per_s", "tokens_per_s_per_gpu", "step_time_s_low")]
    assert np.isfinite(speeds).tolist() == [whole] * 4
    assert (not whole or 0 < found.costs["mfu"] < 1) and np.isfinite(found.costs["step_time_s"])


def node_of(host_memory):
    """Llama-3 70B by ZeRO-Offload on eight A100 of one node: 70.55e9 parameters, 16 bytes each on the host."""
    cluster = load_cluster("a100-80-nvs8", [("node.host_memory", host_memory)])
    assumed = load_assumptions("default", [("stack", "deepspeed-2023")])
    problem = make_problem(load_model("llama-3-70b"), cluster, assumed, ["1d"], ProblemOptions(sequence_length=2048))
    return evaluate("dp=8", "zero_stage=3", "recompute=full", "offload=optimizer", problem=problem, num_gpus=8, batch=8)


def test_a_host_of_1_tb_is_too_small_for_the_state_of_70_billion_parameters():
    found = node_of("1024 GB")
    assert 8 * found.costs["host_bytes"] == pytest.approx(70.55e9 * 16, rel=1e-4)
    (violation,) = found.broken
    assert not found.fits and violation.reason.name == "host_memory"
    assert violation.detail.startswith(
        "the 8 GPUs of a node keep 1.13 TB on its host, 207 GB more than the 922 GB that a job has of its 1.02 TB; the "
        "largest part is the state of the optimizer and its gradients with 1.13 TB; nearest: "
    )
    (nearest,) = re.findall(r"cluster\.node\.host_memory='(.*)'", violation.detail)
    assert node_of(nearest).fits and node_of("2 TB").broken == ()
