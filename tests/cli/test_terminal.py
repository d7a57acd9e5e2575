"""What verbs print of names that hold control characters, formulas, or what no encoding has."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import MODEL
from runs.tables import write

import dsx
from dsx.text import printable
from dsx.verbs.process import escaped

DSX = Path(sys.executable).with_name("dsx")
NAME = "evil\x1b[31m\x1b]0;title\x07\nline \N{RIGHT-TO-LEFT OVERRIDE}$x^{"
JOB = ("--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 8, "--assumptions", "paper-2410.00273")


def is_clean(text: str) -> bool:
    return printable(text, keep="\n\t") == text


@pytest.fixture
def evil(folder) -> Path:
    """A folder whose model has a hostile name, and its sweep."""
    quoted = NAME.replace("\x1b", r"\e").replace("\x07", r"\a").replace("\n", r"\n")
    (folder / "small.yaml").write_text(MODEL.replace("name: small", f'name: "{quoted}"'))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("best", *JOB),
        ("evaluate", *JOB, "dp=8", "nvs.dp=8"),
        ("why", *JOB, "dp=8"),
        ("partition", *JOB),
        ("layer", "transformer"),
    ],
)
def test_a_models_name_is_escaped(run, evil, arguments):
    verb, *others = arguments
    done = run(verb, *others, "--model", "small.yaml")
    assert done.code == 0
    assert is_clean(done.out + done.err)
    if verb != "layer":
        # On one line, so that it cannot pass for what dsx says.
        assert done.out.splitlines()[0].startswith(printable(NAME) + " on 8 x b200-nvs8")


@pytest.mark.slow
def test_hostile_names_of_models_clusters_and_files(run, evil):
    assert run("sweep", "sweep.yaml", "-o", "a").code == 0
    shown = run("show", "a")
    assert is_clean(shown.out)
    assert shown.out.startswith(printable(NAME))
    for verb in (("compare", "a", "a"), ("pareto", "a"), ("show", "a", "--json")):
        assert is_clean(run(*verb).out)
    assert run("plot", "a", "--kind", "breakdown", "-o", "a.png").code == 0
    assert run("partition", *JOB, "--model", "small.yaml", "--plot", "b.png").code == 0
    # Json is one object whatever the names.
    assert run("sweep", "sweep.yaml", "-o", "a").code == 0
    assert json.loads(run("show", "a", "--json").out)["model"] == NAME


def test_names_of_files_and_strategies_are_escaped(run, folder):
    strange = os.fsdecode(b"\xff\x1b[2J")
    for arguments in (("show", strange), ("sweep", f"{strange}.yaml"), ("best", *JOB, "--model", f"{strange}.yaml")):
        done = run(*arguments)
        assert done.code == 2
        assert is_clean(done.err)
        assert r"\x1b[2J" in done.err
    # Names of strategies in a picture.
    import pandas as pd

    frame = pd.DataFrame({"strategy": ["$a^{", "b\x1b"], "num_gpus": [8, 8], "mfu": [0.1, 0.2], "reject": 0})
    ax = dsx.plot.scaling(frame.assign(global_batch_size=8), "num_gpus", "mfu", by="strategy")
    dsx.plot.save(ax, "scaling.png")


@pytest.mark.parametrize("start", ["=HYPERLINK(1)", "+1", "-1", "@a", "\N{FULLWIDTH EQUALS SIGN}a"])
def test_a_spreadsheet_runs_nothing_of_what_validate_writes(run, folder, start):
    write(folder / "runs.csv", {"id": start, "n_gpus": "24"}, {"id": "plain", "n_gpus": "24"}, {})
    assert run("validate", "runs.csv", "-o", "rows.csv").code == 0
    with open("rows.csv", encoding="utf-8") as file:
        first, second, _ = csv.DictReader(file)
    assert (first["id"], second["id"]) == (f"'{start}", "plain")


@pytest.mark.slow
def test_streams_and_completions(folder):
    (folder / "small.yaml").write_text(MODEL.replace("name: small", 'name: "größe"'), encoding="utf-8")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [DSX, "evaluate", *map(str, JOB), "--model", "small.yaml", "dp=8", "nvs.dp=8"]
    done = subprocess.run(command, capture_output=True, text=True, env=ascii_only)
    assert done.returncode == 0
    assert done.stdout.startswith(r"gr\xf6\xdfe on 8 x")
    # Completions keep their tabs.
    asked = {
        "_DSX_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "dsx ",
    }
    done = subprocess.run([DSX], capture_output=True, text=True, env=os.environ | asked)
    assert any(line.startswith("sweep\t") for line in done.stdout.splitlines())


@pytest.mark.slow
def test_clusters_and_ids_begin_no_lines(run, folder):
    (folder / "mine.yaml").write_text(f'extends: h100-nvs8\nname: "{NAME.encode("unicode_escape").decode()}"\n')
    done = run("clusters", "show", "mine.yaml", "--plot", "mine.png")
    assert done.code == 0
    assert is_clean(done.out)
    assert done.out.splitlines()[0].startswith(f"{printable(NAME)}: ")
    # Ids of runs begin no lines.
    write(folder / "runs.csv", {"id": "a\ndsx: fake", "n_gpus": "24"}, {"id": "b"})
    done = run("validate", "runs.csv", "-o", "rows.csv")
    assert done.code == 0
    assert not any(line.startswith("dsx: fake") for line in (done.out + done.err).splitlines())
    assert "\ndsx: fake" not in (folder / "rows.csv").read_text()


def test_the_escaping_stream_has_the_attributes_of_a_text_stream_alone():
    plain = sys.stdout
    with escaped():
        assert (sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.writable()) == (
            plain.isatty(),
            plain.encoding,
            True,
        )
        with pytest.raises(AttributeError, match="colour"):
            sys.stdout.colour  # noqa: B018
