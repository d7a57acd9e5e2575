"""The text of a model file, and that a file is written whole or not at all."""

from pathlib import Path

import pytest
from config.hf.configs import CONFIGS, NAMES
from config.hf.configs import write as variant

from dsx.config.hf_config import check_target, load_config, model_source, model_text, published_total, to_model, write
from dsx.config.model_file import ModelSpec, RepeatedLayers, load_model
from dsx.errors import SpecError, StoreError


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_the_model(name, tmp_path):
    file = CONFIGS / f"{name}.json"
    config = load_config(file)
    model = to_model(config, name, model_source(config, file))
    write(model_text(model, published_total(config)), tmp_path / "model.yaml")
    assert load_model(tmp_path / "model.yaml") == model
    assert bool(model.parameters) == (published_total(config) is not None)


def outline(entries) -> list:
    """Return (times, pattern) of each pattern and (whether it has a window, count) of each other entry."""
    return [
        (entry.repeat, outline(entry.layers))
        if isinstance(entry, RepeatedLayers)
        else ("window" in entry.options, entry.count)
        for entry in entries
    ]


W, F = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("base", "types", "wanted"),
    [
        ("gpt-oss-20b", None, [(12, [(True, 1), (False, 1)])]),
        ("gemma-2-9b", None, [(21, [(True, 1), (False, 1)])]),
        ("gemma-3-1b", None, [(4, [(True, 5), (False, 1)]), (True, 2)]),
        ("gemma-2-9b", [F, W, W, F, W], [(False, 1), (True, 2), (False, 1), (True, 1)]),
        ("gemma-2-9b", [F, F, W, F, W, F, W, W], [(False, 2), (2, [(True, 1), (False, 1)]), (True, 2)]),
        ("gemma-2-9b", [W, F, F, W, W, F] * 3, [(3, [(True, 1), (False, 2), (True, 2), (False, 1)])]),
        ("gemma-2-9b", [W] * 4, [(True, 4)]),
    ],
)
def test_a_pattern_is_written_once_and_read_as_the_same_layers(tmp_path, base, types, wanted):
    changes = {"layer_types": types, "num_hidden_layers": len(types)} if types else {}
    model = to_model(load_config(variant(tmp_path, base, **changes)), "tried", "a test")
    text = model_text(model)
    write(text, tmp_path / "model.yaml")
    read = load_model(tmp_path / "model.yaml")
    assert read == model
    assert outline(read.layers[1:-1]) == wanted
    assert text.count("- repeat: ") == sum(isinstance(entry, RepeatedLayers) for entry in model.layers)


@pytest.mark.parametrize(
    "text", ["null", "true", "7b", "- a", "a: b # c", 'say "x"', "caf\xe9", "tab\tbell\x07", "~", "1e5"]
)
def test_texts_that_yaml_could_misread(text, tmp_path):
    layers = [{"kind": text, "options": [text, "a"], text: text}]
    data = {"name": text, "source": text, "default_sequence_length": 8, "dimensions": {"e": 8}, "layers": layers}
    model = ModelSpec.model_validate(data)
    write(model_text(model), tmp_path / "model.yaml")
    assert load_model(tmp_path / "model.yaml") == model


def test_an_existing_file_is_kept_unless_told(tmp_path):
    target = tmp_path / "model.yaml"
    target.write_text("mine\n")
    with pytest.raises(StoreError, match=r"exists; choose another file with -o, or replace it with --overwrite"):
        check_target(target, overwrite=False)
    check_target(target, overwrite=True)
    write("new\n", target)
    assert target.read_text() == "new\n"
    assert [file.name for file in tmp_path.iterdir()] == ["model.yaml"]


def test_targets_that_cannot_be(tmp_path):
    with pytest.raises(SpecError, match=r"model\.json: a model file ends in \.yaml: choose .*model\.yaml"):
        check_target(tmp_path / "model.json", overwrite=True)
    with pytest.raises(SpecError, match=r"-o '\.' names no file"):
        check_target(Path(), overwrite=True)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(StoreError, match="is a folder"):
        check_target(tmp_path / "folder.yaml", overwrite=True)
    with pytest.raises(StoreError, match=r"cannot write .*: No such file or directory"):
        write("new\n", tmp_path / "none" / "model.yaml")
