"""Every number of the 34 reference points: work, times and bytes operator by operator, and the totals.

dsx books a collective on the kernel that consumes the tensor, the reference on the operator that produces it,
so communication is compared per layer and direction.
"""

import numpy as np
import pytest
from priced import evaluate_plan
from validation.cases import POINTS, case_id, config_of, reference_problem, settings_of

from dsx.cost.layer_work import layer_work
from dsx.plans.choices import KEY_COLUMNS
from dsx.pricing.one_plan import operator_costs

REL = 1e-12
COMMUNICATION = ("tp_comm_s", "cp_comm_s", "ep_comm_s")

# Operator of points.json: kernel of the layer, and the weights that the operator holds.
OPERATORS = {
    "qkv": ("qkv", ["wqkv"]), "vproj": ("y", ["wo"]), "fc1": ("z", ["w1"]), "fc2": ("d", ["w2"]),
    "fc1-bias": ("z.2", ["b1"]), "fc2-bias": ("d.2", ["b2"]), "vproj-bias": ("y.2", ["bo"]), "act1": ("u", []),
    "dpr1": ("u.2", []), "dpr2": ("d.3", []), "dpr_v": ("y.3", []), "ln1": ("n1", ["gamma1", "beta1"]),
    "ln2": ("n2", ["gamma2", "beta2"]), "fusedla": ("attention", []),
}  # fmt: skip


@pytest.fixture(scope="module", params=POINTS, ids=case_id)
def point(request):
    """A case, its problem, and the plan as dsx prices it."""
    case = request.param
    strategy, config = case["tp_strategy"], config_of(case["config"])
    problem = reference_problem(case["model"], case["gpu"], case["nvs"], strategy)
    num_gpus = config["n1"] * config["n2"] * config["np"] * config["nd"]
    return case, problem, evaluate_plan(problem, settings_of(strategy, config), num_gpus, case["global_batch"])


def weight_bytes(problem, plan):
    """{weight: bytes of one layer on one GPU}."""
    keys = {name: np.array([0 if name == "strategy" else plan[name]]) for name in KEY_COLUMNS}
    (layer,) = problem.layers
    work = layer_work(layer, problem.model.dimensions, problem.assumptions_spec, problem.sequence_length, keys)
    return dict(zip((weight.name for weight in layer.weights), work.weights[:, 0], strict=True))


def close(reference):
    return pytest.approx(reference, rel=REL, abs=1e-15)


def test_operators(point):
    case, problem, evaluation = point
    kernels = {kernel["name"]: kernel for kernel in operator_costs(problem, evaluation.plan)}
    weights = weight_bytes(problem, evaluation.plan)
    device = problem.cluster.device
    for name, reference in case["ops"].items():
        kernel_name, held = OPERATORS[name]
        kernel = kernels[kernel_name]
        for direction, suffix in (("forward", "fwd"), ("backward", "bwd")):
            ours = kernel[direction]
            # The reference times the vector FLOPs of the fused kernel on the matrix units, inflated to match.
            kappa = device.matrix_flops / device.vector_flops if name == "fusedla" else 1.0
            flops = ours["matrix_flops"] + kappa * ours["vector_flops"]
            found = {
                "flops": flops / 1e12,
                "mem": ours["bytes"] / 1e9,
                "comp": ours["compute_s"],
                "memory": ours["memory_s"],
            }
            assert found == close(
                {
                    "flops": reference[f"flops_{suffix}"],
                    "mem": reference[f"mem_{suffix}"],
                    "comp": reference[f"t_{suffix}_comp"],
                    "memory": reference[f"t_{suffix}_mem"],
                }
            ), (name, direction)
        assert kernel["saved_bytes"] / 1e9 == close(reference["activation_buffer"]), name
        assert sum(weights[weight] for weight in held) / 1e9 == close(reference["weights_mem"]), name


def test_nothing_is_left_over(point):
    """What the reference does not list does nothing: views and residual additions."""
    _, problem, evaluation = point
    listed = {kernel for kernel, _ in OPERATORS.values()}
    for kernel in operator_costs(problem, evaluation.plan):
        if kernel["name"] not in listed:
            assert not kernel["counted"]
            for direction in ("forward", "backward"):
                assert not any(value for value in kernel[direction].values()), kernel["name"]
    held = {weight for _, weights in OPERATORS.values() for weight in weights}
    assert held == set(weight_bytes(problem, evaluation.plan))


def test_communication_of_a_layer(point):
    case, problem, evaluation = point
    kernels = operator_costs(problem, evaluation.plan)
    for direction, suffix in (("forward", "fwd"), ("backward", "bwd")):
        ours = sum(kernel[direction][column] for kernel in kernels for column in COMMUNICATION)
        assert ours == close(sum(op[f"t_{suffix}_comm"] for op in case["ops"].values())), direction


def test_totals(point):
    case, _, evaluation = point
    costs = evaluation.costs
    assert evaluation.plan["num_microbatches"] == case["config"]["m"]
    assert {
        "t": costs["step_time_s"],
        "t_comp": costs["compute_s"],
        "t_mem": costs["memory_s"],
        "t_tp_comm": costs["tp_comm_s"] + costs["cp_comm_s"],
        "t_dp_comm": costs["dp_comm_s"],
        "t_pp_comm": costs["pp_comm_s"],
        "t_bubble": costs["bubble_s"],
        "wts_mem": costs["weight_bytes"] / 1e9,
        "wts_grad_mem": costs["gradient_bytes"] / 1e9,
        "wts_optimizer_states_mem": costs["optimizer_bytes"] / 1e9,
        "acts_mem": costs["activation_bytes"] / 1e9,
        "mem": costs["peak_bytes"] / 1e9,
    } == close(case["total"])
    for column in ("ep_comm_s", "recompute_s", "optimizer_s", "overhead_bytes"):
        assert costs[column] == 0.0
    assert evaluation.fits == case["fits"]
