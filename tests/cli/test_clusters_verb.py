"""``dsx clusters show``: tiers, tables of collectives, and their picture."""

import json

import pytest


def test_tiers_and_tables_for_people(run):
    done = run("clusters", "show", "perlmutter")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].startswith("perlmutter: NERSC Perlmutter")
    assert "tier GPUs per GPU latency subscription" in lines
    assert "nvs 4 300 GB/s 2.50 us 1" in lines
    assert "global 7168 12.5 GB/s 6.00 us 2" in lines
    assert "all-reduce by group size in GPUs, under default" in lines
    assert "bytes 2 4 8 16 32 512 1024 7168" in lines
    tables = [line for line in lines if line.startswith(("1.00 kB", "1.00 GB"))]
    assert len(tables) == 4


def test_as_json(run):
    done = run("clusters", "show", "h100-nvs8", "--assumptions", "paper-2410.00273", "--json")
    data = json.loads(done.out)
    assert data["assumptions"] == "paper-2410.00273"
    assert [(tier["name"], tier["size"], tier["oversubscription"]) for tier in data["tiers"]] == [
        ("nvs", 8, 1.0),
        ("net", None, 1.0),
    ]
    times = {(time["kind"], time["num_gpus"], time["bytes"]): time["time_s"] for time in data["collectives"]}
    assert len(times) == 2 * 7 * 4
    # A ring of eight at 0.7 of 450 GB/s, twice around.
    assert times["all-reduce", 8, 1e9] == pytest.approx(2 * (7 * 2.5e-6 + 7 / 8 * 1e9 / (0.7 * 450e9)), rel=1e-12)
    # A field may be set.
    tree = "{kind: fat_tree, levels: [{name: leaf, units: 4, oversubscription: 4}, {name: spine}]}"
    data = json.loads(run("clusters", "show", "h100-nvs8", "--set", f"cluster.network.topology={tree}", "--json").out)
    assert [(tier["name"], tier["oversubscription"]) for tier in data["tiers"]] == [
        ("nvs", 1.0),
        ("leaf", 1.0),
        ("spine", 4.0),
    ]


def test_a_picture(run, tmp_path):
    done = run("clusters", "show", "tpu-v4-pod", "--plot", tmp_path / "pod.svg")
    assert (done.code, done.err) == (0, "")
    drawn = (tmp_path / "pod.svg").read_text(encoding="utf-8")
    for text in ("tpu-v4-pod", "time of an all-reduce", "time of an all-to-all", "size of the tensor", "GPUs"):
        assert text in drawn


TREE = "{kind: fat_tree, levels: [{name: leaf, units: 2}, {name: pod, units: 4, oversubscription: 2}, {name: core}]}"
JOB = ("--model", "gpt3-5b", "--cluster", "h100-nvs8", "--num-gpus", 64, "--global-batch-size", 64)
PLAN = ("tp=4", "pp=4", "dp=4", "nvs.tp=4", "nvs.dp=2")


@pytest.mark.slow
def test_a_plan_says_how_it_lies_on_the_tiers(run):
    tree = ("--set", f"cluster.network.topology={TREE}")
    done = run("evaluate", *JOB, *tree, *PLAN, "order=tp-cp-ep-pp-dp")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    at = lines.index("ranks numbered tp-cp-ep-pp-dp; members of a group that share a unit of each tier:")
    assert lines[at + 1 : at + 6] == ["tp pp dp", "nvs 4 1 2", "leaf 4 2 2", "pod 4 4 4", "core 4 4 4"]
    assert lines[0].endswith("order=tp-cp-ep-pp-dp nvs.tp=4 nvs.dp=2")
    plan = json.loads(run("evaluate", *JOB, *tree, *PLAN, "--json").out)["plan"]
    assert plan | {"order": "tp-cp-ep-dp-pp", "dp_leaf": 4, "pp_leaf": 1, "pp_pod": 4} == plan
    uneven = run("evaluate", *JOB[:5], 80, "--global-batch-size", 80, *tree, "tp=8", "dp=10", "nvs.tp=8").out
    assert "dp straddles units of pod: it is priced as crossing that tier" in uneven
    alone = run("evaluate", *JOB[:4], "--num-gpus", 1, "--global-batch-size", 1, *tree)
    assert (alone.code, "ranks numbered" in alone.out) == (3, False)  # too large for its memory


@pytest.mark.slow
def test_the_best_plan_has_its_order(run):
    found = run("best", *JOB, "--set", f"cluster.network.topology={TREE}", "--top", 1).out
    assert "plan 1: ranks numbered tp-cp-ep-" in found
    assert "ranks numbered" not in run("evaluate", *JOB, *PLAN).out


def test_jobs_larger_than_a_cluster_and_unknown_topologies_are_refused(run):
    done = run("best", *JOB[:2], "--cluster", "dgx-a100-superpod", "--num-gpus", 2048, "--global-batch-size", 2048)
    assert (done.code, done.out) == (2, "")
    assert "cluster 'dgx-a100-superpod' has nvs=8 * rail=20 * spine=7 = 1120 GPUs, 928 too few" in done.err
    done = run("clusters", "show", "h100-nvs8", "--set", "cluster.network.topology={kind: tree}")
    assert (done.code, done.out) == (2, "") and "kind: 'tree' is not one of fat_tree, " in done.err
