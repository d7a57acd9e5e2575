"""Result folders that are damaged, or that somebody sent: every verb says what is wrong, and touches nothing else."""

import json
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsx
from dsx.errors import StoreError

DEEP = "[" * 100_000
TOO_LONG = 10**4290  # digits that Python reads, and no column holds


def contents(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder, byte for byte; links by where they lead."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
    return found


@pytest.fixture
def sent(swept, tmp_path):
    """A copy of a result set, beside a file of the user."""
    shutil.copytree(swept, tmp_path / "home" / "set")
    (tmp_path / "home" / "victim.txt").write_text("of the user")
    return tmp_path / "home" / "set"


@pytest.fixture
def again(swept):
    """The command that made the set, into another folder."""
    return lambda folder: ("sweep", swept.parent / "sweep.yaml", "-o", folder)


def without(*path):
    def change(manifest):
        *sections, key = path
        for section in sections:
            manifest = manifest[section]
        del manifest[key]

    return change


def put(value, *path):
    def change(manifest):
        *sections, key = path
        for section in sections:
            manifest = manifest[section]
        manifest[key] = value

    return change


CHANGES = {
    "no names": (without("names"), "names"),
    "names of few columns": (put({}, "names"), "names"),
    "names of other columns": (put(["a"], "names", "tp"), "names: 'tp' is not a name column"),
    "other names": (put(["a", "b"], "names", "strategy"), "names.strategy"),
    "no list of names": (put("1d", "names", "strategy"), "names.strategy"),
    "a name that is no text": (put(["\ud800"], "names", "cluster"), "is not JSON that can be read"),
    "no spec": (without("spec"), "spec"),
    "spec is a list": (put([], "spec"), "spec"),
    "no resolved": (without("spec", "resolved"), "spec.resolved"),
    "resolved is a text": (put("x", "spec", "resolved"), "spec.resolved"),
    "no model": (without("spec", "resolved", "model"), "spec.resolved.model"),
    "model is a number": (put(1, "spec", "resolved", "model"), "spec.resolved.model"),
    "model without a name": (without("spec", "resolved", "model", "name"), "spec.resolved.model.name"),
    "no assumptions": (without("spec", "resolved", "assumptions"), "spec.resolved.assumptions"),
    "fewer strategies": (put([], "spec", "resolved", "strategy"), "names.strategy"),
    "more clusters": (put([{"name": "a"}] * 2, "spec", "resolved", "clusters"), "names.cluster"),
    "no layers": (put({}, "spec", "resolved", "layers"), "spec.resolved.layers"),
    "no num_gpus": (without("spec", "num_gpus"), "spec.num_gpus"),
    "num_gpus of texts": (put(["8"], "spec", "num_gpus"), "spec.num_gpus"),
    "a large number": (put([TOO_LONG], "spec", "num_gpus"), "more than 64 bits"),
    "no keep": (without("spec", "keep"), "spec.keep"),
    "keep is a list": (put([], "spec", "keep"), "spec.keep"),
    "another what-if": (put({"device.hbm_capacity": "80 GB"}, "spec", "what_if"), "what_if"),
    "what-if is a number": (put(1, "spec", "what_if"), "spec.what_if"),
    "no picture": (put({"kind": "none"}, "spec", "plot"), "spec.plot.kind"),
    "partition": (put([], "spec", "partition"), "spec.partition"),
    "not a number": (put(float("nan"), "spec", "train_tokens"), "NaN is not a number"),
    "infinite": (put(float("inf"), "counts", "feasible"), "Infinity is not a number"),
    "counts of texts": (put("many", "counts", "candidates"), "counts.candidates"),
    "counts below 0": (put(-1, "counts", "candidates"), "counts.candidates"),
    "no counts": (put(None, "counts"), "counts"),
    "rows": (put(True, "parts", 0, "rows"), "parts.0.rows"),
    "a part elsewhere": (put("../elsewhere/part-00000.parquet", "parts", 0, "file"), "parts.0.file"),
    "an absolute part": (put("/etc/passwd", "parts", 0, "file"), "parts.0.file"),
    "what-if column twice": (
        put([{"name": "tp", "unit": "", "description": "", "integer": True}], "what_if"),
        "a column is listed twice",
    ),
    "reasons": (put([{"name": "a", "description": ""}] * 64, "reject_reasons"), "reject_reasons"),
}


def verbs(folder, candidate=1):
    return [
        ("show", folder),
        ("show", folder, "--json"),
        ("show", folder, "--candidate", candidate),
        ("compare", folder, folder),
        ("pareto", folder),
        ("plot", folder, "-o", folder.parent / "a.png", "--kind", "front"),
        ("why", folder, candidate),
    ]


def check_refused(run, folder, says, *argv):
    done = run(*argv)
    assert (done.code, done.out) == (2, ""), (argv, done.err[-300:])
    assert str(folder) in done.err
    assert says in done.err
    assert len(done.err) < 3000


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_that_is_none(run, sent, again, name):
    change, says = CHANGES[name]
    manifest = json.loads((sent / "manifest.json").read_text())
    change(manifest)
    (sent / "manifest.json").write_text(json.dumps(manifest))
    before = contents(sent.parent)
    for argv in (("show", sent), again(sent)):
        check_refused(run, sent, says, *argv)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        dsx.load(sent)
    assert contents(sent.parent) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [DEEP, '{"a":' * 100_000, "9" * 5000, '{"schema_version": ' + "9" * 4000 + "}", "NaN", "\0", '"\\ud800"', ""],
    ids=["lists", "objects", "digits", "version", "nan", "zero", "surrogate", "empty"],
)
def test_every_verb_refuses_what_cannot_be_read(run, sent, again, text):
    (sent / "manifest.json").write_text(text)
    for argv in (*verbs(sent), again(sent)):
        check_refused(run, sent, "manifest.json is not", *argv)


