"""`extends:` merges sections, replaces numbers with their source, keeps places, and refuses circles."""

import pytest

from dsx.config.cluster_file import ClusterSpec
from dsx.config.documents import merged
from dsx.config.load import extended
from dsx.errors import SpecError


def load_extended(path):
    return merged([document for _, document in extended(path, ClusterSpec)])


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)


def test_sections_merge_and_everything_else_replaces(tmp_path):
    write(
        tmp_path,
        base="name: base\nd: {a: {value: 1, source: s}, b: {value: 2, source: s}}\nlist: [1, 2]\n",
        over="extends: base\nname: over\nd:\n  a: 5\nlist: [3]\n",
        third="extends: over\nd:\n  c: 6\n",
    )
    document = load_extended(tmp_path / "third.yaml")
    assert document.data == {
        "name": "over",
        "d": {"a": 5, "b": {"value": 2, "source": "s"}, "c": 6},
        "list": [3],
    }
    assert document.place(("d", "a")).endswith("over.yaml:4")
    assert document.place(("d", "b")).endswith("base.yaml:2")
    assert document.place(("d", "c")).endswith("third.yaml:3")
    assert ("d", "a", "source") not in document.places
    assert ("list", 1) not in document.places


def test_the_source_of_a_replaced_number_does_not_stay(tmp_path):
    write(tmp_path, base="d: {value: 1, source: s}\n", over="extends: base\nd: {value: 2}\n")
    assert load_extended(tmp_path / "over.yaml").data == {"d": {"value": 2}}


def test_a_file_may_extend_the_packaged_one_of_its_own_name(tmp_path):
    write(tmp_path, **{"b200-nvs8": "extends: b200-nvs8\nname: mine\n"})
    data = load_extended(tmp_path / "b200-nvs8.yaml").data
    assert data["name"] == "mine"
    assert data["device"]["name"] == "B200"


def test_a_circle_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a="extends: b\n", b="x: 1\nextends: ./c.yaml\n", c="extends: a\n", self="extends: self\n")
    with pytest.raises(SpecError) as caught:
        load_extended(tmp_path / "a.yaml")
    assert "c.yaml:1: extends: a file cannot extend itself: a.yaml extends b.yaml extends" in str(caught.value)
    with pytest.raises(SpecError, match=r"cannot extend itself: self\.yaml extends self\.yaml"):
        load_extended(tmp_path / "self.yaml")


def test_an_unknown_base_and_what_is_no_name_are_errors_with_their_place(tmp_path):
    write(tmp_path, a="\nextends: b200-nvs9\n", b="extends: [a]\n", c="extends:\n", d="extends: ./x.yaml\n")
    with pytest.raises(SpecError, match=r"a\.yaml:2: extends: unknown cluster 'b200-nvs9'; did you mean 'b200"):
        load_extended(tmp_path / "a.yaml")
    with pytest.raises(SpecError, match=r"b\.yaml:1: extends: expected the name of one file, got \['a'\]"):
        load_extended(tmp_path / "b.yaml")
    with pytest.raises(SpecError, match=r"c\.yaml:1: extends: expected the name of one file, got None"):
        load_extended(tmp_path / "c.yaml")
    with pytest.raises(SpecError, match=r"d\.yaml:1: extends: cluster '\./x\.yaml'.* is not a file"):
        load_extended(tmp_path / "d.yaml")


def test_a_chain_of_many_files_is_refused(tmp_path):
    texts = {f"a{index}": f"extends: ./a{index + 1}.yaml\n" for index in range(2000)}
    write(tmp_path, **texts, a2000="name: base\n")
    with pytest.raises(SpecError, match=r"a0\.yaml extends a chain of more than 30 files"):
        load_extended(tmp_path / "a0.yaml")
    assert load_extended(tmp_path / "a1980.yaml").data == {"name": "base"}
