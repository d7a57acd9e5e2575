"""A word that means another thing in the software of a plan is refused, with what it means and what to write."""

import pytest
from verbs.small import MODEL

import dsx
from dsx.errors import InputError, SpecError

TITAN = {"assumptions.stack": "torchtitan-2025"}
PLAN = "dp=8 zero_stage=3 recompute=selective"
SAID = r"recompute=selective: in the software torchtitan-2025 that is 'selective op' .*recompute=full with 40 % .*core"


@pytest.fixture(scope="module")
def job():
    return dsx.Job(MODEL, "b200-nvs8", num_gpus=8, global_batch_size=8)


@pytest.mark.parametrize(
    "ask",
    [
        lambda job: dsx.evaluate(job.replace(set=TITAN), PLAN),
        lambda job: dsx.evaluate(job.replace(set=TITAN), PLAN.split()),
        lambda job: dsx.evaluate(job.replace(set=TITAN), dp=8, zero_stage=3, recompute="selective"),
        lambda job: dsx.evaluate(job, PLAN, framework="torchtitan"),
        lambda job: dsx.why(job, PLAN, framework="torchtitan"),
        lambda job: dsx.launch(job, PLAN, framework="torchtitan"),
        lambda job: dsx.best(job, fix="recompute=none,selective", framework="torchtitan"),
        lambda job: dsx.partition(job.replace(set=TITAN), "recompute=selective"),
    ],
)
def test_selective_of_torchtitan_is_not_that_of_megatron(job, ask):
    with pytest.raises(InputError, match=SAID):
        ask(job)


def test_sweeps_and_searches_take_the_neutral_word(tmp_path, job):
    sweep = {"model": MODEL, "cluster": "b200-nvs8", "num_gpus": [8], "global_batch_size": [8], "keep": "feasible"}
    fixed = {"strategy": ["1d"], "framework": "torchtitan", "fix": {"recompute": ["selective"]}}
    with pytest.raises(InputError, match=SAID):
        dsx.sweep(sweep | fixed, tmp_path / "set")
    # What a search found and the neutral word are taken.
    titan = job.replace(set=TITAN)
    core = dsx.evaluate(titan, "dp=8 zero_stage=1 recompute=core-attention")
    megatron = dsx.evaluate(job, "dp=8 zero_stage=1 recompute=selective")
    again = dsx.evaluate(titan, megatron.plan)
    assert again.plan["recompute"] == "selective"
    assert again.costs["peak_bytes"] == core.costs["peak_bytes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"selective": "selective ops"}, r"words.recompute.selective: unknown word 'selective ops'; did you mean"),
        ({"full": "selective op"}, r"words.recompute: 'full' has no other name here .known: selective"),
    ],
)
def test_words_of_a_stack_are_checked(job, tmp_path, words, message):
    lines = ("name: own", "extends: torchtitan-2025", "description: a test", "source: a test", "software: {}")
    file = tmp_path / "own.yaml"
    file.write_text("\n".join([*lines, f"words: {{recompute: {words}}}", "assume: {}"]))
    with pytest.raises(SpecError, match=message):
        dsx.evaluate(job.replace(set={"assumptions.stack": str(file)}), "dp=8")
