"""Command lines run in this process, and a small model, clusters and sweeps to run them on."""

import functools
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

from dsx.verbs.process import main

MODEL = """name: small
source: made up
default_sequence_length: 2048
dimensions: {e: 1024, h: 8, g: 8, k: 128, f: 4096}
layers:
  - {kind: transformer, count: 8}
"""
SWEEP = """model: small.yaml
cluster: b200-nvs8
num_gpus: 8
global_batch_size: 32
strategy: 1d
assumptions: paper-2410.00273
keep: all
"""
STRATEGY = """strategy mine
role rs = s      role is = s    role wi = e
role re = e      role ie = e    role wf = f/tp   role wc = c/tp
role hg = g/tp   role uf = f/tp role vf = f/tp   role oe = e
role hm = m/tp   role um = m/tp role vm = m/tp   role ve = e
require h % tp == 0   heads_not_divisible
"""


@dataclass(frozen=True)
class Done:
    """What a command line left behind."""

    code: int
    out: str
    err: str


def call(*argv: object) -> int:
    """Run ``dsx ARGV`` through its entry point; returns the exit code."""
    handler, arguments = signal.getsignal(signal.SIGPIPE), sys.argv
    sys.argv = ["dsx", *map(str, argv)]
    try:
        main()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    finally:
        sys.argv = arguments
        signal.signal(signal.SIGPIPE, handler)
    raise AssertionError("main returned")


@pytest.fixture(scope="session", autouse=True)
def commands_made_once():
    """Read the signatures of all verbs once, and not in each command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def command():
    """Run a command line for its exit code, as fixtures of a wider scope do."""
    return call


@pytest.fixture
def run(capsys):
    """Run a command line in this process."""

    def run(*argv: object) -> Done:
        capsys.readouterr()
        code = call(*argv)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a model and a sweep of it."""
    (tmp_path / "small.yaml").write_text(MODEL)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSX_PATH", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def swept(tmp_path_factory) -> Path:
    """The result set of a sweep that keeps everything; not to be changed."""
    place = tmp_path_factory.mktemp("swept")
    (place / "small.yaml").write_text(MODEL)
    (place / "sweep.yaml").write_text(SWEEP)
    assert call("sweep", place / "sweep.yaml", "-o", place / "set") == 0
    return place / "set"


@pytest.fixture(scope="session")
def nothing_fits(tmp_path_factory) -> Path:
    """A result set of candidates that are all rejected."""
    place = tmp_path_factory.mktemp("nothing")
    (place / "small.yaml").write_text(MODEL)
    (place / "sweep.yaml").write_text(SWEEP)
    small_memory = ("--set", "cluster.device.hbm_capacity=1 kB")
    assert call("sweep", place / "sweep.yaml", "-o", place / "set", *small_memory) == 3
    return place / "set"
