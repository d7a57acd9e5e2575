"""All known clusters and models are read once, which takes longer than most tests; setups of rows are made alike."""

import os
from functools import cache
from pathlib import Path

import pytest
from runs.tables import write

from dsx.runs.row_job import known_clusters, known_models
from dsx.runs.setups import setups
from dsx.runs.table import read_runs


@cache
def _clusters(path: str | None, working_directory: Path) -> tuple:
    return tuple(known_clusters())


@cache
def _models(path: str | None, working_directory: Path) -> tuple:
    return tuple(known_models())


@pytest.fixture(autouse=True)
def read_once(monkeypatch) -> None:
    """Keep what is known wherever names are looked up in the same places."""
    for name, read in (("known_clusters", _clusters), ("known_models", _models)):
        monkeypatch.setattr(
            f"dsx.runs.setups.{name}", lambda read=read: [*read(os.environ.get("DSX_PATH"), Path.cwd())]
        )


@pytest.fixture
def made(tmp_path):
    """Return the setups, or reasons, of rows that differ from a good one as stated."""
    return lambda *changes: setups(read_runs(write(tmp_path / "runs.csv", *changes)))
