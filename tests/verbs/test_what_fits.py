"""What would fit, and the least memory that a plan needs."""

import re

import pytest
from verbs.small import MODEL

import dsx
from dsx.config.framework_file import load_framework
from dsx.units import parse_quantity

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


def test_changes_that_may_not_be_enough(found, job):
    assert found.would_fit == ""
    # No change may be enough.
    none = dsx.best(job.replace(set={"cluster.device.hbm_capacity": "1 kB"}), fix=FEW, strategy="1d")
    assert none.infeasible and none.would_fit == ""
    # A plan that needs a hundred times the memory there is: no change by 64 helps.
    few = {"fix": "zero_stage=1 recompute=full vpp=1 pp=1", "strategy": "1d"}
    none = dsx.best(job.replace(sequence_length=1_000_000_000, set={"cluster.device.hbm_capacity": "20 GB"}), **few)
    assert none.times > 64 and none.infeasible and none.would_fit == "" and none.compared == []
    # A framework for a billion tokens takes no time.
    framework = load_framework("megatron").of_sequence(1_000_000_000)
    assert framework.fix["cp"][:3] == [1, 2, 4] and framework.fix["cp"][-1] == 500_000_000


@pytest.mark.sampled(0)
@pytest.mark.parametrize("partition", ["even", "any", "optimal"])
def test_the_named_memory_is_enough_and_less_is_not(partition):
    job = dsx.Job(MODEL, "b200-nvs8", num_gpus=8, global_batch_size=8, assumptions="uncalibrated")

    def with_memory(number):
        sized = job.replace(set={"cluster.device.hbm_capacity": number, "assumptions.memory_margin": 0})
        return dsx.best(sized, 1, partition=partition, fix=FEW, strategy="1d")

    nothing = with_memory("1 kB")
    assert not nothing.plans and nothing.to_data()["infeasible"] == nothing.infeasible
    assert f"none of {nothing.counts.candidates:,} candidates fits" in nothing.infeasible
    named = re.search(r"needs least memory needs ([\d.]+ \w+)", nothing.infeasible)
    least = parse_quantity(named[1], "bytes")
    # Three digits are printed.
    assert with_memory(f"{least * 1.006} B").plans and not with_memory(f"{least * 0.994} B").plans
