"""``dsx trace write``, ``inspect`` and ``replay``: right and wrong uses, exit codes, streams, what is left behind."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import dsx
from dsx.traces.read import open_folder
from dsx.traces.read import traces as traces_of

PLAN = ("--model", "small.yaml", "--num-gpus", 8, "--global-batch-size", 16)
DEGREES = ("tp=2", "pp=2", "dp=2")
WRITE = ("trace", "write", *PLAN)
CLUSTER = ("--cluster", "h100-nvs8")
MODEL = """name: small
source: made up
default_sequence_length: 512
dimensions: {e: 256, h: 4, g: 4, k: 64, f: 1024}
layers:
  - {kind: transformer, count: 4}
"""


@pytest.fixture(autouse=True)
def model(folder):
    """A working directory with a smaller model than other verbs have."""
    (folder / "small.yaml").write_text(MODEL)
    return folder / "small.yaml"


@pytest.fixture(scope="module")
def timed(tmp_path_factory, command):
    """The trace of all ranks with durations; not to be changed."""
    place = tmp_path_factory.mktemp("timed")
    (place / "small.yaml").write_text(MODEL)
    options = ("--model", place / "small.yaml", *PLAN[2:], *CLUSTER, "-o", place / "traces")
    assert command("trace", "write", *options, *DEGREES) == 0
    return place / "traces"


@pytest.fixture
def traces(timed, tmp_path):
    """A copy of that trace."""
    return Path(shutil.copytree(timed, tmp_path / "traces"))


def files(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


def refused(done, *said):
    """Assert that a command was refused: the error, on one stream, with exit code 2."""
    assert (done.code, done.out) == (2, ""), done
    assert "internal error" not in done.err and "Traceback" not in done.err
    for text in said:
        assert text in done.err, done.err


# Right uses.


def test_one_layer_of_a_file_of_ones_own(run, folder):
    (folder / "own.layer").write_text(
        "layer own\ninput x[b, s, e]\nweight w[e, f/tp]\ny[b, s, f/tp] = einsum(x, w)\nz[b, s, f/tp] = gelu(y)\n"
    )
    sizes = [part for one in ("b=1", "s=64", "e=64", "f=128", "tp=2") for part in ("--set", one)]
    done = run("trace", "write", "--layer", "own.layer", "--strategy", "1d", *sizes, *CLUSTER, "-o", "t")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("t: 2 ranks, ")
    assert run("trace", "inspect", "t").code == 0
    assert run("trace", "replay", "t", *CLUSTER).code == 0
    refused(
        run("trace", "write", "--layer", "own.layer", "--strategy", "1d", *sizes[2:], "-o", "u"), "needs sizes: b=..."
    )


def test_rows_and_rejected_plans_are_written(run, swept, folder):
    best = dsx.load(swept).nsmallest(1, "step_time_s").iloc[0]
    done = run("trace", "write", "--from", swept, "--candidate", best["candidate"], "--ranks", 0, "-o", "t", "--json")
    assert (done.code, json.loads(done.out)["plan"]["dp"]) == (0, best["dp"])
    refused(
        run("trace", "write", "--from", swept, "--candidate", 5, "-o", "u"), "no candidate '5' among the", "dsx show"
    )
    # A plan that is rejected is written.
    small = ("--set", "cluster.device.hbm_capacity=1 MB")
    done = run(*WRITE, *DEGREES, *CLUSTER, *small, "--ranks", 0, "-o", "v", "--json")
    assert (done.code, json.loads(done.out)["reject"]) == (3, ["memory"])
    assert "the trace is written, but the plan is rejected:\n  memory: " in done.err
    assert (folder / "v" / "trace.0.et").exists()


def test_a_kernel_with_a_measured_time_takes_it(run, folder):
    (folder / "times.csv").write_text("operator,direction,m,n,k,batch,time\ngelu,forward,512,512,,,50 us\n")
    given = (*WRITE, *DEGREES, "--operator-times", "times.csv", "--ranks", 0, "-o", "t")
    assert "--operator-times: without --cluster" in run(*given).err
    assert run(*given, *CLUSTER).code == 0
    (trace,) = traces_of(open_folder(folder / "t"))
    gelu = [text == "transformer/feed-forward.u/forward" for text in map(trace.kernels.of, range(trace.num_nodes))]
    assert trace.duration_ns[gelu] == pytest.approx(np.full(sum(gelu), 50e3))
    assert any(gelu)


@pytest.mark.slow
def test_shares_of_a_domain_may_be_stated_without_a_cluster(run, folder):
    done = run(*WRITE, "tp=4", "dp=2", "nvs.tp=2", "nvs.dp=1", "--ranks", 0, "-o", "t")
    assert (done.code, done.err) == (0, "")
    assert json.loads((folder / "t" / "manifest.json").read_text())["ranks_per_domain"] == 2
    # Sizes that are floored are named.
    done = run(*WRITE, "tp=4", "dp=2", "--set", "model.dimensions.f=1022", "--ranks", 0, "-o", "t")
    assert "sizes are floored, since ranks do not divide them: f = 1022 over tp = 4" in done.err


def test_one_rank_of_each_stage_replays_with_other_files_beside_it(run, folder):
    run(*WRITE, *DEGREES, *CLUSTER, "--ranks", "stages", "-o", "t")
    before = json.loads(run("trace", "replay", "t", *CLUSTER, "--json").out)["step_time_s"]
    run(*WRITE, *DEGREES, *CLUSTER, "--ranks", "0,5", "-o", "t")
    done = run("trace", "replay", "t", *CLUSTER, "--json")
    assert json.loads(done.out)["step_time_s"] == before
    assert "1 file left out: the ranks 0, 4 stand for their stages" in done.err
    assert "there are ranks 0, 4" in run("trace", "replay", "t", *CLUSTER, "--slow", "5=2").err


# Wrong uses of write.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*DEGREES, "--candidate", "3"), "--candidate is the id of a row of --from"),
        ((*DEGREES, "--partition", "optimal"), "optimal cut needs times, so a cluster (--cluster)"),
        (("tp=8",), "dimension g = 4 divided by tp = 8: a rank has nothing of it"),
    ],
)
def test_wrong_plans(run, folder, arguments, said):
    refused(run(*WRITE, *arguments, "-o", "t"), said)
    assert not (folder / "t").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ("Missing option '-o'",)),
        (("-o", "t"), ("missing: --model, --num-gpus, --global-batch-size; a plan needs them",)),
        (("-o", "t", "--model", "smal.yaml", *PLAN[2:]), ("smal.yaml",)),
        (("-o", "t", *PLAN, "--framework", "deepsped"), ("did you mean 'deepspeed'?",)),
        (("-o", "t", "--num-gpus", "0"), ("--num-gpus",)),
        (("-o", "t", "--from", "set"), ("--from needs --candidate", "dsx show set --json")),
        (("-o", "t", "--from", "set", "--candidate", 1, *CLUSTER), ("--cluster: cannot be given with --from",)),
        (
            ("-o", "t", "--from", "set", "--sequence-length", 8, "--assumptions", "x", "--set", "a=1"),
            ("--sequence-length, --assumptions, --set: cannot be given with --from",),
        ),
        (("-o", "t", "--layer", "transformer", "--from", "set"), ("--from: cannot be given with --layer",)),
        (
            ("-o", "t", "--layer", "transformer", "--num-gpus", 8, "--partition", "even", "--sequence-length", 8),
            ("--num-gpus, --sequence-length, --partition: cannot be given with --layer",),
        ),
        (("-o", "t", "--layer", "no.layer"), ("no.layer",)),
    ],
)
def test_wrong_options(run, folder, arguments, said):
    refused(run("trace", "write", *arguments), *said)
    assert not (folder / "t").exists()


# Wrong traces.


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("manifest.json", "[1]", "manifest.json: an object with keys is wanted"),
        ("manifest.json", '{"num_ranks": "x"}', "num_ranks is 'x', which is no number of ranks"),
        ("manifest.json", '{"num_ranks": -1}', "num_ranks is -1, which is no number of ranks"),
        ("manifest.json", '{"num_ranks": 1e30}', "num_ranks is 1e+30"),
    ],
)
def test_wrong_groups_and_manifests(run, traces, name, text, said):
    (traces / name).write_text(text)
    refused(run("trace", "inspect", "traces"), said)
    refused(run("trace", "replay", "traces", *CLUSTER), said)


def test_groups_that_lack_one(run, traces):
    (traces / "comm_groups.json").write_text('{"1": [0, 1]}')
    done = run("trace", "inspect", "traces")
    assert done.code == 2 and "unknown process group: rank 2 node" in done.out
    assert re.search(r"dsx: error: traces has faults: [\d,]+; the first is: unknown process group", done.err)
    refused(run("trace", "replay", "traces", *CLUSTER), "there is no group '5'")


def test_wrong_folders(run, folder):
    (folder / "empty").mkdir()
    for place, said in (
        ("nowhere", "No such file"),
        ("small.yaml", "Not a directory"),
        ("empty", "has no file <prefix>"),
    ):
        refused(run("trace", "inspect", place), place, said)
        refused(run("trace", "replay", place, *CLUSTER), place, said)
    refused(run("trace", "inspect"), "Missing argument 'DIR'")
    assert run(*WRITE, *DEGREES, "--ranks", 0, "-o", "t").code == 0
    refused(run("trace", "inspect", "t", "--chrome", "t.json"), "has no durations", "write the trace with --cluster")
    assert not (folder / "t.json").exists()
