"""What a sweep writes of a candidate is what evaluating it as a plan says, whatever else is searched."""

from textwrap import dedent

import numpy as np
import pytest
from laws.spaces import SETS, assert_rows_equal, priced, problem_of, space_of
from search.sweeps import run, study_of

from dsx.cost.context import StepCosts
from dsx.pricing.cuts import joined
from dsx.pricing.keys import price_keys
from dsx.pricing.one_plan import evaluate_plan
from dsx.search.spaces import Space
from dsx.search.sweep import Sweep

AXES = ("tp", "tp2", "cp", "pp", "dp")


@pytest.mark.parametrize("assumptions", SETS)
def test_rows_are_evaluations(assumptions):
    problem, space = problem_of(assumptions), space_of(assumptions)
    parts = run(Sweep([study_of(problem, space)], "all", "float64", 500))
    assert [len(parts[number][0]["tp"]) for number in range(len(parts) - 1)] == [500] * (len(parts) - 1)
    rows = joined([parts[number][0] for number in range(len(parts))])
    assert len(rows["tp"]) == space.size
    for row in range(0, len(rows["tp"]), len(rows["tp"]) // 40):
        plan = {name: int(column[row]) for name, column in rows.items() if column.dtype.kind == "i"}
        settings = [f"{name}={plan[name]}" for name in (*AXES, "microbatch_size", "panels")]
        settings += [f"nvs.{axis}={plan[f'{axis}_nvs']}" for axis in AXES]
        alone = problem_of(assumptions, (problem.strategies[plan["strategy"]],))
        evaluation = evaluate_plan(alone, settings, plan["num_gpus"], plan["global_batch_size"])
        assert evaluation.plan["candidate"] == plan["candidate"]
        assert evaluation.plan["num_microbatches"] == plan["num_microbatches"]
        names = StepCosts.__dataclass_fields__
        costs = {name: evaluation.costs[name] for name in names}
        assert costs == pytest.approx({name: float(rows[name][row]) for name in names}, rel=1e-12, nan_ok=True)
        assert evaluation.fits == (plan["reject"] == 0)
        # An enumerated candidate breaks no rule but that of memory.
        assert [violation.reason.name for violation in evaluation.broken] == ([] if evaluation.fits else ["memory"])


# The weights of the first multiplies are divided over cp and gathered where they are used, so their gradients are not
# reduced over it: two groups of weights.
TWO_GROUPS = """
    strategy two-groups
    role rs = s/cp/tp  role re = e      role is = s/cp    role ie = e
    role wi = e/cp     role wf = f/tp   role wc = c/tp    role hg = g/tp
    role uf = f/tp     role vf = f/tp   role ve = e       role oe = e
    role hm = m/tp     role um = m/tp   role vm = m/tp
    require h % tp == 0     heads_not_divisible
    require e % (cp*tp) == 0 hidden_size_not_divisible
    require s % (cp*tp) == 0 sequence_not_divisible
"""


def test_rows_do_not_depend_on_what_else_is_searched(tmp_path):
    file = tmp_path / "two-groups.layer"
    file.write_text(dedent(TWO_GROUPS))
    strategies = ("1d", str(file), "summa")
    problem = problem_of("default", strategies)
    rows = priced(problem, Space(problem, [24], [48]))
    assert price_keys(problem, Space(problem, [24], [48]).keys)[0].weight_bytes.shape[1] == 2
    for code, strategy in enumerate(strategies):
        alone = problem_of("default", (strategy,))
        expected = priced(alone, Space(alone, [24], [48]))
        found = {name: column[rows["strategy"] == code] for name, column in rows.items()}
        order, wanted = np.argsort(found["candidate"]), np.argsort(expected["candidate"])
        assert len(order) > 50
        assert_rows_equal(
            {name: column[order] for name, column in found.items() if name != "strategy"},
            {name: column[wanted] for name, column in expected.items() if name != "strategy"},
            1e-12,
        )
