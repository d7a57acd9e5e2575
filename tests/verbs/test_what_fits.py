"""What would fit where no plan does."""

import re

import pytest

import dsx
from dsx.config.framework_file import load_framework

FEW = "zero_replicas=1 stored_layers=0 offload=none vpp=1 recompute=none,full zero_stage=1,3 schedule=1f1b"


@pytest.mark.slow
def test_more_gpus_and_other_choices_fit():
    job = dsx.Job("llama-3-8b", "h100-nvs8", 4, 16, set={"cluster.device.hbm_capacity": "30 GB"})
    none = dsx.best(job, fix=FEW, strategy="1d")
    assert not none.plans and "candidates fits" in none.infeasible
    lines = none.would_fit.splitlines()
    assert lines[0] == "what would fit, each with its fastest plan:"
    said = "\n".join(lines[1:])
    (number,) = re.findall(r"^  (\d+) GPUs: ", said, re.MULTILINE)
    options = {"fix": FEW, "strategy": "1d"}
    there = dsx.best(job.replace(num_gpus=int(number)), 1, **options)
    assert there.plan.text in re.sub(r"\s+", " ", said)
    assert not dsx.best(job.replace(num_gpus=int(number) // 2), 1, **options).plans
    without = dsx.best(job, 1, strategy="1d")
    assert ("  without zero_replicas=1 " in said) is bool(without.plans)


def test_nothing_is_searched_where_a_plan_fits(found):
    assert found.would_fit == ""


def test_no_change_may_be_enough(job):
    none = dsx.best(job.replace(set={"cluster.device.hbm_capacity": "1 kB"}), fix=FEW, strategy="1d")
    assert none.infeasible and none.would_fit == ""


def test_a_change_that_cannot_be_enough_is_not_searched(job):
    """A plan that needs a hundred times the memory there is: no change by 64 helps."""
    few = {"fix": "zero_stage=1 recompute=full vpp=1 pp=1", "strategy": "1d"}
    none = dsx.best(job.replace(sequence_length=1_000_000_000, set={"cluster.device.hbm_capacity": "20 GB"}), **few)
    assert none.times > 64 and none.infeasible and none.would_fit == "" and none.compared == []


def test_a_framework_for_a_billion_tokens_takes_no_time():
    framework = load_framework("megatron").of_sequence(1_000_000_000)
    assert framework.fix["cp"][:3] == [1, 2, 4] and framework.fix["cp"][-1] == 500_000_000
