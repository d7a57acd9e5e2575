"""Problems of named plans and strategies that nobody runs."""

import pytest
from verbs.small import SWEEP, model_of

import dsx
from dsx.errors import PlanError

MODEL = model_of(
    [{"kind": "embedding"}, {"kind": "transformer", "options": ["rotary", "gated"], "count": 8}, {"kind": "head"}],
    {"e": 2048, "h": 16, "g": 2, "k": 128, "f": 8192, "v": 32000},
    name="two-kv-heads",
)


@pytest.fixture(scope="module")
def job():
    return dsx.Job(MODEL, "h100-nvs8", num_gpus=16, global_batch_size=32)


@pytest.mark.parametrize(
    ("plan", "strategy"), [("tp=2 dp=8", "1d"), ("tp=8 dp=2", "2d-gathered-qkv"), ("tp=16", "2d-gathered-qkv")]
)
def test_more_tensor_parallel_ranks_than_key_value_heads_run_as_in_megatron_core(job, plan, strategy):
    found = dsx.evaluate(job, plan)
    assert (found.problem.strategies, found.reject) == ((strategy,), ())
    assert f", {strategy}: {plan.split()[0]} " in str(found)
    assert dsx.why(job, plan).problem.strategies[0] == strategy


@pytest.mark.slow
def test_strategies_of_named_plans(job):
    found = dsx.evaluate(job, "tp=8 dp=2", strategy="1d")
    assert "kv_heads_not_divisible" in found.reject
    # A plan that keeps the rules of no strategy stays with the default one.
    narrow = job.replace(set={"model.dimensions.h": 12, "model.dimensions.k": 64})
    found = dsx.evaluate(narrow, "tp=8 dp=2")
    assert found.problem.strategies == ("1d",)
    assert "heads_not_divisible" in found.reject
    # A search has such plans and its flags are those of any tp.
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


SAYS = "no framework runs summa (deepspeed, megatron"


def words(answer):
    return " ".join(str(answer).split())


@pytest.mark.slow
def test_a_strategy_that_nobody_runs_is_said(tmp_path, job):
    sweep = SWEEP | {"keep": {"top": 3}, "what_if": {}, "num_gpus": 8}
    folder = tmp_path / "set"
    swept = dsx.sweep(sweep | {"strategy": ["summa"]}, folder)
    report = dsx.report(folder)
    for answer in (swept, dsx.show(folder), dsx.front(folder), report):
        assert SAYS in words(answer)
    assert f"N{SAYS[1:]}" in report.html
    assert "no framework runs" not in words(dsx.sweep(sweep | {"strategy": ["1d"]}))
    # A search of all plans says it too.
    few = {"fix": "vpp=1 recompute=none schedule=1f1b zero_replicas=1 stored_layers=0 offload=none", "framework": "any"}
    assert SAYS in words(dsx.best(job, **few, strategy="summa"))
    assert "no framework runs" not in words(dsx.best(job, **few, strategy="1d"))


@pytest.mark.slow
def test_a_sweep_without_a_plot_draws_a_front(tmp_path, caplog):
    dsx.sweep(SWEEP | {"strategy": ["1d"], "limit": {"tp": "<=2"}}, plot=tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").stat().st_size > 1000
