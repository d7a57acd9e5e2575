"""``dsx trace write``, ``inspect`` and ``replay``: right and wrong uses, exit codes, streams, what is left behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from trace_files import coll, comp, content, receive, send, write_folder

import dsx
from dsx.traces.trace_folder import open_folder
from dsx.traces.trace_folder import traces as traces_of

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
DEGREES_OF = {
    "gpipe": ("tp=2", "pp=4", "schedule=gpipe"),
    "1f1b": ("tp=2", "pp=2", "dp=2", "vpp=2"),
    "zb-h1": ("tp=2", "pp=4", "schedule=zb-h1"),
    "zb-h2": ("tp=2", "pp=4", "schedule=zb-h2"),
    "zb-v": ("tp=2", "pp=2", "dp=2", "schedule=zb-v"),
    "dualpipe": ("tp=2", "pp=4", "schedule=dualpipe"),
    "zero-3": ("tp=2", "dp=4", "zero_stage=3", "recompute=full"),
    "offload": ("tp=2", "pp=2", "dp=2", "offload=activations"),
    "summa": ("tp=2", "tp2=2", "dp=2", "panels=2", "--strategy", "summa"),
    "portable": ("tp=2", "tp2=2", "dp=2", "panels=2", "--strategy", "summa", "--portable"),
    "ring": ("tp=2", "cp=2", "dp=2", "--strategy", "2d-ring"),
    "ulysses": ("tp=4", "dp=2", "--strategy", "ulysses"),
    "forward-only": (*DEGREES, "--forward-only"),
}


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


def test_write_inspect_and_replay(run, folder):
    done = run(*WRITE, *DEGREES, *CLUSTER, "-o", "new/traces")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        r"new/traces: 8 ranks, \d+ nodes each on average, 8 process groups; [\d.]+ MB written\n", done.out
    )
    assert len(files(folder / "new/traces")) == 8 + 2
    again = run(*WRITE, *DEGREES, *CLUSTER, "-o", "new/traces")
    assert (again.code, again.out.split("; ")[1:]) == (0, ["0 B written", "8 files kept\n"])
    found = run("trace", "inspect", "new/traces")
    assert (found.code, found.err) == (0, "")
    assert found.out.endswith("faults: none\n")
    kinds = ("weights", "gradients", "optimizer state", "activations", "gradients of activations")
    assert all(re.search(rf"^{kind} +\d", found.out, re.MULTILINE) for kind in kinds)
    replayed = run("trace", "replay", "new/traces", *CLUSTER)
    assert (replayed.code, replayed.err) == (0, "")
    assert "step time: " in replayed.out and "rank 0" in replayed.out


def test_json_of_the_three_verbs(run, traces):
    done = run(*WRITE, *DEGREES, *CLUSTER, "-o", "traces", "--json")
    written = json.loads(done.out)
    assert (done.code, written["ranks"], written["kept_files"], written["reject"]) == (0, [*range(8)], 8, [])
    found = json.loads(run("trace", "inspect", "traces", "--json").out)
    assert (found["ranks"], found["faults"]) == (8, [])
    assert found["totals"]["nodes"] == written["num_nodes"]
    times = json.loads(run("trace", "replay", "traces", *CLUSTER, "--json").out)
    assert (len(times["ranks"]), times["nodes"]) == (8, written["num_nodes"])
    assert {found["schema_version"], times["schema_version"], written["schema_version"]} == {1}


def test_all_flops_are_the_work_and_agree_with_the_layer(run, traces):
    totals = json.loads(run("trace", "inspect", "traces", "--json").out)["totals"]
    assert totals["total_flops"] == totals["matrix_flops"] + totals["vector_flops"]
    sizes = [part for one in ("tp=2", "b=1", "s=512") for part in ("--set", one)]
    layer = json.loads(run("layer", "transformer", "--model", "small.yaml", *sizes, "--json").out)
    of_layer = sum(
        kernel[way]["matrix_flops"]["value"] for kernel in layer["kernels"] for way in ("forward", "backward")
    )
    # 16 sequences, each on two ranks through four layers.
    assert totals["matrix_flops"] == 16 * 2 * 4 * of_layer


def test_the_replay_takes_the_time_of_the_plan(run, folder):
    # Work that hides its launches: a larger model, on two ranks.
    (folder / "small.yaml").write_text(
        MODEL.replace("e: 256, h: 4, g: 4", "e: 8192, h: 64, g: 64").replace("64, f", "128, f")
    )
    size = ("--model", "small.yaml", "--num-gpus", 2, "--global-batch-size", 2)
    assert run("trace", "write", *size, "tp=2", *CLUSTER, "-o", "t").code == 0
    step = json.loads(run("trace", "replay", "t", *CLUSTER, "--json").out)["step_time_s"]
    priced = json.loads(run("evaluate", *size, "tp=2", *CLUSTER, "--json").out)
    assert step == pytest.approx(priced["step_time_s"], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("options", DEGREES_OF.values(), ids=DEGREES_OF)
def test_plans_of_every_kind_are_written_without_faults_and_replay(run, folder, options):
    done = run(*WRITE, *options, *CLUSTER, "-o", "t")
    assert done.code in (0, 3), done.err
    assert run("trace", "inspect", "t").code == 0
    assert run("trace", "replay", "t", *CLUSTER).code == 0


def test_a_rank_of_each_stage_of_many_gpus(run, folder):
    size = ("--model", "small.yaml", "--num-gpus", 512, "--global-batch-size", 512)
    done = run("trace", "write", *size, "tp=4", "pp=4", "dp=32", "--ranks", "stages", "-o", "t")
    assert (done.code, {*files(folder / "t")} - {"manifest.json", "comm_groups.json"}) == (
        0,
        {f"trace.{rank}.et" for rank in (0, 128, 256, 384)},
    )
    found = run("trace", "inspect", "t")
    assert found.code == 0
    assert "t: 4 ranks of 512" in found.out and "note: missing ranks" in found.out
    assert run("trace", "replay", "t", *CLUSTER).code == 0


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


def test_a_row_of_a_result_set(run, swept, folder):
    best = dsx.load(swept).nsmallest(1, "step_time_s").iloc[0]
    done = run("trace", "write", "--from", swept, "--candidate", best["candidate"], "--ranks", 0, "-o", "t", "--json")
    assert (done.code, json.loads(done.out)["plan"]["dp"]) == (0, best["dp"])
    refused(
        run("trace", "write", "--from", swept, "--candidate", 5, "-o", "u"), "no candidate '5' among the", "dsx show"
    )


def test_a_plan_that_is_rejected_is_written(run, folder):
    small = ("--set", "cluster.device.hbm_capacity=1 MB")
    done = run(*WRITE, *DEGREES, *CLUSTER, *small, "--ranks", 0, "-o", "t", "--json")
    assert (done.code, json.loads(done.out)["reject"]) == (3, ["memory"])
    assert "the trace is written, but the plan is rejected:\n  memory: " in done.err
    assert (folder / "t" / "trace.0.et").exists()


def test_sizes_that_are_floored_are_named(run, folder):
    done = run(*WRITE, "tp=4", "dp=2", "--set", "model.dimensions.f=1022", "--ranks", 0, "-o", "t")
    assert "sizes are floored, since ranks do not divide them: f = 1022 over tp = 4" in done.err


def test_a_kernel_with_a_measured_time_takes_it(run, folder):
    (folder / "times.csv").write_text("operator,direction,m,n,k,batch,time\ngelu,forward,512,512,,,50 us\n")
    given = (*WRITE, *DEGREES, "--operator-times", "times.csv", "--ranks", 0, "-o", "t")
    assert "--operator-times: without --cluster" in run(*given).err
    assert run(*given, *CLUSTER).code == 0
    (trace,) = traces_of(open_folder(folder / "t"))
    gelu = [text == "transformer/feed-forward.u/forward" for text in map(trace.kernels.of, range(trace.num_nodes))]
    assert trace.duration_ns[gelu] == pytest.approx(np.full(sum(gelu), 50e3))
    assert any(gelu)


def test_shares_of_a_domain_may_be_stated_without_a_cluster(run, folder):
    done = run(*WRITE, "tp=4", "dp=2", "nvs.tp=2", "nvs.dp=1", "--ranks", 0, "-o", "t")
    assert (done.code, done.err) == (0, "")
    assert json.loads((folder / "t" / "manifest.json").read_text())["ranks_per_domain"] == 2


def test_a_replay_says_where_it_differs_from_the_trace(run, traces):
    done = run("trace", "replay", "traces", "--cluster", "h100-nvs8", "--assumptions", "uncalibrated")
    assert "the trace was written under default; the replay is under uncalibrated" in done.err
    done = run("trace", "replay", "traces", "--cluster", "a100-nvs4")
    assert "the ranks are placed 8 to a fast domain, as they were traced; the cluster has 4 in one" in done.err


def test_a_trace_is_of_the_run_as_its_framework_runs_it(run, folder):
    """DeepSpeed's stack and its own fields: no overlap of tensor parallelism, 55 us to issue a kernel."""
    assert run(*WRITE, *DEGREES, *CLUSTER, "--framework", "deepspeed", "-o", "t").code == 0
    manifest = json.loads((folder / "t" / "manifest.json").read_text())
    assert (manifest["framework"], manifest["stack"]) == ("deepspeed", "deepspeed-2023")
    same = run("trace", "replay", "t", *CLUSTER, "--framework", "deepspeed", "--json")
    assert (same.code, same.err) == (0, "")
    other = run("trace", "replay", "t", *CLUSTER, "--json")
    assert "the trace was written as deepspeed runs it; the replay is as megatron runs it (--framework)" in other.err
    assert json.loads(other.out)["step_time_s"] < json.loads(same.out)["step_time_s"]
    refused(run(*WRITE, *DEGREES, "--framework", "deepsped", "-o", "u"), "did you mean 'deepspeed'?")


