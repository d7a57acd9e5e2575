"""The fastest plan of each of several jobs."""

import re

import pytest

import dsx
from dsx.errors import InputError, NothingFeasible, UnknownNameError
from dsx.tables.format import cut_text
from dsx.verbs.several_jobs import no_faster_text

FEW = {"zero_replicas": 1, "stored_layers": 0, "offload": "none"}
OPTIONS = {"fix": FEW, "strategy": "1d", "partition": "even"}


@pytest.fixture(scope="module")
def several(job):
    return dsx.several_jobs(job, [16, 8, 8], [32, 64], **OPTIONS)


def test_each_job_has_its_best_plan_in_groups_of_gpus(job, several):
    assert [(found.job.num_gpus, found.job.global_batch_size) for found in several.answers] == [
        (8, 32), (8, 64), (16, 32), (16, 64),
    ]  # fmt: skip
    rates = {}
    for plan in several.priced:
        rates.setdefault(plan["plan"]["num_gpus"], []).append(plan["tokens_per_s"] / plan["plan"]["num_gpus"])
    assert all(of == sorted(of, reverse=True) for of in rates.values())
    assert [of[0] for of in rates.values()] == sorted((of[0] for of in rates.values()), reverse=True)
    alone = dsx.best(several.job, 1, **OPTIONS)
    assert several.best == alone and several.plan == alone.plan
    assert len(several.frame) == 4 and several.frame["candidate"].iloc[0] == several.plan["candidate"]
    # It prints groups of gpus.
    lines = str(several).splitlines()
    assert lines[1] == "the fastest plan of each job, ranked by tokens_per_s_per_gpu, those of the same GPUs together"
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("GPUs"))
    starts = [line.split()[0] for line in lines[at + 1 : at + 9 : 2]]
    first, batch = str(several.plan["num_gpus"]), str(several.plan["global_batch_size"])
    assert starts[0] == first and {*starts} == {"8", "16", "32", "64"} - {batch}
    assert max(map(len, lines)) <= 100
    data = several.to_data()
    assert [data["objective"], len(data["plans"])] == ["tokens_per_s_per_gpu", 4]
    assert data["searched"] == [[8, 32], [8, 64], [16, 32], [16, 64]]


def test_objectives_of_jobs_and_jobs_that_no_plan_fits(job):
    found = dsx.several_jobs(job, [8, 16], objective="step_time_s", **OPTIONS)
    assert [plan["num_gpus"] for plan in found.plans] == [16, 8]
    with pytest.raises(UnknownNameError, match="objective"):
        dsx.several_jobs(job, [8], objective="speed", **OPTIONS)
    with pytest.raises(InputError, match="num_gpus: an empty list"):
        dsx.several_jobs(job, [], **OPTIONS)
    # Jobs that no plan fits.
    few = job.replace(set={"cluster.device.hbm_capacity": "1 kB"})
    none = dsx.several_jobs(few, [8, 16], **OPTIONS)
    assert none.plans == () and "candidates fits" in str(none) and none.job.num_gpus == 8
    with pytest.raises(NothingFeasible):
        none.plan  # noqa: B018
    some = dsx.several_jobs(job, [8, 11], 3, **OPTIONS)  # 11 divides neither 3 sequences nor 8 layers
    assert "no plan fits on 11 GPUs with a batch of 3" in str(some) or not some.priced
    # One is said in the singular.
    found = dsx.several_jobs(job, [1], [1, 2], **OPTIONS)
    assert "the best, on 1 GPU with a batch" in str(found)
    run = dsx.training_run(job, 1e9, [1], deadline="1 days", **OPTIONS)
    assert "in 1 day" in str(run) and not re.search(r"\b1 (days|GPUs|steps)\b", str(run))

    # More gpus that are no faster are said.
    def priced(num_gpus, seconds, batch=512):
        plan = {"num_gpus": num_gpus, "global_batch_size": batch}
        return {"plan": plan, "hardware": {"cluster": "b200-nvs8"}, "step_time_s": seconds}

    slower = [priced(64, 1.0), priced(72, 1.1), priced(72, 0.9, 576), priced(128, 0.6)]
    assert no_faster_text(slower) == "72 GPUs are no faster than 64 of b200-nvs8 with a batch of 512"
    assert no_faster_text(slower[2:]) == ""


def words(text):
    return " ".join(str(text).split())


@pytest.mark.slow
def test_the_tables_show_all_that_a_plan_needs(job):
    """A plan without its offload, its ZeRO stage or its cut is another one, which may not fit."""
    own = job.replace(assumptions="default")
    options = {"fix": "offload=optimizer recompute=full pp=2 microbatch_size=1", "strategy": "1d"}
    found = dsx.several_jobs(own, [8, 16], **options)
    trained = dsx.training_run(own, 1e9, [8, 16], **options)
    for answer in (found, trained):
        for plan in answer.plans:
            assert plan.text in words(answer) and "offload=optimizer" in plan.text
            assert f"layers of stages: {cut_text(plan.layers)}" in words(answer)
        assert max(map(len, str(answer).splitlines())) <= 100
    assert f"stage_layers={cut_text(trained.plan.layers, ',')}" in str(trained)


def test_clusters_are_ranked_too(job):
    found = dsx.several_jobs(job, [8, 16], cluster=["b200-nvs8", "h200-nvs8"], **OPTIONS)
    data = found.to_data()
    assert data["clusters"] == ["b200-nvs8", "h200-nvs8"] and len(data["plans"]) == 4
    clusters = [plan["hardware"]["cluster"] for plan in found.priced]
    assert clusters[0] == found.best.job.cluster.name == found.job.cluster.name
    assert found.frame["cluster"].tolist() == clusters and {*clusters} == {"b200-nvs8", "h200-nvs8"}
    header = next(line for line in str(found).splitlines() if line.startswith("cluster"))
    assert header.split()[:3] == ["cluster", "GPUs", "batch"]
    assert f"--cluster {clusters[0]} --num-gpus" in str(found)
    for one in found.answers:
        alone = dsx.best(one.job, 1, **OPTIONS)
        assert one.plan == alone.plan
    with pytest.raises(InputError, match="--cluster b200-nvs8 is named twice"):
        dsx.several_jobs(job, cluster=["b200-nvs8", "b200-nvs8"], **OPTIONS)
