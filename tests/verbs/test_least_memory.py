"""Where nothing fits, the answer names the least memory with which something would."""

import re

import pytest
from verbs.small import MODEL

import dsx
from dsx.units import parse_quantity


@pytest.mark.sampled(4)
@pytest.mark.parametrize("partition", ["even", "any", "optimal"])
def test_the_named_memory_is_enough_and_less_is_not(partition):
    job = dsx.Job(MODEL, "b200-nvs8", num_gpus=8, global_batch_size=8, assumptions="uncalibrated")

    def with_memory(number):
        sized = job.replace(set={"cluster.device.hbm_capacity": number, "assumptions.memory_margin": 0})
        return dsx.best(sized, 1, partition=partition)

    nothing = with_memory("1 kB")
    assert not nothing.plans and nothing.to_data()["infeasible"] == nothing.infeasible
    assert f"none of {nothing.counts.candidates:,} candidates fits" in nothing.infeasible
    named = re.search(r"needs least memory needs ([\d.]+ \w+)", nothing.infeasible)
    least = parse_quantity(named[1], "bytes")
    # Three digits are printed.
    assert with_memory(f"{least * 1.006} B").plans and not with_memory(f"{least * 0.994} B").plans