def test_a_replay_of_another_machine(run, traces):
    before = json.loads(run("trace", "replay", "traces", *CLUSTER, "--json").out)["step_time_s"]
    slow = ("--set", "cluster.device.hbm_bandwidth=0.05 TB/s", "--set", "assumptions.tp_overlap=0")
    assert json.loads(run("trace", "replay", "traces", *CLUSTER, *slow, "--json").out)["step_time_s"] > before
    refused(run("trace", "replay", "traces", *CLUSTER, "--set", "model.name=x"), "a trace has its model")


def test_one_rank_of_each_stage_replays_with_other_files_beside_it(run, folder):
    run(*WRITE, *DEGREES, *CLUSTER, "--ranks", "stages", "-o", "t")
    before = json.loads(run("trace", "replay", "t", *CLUSTER, "--json").out)["step_time_s"]
    run(*WRITE, *DEGREES, *CLUSTER, "--ranks", "0,5", "-o", "t")
    done = run("trace", "replay", "t", *CLUSTER, "--json")
    assert json.loads(done.out)["step_time_s"] == before
    assert "1 file left out: the ranks 0, 4 stand for their stages" in done.err
    assert "there are ranks 0, 4" in run("trace", "replay", "t", *CLUSTER, "--slow", "5=2").err


def test_slow_ranks(run, traces):
    before = json.loads(run("trace", "replay", "traces", *CLUSTER, "--json").out)["step_time_s"]
    done = run("trace", "replay", "traces", *CLUSTER, "--slow", "0-3=40", "--slow", "5=2", "--json")
    found = json.loads(done.out)
    assert found["slow"] == {"0": 40, "1": 40, "2": 40, "3": 40, "5": 2}
    assert found["step_time_without_slow_s"] == before < found["step_time_s"]
    text = run("trace", "replay", "traces", *CLUSTER, "--slow", "0-3=40").out
    assert re.search(r"^slowdown: [\d.]+ % over .* \(kernels take 40 times as long on 0-3\)$", text, re.MULTILINE)


