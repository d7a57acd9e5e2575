"""Every command and every Python block of README.md runs as printed, in a copy of the repository."""

import re
import subprocess
import sys

import pytest
from checkout import ROOT, make_checkout, run

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
    return make_checkout(tmp_path_factory.mktemp("checkout"))


def test_the_readme_has_its_two_commands():
    assert COMMANDS[:2] == ["make sweep", "make test"]


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_order(checkout):
    for command in COMMANDS[2:]:
        assert run(checkout, command).strip() or "plot" in command, command


@pytest.mark.slow
def test_the_python_of_the_readme_runs(checkout):
    for snippet in SNIPPETS:
        done = subprocess.run([sys.executable, "-c", snippet], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (checkout / "results" / "front.png").stat().st_size > 10_000
