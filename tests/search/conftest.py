import pytest

from dsx.search.tiles import hot
from dsx.search.tiles import top_plans as space_front


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Short compile and run times: bundles that small spaces fill, few references of a front."""
    monkeypatch.setattr(hot, "TILES", 64)
    monkeypatch.setattr(hot, "BUNDLES", 4)
    monkeypatch.setattr(space_front, "_REFERENCES", 5)
