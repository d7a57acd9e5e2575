"""Hosts and layouts that launch files state."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching.test_files import SPEC

import dsx
from dsx.launching.request import layout_text
from dsx.launching.writers import FRAMEWORKS
from dsx.plans.layer_layout import Chain, layers_of_chunks


@pytest.fixture
def started(tmp_path):
    """Start a script in a folder of its own; return its exit status, the words of torchrun, and what it said."""
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\necho "$HF_ASSETS_PATH"\n', encoding="utf-8")
    (shim / "torchrun").chmod(0o755)
    (tmp_path / "titan" / "tests" / "assets" / "tokenizer").mkdir(parents=True)
    (tmp_path / "titan" / "tests" / "assets" / "c4_test").mkdir()
    (tmp_path / "train.py").touch()

    def run(found: dsx.LaunchFiles, **variables: str) -> tuple[int, list[str], str]:
        script = f"{found.out}/launch.sh"
        env = os.environ | {"PATH": f"{shim}:{os.environ['PATH']}"} | variables
        done = subprocess.run(["bash", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


# A cluster that does not say how many GPUs a host has.
LARGE = {
    "name": "large",
    "device": {
        "name": "own",
        "vector_flops": "60 TFLOP/s",
        "matrix_flops": "900 TFLOP/s",
        "hbm_bandwidth": "3 TB/s",
        "hbm_capacity": "80 GB",
    },
    "network": {
        "nvs": {"bandwidth": "400 GB/s", "latency": "2 us", "size": 64},
        "net": {"bandwidth": "50 GB/s", "latency": "5 us"},
    },
}
NEEDED = {"MEGATRON_LM": ".", "TORCHTITAN": "titan", "PROGRAM": "train.py"}


def launched(tmp_path, num_gpus=12, framework="megatron", cluster="h100-nvs8"):
    job = dsx.Job(SPEC, cluster, num_gpus=num_gpus, global_batch_size=8 * num_gpus)
    strategy = "1d-no-sp" if framework == "deepspeed" else "1d"
    plan = f"dp={num_gpus} zero_stage=2"
    return dsx.launch(job, plan, framework=framework, strategy=strategy, out=tmp_path / "out")


@pytest.mark.parametrize(("num_gpus", "nodes", "each"), [(12, 2, 8), (16, 2, 8), (4, 1, 4), (20, 3, 8)])
def test_hosts_start_all_gpus(tmp_path, started, num_gpus, nodes, each):
    found = launched(tmp_path, num_gpus)
    status, words, said = started(found, MEGATRON_LM=".")
    assert (status, words[:4]) == (0, ["--nnodes", str(nodes), "--nproc-per-node", str(each)]), said
    head = found.files["launch.sh"].partition("set -euo")[0]
    assert ("A host runs 8 processes, the last one 4." in head) == (num_gpus in (12, 20))
    assert ("NODE_RANK=0" in found.needs) == (nodes > 1)
    last = started(found, MEGATRON_LM=".", NODE_RANK=str(nodes - 1))[1]
    assert int(last[3]) == num_gpus - each * (nodes - 1)


def test_hosts_start_what_the_plan_uses_or_are_refused(tmp_path, started):
    job = dsx.Job(SPEC, "h100-nvs8", num_gpus=24, global_batch_size=24)
    found = dsx.launch(job, "tp=2 dp=12 nvs.tp=2 nvs.dp=3", strategy="1d", out=tmp_path / "out")
    assert started(found, MEGATRON_LM=".")[1][:4] == ["--nnodes", "4", "--nproc-per-node", "6"]
    assert "uses 6 of the 8 GPUs of a host: 6 on each of 4." in found.files["launch.sh"]
    # Hosts that do not divide the gpus are refused.
    found = launched(tmp_path, 16)
    assert started(found, MEGATRON_LM=".", GPUS_PER_NODE="5")[0] == 2
    large = launched(tmp_path, cluster=LARGE)
    assert "GPUs of one host" in started(large, MEGATRON_LM=".")[2]
    assert started(large, MEGATRON_LM=".", GPUS_PER_NODE="5")[0] == 2
    assert {"GPUS_PER_NODE=4", "NODE_RANK=0"} <= {*large.needs}


@pytest.mark.parametrize(
    ("cluster", "plan", "processes"),
    [
        ("gb200-nvl72", "dp=76 nvs.dp=72", [4] * 19),
        ("gb200-nvl72", "dp=75 nvs.dp=72", [4] * 18 + [3]),
        ("gb200-nvl72", "dp=100 nvs.dp=50", [*[4] * 12, 2] * 2),
        ("gb200-nvl72", "dp=10", [4, 4, 2]),
        ("gb200-nvl72", "dp=3", [3]),
        ("v100-32-nvs16", "dp=40 nvs.dp=16", [16, 16, 8]),
        ("a100-nvs4", "dp=20 nvs.dp=4", [8, 8, 4]),
        ("a100-nvs4", "dp=9 nvs.dp=3", [3, 3, 3]),
    ],
)
def test_hosts_are_those_of_the_cluster(tmp_path, started, cluster, plan, processes):
    num_gpus = sum(processes)
    job = dsx.Job(SPEC, cluster, num_gpus=num_gpus, global_batch_size=8 * num_gpus)
    found = dsx.launch(job, f"{plan} zero_stage=2 offload=none", strategy="1d", out=tmp_path / "out")
    assert ("NODE_RANK=0" in found.needs) == (len(processes) > 1)
    for rank, own in enumerate(processes):
        status, words, said = started(found, MEGATRON_LM=".", NODE_RANK=str(rank))
        assert (status, words[:4]) == (0, ["--nnodes", str(len(processes)), "--nproc-per-node", str(own)]), said


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_script_needs_is_said_and_asked_for(tmp_path, started, framework):
    found = launched(tmp_path, 8, framework)
    names = [one.partition("=")[0] for one in found.needs]
    status, words, said = started(found, **{name: NEEDED[name] for name in names})
    assert status == 0, said
    if framework == "torchtitan":
        assert words[-1] == str(tmp_path / "titan" / "tests" / "assets" / "tokenizer")
    if framework == "deepspeed":
        assert str(tmp_path / "train.py") in words
    if names:
        status, _, said = started(found)
        assert status != 0
        assert names[0] in said


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], ""),
        ([0, *[1] * 126, 0], "E|(t|)*126L"),
        ([7, 6, 6, 5], "Et*7|t*6|t*6|t*5L"),
        ([1, 2, 2, 2, 0, 3], "Et|(t*2|)*3|t*3L"),
    ],
)
def test_equal_chunks_are_one_group(body, text):
    assert layout_text(body) == text


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40).filter(sum))
def test_a_layout_reads_back(body):
    body[-1] += 1
    found = layers_of_chunks(layout_text(body), Chain(1, sum(body), 1))
    assert [*found] == [size + (at == 0) + (at == len(body) - 1) for at, size in enumerate(body)]