@pytest.mark.parametrize(("verb", "path"), [("why", "model"), ("why", "assumptions"), ("show", "assumptions")])
def test_a_file_that_was_priced_and_is_none(run, sent, verb, path):
    manifest = json.loads((sent / "manifest.json").read_text())
    manifest["spec"]["resolved"][path] = {"name": "odd", "default_sequence_length": 8, "layers": [{"name": []}]}
    (sent / "manifest.json").write_text(json.dumps(manifest))
    candidate = dsx.load(sent, ["candidate"])["candidate"].iloc[0]
    done = run("why", sent, candidate) if verb == "why" else run("show", sent)
    # The set itself can be shown, only its launch flags cannot.
    assert done.code == (2 if verb == "why" else 0)
    assert f"{sent}: its manifest states a " in done.err
    assert "that this dsx cannot read" in done.err
    assert run("compare", sent, sent).code == 0


def changed_part(table, path):
    metadata = pq.read_schema(path).metadata
    pq.write_table(table.replace_schema_metadata(metadata), path)


def changed(name, values):
    """Put other values into a column."""

    def spoil(table, path):
        changed_part(table.set_column(table.column_names.index(name), name, values(table)), path)

    return spoil


of_another_type = changed("tp", lambda table: table["tp"].cast(pa.string()))
with_no_ranks = changed("cp_nvs", lambda table: pa.array([0] * len(table), pa.int32()))
with_nulls = changed("step_time_s", lambda table: pa.array([None] * len(table), table["step_time_s"].type))
with_another_name = changed("strategy", lambda table: pa.array(["another"] * len(table)).dictionary_encode())
without_codes = changed("strategy", lambda table: table["strategy"].cast(pa.string()))


def with_a_column_twice(table, path):
    changed_part(table.append_column("tp", table["tp"]), path)


