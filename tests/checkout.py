"""A copy of the repository in which documents are tried, and how their commands run there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIMISED = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}  # the code of users, in processes of tests
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document):
    """Return the fenced blocks of a document, each with its kind."""
    return BLOCK.findall(document.read_text(encoding="utf-8"))


def commands(block):
    """Yield each command of a console block with the lines that are shown below it."""
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = text.rstrip("\n").split("\n")
        yield command, shown


def assert_shown(shown, printed):
    """Check that a command printed the lines that are shown; three dots stand for any lines."""
    pattern = "".join("(?:.*\n)*" if line == "..." else f"{re.escape(line)}\n" for line in shown)
    actual = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    assert re.fullmatch(pattern, actual), printed


def make_checkout(folder):
    """Copy the sources into `folder`, with this environment as its `.venv`, and run what `make sweep` runs there."""
    for name in ("data", "docs", "examples", "sweeps", "dsx"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").symlink_to(Path(sys.prefix))
    run(folder, "dsx sweep sweeps/gpt3-1t-b200.yaml -o results/gpt3-1t-b200")
    return folder


def run(folder, command):
    """Run a command line, with the environment active, and return its stdout.

    It prices with the optimised code of users: documents price many plans.
    """
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | OPTIMISED | {"PATH": path}
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