@pytest.mark.parametrize("verb", [("inspect",), ("replay", *CLUSTER)])
def test_a_timeline(run, traces, folder, verb):
    done = run("trace", *verb, "traces", "--chrome", "timeline.json")
    assert done.code == 0
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
    assert {event["pid"] for event in events} == {*range(8)}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        f"rank {rank}" for rank in range(8)
    }


# Wrong uses of write.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tp=2", "pp=2", "dp=4"), "tp=2 * pp=2 * dp=4 = 16, but num_gpus=8; nearest: dp=2"),
        ((*DEGREES, "tpp=2"), "unknown setting 'tpp'; did you mean 'tp'?"),
        ((*DEGREES, "schedule=foo"), "schedule = 'foo' is not known (known: 1f1b"),
        ((*DEGREES, "--strategy", "1dd"), "unknown strategy '1dd'; did you mean '1d'?"),
        ((*DEGREES, "--cluster", "h100-nvs9"), "unknown cluster 'h100-nvs9'; did you mean 'h100-nvs8'?"),
        ((*DEGREES, "--assumptions", "defalt"), "did you mean 'default'?"),
        ((*DEGREES, "--ranks", "foo"), "ranks: 'foo' is given; all, stages, or numbers as in 0,5,9 are wanted"),
        ((*DEGREES, "--ranks", "stage"), "did you mean 'stages'?"),
        ((*DEGREES, "--ranks", "0,8"), "there is no rank 8; the job has the ranks 0 to 7"),
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
        (("-o", "t", "--model", "small.yaml", "--num-gpus", 8), ("missing: --global-batch-size;",)),
        (("-o", "t", "--model", "smal.yaml", *PLAN[2:]), ("smal.yaml",)),
        (("-o", "t", "--num-gpus", "0"), ("--num-gpus",)),
        (("-o", "t", "--from", "set"), ("--from needs --candidate", "dsx show set --json")),
        (("-o", "t", "--from", "set", "--candidate", 1), ("no result set at set",)),
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
        (("-o", "t", "--layer", "transformr"), ("did you mean 'transformer'?",)),
        (("-o", "t", "--layer", "no.layer"), ("no.layer",)),
    ],
)
def test_wrong_options(run, folder, arguments, said):
    refused(run("trace", "write", *arguments), *said)
    assert not (folder / "t").exists()


