"""The search finds the 152 reference optima: as many candidates, as many that fit, and the same best plan.

The cases of one problem share its layer costs: its key table is that of all GPU counts, and a case is limited to
one of them.
"""

import pytest
from validation.cases import OPTIMA, case_id, columns_of, config_of, reference_problem

from dsx.config.sweep_fields import Limit
from dsx.pricing.one_plan import named_row
from dsx.search.spaces import Space
from dsx.search.sweep import search_of

REL = 1e-11
ALL_GPUS = sorted({case["num_gpus"] for case in OPTIMA})


@pytest.mark.sampled(21)
@pytest.mark.parametrize("case", OPTIMA, ids=case_id)
def test_optimum(case):
    strategy, num_gpus, batch = case["tp_strategy"], case["num_gpus"], case["global_batch"]
    problem = reference_problem(case["model"], case["gpu"], case["nvs"], strategy)
    assert Space(problem, [num_gpus], [batch]).size == case["candidates"]

    space = Space(problem, ALL_GPUS, [batch], limit={"num_gpus": [Limit("==", num_gpus)]})
    table = space.table(problem)
    rows, counts = search_of(problem, space, table).best(1)
    assert (counts.candidates, counts.feasible) == (case["candidates"], case["feasible"])
    if not case["top"]:
        assert len(rows["candidate"]) == 0
        return

    (reference,) = case["top"]
    plan = named_row(problem, rows, 0)
    config = {"n2": 1, "t2": 1} | {ours: plan[column] for column, ours in columns_of(strategy).items()}
    assert config == config_of(reference["config"])
    assert plan["num_microbatches"] == reference["config"]["m"]
    found = {name: float(column[0]) for name, column in rows.items()}
    assert {
        "t": found["step_time_s"],
        "t_comp": found["compute_s"],
        "t_mem": found["memory_s"],
        "t_tp_comm": found["tp_comm_s"] + found["cp_comm_s"],
        "t_dp_comm": found["dp_comm_s"],
        "t_pp_comm": found["pp_comm_s"],
        "t_bubble": found["bubble_s"],
        "wts_mem": found["weight_bytes"] / 1e9,
        "wts_grad_mem": found["gradient_bytes"] / 1e9,
        "wts_optimizer_states_mem": found["optimizer_bytes"] / 1e9,
        "acts_mem": found["activation_bytes"] / 1e9,
        "mem": found["peak_bytes"] / 1e9,
    } == pytest.approx({name: reference[name] for name in reference if name != "config"}, rel=REL, abs=1e-15)
