"""The manifest: what it states and refuses, and the hash of its sweep."""

import dataclasses
import hashlib
import json
import os

import pytest

import dsx
from dsx.config.sweep_file import KeepTop
from dsx.errors import StoreError
from dsx.results import manifest
from dsx.results.manifest import Counts, canonical, differences, spec_hash
from dsx.results.set_columns import COLUMNS, NAME_COLUMNS, ExtraColumn


def test_json_and_back(begun):
    extra = ExtraColumn("device.hbm_capacity", "bytes", "what it holds", integer=False)
    made = begun(what_if=[extra])
    text = manifest.to_json(made)
    assert manifest.from_json(text, "here") == made
    raw = json.loads(text)
    assert raw["schema_version"] == manifest.SCHEMA_VERSION
    assert raw["dsx_version"] == dsx.__version__
    assert raw["reject_reasons"][0]["name"] == "memory"
    assert raw["names"]["strategy"] == ["flat", "grid"]
    assert raw["names"]["cluster"] == ["near", "far"]
    assert raw["what_if"][0]["name"] == "device.hbm_capacity"
    assert raw["complete"] is False
    # Names of files that are not utf 8 come back.
    name = os.fsdecode(b"/d\xff/\xc3\xa4.yaml")
    made = dataclasses.replace(begun(model=name), spec_file=name)
    text = manifest.to_json(made)
    assert manifest.from_json(text, "here") == made
    assert "/d\\udcff/\N{LATIN SMALL LETTER A WITH DIAERESIS}.yaml" in text.decode("utf-8")
    # A manifest without a spec file is read.
    raw = json.loads(manifest.to_json(begun()))
    del raw["spec_file"]
    assert manifest.from_json(json.dumps(raw).encode(), "here").spec_file == ""
    # A former name of an assumption is read as the name of today.
    made = begun()
    raw = json.loads(manifest.to_json(made))
    raw["spec"]["resolved"]["assumptions"]["told_apart"] = 0.22
    read = manifest.from_json(json.dumps(raw).encode(), "here")
    assert read.spec["resolved"]["assumptions"] == {"name": "few", "resolution": 0.22}
    assert read.spec_hash == made.spec_hash
    # What a reader needs of the sweep is typed.
    sweep = begun(keep={"top": 2, "per": ["tp"]}, train_tokens=1e12, written_by_another_version=[1]).sweep
    assert (sweep.num_gpus, sweep.global_batch_size, sweep.train_tokens) == ([8, 16], [32], 1e12)
    assert sweep.keep == KeepTop(top=2, per=["tp"])
    assert [cluster.name for cluster in sweep.resolved.clusters] == ["near", "far"]


def test_columns_of_another_kind_have_another_version():
    """An older dsx takes a set with other columns for a damaged one, unless its version says that it is newer."""
    text = "\n".join(f"{column.name} {column.unit} {column.kind}" for column in COLUMNS)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert (manifest.SCHEMA_VERSION, digest) == (9, "c980a7cd9847"), "a change of columns needs a new SCHEMA_VERSION"


@pytest.mark.parametrize("name", ["a\udcff", "\ud800"])
def test_names_of_codes_are_text(begun, name):
    raw = dataclasses.replace(begun(), names=begun().names | {"strategy": ("flat", name)})
    with pytest.raises(StoreError, match=r"not valid Unicode|not JSON that can be read"):
        manifest.from_json(json.dumps(dataclasses.asdict(raw)).encode(), "here")


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_spec_must_be_plain(begun, value):
    with pytest.raises(StoreError, match="plain data"):
        begun(odd=value)


@pytest.mark.parametrize(
    ("column", "names", "says"),
    [
        ("schedule", None, "the names of the codes are missing for schedule"),
        ("cluster", ("a", "b", "a"), "column cluster has the name 'a' twice"),
        ("cluster", tuple(map(str, range(129))), "column cluster has 129 names, but a result set holds at most 128"),
    ],
)
def test_names(column, names, says):
    given = {name: ("a",) for name in NAME_COLUMNS} | {column: names}
    with pytest.raises(StoreError, match=says):
        manifest.begin({}, {name: known for name, known in given.items() if known}, [], "float32")


def test_totals_and_other_versions(begun):
    total = manifest.total(begun(), [Counts(5, 2, {"layers": 3}), Counts(7, 4, {"layers": 1, "memory": 2})])
    assert total == Counts(12, 6, {"memory": 2, "layers": 4})
    assert list(total.rejected) == ["memory", "layers"]
    assert manifest.total(begun(), []) == Counts(0, 0, {"memory": 0, "layers": 0})
    # Other versions say what to do.
    raw = json.loads(manifest.to_json(begun())) | {"schema_version": 1, "names": "in another shape"}
    with pytest.raises(StoreError, match=r"p has the older schema version 1.*run the sweep again"):
        manifest.from_json(json.dumps(raw).encode(), "p")
    # Newer version says what to install.
    raw = json.loads(manifest.to_json(begun()))
    raw |= {"schema_version": 99, "dsx_version": "7.1.0", "names": "in another shape"}
    with pytest.raises(StoreError, match=r"p has schema version 99.*pip install '[\w-]+>=7\.1\.0'"):
        manifest.from_json(json.dumps(raw).encode(), "p")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "p is not JSON"),
        (b'{"schema_version": 1', "p is not JSON"),
        (b"\xff\xfe", "p is not JSON"),
        (b"[]", "the whole file"),
        (b'{"schema_version": 9}', "not the manifest of a result set"),
        (b'{"schema_version": "x"}', "schema_version"),
    ],
)
def test_broken_manifests(text, says):
    with pytest.raises(StoreError, match=says):
        manifest.from_json(text, "p")


def test_hash_and_differences_know_content_not_layout(begun):
    assert spec_hash({"a": 1, "b": [2]}) == spec_hash({"b": [2], "a": 1})
    assert spec_hash({"a": 1}) != spec_hash({"a": 2})
    assert len(spec_hash({})) == 64
    # What is drawn is not asked.
    assert spec_hash({"a": 1, "plot": {"kind": "x"}}) == spec_hash({"a": 1})
    assert differences({"a": 1, "plot": 1}, {"a": 1}) == []
    assert spec_hash({"a": {"plot": 1}}) != spec_hash({"a": {}})
    # Differences are paths.
    a = {"model": "m", "limit": {"tp": 1, "pp": 2}, "keep": "all"}
    b = {"model": "m", "limit": {"tp": 2, "pp": 2}, "fix": {}}
    assert differences(a, b) == ["fix", "keep", "limit.tp"]
    # Content must be plain.
    with pytest.raises(StoreError, match="plain data"):
        canonical({"a": {1, 2}})
    # The hash leaves the picture out and the spec does not.
    made = begun(plot={"kind": "front"})
    assert made.spec["plot"] == {"kind": "front"}
    assert made.spec_hash == begun().spec_hash != begun(model="other").spec_hash