def test_folders_that_cannot_be_written(run, folder, traces, monkeypatch):
    before = files(traces)
    refused(run(*WRITE, "tp=4", "dp=2", *CLUSTER, "-o", "traces"), "has another trace (", "tp 2, not 4")
    refused(run(*WRITE, *DEGREES, "--cluster", "b200-nvs8", "-o", "traces"), "cluster 'h100-nvs8', not 'b200-nvs8'")
    assert files(traces) == before
    refused(run(*WRITE, *DEGREES, "-o", "small.yaml"), "'small.yaml' is a file: name a folder for the trace")
    assert (folder / "small.yaml").read_text() == MODEL

    def denied(self, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    refused(run(*WRITE, *DEGREES, "-o", "t"), "cannot write the trace to 't': Permission denied")


def test_too_little_disk(run, folder, monkeypatch):
    class Full:
        f_bavail, f_frsize = 300, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    refused(run(*WRITE, *DEGREES, "-o", "t"), "the trace needs", "1.23 MB are free: write fewer ranks")
    assert {*files(folder / "t")} <= {"comm_groups.json", "manifest.json"}


# Wrong traces.


def test_wrong_files(run, traces):
    file = traces / "trace.3.et"
    whole = file.read_bytes()
    for damaged, said in (
        (whole[:5000], "trace.3.et: ends inside a message, which begins at byte"),
        (
            b"hello, this is text",
            "trace.3.et: ends inside a message, which begins at byte 0; it is truncated, or no Chakra",
        ),
        (b"\xff" * 100, "trace.3.et: byte 0 has no length of a message; this is no Chakra trace"),
        (content([comp(1)])[:10] + whole, "trace.3.et: byte "),
        (b"", "trace.3.et: is empty"),
    ):
        file.write_bytes(damaged)
        refused(run("trace", "inspect", "traces"), "traces/", said)
        refused(run("trace", "replay", "traces", *CLUSTER), "traces/", said)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("comm_groups.json", "{", "comm_groups.json: is not JSON that can be read"),
        ("comm_groups.json", '{"1": 3}', 'process groups are wanted, as in {"1": [0, 1]}'),
        ("comm_groups.json", '{"1": [0, "x"]}', "group 1 has 'x', which is no rank"),
        ("comm_groups.json", '{"1": [0, 0]}', "group 1 has rank 0 twice"),
        ("manifest.json", "[1]", "manifest.json: an object with keys is wanted"),
        ("manifest.json", "{", "manifest.json: is not JSON that can be read"),
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


def test_manifests_that_a_replay_cannot_use(run, traces):
    for text, said in (
        ('{"ranks_per_domain": "y"}', "ranks_per_domain 'y'"),
        ('{"stands_for": 3}', "stands_for 3"),
        ('{"stands_for": {"0": ["a"]}}', "stands_for"),
    ):
        (traces / "manifest.json").write_text(text)
        refused(run("trace", "replay", "traces", *CLUSTER), said)


def test_a_rank_that_others_wait_for(run, traces):
    (traces / "trace.3.et").unlink()
    done = run("trace", "inspect", "traces")
    assert (done.code, done.err) == (0, "")
    assert "7 ranks of 8" in done.out and "note: missing ranks: rank 3 has no file" in done.out
    refused(run("trace", "replay", "traces", *CLUSTER), "waits for rank 3, whose file is not there: node")


def test_a_cycle_names_its_nodes(run, folder):
    (folder / "t").mkdir()
    write_folder(
        folder / "t", {0: [comp(1, "first", data=[3]), comp(2, "second", data=[1]), comp(3, "third", data=[2])]}
    )
    done = run("trace", "inspect", "t")
    assert done.code == 2
    assert re.search(r"cycle of dependencies: rank 0 .*3 nodes wait for one another: ", done.out)
    assert all(name in done.out for name in ("first", "second", "third"))
    refused(run("trace", "replay", "t", *CLUSTER), "first")


def test_ranks_that_wait_for_each_other(run, folder):
    (folder / "t").mkdir()
    write_folder(
        folder / "t",
        {
            0: [receive(1, 1), coll(2, data=[1]), send(3, 1, tag=2, data=[2])],
            1: [receive(1, 0, tag=2), coll(2, data=[1]), send(3, 0, data=[2])],
        },
        {"1": [0, 1]},
    )
    done = run("trace", "inspect", "t")
    assert done.code == 2 and "faults: " in done.out
    refused(run("trace", "replay", "t", *CLUSTER), "rank 0", "rank 1", "receive1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--cluster'"),
        (("--cluster", "h100-nvs9"), "did you mean 'h100-nvs8'?"),
        ((*CLUSTER, "--assumptions", "x"), "unknown assumption set 'x'"),
        ((*CLUSTER, "--slow", "foo"), "--slow foo: RANKS=FACTOR is wanted"),
        ((*CLUSTER, "--slow", "9=2"), "rank 9 has no trace; there are ranks 0 to 7"),
        ((*CLUSTER, "--slow", "0=x"), "'x' is no positive number"),
        ((*CLUSTER, "--slow", "0=2", "--slow", "0=3"), "rank 0 is named twice"),
        ((*CLUSTER, "--chrome", "no/t.json"), "--chrome no/t.json: no is no folder"),
        ((*CLUSTER, "--chrome", "traces/trace.0.et"), "--chrome traces/trace.0.et: is read by this command"),
    ],
)
def test_wrong_options_of_replay(run, traces, arguments, said):
    before = files(traces)
    refused(run("trace", "replay", "traces", *arguments), said)
    assert files(traces) == before


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


