"""Files of a trace: whole or absent, the same whichever ranks are written, and kept when a run goes on."""

import errno
import json
import os
from types import SimpleNamespace

import pytest
from verbs.small import model_of
from written_traces import job_of

import dsx
from dsx.errors import InputError, StoreError
from dsx.files import OpenFolder
from dsx.traces.codec import COMM_SEND
from dsx.traces.read import open_folder, traces

MODEL = model_of([{"kind": "transformer", "count": 4}], {"e": 256, "h": 4, "g": 4, "k": 64, "f": 1024}, length=512)
PLAN = {"tp": 2, "pp": 2, "dp": 2}
PLANS = {
    "1d": PLAN,
    "2d-ring": {"tp": 2, "cp": 4, "strategy": "2d-ring"},
    "summa": {"tp": 2, "tp2": 2, "dp": 2, "panels": 2, "strategy": "summa"},
    "dualpipe": {"tp": 2, "pp": 4, "schedule": "dualpipe"},
}


def job(model=None, cluster=dsx.trace.ONE_DOMAIN, **more):
    return job_of(model or MODEL, 8, 8, cluster, **more)


USUAL = job()


def write(folder, of_job=USUAL, durations=False, **plan):
    return dsx.trace.write(of_job, out=folder, durations=durations, **(plan if "tp" in plan else PLAN | plan))


def content(folder):
    """The bytes of every file, also of hidden ones."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def trace_files(folder):
    return {name: data for name, data in content(folder).items() if name.endswith(".et")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The trace of all ranks; not to be changed."""
    folder = tmp_path_factory.mktemp("whole") / "made" / "here"
    write(folder)
    return folder


def test_a_folder_has_the_ranks_the_groups_and_a_manifest(whole):
    assert {*content(whole)} == {"comm_groups.json", "manifest.json", *(f"trace.{rank}.et" for rank in range(8))}
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["format"] == "dsx trace"
    assert (manifest["num_ranks"], manifest["ranks"]) == (8, [*range(8)])
    assert (manifest["columns"]["tp"], manifest["columns"]["dp"], manifest["tensors"]) == (2, 2, True)
    assert manifest["num_groups"] == len(json.loads((whole / "comm_groups.json").read_text()))
    assert "stands_for" not in manifest


@pytest.mark.parametrize(
    "plan", [PLANS["1d"], *(pytest.param(PLANS[name], marks=pytest.mark.slow) for name in [*PLANS][1:])]
)
@pytest.mark.slow
def test_the_bytes_of_a_rank_are_the_same_whichever_are_written(tmp_path, plan):
    write(tmp_path / "all", **plan)
    every = trace_files(tmp_path / "all")
    assert len(every) == 8
    for number, ranks in enumerate(("stages", [5], [6, 1, 6])):
        write(tmp_path / str(number), ranks=ranks, **plan)
        some = trace_files(tmp_path / str(number))
        assert some and some == {name: every[name] for name in some}


def test_a_run_goes_on_where_it_was_stopped(whole, tmp_path):
    first = write(tmp_path, ranks=[2, 7])
    assert (first.written.kept, {*trace_files(tmp_path)}) == (0, {"trace.2.et", "trace.7.et"})
    marked = {name: os.stat(tmp_path / name).st_mtime_ns for name in trace_files(tmp_path)}
    again = write(tmp_path)
    assert (again.written.kept, again.written.ranks) == (2, (*range(8),))
    assert "; 2 files kept" in str(again)
    assert content(tmp_path) == content(whole)
    assert marked == {name: os.stat(tmp_path / name).st_mtime_ns for name in marked}
    assert (write(tmp_path).written.kept, write(tmp_path).written.num_bytes) == (8, 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["trace.3.et", "comm_groups.json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data[:50] + b"?" + data[51:]])
def test_a_damaged_file_is_written_again(whole, tmp_path, caplog, name, damage):
    for own, data in content(whole).items():
        (tmp_path / own).write_bytes(damage(data) if own == name else data)
    caplog.set_level("INFO", "dsx")
    assert write(tmp_path).written.kept == (7 if name.endswith(".et") else 8)
    assert content(tmp_path) == content(whole)
    assert "written again" in caplog.text


def failing(monkeypatch, name, wanted, error):
    """Let a method of OpenFolder fail at a file of a trace: the one that is the `wanted`-th to be made."""
    method, calls = getattr(OpenFolder, name), []

    def fail(self, *arguments, **options):
        calls.append(arguments)
        result = method(self, *arguments, **options)
        if len(calls) == wanted:
            raise error
        return result

    monkeypatch.setattr(OpenFolder, name, fail)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_ctrl_c_while_a_file_is_written_leaves_no_temporary_file(whole, tmp_path, monkeypatch, wanted):
    with monkeypatch.context() as patched:
        failing(patched, "create", wanted, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path)
    assert len(content(tmp_path)) == wanted - 1
    assert content(tmp_path).keys() < content(whole).keys()
    write(tmp_path)
    assert content(tmp_path) == content(whole)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_file_that_cannot_be_written(whole, tmp_path, monkeypatch, code):
    with monkeypatch.context() as patched:
        failing(patched, "create", 4, OSError(code, os.strerror(code)))
        with pytest.raises(StoreError, match=f"cannot write the trace to '{tmp_path}': {os.strerror(code)}"):
            write(tmp_path)
    assert {*content(tmp_path)} == {"comm_groups.json", "manifest.json", "trace.0.et"}
    write(tmp_path)
    assert content(tmp_path) == content(whole)


@pytest.mark.slow
def test_too_little_space_is_known_before(tmp_path, monkeypatch):
    write(tmp_path, ranks=[0])
    before = trace_files(tmp_path)
    needed = 3 * len(before["trace.0.et"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1025, f_frsize=1024))
        with pytest.raises(StoreError, match=r"needs .* more in .*, where 1.05 MB are free: write fewer ranks"):
            write(tmp_path)
    assert trace_files(tmp_path) == before
    with monkeypatch.context() as patched:
        # Room for the first stage and not for the second: nothing is written.
        patched.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=(1 << 20) + needed + 1, f_frsize=1))
        with pytest.raises(StoreError, match=r"the trace needs .* free"):
            write(tmp_path)
    assert trace_files(tmp_path) == before
    with monkeypatch.context() as patched:
        # The files of a stage and 1 MiB that stays free.
        patched.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=(1 << 20) + needed, f_frsize=1))
        write(tmp_path, ranks=[0, 1, 2, 3])
    assert len(trace_files(tmp_path)) == 4