def a_link(table, path):
    path.rename(path.parent.parent / "elsewhere.parquet")
    path.symlink_to(path.parent.parent / "elsewhere.parquet")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (of_another_type, "has a column tp of string where tp of int32 belongs"),
        (with_nulls, "in column step_time_s"),
        (with_another_name, "has 'another' in column strategy, which is not one of its names"),
        (without_codes, "has a column strategy of string where strategy of names as string belongs"),
        (with_a_column_twice, "columns, not"),
        (a_link, "is a link, which is not followed here"),
        (lambda table, path: os.truncate(path, 100), "cannot be read"),
        (lambda table, path: path.unlink(), "is missing"),
        (lambda table, path: (path.unlink(), os.mkfifo(path)), "is not a file"),
        (lambda table, path: (path.unlink(), path.mkdir()), "is not a file"),
    ],
    ids="type nulls name codes twice link cut missing pipe folder".split(),
)
def test_a_part_that_is_not_what_its_manifest_says(run, sent, spoil, says):
    part, candidate = sent / "part-00000.parquet", dsx.load(sent, ["candidate"])["candidate"].iloc[0]
    spoil(pq.read_table(part), part)
    for argv in verbs(sent, candidate):
        check_refused(run, part, says, *argv)
    with pytest.raises(StoreError, match="part-00000"):
        dsx.load(sent)


def test_numbers_that_no_plan_can_have(run, sent):
    part = sent / "part-00000.parquet"
    with_no_ranks(pq.read_table(part), part)
    for argv in (("show", sent), ("pareto", sent)):
        check_refused(run, part, "has 0 in column cp_nvs, where the smallest value is 1", *argv)


@pytest.mark.parametrize("spoil", [of_another_type, without_codes, with_a_column_twice])
def test_a_damaged_part_is_made_again(run, sent, again, swept, spoil):
    part = sent / "part-00000.parquet"
    spoil(pq.read_table(part), part)
    assert run(*again(sent)).code == 0
    assert dsx.load(sent).equals(dsx.load(swept))


def linked_folder(run_folder):
    (run_folder.parent.parent / "mine").mkdir()
    (run_folder.parent.parent / "mine" / "notes.txt").write_text("of the user")
    run_folder.symlink_to(run_folder.parent.parent / "mine")


def holding(name, put):
    """Make a folder, and in it a file of this name."""

    def make(run_folder):
        run_folder.mkdir()
        (run_folder / name).parent.mkdir(exist_ok=True)
        put(run_folder / name, run_folder.parent.parent / "victim.txt")

    return make


def foreign_file(name):
    return holding(name, lambda path, _: path.write_text("of the user"))


def linked_file(name):
    return holding(name, Path.symlink_to)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "make",
    [
        linked_folder,
        lambda run_folder: run_folder.write_text("of the user"),
        lambda run_folder: run_folder.symlink_to("nowhere"),
        foreign_file("notes.txt"),
        foreign_file("poetry.lock"),
        foreign_file("sub/notes.txt"),
        linked_file("run.lock"),
        linked_file("entry.lock"),
        linked_file("shard-1-of-2.lock"),
        linked_file("replaced.json"),
        linked_file("manifest.json"),
        linked_file("part-00000.parquet"),
        linked_file(".0123abcd.partial"),
        holding("run.lock", Path.hardlink_to),
    ],
    ids="folder-link file dangling note lock sub run entry shard replaced manifest part partial hard".split(),
)
@pytest.mark.parametrize("has_set", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["set", "none"])
def test_a_folder_that_is_not_ours_is_left_alone(run, sent, again, make, has_set):
    if not has_set:
        shutil.rmtree(sent)
        sent.mkdir()
    make(sent / ".unfinished")
    before = contents(sent.parent)
    for more in ((), ("--shard", "1/2"), ("--finish",)):
        check_refused(run, sent / ".unfinished", "move .unfinished elsewhere", *again(sent), *more)
    assert contents(sent.parent) == before
    if has_set:
        assert run("show", sent).code == 0


@pytest.mark.parametrize("name", ["manifest.json", "part-00000.parquet", "part-00007.parquet"])
def test_links_in_the_place_of_files_of_a_set(run, sent, again, name):
    (sent / name).unlink(missing_ok=True)
    (sent / name).symlink_to(sent.parent / "victim.txt")
    before = contents(sent.parent)
    check_refused(run, sent / name, "is not a file of dsx", *again(sent))
    assert contents(sent.parent) == before


