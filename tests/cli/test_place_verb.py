"""``dsx place``: answers, files, exit codes, and what is wrong with inputs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import dsx
from dsx.files import install_text

ON = ("--devices", 2, "--inter", "1GB/s", "--time-limit", "2s")
STEPS = """\
import jax
import jax.numpy as jnp


def towers():
    shape = jax.ShapeDtypeStruct((512, 512), "float32")
    return (lambda x: jnp.tanh(x @ x).sum() + jnp.sin(x @ (x + 1.0)).sum()), (shape,)


def number():
    return 5
"""


def op(own, **more):
    return {"id": own, "op": "MatMul", "compute_us": 5, **more}


def written(folder, nodes, edges=()):
    (folder / "g.json").write_text(json.dumps({"nodes": nodes, "edges": list(edges)}))
    return "g.json"


@pytest.fixture
def thesis(folder):
    """Operators of 5, 10 and 5 us, 5 us apart."""
    edges = [{"src": 0, "dst": 1, "bytes": 5000}, {"src": 0, "dst": 2, "bytes": 5000}]
    return written(folder, [op(0), op(1, compute_us=10), op(2)], edges)


def test_the_example_of_the_thesis(run, thesis):
    done = run("place", thesis, *ON, "--json")
    found = json.loads(done.out)
    assert done.code == 0
    assert found["makespan_s"] == pytest.approx(15e-6) and found["bound_s"] == pytest.approx(15e-6)
    assert found["gap"] == pytest.approx(0.0, abs=1e-9)
    device, start = found["placement"], found["start_s"]
    assert device["0"] == device["1"] != device["2"]
    assert start == {"0": 0.0, "1": pytest.approx(5e-6), "2": pytest.approx(10e-6)}
    assert set(found["baselines"]) == {"heft", "single_device"}
    assert found["baselines"]["single_device"] == pytest.approx(20e-6)
    assert found["bandwidth"] is None and found["contended_s"] == pytest.approx(15e-6)
    assert set(found["reduction"]) == {"alpha", "alpha_s", "beta_s", "operators", "groups", "units"}
    # More devices than operators.
    more = json.loads(run("place", thesis, "--devices", 8, *ON[2:], "--json").out)
    assert more["makespan_s"] == found["makespan_s"] and len(more["per_device"]) == 8


def test_the_answer_as_text(run, thesis, folder):
    done = run("place", thesis, *ON)
    assert done.code == 0
    assert "g.json: 3 operators on 2 devices\nstep 15.0 us; no placement is shorter" in done.out
    assert "one device" in done.out and "+33.3 %" in done.out
    # Python gives what the shell gives.
    shell = json.loads(run("place", thesis, *ON, "--json").out)
    content = json.loads((folder / thesis).read_text())
    for graph in (thesis, content):
        found = dsx.place(graph, devices=2, inter="1 GB/s", time_limit="2 s")
        assert found.makespan_s == shell["makespan_s"] and found.to_data()["placement"] == shell["placement"]
    assert found.placement == {0: found.placement[0], 1: found.placement[0], 2: 1 - found.placement[0]}
    assert list(found.frame["end_s"]) == pytest.approx([5e-6, 15e-6, 15e-6])
    assert found.transfers["num_bytes"].tolist() == [5000.0] and found.bandwidth is None


def test_steps_from_files_and_their_picture(run, folder):
    (folder / "steps.py").write_text(STEPS)
    done = run("place", "steps.py:towers", "--devices", 2, "--cluster", "h100-nvs8", "--time-limit", "1s", "--json")
    assert "steps.py is run as it is" in done.err
    found = json.loads(done.out)
    assert done.code == 0
    assert sum(name.startswith("dot_general") for name in found["placement"]) == 2
    assert found["makespan_s"] <= found["baselines"]["single_device"]
    # What returns no step or no memory holds.
    (folder / "steps.py").write_text(STEPS)
    done = run("place", "steps.py:number", *ON)
    assert done.code == 2 and "steps.py:number returns no step but int" in done.err
    done = run("place", written(folder, [op(at, memory_bytes=1e10) for at in range(3)]), *ON, "--memory", "14GB")
    assert (done.code, done.out) == (3, "") and "2 devices of 14.0 GB have 28.0 GB: 2.00 GB short" in done.err


@pytest.mark.slow
def test_the_layers_of_a_model(run, folder):
    on = ("--cluster", "h100-nvs8", "--devices", 2, "--time-limit", "1s", "--json")
    done = run("place", "--model", "small.yaml", *on)
    found = json.loads(done.out)
    assert done.code == 0 and found["graph"]["operators"] > 100
    assert found["bound_s"] <= found["makespan_s"] <= found["baselines"]["single_device"]


@pytest.mark.slow
def test_shares_of_bandwidth_are_written_for_open_vswitch(run, folder):
    sizes = [(0, 1, 10_000), (0, 2, 2_000), (1, 3, 100), (2, 3, 100)]
    edges = [{"src": a, "dst": b, "bytes": size} for a, b, size in sizes]
    written(folder, [op(0), op(1, compute_us=20), op(2, compute_us=20), op(3)], edges)
    on = ("--devices", 3, "--inter", "1GB/s", "--nics", 2, "--bandwidth", "joint", "--time-limit", "2s")
    done = run("place", "g.json", *on, "--emit", "ovs", "-o", "ovs", "--json")
    found = json.loads(done.out)["bandwidth"]
    assert done.code == 0
    assert found["scheme"] == "joint" and found["server_bytes_per_s"] == 2e9
    for server in range(3):
        assert sum(rate for pair, rate in found["bytes_per_s"].items() if pair.startswith(f"{server}->")) <= 2e9
    names = {path.name for path in (folder / "ovs").iterdir()}
    assert {f"server-{server}-{what}.sh" for server in range(3) for what in ("setup", "remove")} <= names


def test_the_timeline_is_drawn(run, folder, thesis):
    done = run("place", thesis, *ON, "--plot", "step.png")
    assert done.code == 0 and (folder / "step.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ([op(0, compute_us=[1, 2, 3])], [], "--devices 2: compute_us of the graph are lists of 3 times"),
    ],
)
def test_bad_graphs(run, folder, nodes, edges, said):
    done = run("place", written(folder, nodes, edges), *ON)
    assert (done.code, done.out) == (2, "") and said in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--devices", 2, "--inter", "25"), "--inter: '25' has no unit"),
        (("--devices", 2), "--inter is missing"),
        (("--inter", "1GB/s"), "--devices is missing"),
        (("--devices", 100_000, "--inter", "1GB/s"), "1024 devices at most"),
        (
            ("--devices", 3, "--inter", "1GB/s", "--gpus-per-server", 2, "--intra", "2GB/s"),
            "--gpus-per-server 2 does not divide --devices 3: 2 or 4 devices would do",
        ),
        ((*ON, "--gpus-per-server", 2), "--intra is missing"),
        ((*ON, "--speeds", "1,1,1"), "--speeds has 3 numbers, and there are 2 devices"),
        ((*ON, "--speeds", "1,0"), "--speeds: 0 is no speed; a number from 1e-06"),
        ((*ON, "--bandwidth", "joint"), "--bandwidth joint needs --nics"),
        ((*ON, "--emit", "ovs"), "--emit and -o belong together"),
        ((*ON, "--emit", "ovs", "-o", "out"), "--emit ovs needs --nics"),
        ((*ON, "--nic-bandwidth", "10Gb/s"), "--nic-bandwidth needs --nics"),
        ((*ON, "--cluster", "h100-nvs8"), "--inter cannot be given with --cluster"),
        ((*ON, "--model", "small.yaml"), "both are given"),
        ((*ON, "--latency", "-5us"), "--latency: -5us is below zero"),
        ((*ON, "--seed", "-1"), "--seed: -1"),
    ],
)
def test_bad_options(run, thesis, options, said):
    done = run("place", thesis, *options)
    assert (done.code, done.out) == (2, "") and said in done.err and "Traceback" not in done.err


def test_without_solvers_there_is_an_answer_but_no_joint_search(run, thesis, monkeypatch):
    from dsx.placement import joint as allocation_search
    from dsx.placement import solve as place

    for module in (allocation_search, place):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    found = json.loads(run("place", thesis, *ON, "--json").out)
    assert found["makespan_s"] == pytest.approx(15e-6)
    done = run("place", thesis, "--devices", 3, *ON[2:], "--nics", 2, "--bandwidth", "joint")
    assert (done.code, done.out) == (2, "") and install_text("[place]") in done.err


@pytest.mark.slow
def test_ctrl_c_prints_the_best_so_far(folder):
    """A graph of 300 operators whose search takes a minute."""
    nodes = [op(at, compute_us=1 + at % 7) for at in range(300)]
    edges = [{"src": at // 2, "dst": at, "bytes": 2000} for at in range(1, 300)]
    edges += [{"src": at, "dst": at + 50, "bytes": 3000} for at in range(150, 250)]
    command = [
        sys.executable, "-m", "dsx", "place", written(folder, nodes, edges), "--devices", "3", "--inter", "1GB/s",
    ]  # fmt: skip
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": os.environ.copy()}
    begun = subprocess.Popen([*command, "--gap", "0", "--json"], **options)
    time.sleep(12)
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=40)
    assert begun.returncode == 0, err
    found = json.loads(out)
    assert found["stopped"] and found["bound_s"] <= found["makespan_s"]
