import pytest
from search.sweeps import set_workers


@pytest.fixture(autouse=True)
def two_workers(monkeypatch):
    """Price on one device: two would compile everything twice."""
    set_workers(monkeypatch, 2)