def test_the_folder_of_the_user_may_be_a_link(run, folder, again):
    (folder / "disk").mkdir()
    (folder / "out").symlink_to(folder / "disk")
    assert run(*again("out")).code == 0
    assert (folder / "out").is_symlink()
    assert sorted(path.name for path in (folder / "disk").iterdir()) == ["manifest.json", "part-00000.parquet"]
    assert "is complete since" in run(*again("out")).err
    assert run("show", "out").code == 0


@pytest.mark.parametrize("keep", ["all", pytest.param("{top: 2, per: [num_gpus]}", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_names_that_are_not_utf_8(run, folder, keep, monkeypatch):
    # As the interpreter has it; pytest puts a stricter one in its place.
    sys.stderr.reconfigure(errors="backslashreplace")
    place = Path(os.fsdecode(b"d\xff\xfe"))
    place.mkdir()
    shutil.copy("small.yaml", place)
    shutil.copy("sweep.yaml", place / os.fsdecode(b"\xff.yaml"))
    spec, out = place / os.fsdecode(b"\xff.yaml"), place / os.fsdecode(b"out\xff")
    options = ("--set", f"sweep.keep={keep}", "--set", "sweep.part_size=10")
    with monkeypatch.context() as patch:
        from dsx.results.writer import Writer

        write, written = Writer.write, []

        def stopping(self, *arguments):
            if len(written) == 2:
                raise KeyboardInterrupt
            written.append(arguments)
            write(self, *arguments)

        patch.setattr(Writer, "write", stopping)
        assert run("sweep", spec, "-o", out, *options).code == 4
    again = run("sweep", spec, "-o", out, *options, "--json")
    assert again.code == 0
    assert "2 of " in again.err
    assert "is complete since" in run("sweep", spec, "-o", out, *options, "--json").err
    shown = json.loads(run("show", out, "--json").out)
    assert shown["folder"] == str(out)
    assert os.fsencode(shown["spec_file"]) == os.fsencode(spec.resolve())
    assert run("sweep", "sweep.yaml", "-o", "plain", *options).code == 0
    assert dsx.load(out).equals(dsx.load("plain"))
    assert run("compare", out, "plain", "--json").code == 0
    assert run("pareto", out, "--json").code == 0
    assert run("plot", out, "--kind", "front", "-o", place / "front.png").code == 0
    candidate = str(dsx.load(out, ["candidate"])["candidate"].iloc[0])
    assert run("why", out, candidate).code in (0, 3)


def with_layers(folder, text):
    """Write one cut into all rows, which are returned as they were."""
    path = folder / "part-00000.parquet"
    table = pq.read_table(path)
    changed("stage_layers", lambda table: pa.array([text] * len(table), pa.string()))(table, path)
    return table


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["abc", "", "1,2,x", "\x1b[31m,3", "9" * 20 + ",1", "-5,39", "0,34", "1,,2"])
def test_layers_of_stages_that_are_none(run, optimal, text):
    table = with_layers(optimal, text)
    for argv in (("show", optimal, "--json"), ("why", optimal, table["candidate"][0].as_py())):
        check_refused(run, optimal, "in column stage_layers", *argv)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["1", "1,1,1,1,1,1,1,1,1,1", "400,400"])
def test_layers_of_stages_of_another_plan(run, optimal, text):
    with_layers(optimal, text)
    candidate = dsx.load(optimal).query("pp == 2")["candidate"].iloc[0]
    done = run("why", optimal, candidate)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


@pytest.fixture
def optimal(run, folder):
    """A result set of plans with a cut of their own."""
    arguments = ("--set", "sweep.partition=optimal", "--set", "sweep.strategy=1d")
    assert run("sweep", "sweep.yaml", "-o", "optimal", *arguments).code == 0
    return folder / "optimal"