def model_with(**changes):
    return MODEL | changes


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"tp": 4, "pp": 2, "dp": 1}, r"tp 2, not 4; dp 2, not 1"),
        ({"schedule": "gpipe"}, r"\(schedule '1f1b', not 'gpipe'\)"),
        ({"forward_only": True}, r"\(forward_only False, not True\)"),
        ({"portable": False}, r"\(portable True, not False\)"),
        ({"slow": "3=1.5", "durations": True, "of_job": job(cluster="h100-nvs8")}, r"slow \[\], not \['3=1.5'\]"),
        ({"tensors": False}, r"\(tensors True, not False\)"),
        ({"of_job": job(model_with(name="other"))}, r"\(model 'small', not 'other'\)"),
        ({"of_job": job(model_with(dimensions=MODEL["dimensions"] | {"f": 2048}))}, r"\(f 1024, not 2048\)"),
        ({"of_job": job(sequence_length=1024)}, r"\(sequence_length 512, not 1024\)"),
        ({"of_job": job(model_with(layers=[{"kind": "transformer", "count": 8}]))}, "other layers"),
        (
            {"of_job": job(model_with(layers=[{"kind": "transformer", "count": 4, "options": ["gated"]}]))},
            "other layer definitions",
        ),
        ({"of_job": job(set={"assumptions.weight_bytes": 4})}, "other values of cluster or assumptions"),
    ],
)
def test_another_trace_is_not_mixed_in(whole, tmp_path, other, said):
    for name, data in content(whole).items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(StoreError, match=rf"{tmp_path} has another trace .*{said}.*: give another folder"):
        write(tmp_path, **other)
    assert content(tmp_path) == content(whole)


@pytest.mark.slow
def test_durations_of_another_cluster_are_not_mixed_in(tmp_path):
    write(tmp_path, job(cluster="h100-nvs8"), durations=True, ranks=[0])
    before = content(tmp_path)
    slower = {"cluster.device.matrix_flops": "100 TFLOP/s"}
    for of_job, durations, said in (
        (job(cluster="b200-nvs8"), True, "cluster 'h100-nvs8', not 'b200-nvs8'"),
        (job(cluster="h100-nvs8", set=slower), True, "other values of cluster"),
        (job(cluster="h100-nvs8"), False, "cluster 'h100-nvs8', not None"),
    ):
        with pytest.raises(StoreError, match=said):
            write(tmp_path, of_job, durations=durations)
    assert content(tmp_path) == before


def test_the_files_of_another_version_are_not_mixed_in(tmp_path, monkeypatch):
    write(tmp_path, ranks=[0])
    monkeypatch.setattr(dsx, "__version__", "99")
    with pytest.raises(StoreError, match=r"another trace \(dsx_version '.*', not '99'\)"):
        write(tmp_path)


def write_layer(folder, text):
    layer = folder / "own.layer"
    layer.write_text(text)
    sizes = {"b": 1, "s": 64, "e": 64, "f": 128, "tp": 2}
    return dsx.trace.write_layer(layer, sizes=sizes, out=folder / "out", strategy="1d")