# Interrupts and streams, in a process of their own.


@pytest.mark.slow
def test_ctrl_c_and_the_same_command_again(folder):
    """The signal comes when three files of eight are there; the second run keeps them."""
    options = ["trace", "write", *map(str, PLAN), *DEGREES, "microbatch_size=1", "-o", "t"]
    start = (
        "import os, signal, sys\n"
        "from dsx.files import OpenFolder\n"
        "write, done = OpenFolder.create, []\n"
        "def create(self, name, *contents, **options):\n"
        "    write(self, name, *contents, **options)\n"
        "    done.append(name)\n"
        "    if len(done) == 6: os.kill(os.getpid(), signal.SIGINT)\n"
        "OpenFolder.create = create\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dsx.verbs.process import main\n"
        "sys.argv = ['dsx', *sys.argv[1:]]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", start, *options], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
    left = files(folder / "t")
    assert {*left} == {"comm_groups.json", "manifest.json", "trace.0.et", "trace.1.et", "trace.2.et"}
    again = subprocess.run([sys.executable, "-m", "dsx", *options], capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")
    assert "3 files kept" in again.stdout
    whole = subprocess.run([sys.executable, "-m", "dsx", *options[:-1], "u"], capture_output=True, text=True)
    assert whole.returncode == 0
    assert files(folder / "t") == files(folder / "u")
