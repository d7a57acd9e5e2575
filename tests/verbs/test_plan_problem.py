"""The strategy of a plan that names none: the default one, or another one whose rules the plan keeps."""

import pytest

import dsx
from dsx.errors import PlanError

MODEL = {
    "name": "two-kv-heads",
    "source": "a test",
    "default_sequence_length": 2048,
    "dimensions": {"e": 2048, "h": 16, "g": 2, "k": 128, "f": 8192, "v": 32000},
    "layers": [
        {"kind": "embedding"},
        {"kind": "transformer", "options": ["rotary", "gated"], "count": 8},
        {"kind": "head"},
    ],
}


@pytest.fixture(scope="module")
def job():
    return dsx.Job(MODEL, "h100-nvs8", num_gpus=16, global_batch_size=32)


@pytest.mark.parametrize(
    ("plan", "strategy"),
    [("tp=2 dp=8", "1d"), ("tp=8 dp=2", "2d-gathered-qkv"), ("tp=16", "2d-gathered-qkv")],
)
def test_more_tensor_parallel_ranks_than_key_value_heads_run_as_in_megatron_core(job, plan, strategy):
    found = dsx.evaluate(job, plan)
    assert (found.problem.strategies, found.reject) == ((strategy,), ())
    assert f", {strategy}: {plan.split()[0]} " in str(found)
    assert dsx.why(job, plan).problem.strategies[0] == strategy


def test_a_named_strategy_stays(job):
    found = dsx.evaluate(job, "tp=8 dp=2", strategy="1d")
    assert "kv_heads_not_divisible" in found.reject


def test_a_plan_that_keeps_the_rules_of_no_strategy_stays_with_the_default_one(job):
    narrow = job.replace(set={"model.dimensions.h": 12, "model.dimensions.k": 64})
    found = dsx.evaluate(narrow, "tp=8 dp=2")
    assert found.problem.strategies == ("1d",)
    assert "heads_not_divisible" in found.reject


def test_a_search_has_such_plans_and_its_flags_are_those_of_any_tp(job):
    best = dsx.best(job, fix={"tp": 8})
    assert best.plan["strategy"].startswith("2d-gathered-qkv")
    (script, *_) = dsx.launch(job, best.plan, framework="megatron").files.values()
    assert "--tensor-model-parallel-size 8" in script
    assert "--num-query-groups 2" in script


@pytest.mark.parametrize(
    ("plan", "strategy"), [("tp=2 dp=8", "1d-no-sp"), ("dp=16", "1d-no-sp"), ("cp=2 dp=8", "ulysses")]
)
def test_a_plan_of_a_framework_has_a_strategy_that_it_runs(job, plan, strategy):
    assert dsx.evaluate(job, plan, framework="deepspeed").problem.strategies == (strategy,)
    assert "The fastest of" in str(dsx.why(job, plan, framework="deepspeed"))
    assert dsx.launch(job, plan, framework="deepspeed").plan["strategy"] == strategy


def test_a_degree_that_no_default_strategy_divides_by_is_an_error(job):
    with pytest.raises(PlanError, match="cp=2: strategy '1d' shards nothing of this model over cp"):
        dsx.evaluate(job, "cp=2")
