"""Where names of files are looked for, and what a document extends."""

import os

import pytest

from dsx.config.cluster_file import ClusterSpec
from dsx.config.documents import merged
from dsx.config.load import extended
from dsx.config.search_path import find, find_path, names, packaged_data, shown
from dsx.errors import SpecError, UnknownNameError


def put(path, text="x: 1\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_dsx_path_wins_then_packaged_then_the_folder_of_the_mentioning_file(tmp_path, monkeypatch):
    sweep = put(tmp_path / "sweeps" / "a.yaml")
    flat = put(tmp_path / "flat" / "gpt3-1t.yaml")
    monkeypatch.setenv("DSX_PATH", f"{tmp_path / 'absent'}:{tmp_path / 'flat'}:")
    assert find("models", "gpt3-1t", ".yaml", near=sweep) == flat
    laid_out = put(tmp_path / "laid-out" / "models" / "gpt3-1t.yaml")
    monkeypatch.setenv("DSX_PATH", f"{tmp_path / 'laid-out'}:{tmp_path / 'flat'}")
    assert find("models", "gpt3-1t", ".yaml", near=sweep) == laid_out
    put(tmp_path / "sweeps" / "gpt3-1t.yaml")
    assert find("models", "gpt3-1t", ".yaml", near=sweep) == laid_out
    mine = put(tmp_path / "sweeps" / "mine.yaml")
    assert find("models", "mine", ".yaml", near=sweep) == mine


def test_what_lies_beside_a_file_is_found(tmp_path):
    layer = put(tmp_path / "a.layer")
    beside = put(tmp_path / "mlp.layer")
    assert find("layers", "mlp", ".layer", near=layer) == beside
    # A file does not mean itself where another has the name.
    sweep = put(tmp_path / "gpt3-1t.yaml")
    assert find("models", "gpt3-1t", ".yaml", near=sweep) == packaged_data() / "models" / "gpt3-1t.yaml"
    # Packaged data is found by name.
    assert find("clusters", "b200-nvs8", ".yaml") == packaged_data() / "clusters" / "b200-nvs8.yaml"
    assert "gpt3-1t" in names("models", ".yaml")


def test_layers_are_searched_in_subfolders_and_other_kinds_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("DSX_PATH", str(tmp_path))
    block = put(tmp_path / "layers" / "blocks" / "my.block.layer", "block my")
    put(tmp_path / "models" / "deeper" / "mine.yaml")
    assert find("layers", "my.block", ".layer") == block
    assert "my.block" in names("layers", ".layer")
    with pytest.raises(UnknownNameError):
        find("models", "mine", ".yaml")


def test_a_path_is_relative_to_the_mentioning_file_then_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = put(tmp_path / "sweeps" / "a.yaml")
    here = put(tmp_path / "m.yaml")
    assert find("models", "m.yaml", ".yaml", near=sweep).resolve() == here
    beside = put(tmp_path / "sweeps" / "m.yaml")
    assert find("models", "m.yaml", ".yaml", near=sweep) == beside
    assert find("models", "./m.yaml", ".yaml").resolve() == here
    assert find("models", str(here), ".yaml", near=sweep) == here


def test_an_unknown_name_names_the_nearest_and_where_it_looked(tmp_path):
    with pytest.raises(UnknownNameError) as caught:
        find("models", "gpt3-1", ".yaml", near=tmp_path / "a.yaml")
    message = str(caught.value)
    assert "unknown model 'gpt3-1'; did you mean 'gpt3-1t'?" in message
    assert str(tmp_path) in message
    with pytest.raises(UnknownNameError, match="unknown assumption set"):
        find("assumptions", "", ".yaml")
    with pytest.raises(UnknownNameError, match="unknown cluster"):
        find("clusters", "*", ".yaml")
    with pytest.raises(UnknownNameError, match="unknown cluster"):
        find("clusters", "x" * 5000, ".yaml")


def test_a_path_that_is_no_file_names_the_nearest_file(tmp_path, monkeypatch):
    put(tmp_path / "mine.yaml")
    with pytest.raises(SpecError, match=r"model .*min\.yaml.* is not a file; did you mean 'mine\.yaml'\?"):
        find("models", str(tmp_path / "min.yaml"), ".yaml")
    for name in ("", "[.**", "\0.yaml", "x" * 5000):
        with pytest.raises(SpecError, match="is not a file"):
            find("models", f"{tmp_path}/{name}", ".yaml")
    # A pipe is not its own nearest.
    os.mkfifo(tmp_path / "config.json")
    put(tmp_path / "config2.json")
    with pytest.raises(SpecError, match=r"config\.json is not a file; did you mean 'config2\.json'\?$"):
        find_path("config", str(tmp_path / "config.json"))
    # A config json as a model says how it is imported.
    with pytest.raises(UnknownNameError, match=r"; 'dsx import-hf config\.json -o model\.yaml' makes a model"):
        find("models", "config.json", ".yaml")
    # Paths are shown relative to the working directory.
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b.yaml") == "a/b.yaml"
    assert shown(tmp_path.parent / "b.yaml") == str(tmp_path.parent / "b.yaml")


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
    assert document.data == {"name": "over", "d": {"a": 5, "b": {"value": 2, "source": "s"}, "c": 6}, "list": [3]}
    assert document.place(("d", "a")).endswith("over.yaml:4")
    assert document.place(("d", "b")).endswith("base.yaml:2")
    assert document.place(("d", "c")).endswith("third.yaml:3")
    assert ("d", "a", "source") not in document.places
    assert ("list", 1) not in document.places
    # The source of a replaced number does not stay.
    write(tmp_path, base="d: {value: 1, source: s}\n", over="extends: base\nd: {value: 2}\n")
    assert load_extended(tmp_path / "over.yaml").data == {"d": {"value": 2}}
    # A file may extend the packaged one of its own name.
    write(tmp_path, **{"b200-nvs8": "extends: b200-nvs8\nname: mine\n"})
    data = load_extended(tmp_path / "b200-nvs8.yaml").data
    assert data["name"] == "mine"
    assert data["device"]["name"] == "B200"


def test_circles_and_long_chains_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a="extends: b\n", b="x: 1\nextends: ./c.yaml\n", c="extends: a\n", self="extends: self\n")
    with pytest.raises(SpecError) as caught:
        load_extended(tmp_path / "a.yaml")
    assert "c.yaml:1: extends: a file cannot extend itself: a.yaml extends b.yaml extends" in str(caught.value)
    with pytest.raises(SpecError, match=r"cannot extend itself: self\.yaml extends self\.yaml"):
        load_extended(tmp_path / "self.yaml")
    # A chain of many files is refused.
    texts = {f"a{index}": f"extends: ./a{index + 1}.yaml\n" for index in range(2000)}
    write(tmp_path, **texts, a2000="name: base\n")
    with pytest.raises(SpecError, match=r"a0\.yaml extends a chain of more than 30 files"):
        load_extended(tmp_path / "a0.yaml")
    assert load_extended(tmp_path / "a1980.yaml").data == {"name": "base"}


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
