"""Every command and every Python block of README.md runs as printed, in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources, with this environment as its `.venv`, where `make sweep` has run."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("data", "docs", "sweeps", "dsx"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / ".venv").symlink_to(Path(sys.prefix))
    run(copy, ".venv/bin/dsx sweep sweeps/gpt3-1t-b200.yaml -o results/gpt3-1t-b200")
    return copy


def run(folder, command):
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_has_its_two_commands():
    assert COMMANDS[:2] == ["make sweep", "make test"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS[2:], ids=lambda command: command[:60])
def test_a_command_of_the_readme_runs(checkout, command):
    assert run(checkout, command).strip()


@pytest.mark.slow
def test_the_python_of_the_readme_runs(checkout):
    for snippet in SNIPPETS:
        done = subprocess.run([sys.executable, "-c", snippet], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (checkout / "docs" / "front.png").stat().st_size > 10_000