def test_an_edited_layer_is_another_trace(tmp_path):
    text = "layer own\ninput x[b, s, e]\nweight w[e, f/tp]\ny[b, s, f/tp] = einsum(x, w)\nz[b, s, f/tp] = {}(y)\n"
    assert write_layer(tmp_path, text.format("gelu")).written.ranks == (0, 1)
    assert write_layer(tmp_path, "# a comment\n" + text.format("gelu")).written.kept == 2
    with pytest.raises(StoreError, match=r"another trace \(other layer definitions\)"):
        write_layer(tmp_path, text.format("silu"))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"x.0.et": ""}, r"has trace files without a manifest \(x.0.et\)"),
        ({"manifest.json": "{}"}, "has a manifest.json of something else"),
        ({"manifest.json": "["}, "has a manifest.json of something else"),
        ({"manifest.json": '{"trace": "x", "ranks": 3}'}, "has a manifest.json of something else"),
        ({"manifest.json": '{"trace": "x", "ranks": []}'}, "has another trace"),
    ],
)
def test_files_of_others_stay(tmp_path, names, said):
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match=f"{said}.*: give another folder"):
        write(tmp_path)
    assert content(tmp_path) == {name: text.encode() for name, text in names.items()}


def test_other_files_links_and_groups_of_a_folder_stay(whole, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path)
    assert content(tmp_path) == content(whole) | {"notes.txt": b"mine"}
    # A link is replaced and not followed.
    other, folder = tmp_path / "other", tmp_path / "traces"
    other.write_text("mine")
    folder.mkdir()
    write(folder, ranks=[1])
    (folder / "trace.0.et").symlink_to(other)
    assert write(folder, ranks=[0, 1]).written.kept == 1
    assert other.read_text() == "mine"
    assert trace_files(folder)["trace.0.et"] == trace_files(whole)["trace.0.et"]


def test_files_in_the_place_of_folders_and_groups_stay(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file' is a file: name a folder for the trace"):
        write(tmp_path / "file")
    with pytest.raises(StoreError, match="Not a directory"):
        write(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"
    # Process groups of something else stay.
    (tmp_path / "comm_groups.json").write_text('{"1": [0, 1]}')
    with pytest.raises(StoreError, match=r"comm_groups\.json of something else: give another folder"):
        write(tmp_path)
    assert (tmp_path / "comm_groups.json").read_text() == '{"1": [0, 1]}'


def stands_for(folder):
    return json.loads((folder / "manifest.json").read_text()).get("stands_for")


@pytest.mark.slow
def test_a_rank_of_each_stage_stands_for_the_others_until_they_are_there(whole, tmp_path):
    for ranks, there, expected in (
        ("stages", [0, 4], {"0": [0, 1, 2, 3], "4": [4, 5, 6, 7]}),
        ([1], [0, 1, 4], {"0": [0, 1, 2, 3], "4": [4, 5, 6, 7]}),
        ("all", [*range(8)], None),
        ("stages", [*range(8)], None),
    ):
        write(tmp_path, ranks=ranks)
        assert stands_for(tmp_path) == expected
        assert json.loads((tmp_path / "manifest.json").read_text())["ranks"] == there
    assert content(tmp_path) == content(whole)


@pytest.mark.slow
def test_ranks_that_are_not_there(tmp_path):
    for ranks in ([8], [0, -1], "0,8"):
        with pytest.raises(InputError, match=r"there is no rank (8|-1); the job has the ranks 0 to 7"):
            write(tmp_path / "new", ranks=ranks)
    for ranks in ("foo", "", "0,,1", [], [1.5], ["a"], None, 3):
        with pytest.raises(InputError, match=r"ranks: .* is given.*; all, stages, or numbers as in 0,5,9 are wanted"):
            write(tmp_path / "new", ranks=ranks)
    with pytest.raises(InputError, match="did you mean 'stages'"):
        write(tmp_path / "new", ranks="stage")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("manifest", ["[" * 100_000, '{"trace": "x", "ranks": [1e999]}'], ids=["deep", "infinite"])
def test_a_manifest_that_cannot_be_read(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(StoreError, match=r"has a manifest\.json of something else"):
        write(tmp_path)


SHIFT = """layer shift
input  x[b, s/tp, e]
data   ids[b, s/tp]
weight table[v, e]
y[b, s/tp, e]      = lookup(ids, table)
output[b, s/tp, e] = add(x, y)
"""


@pytest.mark.slow
def test_a_gradient_that_the_first_layer_of_a_stage_passes_on_is_sent(tmp_path):
    """A layer without work in its backward has the gradient of its result as that of its input."""
    (tmp_path / "shift.layer").write_text(SHIFT)
    kinds = ("transformer", str(tmp_path / "shift.layer"), "transformer")
    model = MODEL | {"layers": [{"kind": kind} for kind in kinds], "dimensions": MODEL["dimensions"] | {"v": 512}}
    of_job = job_of(model, 2, 4, set={"assumptions.uncounted": "[add]"})
    for stage_layers, layer in (("1,2", 2), ("2,1", 2)):
        folder = tmp_path / stage_layers
        dsx.trace.write(of_job, out=folder, ranks=[1], pp=2, stage_layers=stage_layers)
        (trace,) = traces(open_folder(folder))
        sends = [row for row in range(trace.num_nodes) if trace.types[row] == COMM_SEND]
        read = {trace.tensors[place] for row in sends for place in trace.reads.of(row)}
        assert read == {f"m{microbatch}.L{layer:03d}.d x" for microbatch in range(4)}
