"""Answers say which strategies no framework runs."""

from verbs.small import SWEEP

import dsx

SAYS = "no framework runs summa (deepspeed, megatron"


def words(answer):
    return " ".join(str(answer).split())


def test_a_strategy_that_nobody_runs_is_said(tmp_path):
    sweep = SWEEP | {"keep": {"top": 3}, "what_if": {}, "num_gpus": 8}
    folder = tmp_path / "set"
    swept = dsx.sweep(sweep | {"strategy": ["summa"]}, folder)
    for answer in (swept, dsx.show(folder), dsx.front(folder), dsx.report(folder)):
        assert SAYS in words(answer)
    assert f"N{SAYS[1:]}" in dsx.report(folder).html
    assert "no framework runs" not in words(dsx.sweep(sweep | {"strategy": ["1d"]}))


def test_a_search_of_all_plans_says_it_too(job):
    found = dsx.best(job, framework="any", strategy="summa")
    assert SAYS in words(found)
    assert "no framework runs" not in words(dsx.best(job, framework="any", strategy="1d"))


def test_a_sweep_without_a_plot_draws_a_front(tmp_path, caplog):
    dsx.sweep(SWEEP | {"strategy": ["1d"], "limit": {"tp": "<=2"}}, plot=tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").stat().st_size > 1000
