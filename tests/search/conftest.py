import pytest
from search.sweeps import set_workers

from dsx.search.blockwise import hot, space_front


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Short compile and run times: one device, bundles that small spaces fill, few references of a front."""
    set_workers(monkeypatch, 2)
    monkeypatch.setattr(hot, "TILES", 64)
    monkeypatch.setattr(hot, "BUNDLES", 4)
    monkeypatch.setattr(space_front, "_REFERENCES", 5)
