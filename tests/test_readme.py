"""Every command and every Python block of README.md and of the guide runs as printed, in a copy of the repository."""

import os
import subprocess
import sys

import pytest
from checkout import OPTIMISED, ROOT, assert_shown, blocks, commands, make_checkout, run

PAGES = {page.stem: blocks(page) for page in (ROOT / "README.md", ROOT / "docs" / "guide.md")}
COMMANDS = {
    name: [one for kind, block in of for one in commands(block) if kind == "console"] for name, of in PAGES.items()
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return make_checkout(tmp_path_factory.mktemp("checkout"))


def test_the_readme_is_short_and_begins_with_a_question_and_its_answer():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150 and lines[2].endswith("?")
    command, shown = COMMANDS["README"][0]
    assert command.startswith(".venv/bin/dsx best") and shown
    # The readme has its two commands.
    assert [command for command, _ in COMMANDS["README"] if command.startswith("make")] == ["make sweep", "make test"]


@pytest.mark.documents
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_and_the_python_run(checkout, page):
    for command, shown in COMMANDS[page]:
        if not command.startswith("make"):
            printed = run(checkout, command)
            assert printed.strip() or "plot" in command, command
            if shown:
                assert_shown(shown, printed)
    # The python runs.
    for kind, snippet in PAGES[page]:
        if kind == "python":
            python = [sys.executable, "-c", snippet]
            done = subprocess.run(python, cwd=checkout, env=os.environ | OPTIMISED, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    if page == "guide":
        assert (checkout / "results" / "front.png").stat().st_size > 10_000
