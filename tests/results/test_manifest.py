import json

import pytest

import dsx
from dsx.errors import StoreError
from dsx.results import manifest
from dsx.space.candidates import NAMED


def test_json_and_back(begun):
    made = begun()
    text = manifest.to_json(made)
    assert manifest.from_json(text, "here") == made
    raw = json.loads(text)
    assert raw["dsx_version"] == dsx.__version__
    assert raw["reject_reasons"][0]["name"] == "memory"
    assert raw["names"]["strategy"] == ["flat", "grid"]
    assert raw["complete"] is False


def test_a_manifest_without_a_spec_file_is_read(begun):
    raw = json.loads(manifest.to_json(begun()))
    del raw["spec_file"]
    assert manifest.from_json(json.dumps(raw).encode(), "here").spec_file == ""


def test_hash_knows_content_not_layout():
    assert manifest.spec_hash({"a": 1, "b": [2]}) == manifest.spec_hash({"b": [2], "a": 1})
    assert manifest.spec_hash({"a": 1}) != manifest.spec_hash({"a": 2})
    assert len(manifest.spec_hash({})) == 64


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_spec_must_be_plain(begun, value):
    with pytest.raises(StoreError, match="plain data"):
        begun(odd=value)


def test_names_must_be_there():
    names = {name: ("a",) for name in NAMED if name != "schedule"}
    with pytest.raises(StoreError, match="schedule"):
        manifest.begin({}, names, [], "float32")


def test_newer_version_says_what_to_install(begun):
    raw = json.loads(manifest.to_json(begun()))
    raw |= {"schema_version": 99, "dsx_version": "7.1.0", "names": "in another shape"}
    with pytest.raises(StoreError, match=r"p has schema version 99.*pip install 'dsx>=7\.1\.0'"):
        manifest.from_json(json.dumps(raw).encode(), "p")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "p is not JSON"),
        (b'{"schema_version": 1', "p is not JSON"),
        (b"\xff\xfe", "p is not JSON"),
        (b"[]", "the whole file"),
        (b'{"schema_version": 1}', "not the manifest of a result set"),
        (b'{"schema_version": "x"}', "schema_version"),
    ],
)
def test_broken_manifests(text, says):
    with pytest.raises(StoreError, match=says):
        manifest.from_json(text, "p")
