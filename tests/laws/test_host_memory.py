"""The memory of the host counts: answers stay below it, and more of it never leaves fewer plans."""

import numpy as np
import pytest
from laws.test_best_of_everything import DENSE, DIMENSIONS, problem_for

import dsx
from dsx.cost.interval import room
from dsx.pricing.keys import price_keys
from dsx.search.spaces import Space, at_points
from dsx.search.sweep import search_of

MODEL = {
    "name": "small",
    "source": "a test",
    "default_sequence_length": 2048,
    "dimensions": DIMENSIONS,
    "layers": [{"kind": "embedding"}, {**DENSE, "count": 4}, {"kind": "head"}],
}
HOSTS = (1e12, 3e9, 2.5e9, 2e9)  # of a node: from no limit to one that leaves no plan


def searched(problem):
    """The feasible plans of a search with all offloads, and what a GPU has of its host."""
    space = Space(problem, [4], [8])
    rows, counts = search_of(problem, space, price_keys(problem, space.keys)).best(1)
    return rows, counts, float(room(problem.hardware, problem.assumptions, np.array([4.0])).host[0])


@pytest.mark.parametrize("partition", ["even", "optimal"])
def test_more_of_it_never_leaves_fewer_plans_or_a_slower_best(partition):
    system = {"hbm_capacity": 3e9, "fast_size": 4, "node": {"gpus": 4}}
    problem = problem_for(MODEL, system, ["1d-no-sp"]).with_partition(partition)
    choices = {"offload": ["none", "optimizer", "both"], "recompute": ["none"], "stored_layers": [0], "vpp": [1]}
    problem = problem.searching(choices | {"schedule": ["1f1b"], "zero_stage": [1], "zero_replicas": [1]})
    feasible, times = [], []
    for host in HOSTS:
        here = at_points(problem, {"node.host_memory": np.array([host])})
        rows, counts, usable = searched(here)
        assert (rows["host_bytes"] <= usable).all() and (rows["reject"] == 0).all()
        feasible.append(counts.feasible)
        times.append(rows["step_time_s"].min(initial=np.inf))
    assert times == sorted(times) and times[0] < times[-1]
    if partition == "even":  # bounds leave out plans that are cut
        assert feasible == sorted(feasible, reverse=True) and feasible[0] > feasible[-1]


def test_every_answer_keeps_less_on_a_host_than_it_has():
    few = "recompute=full zero_stage=3 zero_replicas=1 vpp=1 schedule=1f1b stored_layers=0"
    changes = {"cluster.device.hbm_capacity": "24 GB", "cluster.node.host_memory": "160 GB"}
    job = dsx.Job("llama-3-8b", "h100-nvs8", 8, 16, 2048, set=changes)
    found = dsx.best(job, 5, strategy="1d", fix=few)
    assert found.plans and (found.frame["host_bytes"] <= 0.9 * 160e9 / 8).all()


def test_where_all_offload_too_much_the_host_is_what_is_said():
    few = "offload=optimizer pp=1 recompute=full vpp=1 schedule=1f1b zero_stage=0 zero_replicas=1 stored_layers=0"
    job = dsx.Job("llama-3-8b", "h100-nvs8", 1, 1, 2048, set={"cluster.node.host_memory": "64 GB"})
    said = dsx.best(job, 1, strategy="1d", framework="any", fix=few).infeasible
    # 8.03e9 parameters, 16 bytes each, and nine tenths of 64 GB.
    assert "keeps 128 GB on it, and a job has 57.6 GB of it" in said and "cluster.node.host_memory" in said
