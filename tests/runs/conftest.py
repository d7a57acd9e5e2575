"""All known clusters and models are read once: reading them takes longer than most tests of runs."""

import os
from functools import cache
from pathlib import Path

import pytest

from dsx.runs.machines import known_clusters, known_models


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
