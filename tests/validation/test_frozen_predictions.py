"""Predictions of published runs as they were, and those runs as candidates."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import has_experts
from dsx.config.search_path import packaged_data
from dsx.plans.choices import BY_NAME
from dsx.plans.experts import share_of_shares
from dsx.plans.frameworks import broken, read_framework
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.plan import Plan
from dsx.plans.rules import OPTIMAL
from dsx.plans.violations import violations
from dsx.pricing.problem import make_problem
from dsx.runs.predict import Strategies, compare, predict
from dsx.runs.setups import setups
from dsx.runs.table import UnmodelledReason, read_runs

FOLDER = packaged_data() / "validation"
ROUNDED = 1e-5  # frozen predictions have six digits


@pytest.fixture(scope="module")
def frozen():
    with (FOLDER / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(
    scope="module",
    params=[("Narayanan", "fms-fsdp"), pytest.param(("",), marks=pytest.mark.slow)],
    ids=["two sources", "all"],
)
def rows(request, frozen):
    """The rows of some sources, as they are frozen and as they are predicted now."""
    runs = [run for run in read_runs(FOLDER / "runs.csv") if any(name in run.source for name in request.param)]
    by_id = {row["id"]: row for row in frozen}
    return [by_id[run.id] for run in runs], compare(runs, setups(runs), predict, load_assumptions("default"))


def test_nothing_that_was_frozen_moved(frozen, rows):
    assert [row["id"] for row in frozen] == [run.id for run in read_runs(FOLDER / "runs.csv")]
    expected, found = rows
    np.testing.assert_allclose(found.predicted_s, [float(row["predicted_s"]) for row in expected], rtol=ROUNDED)
    # No memory moved.
    np.testing.assert_allclose(found.predicted_bytes, [float(row["predicted_bytes"]) for row in expected], rtol=ROUNDED)
    np.testing.assert_array_equal(found.fits, [row["fits"] == "1" for row in expected])


RUNS = Path(__file__).parents[2] / "data/validation/runs.csv"
STRATEGIES = Strategies(load_assumptions("default"))
MEGATRON, ZERO_BUBBLE = map(read_framework, ("megatron", "zero-bubble"))


def why_not(setup, framework):
    """Why the plan of a setup is no candidate of a framework, whatever its cut; empty if it is one."""
    found = STRATEGIES.model_of(setup)
    if isinstance(found, UnmodelledReason):
        return str(found)
    spec, _, model = found
    strategy, experts = model.kinds[0].strategy, has_experts(setup.model.dimensions)
    problem = make_problem(setup.model, setup.cluster, spec, [strategy], models=(model,))
    plan = {name: value for name, value in setup.plan.items() if name != LAYOUT} | {"strategy": strategy}
    plan["ep_nvs"] = int(share_of_shares(plan, problem.expert_axes[0], plan["dp_nvs"]))
    searched = problem.workload.searched
    for name in ("recompute", "schedule"):
        if BY_NAME[name].code(plan[name]) not in getattr(searched, name):
            return f"{name}={plan[name]} is not searched"
    reasons = [
        [one.reason.name for one in violations(Plan(plan), model.kinds, setup.model.dimensions, limits)]
        for limits in (problem.limits(), problem.with_partition(OPTIMAL).limits())
    ]
    if all(reasons):
        return "; ".join(min(reasons, key=len))
    limited = min((broken(box, plan) for box in framework.boxes(experts)), key=len)
    return " ".join(f"{name}={plan[name]} is not run" for name in limited)


@pytest.mark.slow
def test_plans_that_were_run_are_candidates():
    fitted = [one for one in setups(read_runs(RUNS)) if not isinstance(one, UnmodelledReason) and not one.run.oom]
    distinct = {
        (one.model.name, one.cluster.name, one.sp, one.fused_attention, tuple(one.plan.items())): one for one in fitted
    }
    by_default = Counter(why_not(setup, MEGATRON) for setup in distinct.values())
    members = by_default.pop("")
    assert by_default == {
        "schedule=zb-h1 is not run": 12,
        "schedule=zb-h2 is not searched": 12,
        "recompute=full is not run": 11,
        "recompute=core-attention+norms is not searched": 10,
        "zero_stage=2 is not run": 3,
        "strategy=1d-no-sp is not run": 1,
    }
    assert members / len(distinct) > 0.975
    not_run = sum(number for why, number in by_default.items() if why.endswith("is not run"))
    assert (members + not_run) / len(distinct) > 0.985
    # The others of the zero-bubble paper ran under its framework.
    own = [setup for setup in distinct.values() if setup.run.source_id == "zero_bubble"]
    left = Counter(why_not(setup, ZERO_BUBBLE) for setup in own)
    assert set(left) == {"", "schedule=zb-h2 is not searched"}
