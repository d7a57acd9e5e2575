import pytest
from search.sweeps import set_workers

from dsx.search.blockwise import front, hot


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is soon compiled and slice: one device, bundles that small spaces fill, few references of a front."""
    set_workers(monkeypatch, 2)
    monkeypatch.setattr(hot, "TILES", 64)
    monkeypatch.setattr(hot, "BUNDLES", 4)
    monkeypatch.setattr(front, "_REFERENCES", 5)
