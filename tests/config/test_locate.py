"""Where names come from, and the order of the folders."""

import os

import pytest

from dsx.config.search_path import find, find_path, names, packaged_data, shown
from dsx.errors import SpecError, UnknownNameError


def put(path, text="x: 1\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_packaged_data_is_found_by_name():
    assert find("clusters", "b200-nvs8", ".yaml") == packaged_data() / "clusters" / "b200-nvs8.yaml"
    assert "gpt3-1t" in names("models", ".yaml")


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


def test_a_layer_text_finds_those_beside_it_first(tmp_path):
    layer = put(tmp_path / "a.layer")
    beside = put(tmp_path / "mlp.layer")
    assert find("layers", "mlp", ".layer", near=layer) == beside


def test_a_file_does_not_mean_itself_where_another_has_the_name(tmp_path):
    sweep = put(tmp_path / "gpt3-1t.yaml")
    assert find("models", "gpt3-1t", ".yaml", near=sweep) == packaged_data() / "models" / "gpt3-1t.yaml"


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


def test_a_path_that_is_no_file_names_the_nearest_file(tmp_path):
    put(tmp_path / "mine.yaml")
    with pytest.raises(SpecError, match=r"model .*min\.yaml.* is not a file; did you mean 'mine\.yaml'\?"):
        find("models", str(tmp_path / "min.yaml"), ".yaml")
    for name in ("", "[.**", "\0.yaml", "x" * 5000):
        with pytest.raises(SpecError, match="is not a file"):
            find("models", f"{tmp_path}/{name}", ".yaml")


def test_paths_are_shown_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b.yaml") == "a/b.yaml"
    assert shown(tmp_path.parent / "b.yaml") == str(tmp_path.parent / "b.yaml")


def test_a_config_json_as_a_model_says_how_it_is_imported():
    with pytest.raises(UnknownNameError, match=r"; 'dsx import-hf config\.json -o model\.yaml' makes a model"):
        find("models", "config.json", ".yaml")


def test_a_pipe_is_not_its_own_nearest(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    put(tmp_path / "config2.json")
    with pytest.raises(SpecError, match=r"config\.json is not a file; did you mean 'config2\.json'\?$"):
        find_path("config", str(tmp_path / "config.json"))
