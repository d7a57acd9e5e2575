"""One GPU communicates nothing and waits for no one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from laws.spaces import MACHINES, SETS, on, priced, problem_of, space_of

NO_OVERLAP = dict.fromkeys(("tp_overlap", "cp_overlap", "pp_overlap", "dp_overlap"), np.zeros(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("assumptions", SETS)
@settings(max_examples=10)
@given(machine=MACHINES)
def test_one_gpu_communicates_nothing(assumptions, machine):
    rows = priced(on(problem_of(assumptions), machine), space_of(assumptions, num_gpus=(1,), batches=(6,)))
    assert len(rows["tp"]) >= 12  # microbatches of 1, 2, 3, 6 under each strategy
    for name in ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s"):
        assert (rows[name] == 0).all(), name
    assert (rows["step_time_s"] > 0).all()


@pytest.mark.parametrize("assumptions", SETS)
def test_an_axis_of_one_communicates_nothing(assumptions):
    problem = problem_of(assumptions)
    # What runs beside compute altogether may leave nothing to wait for.
    problem = dataclasses.replace(problem, assumptions=dataclasses.replace(problem.assumptions, **NO_OVERLAP))
    rows = priced(problem, space_of(assumptions))
    assert (rows["tp_comm_s"][(rows["tp"] == 1) & (rows["tp2"] == 1)] == 0).all()
    assert (rows["cp_comm_s"][rows["cp"] == 1] == 0).all()
    assert (rows["pp_comm_s"][rows["pp"] == 1] == 0).all()
    assert (rows["bubble_s"][rows["pp"] == 1] == 0).all()
    for name in ("tp", "cp", "pp"):
        assert (rows[f"{name}_comm_s"][rows[name] > 1] > 0).all(), name
    assert (rows["dp_comm_s"][rows["dp"] > 1] > 0).all()
