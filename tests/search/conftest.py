import pytest
from search.sweeps import set_workers

from dsx.search.blockwise import front, hot


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is soon compiled and run: one device, tiles that small spaces fill, few references of a front."""
    set_workers(monkeypatch, 2)
    monkeypatch.setattr(hot, "STRIPS", 64)
    monkeypatch.setattr(hot, "TILES", 4)
    monkeypatch.setattr(front, "_REFERENCES", 5)
