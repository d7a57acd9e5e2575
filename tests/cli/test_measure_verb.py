"""``dsx measure``: kernels timed on this device, as a file that ``--operator-times`` takes."""

import json
import os

import pytest

from dsx.measuring import jax_library as collectives
from dsx.measuring.array_library import Timing
from dsx.verbs.measure import cases

TINY = """name: tiny
source: made up
default_sequence_length: 16
dimensions: {e: 128, h: 8, g: 4, k: 32, f: 256}
layers:
  - {kind: transformer, options: [rotary, gated], count: 2}
"""
MEASURE = ("measure", "--model", "tiny.yaml", "-o", "times.csv")
JOB = ("--cluster", "h100-nvs8", "--num-gpus", 2, "--global-batch-size", 4)
FAST = Timing(2e-5, 0.02, 3)


@pytest.fixture
def tiny(folder, monkeypatch):
    """A tiny model, and kernels that all take 20 us; none is run."""
    (folder / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr("dsx.measuring.jax_library.JaxLibrary.arrays", lambda self, operands, dtype: [])
    monkeypatch.setattr("dsx.measuring.jax_library.JaxLibrary.backward", lambda self, program, dtype: None)
    monkeypatch.setattr("dsx.measuring.cases.timed_briefly", lambda call, wait: FAST)
    return folder


def rows(folder):
    first, header, *found = (folder / "times.csv").read_text().splitlines()
    assert first.startswith("# measured with jax ")
    names = header.split(",")
    return [dict(zip(names, row.split(","), strict=True)) for row in found]


def test_a_spread_of_a_model_is_measured_and_read_back(run, tiny):
    done = run(*MEASURE)
    assert done.code == 0
    found = rows(tiny)
    head = done.out.splitlines()[0]
    assert "not measured" not in done.out
    assert head.startswith(f"{len(found)} kernels measured with jax ") and head.endswith("in times.csv")
    assert {row["operator"] for row in found} == {"einsum", "attention", "norm", "rotary", "add", "swiglu"}
    assert {row["m"] for row in found if row["operator"] == "norm"} >= {"16", "32", "64", "8"}
    assert {(row["dtype"], row["time"], row["spread"]) for row in found} == {("bf16", "20 us", "0.020")}
    plan = ("evaluate", "--model", "tiny.yaml", *JOB, "tp=2", "microbatch_size=2", "--operator-times", "times.csv")
    said = json.loads(run(*plan, "--json").out)["operator_times"]
    assert (said["num_measured"], said["idle"]) == (said["num_kernels"], [])


@pytest.mark.slow
def test_kernels_are_really_timed(run, folder, monkeypatch):
    (folder / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr("dsx.verbs.measure.cases", lambda plans: cases(plans)[-3:])
    assert run(*MEASURE).code == 0
    found = rows(folder)
    assert len(found) == 3
    assert all(0 < float(row["time"].removesuffix(" us")) < 1e6 for row in found)


def test_shapes_that_are_there_are_kept(run, tiny):
    run(*MEASURE)
    lines = (tiny / "times.csv").read_text().splitlines(keepends=True)
    (tiny / "times.csv").write_text("".join(lines[:10]))
    data = json.loads(run(*MEASURE, "--json").out)
    assert (data["kept"], len(data["measured"])) == (8, len(lines) - 10)
    assert sorted((tiny / "times.csv").read_text().splitlines(keepends=True)) == sorted(lines)
    again = json.loads(run(*MEASURE, "--json").out)
    assert (again["kept"], again["measured"]) == (len(lines) - 2, [])


@pytest.mark.slow
def test_the_best_plans_of_a_job_or_of_a_set_are_measured(run, tiny):
    assert run(*MEASURE, *JOB, "--top", 1).code == 0
    of_job = rows(tiny)
    best = json.loads(
        run("best", "--model", "tiny.yaml", *JOB, "--top", 1, "--operator-times", "times.csv", "--json").out
    )
    assert of_job and best["idle_operator_times"] == []
    sweep = "model: tiny.yaml\ncluster: h100-nvs8\nnum_gpus: 2\nglobal_batch_size: 4\nkeep: {top: 3}\n"
    (tiny / "sweep.yaml").write_text(sweep)
    assert run("sweep", "sweep.yaml", "-o", "set").code == 0
    (tiny / "times.csv").unlink()
    done = run("measure", "--for", "set", "--top", 3, "-o", "times.csv")
    assert done.code == 0, done.err
    plans = json.loads(run("show", "set", "--top", 3, "--json").out)["plans"]
    for plan in plans:
        given = [f"{name}={plan['plan'][name]}" for name in ("tp", "dp", "pp", "microbatch_size")]
        priced = run("evaluate", "--model", "tiny.yaml", *JOB, *given, "--operator-times", "times.csv", "--json")
        said = json.loads(priced.out)["operator_times"]
        assert said["num_measured"] == said["num_kernels"]


def test_what_was_not_measured_is_said(run, tiny, monkeypatch):
    done = run(*MEASURE, "--time-limit", "1 ns")
    assert done.code == 0
    assert done.out.startswith("0 kernels measured")
    assert " not measured (the time limit; the same command goes on): einsum " in done.out
    # A large spread is said.
    monkeypatch.setattr("dsx.measuring.cases.timed_briefly", lambda call, wait: Timing(1e-5, 0.5, 3))
    assert "with a spread above 10 % between the quartiles; was something else running? " in run(*MEASURE).out
    # No plan to measure is said.
    (tiny / "times.csv").unlink()
    done = run(*MEASURE, *JOB, "--set", "cluster.device.hbm_capacity=1 kB")
    assert (done.code, done.out) == (3, "")
    assert not (tiny / "times.csv").exists()


def test_collectives_and_the_device_are_files(run, tiny, monkeypatch):
    monkeypatch.setattr("dsx.verbs.measure.SIZES", (1024, 4096))
    monkeypatch.setattr(collectives, "timed_briefly", lambda call, wait: Timing(1e-5, 0.0, 3))
    monkeypatch.setattr("dsx.measuring.jax_library._ELEMENTS", 1000)
    done = run(*MEASURE, "--collectives", "collectives.csv", "--device", "here.yaml")
    assert done.code == 0, done.err
    found = (tiny / "collectives.csv").read_text().splitlines()
    assert found[:2] == [
        "collective,num_nodes,gpus_per_node,message_bytes,time_us,spread",
        "allgather,1,2,1024,10,0.000",
    ]
    assert {row.split(",")[0] for row in found[1:]} == {"allgather", "reducescatter", "allreduce", "alltoall"}
    assert "all-to-all 2 4.10 kB 10.0 us 0 % 410 MB/s" in [" ".join(line.split()) for line in done.out.splitlines()]
    plan = (
        "evaluate", "--model", "tiny.yaml", "--cluster", "here.yaml", *JOB[2:], "tp=2", "--operator-times",
        "times.csv",
    )  # fmt: skip
    assert run(*plan).code == 0
    assert "nvs" in run("clusters", "show", "here.yaml").out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--model", "tyni", "-o", "times.csv"), "unknown model 'tyni'"),
        (("-o", "times.csv"), "missing: --model, whose kernels are measured; or --for, a result set"),
        (("--model", "tiny.yaml", "-o", "."), "is a folder"),
        (("--model", "tiny.yaml", "-o", "tiny.yaml"), "tiny.yaml"),
        (("--model", "tiny.yaml", "-o", "other.csv"), "other.csv: is no file of dsx measure, which begins with"),
        (
            ("--model", "tiny.yaml", "-o", "elsewhere.csv"),
            "elsewhere.csv: was measured with jax 0.1 on a TPU, and this is",
        ),
        (("--model", "tiny.yaml", "-o", "t.csv", "--with", "numpy"), "numpy"),
        (
            ("--model", "tiny.yaml", "-o", "t.csv", "--num-gpus", 8),
            "missing: --cluster, --global-batch-size; a job needs",
        ),
        (
            ("--model", "tiny.yaml", "-o", "t.csv", "--for", "set"),
            "--model: the result set of --for has that of its sweep",
        ),
        (("--for", "nowhere", "-o", "t.csv"), "nowhere"),
        (("--for", "set", "-o", "t.csv", "--sequence-length", 8), "--sequence-length: a result set has that of its"),
        (("--model", "tiny.yaml", "-o", "/dev/null"), "-o /dev/null: is no file, and times are written one by one"),
        (("--model", "tiny.yaml", "-o", "t.csv", "--time-limit", "5"), "--time-limit: '5' has no unit"),
        (("--model", "tiny.yaml", "-o", "t.csv", "--set", "cluster.device.name=x"), "no cluster is read here"),
    ],
)
def test_bad_input_is_an_error_with_its_place(run, tiny, monkeypatch, given, said):
    monkeypatch.setattr("dsx.measuring.array_library.find_spec", lambda name: None)
    (tiny / "other.csv").write_text("operator,direction,m,n,time\nnorm,forward,8,8,1 us\n")
    columns = "operator,direction,m,n,k,batch,dtype,time,spread"
    (tiny / "elsewhere.csv").write_text(
        f"# measured with jax 0.1 on a TPU\n{columns}\nnorm,forward,8,8,,,bf16,1 us,0\n"
    )
    done = run("measure", *given)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (tiny / "t.csv").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused_before_anything_is_timed(run, tiny):
    (tiny / "times.csv").write_text("")
    (tiny / "times.csv").chmod(0o400)
    assert "may not be written" in run(*MEASURE).err
