"""The three plans of an answer, for jobs of several kinds of clusters."""

import pytest

import dsx
from dsx.plans.features import features_of

JOBS = (
    ("llama-3-8b", "h100-nvs8", 64, 256),
    pytest.param("llama-3-70b", "h100-nvs8", 1024, 1024, marks=pytest.mark.slow),
    pytest.param("llama-3-405b", "gb200-nvl72", 2304, 1152, marks=pytest.mark.slow),
    pytest.param("mixtral-8x7b", "mi300x-xgmi8", 128, 256, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("model", "cluster", "num_gpus", "batch"), JOBS)
def test_the_leanest_needs_least_memory_and_the_simplest_costs_least(model, cluster, num_gpus, batch):
    found = dsx.best(dsx.Job(model, cluster, num_gpus, batch, 4096))
    fastest, simplest, leanest = (found.answer[name] for name in ("fastest", "simplest", "leanest"))
    assert leanest["peak_bytes"] <= min(simplest["peak_bytes"], fastest["peak_bytes"])
    assert simplest["step_time_s"] <= (1 + found.job.assumptions.resolution) * fastest["step_time_s"] * (1 + 1e-9)
    cost = [sum(features_of(plan["plan"]).values()) for plan in (fastest, simplest, leanest)]
    assert cost[1] == min(cost)
    assert not {"tp across domains", "uneven stages", "offload"} & {*features_of(simplest["plan"])}
