"""``dsx import-hf``: a model file that dsx loads, what was ignored, the count; nothing is written on an error."""

import json
import shutil

import pytest
from config.hf.configs import CONFIGS

from dsx.config.model_file import load_model


@pytest.fixture
def config(folder):
    """The config of Llama-3-8B in the working directory."""
    shutil.copy(CONFIGS / "llama-3-8b.json", folder / "config.json")
    return folder / "config.json"


def test_a_model_is_printed_or_written_with_what_was_not_used(run, config, folder):
    done = run("import-hf", "config.json")
    assert done.code == 0
    (folder / "printed.yaml").write_text(done.out)
    assert load_model("printed.yaml").dimensions["f"] == 14336
    assert "dsx: 8,030,261,248 parameters, as published (model card of Meta-Llama-3-8B)\n" in done.err
    assert "  initial values: initializer_range\n" in done.err
    assert {file.name for file in folder.iterdir()} == {"config.json", "printed.yaml", "small.yaml", "sweep.yaml"}
    # Into a file that other verbs take.
    done = run("import-hf", "config.json", "-o", "llama.yaml")
    assert (done.code, done.err) == (0, "dsx: wrote llama.yaml\n")
    assert done.out.startswith("llama, of the family llama: e=4096 h=32 g=8 k=128 f=14336 v=128256\n")
    assert load_model("llama.yaml").name == "llama"
    assert run("layer", "transformer", "--model", "llama.yaml").out.startswith("transformer[gated rotary] under 1d;")
    # What changes the cost is said first.
    data = json.loads(config.read_text()) | {"quantization_config": {"bits": 8}, "quantum_layers": 3}
    config.write_text(json.dumps(data))
    out = run("import-hf", "config.json", "-o", "quantum.yaml").out
    costs = out.index("not used, though it changes the cost:\n  quantization_config: weights in fewer bits")
    unknown = out.index("not used, and not known whether it changes the cost:\n  quantum_layers: 3\n")
    assert costs < unknown < out.index("not used, and without effect on the cost:\n")


def test_a_count_that_is_not_the_published_one(run, config, folder):
    data = json.loads(config.read_text()) | {"tie_word_embeddings": True}
    config.write_text(json.dumps(data))
    done = run("import-hf", "config.json", "-o", "tied.yaml")
    fewer = 128256 * 4096
    assert f"{8_030_261_248 - fewer:,} parameters, {fewer:,} (6.54 %) fewer than the published" in done.out
    data |= {"num_hidden_layers": 16}
    config.write_text(json.dumps(data))
    assert (
        "parameters, unchecked: no published total is known\n" in run("import-hf", "config.json", "-o", "half.yaml").out
    )


def test_nothing_is_written_on_an_error(run, config, folder):
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": None}, indent=2))
    before = {file.name for file in folder.iterdir()}
    for output in ((), ("-o", "out.yaml"), ("-o", "out.yaml", "--json")):
        done = run("import-hf", "config.json", *output)
        assert (done.code, done.out) == (2, "")
        assert "config.json:10: hidden_size: is required, but missing\n" in done.err
        assert "Traceback" not in done.err
    assert {file.name for file in folder.iterdir()} == before


def test_a_family_of_ones_own(run, config, folder, monkeypatch):
    (folder / "own" / "families").mkdir(parents=True)
    own = "extends: llama\nsource: mine\nkeys: {intermediate_size: {holds: count, default: 3 * hidden_size}}\n"
    (folder / "own" / "families" / "mine.yaml").write_text(own)
    monkeypatch.setenv("DSX_PATH", str(folder / "own"))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "mine", "intermediate_size": None}))
    done = run("import-hf", "config.json", "-o", "mine.yaml")
    assert done.code == 0
    assert load_model("mine.yaml").dimensions["f"] == 3 * 4096
    (folder / "own" / "families" / "mine.yaml").write_text(f"{own}default_sequence_length: max_lenght\n")
    done = run("import-hf", "config.json")
    assert (done.code, done.out) == (2, "")
    assert "own/families/mine.yaml:1: 'max_lenght' reads 'max_lenght', which is not one of 'keys'" in done.err
