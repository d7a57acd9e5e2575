"""Every how-to runs as printed: its files, commands and Python blocks, in order, in a copy of the repository.

Where a command is followed by output, its stdout is that; a line of three dots stands for any lines. A notebook runs
cell by cell.
"""

import ast
import re

import pytest
from checkout import ROOT, assert_shown, blocks, commands, make_checkout, run

from dsx.search import sweep as sweep_parts

DOCUMENTS = sorted((ROOT / "docs" / "how-to").glob("*.md"))
NOTEBOOK = ROOT / "docs" / "how-to" / "notebook.py"
# The comment that names a file is its first line, or stands behind the shebang.
NAME = re.compile(r"\A(?:#!.*\n)?# (\S+\.(?:yaml|layer|csv|sbatch))\b")
FILES, COMMANDS, SNIPPETS, SHOWN = ("yaml", "text", "bash"), "console", "python", "sh"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_a_how_to_is_short_and_says_what_its_blocks_are(document):
    assert len(document.read_text(encoding="utf-8").splitlines()) <= 120
    for kind, block in blocks(document):
        assert kind in (*FILES, COMMANDS, SNIPPETS, SHOWN)
        assert kind not in FILES or NAME.match(block), block


def test_the_index_lists_every_how_to_and_the_notebook_is_short():
    index = (ROOT / "docs" / "how-to" / "README.md").read_text(encoding="utf-8")
    there = {path.name for path in (*DOCUMENTS, NOTEBOOK)} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.\w+)\)", index)) == there
    # The sizes of parts are those of the code.
    text = (ROOT / "docs" / "how-to" / "long-sweeps.md").read_text(encoding="utf-8")
    assert f"{sweep_parts.ROWS:,}" in text
    assert "four billion" in text and round(sweep_parts.REDUCED / 1e9) == 4
    # A notebook is short.
    assert len(NOTEBOOK.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.documents
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_a_how_to_runs(checkout, document, monkeypatch):
    if any(kind == SNIPPETS and "import torch" in block for kind, block in blocks(document)):
        pytest.importorskip("torch", reason="torch is no dependency of dsx")
    monkeypatch.chdir(checkout)
    names = {}
    for kind, block in blocks(document):
        if kind in FILES:
            file = checkout / NAME.match(block)[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(block, encoding="utf-8")
        elif kind == COMMANDS:
            for command, shown in commands(block):
                printed = run(checkout, command)
                if shown:
                    assert_shown(shown, printed)
        elif kind == SNIPPETS:
            exec(compile(block, document.name, "exec"), names)


def cells(notebook):
    """Yield the code of each cell of a notebook in percent format, and the expression that the cell shows, if any."""
    for cell in re.split(r"^# %%", notebook, flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            assert all(line.startswith("#") for line in body.split("\n") if line), body
            continue
        tree = ast.parse(body)
        shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        yield compile(tree, "notebook", "exec"), shown and compile(shown, "notebook", "eval")


@pytest.mark.documents
@pytest.mark.usefixtures("optimised")
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names, shown = {}, []
    for code, expression in cells(NOTEBOOK.read_text(encoding="utf-8")):
        exec(code, names)
        if expression is not None and (value := eval(expression, names)) is not None:
            shown.append(value._repr_html_())
    assert len(shown) == 8 and all(shown)
    best_of = names["best_of"]
    # What the text says of them.
    plans = {name: best.plan for name, best in best_of.items()}
    assert all(plan["cp"] == plan["pp"] == 1 and plan["tp_nvs"] == plan["tp"] for plan in plans.values())
    assert plans["a tenth of the network"] == plans["as it is"] and plans["as it is"]["tp"] > 1
    assert plans["141 GB of HBM"]["tp"] == 1 and plans["141 GB of HBM"]["zero_stage"] > 0
    assert plans["both"]["microbatch_size"] > plans["as it is"]["microbatch_size"]
    assert plans["both"]["tp"] == plans["as it is"]["tp"]
    assert best_of["both"].step_time_s < best_of["a tenth of the network"].step_time_s
    assert (tmp_path / "notebook.png").stat().st_size > 10_000
