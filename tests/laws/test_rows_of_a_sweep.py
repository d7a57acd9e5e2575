"""What a sweep writes of a candidate is what evaluating it as a plan says."""

import numpy as np
import pytest
from laws.spaces import SETS, problem_of, space_of
from validation.cases import shrink_batches

from dsx.cost.columns import StepCosts
from dsx.search.evaluate import evaluate_plan
from dsx.search.sweep import Sweep

AXES = ("tp", "tp2", "cp", "pp", "dp")


@pytest.mark.parametrize("assumptions", SETS)
def test_rows_are_evaluations(monkeypatch, assumptions):
    shrink_batches(monkeypatch, rows=500)
    problem, space = problem_of(assumptions), space_of(assumptions)
    chunks = list(Sweep(problem, space, "all", "float64").rows())
    assert [len(chunk["tp"]) for chunk in chunks[:-1]] == [500] * (len(chunks) - 1)
    rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    assert len(rows["tp"]) == space.count()
    for row in range(0, len(rows["tp"]), len(rows["tp"]) // 40):
        plan = {name: int(column[row]) for name, column in rows.items() if column.dtype.kind == "i"}
        settings = [f"{name}={plan[name]}" for name in (*AXES, "microbatch_size", "panels")]
        settings += [f"nvs.{axis}={plan[f'{axis}_nvs']}" for axis in AXES]
        alone = problem_of(assumptions, (problem.strategies[plan["strategy"]],))
        evaluation = evaluate_plan(alone, settings, plan["num_gpus"], plan["global_batch_size"])
        assert evaluation.plan["candidate"] == plan["candidate"]
        assert evaluation.plan["num_microbatches"] == plan["num_microbatches"]
        assert evaluation.costs == pytest.approx(
            {name: float(rows[name][row]) for name in StepCosts.__dataclass_fields__}, rel=1e-12
        )
        assert evaluation.fits == (plan["reject"] == 0)
        # An enumerated candidate breaks no rule but that of memory.
        assert [violation.reason.name for violation in evaluation.broken] == ([] if evaluation.fits else ["memory"])
