import pytest

from dsx.errors import StoreError
from dsx.results.manifest import canonical, differences, spec_hash


def test_hash_knows_content_not_layout():
    assert spec_hash({"a": 1, "b": [2]}) == spec_hash({"b": [2], "a": 1})
    assert spec_hash({"a": 1}) != spec_hash({"a": 2})
    assert len(spec_hash({})) == 64


def test_what_is_drawn_is_not_asked():
    assert spec_hash({"a": 1, "plot": {"kind": "x"}}) == spec_hash({"a": 1})
    assert differences({"a": 1, "plot": 1}, {"a": 1}) == []
    assert spec_hash({"a": {"plot": 1}}) != spec_hash({"a": {}})


def test_differences_are_paths():
    a = {"model": "m", "limit": {"tp": 1, "pp": 2}, "keep": "all"}
    b = {"model": "m", "limit": {"tp": 2, "pp": 2}, "fix": {}}
    assert differences(a, b) == ["fix", "keep", "limit.tp"]


def test_content_must_be_plain():
    with pytest.raises(StoreError, match="plain data"):
        canonical({"a": {1, 2}})
