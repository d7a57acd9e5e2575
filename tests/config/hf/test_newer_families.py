"""Families of 2024 to 2026: what their configs say in ways of their own."""

import json

import pytest
from config.hf.configs import CONFIGS, published, write

from dsx.errors import UnknownNameError
from dsx.verbs.import_hf import import_hf


def test_experts_of_narrow_vectors():
    found = import_hf(CONFIGS / "nemotron-3-super-120b-a12b.json")
    assert found.model.dimensions["le"] == 1024
    assert round(found.parameters / 1e9) == 121  # published as 120B


def test_a_word_for_each_layer_says_what_a_letter_says(tmp_path):
    words = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    for name in ("nemotron-h-8b", "nemotron-3-nano-30b-a3b"):
        by_letter = import_hf(CONFIGS / f"{name}.json")
        pattern = by_letter.config.values["hybrid_override_pattern"]
        changes = {"layers_block_type": [words[letter] for letter in pattern]}
        by_word = import_hf(write(tmp_path, name, ("hybrid_override_pattern",), **changes))
        assert by_word.model.sequence == by_letter.model.sequence
        assert by_word.model.dimensions == by_letter.model.dimensions


def test_an_older_config_has_the_keys_of_the_language_model_outside_of_a_section(tmp_path):
    stated = import_hf(CONFIGS / "qwen3-vl-32b.json")
    text = stated.config.document.data["text_config"]
    found = import_hf(write(tmp_path, "qwen3-vl-32b", ("text_config",), **text | {"model_type": "qwen3_vl"}))
    assert (found.parameters, found.model.dimensions) == (stated.parameters, stated.model.dimensions)


def test_the_language_model_of_an_unknown_family_is_that_of_its_section(tmp_path):
    text = published("qwen3-32b")
    found = import_hf(write(tmp_path, "qwen3-vl-32b", model_type="my_vision", text_config=text))
    assert (found.parameters, found.config.model_type) == (32_762_123_264, "qwen3")
    alone = import_hf(write(tmp_path, "qwen3-32b", model_type="qwen3_vl_text"))
    assert alone.parameters == found.parameters


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_attention_that_an_indexer_makes_sparse_is_said(name):
    found = import_hf(CONFIGS / f"{name}.json")
    assert "an indexer" in found.ignored.unpriced["index_topk"]
    assert found.ignored.unknown == {}


def test_an_unknown_family_says_what_to_write(tmp_path, monkeypatch):
    """The lines it prints are those of a file with which the config is read."""
    changes = {"model_type": "my_moe", "quantum_layers": 3}
    file = write(tmp_path, "minimax-m2.5", ("num_local_experts",), num_experts=256, **changes)
    with pytest.raises(UnknownNameError) as caught:
        import_hf(file)
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("families/my_moe.yaml in a folder of DSX_PATH adds it")
    assert lines[2:] == [
        "  extends: minimax_m2",
        '  source: "config.json, model_type my_moe"',
        "and what minimax_m2 does not say: quantum_layers",
    ]
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "my_moe.yaml").write_text("\n".join(line.strip() for line in lines[2:4]))
    monkeypatch.setenv("DSX_PATH", str(tmp_path))
    assert import_hf(file).parameters == 228_689_764_864


def test_an_unknown_family_names_the_packaged_model_and_the_keys_that_are_missing(tmp_path):
    file = write(tmp_path, "deepseek-v3", ("kv_lora_rank",), model_type="llama_3_70b")
    with pytest.raises(UnknownNameError) as caught:
        import_hf(file)
    assert "the packaged model 'llama-3-70b' may be it: --model llama-3-70b" in str(caught.value)
    assert "  keys: {kv_lora_rank: {holds: count, default: FORMULA OF OTHER KEYS}}" in str(caught.value)


@pytest.mark.parametrize("given", [{"model_type": "a/b"}, {"model_type": "none_such", "hidden_size": 7}])
def test_a_config_that_is_near_no_family(tmp_path, given):
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(UnknownNameError) as caught:
        import_hf(tmp_path / "config.json")
    assert "extends" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "sizes", "total"),
    [
        ("llama-3-8b", (16384, 53248, 126, 128), 405_853_388_800),
        ("llama-3.2-1b", (3072, 8192, 28, 24), 3_212_749_824),
        ("llama-2-7b", (6656, 17920, 60, 52), 32_528_943_616),  # published as 32.5 billion
        ("mimo-v2-flash", None, 308_778_778_368 + 39 * 64),  # published as 309 billion
    ],
)
def test_known_totals_are_said(tmp_path, base, sizes, total):
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    changes = dict(zip(names, sizes, strict=True)) if sizes else {}
    if base == "llama-2-7b":
        changes["num_key_value_heads"] = 52
    if base == "llama-3.2-1b":
        changes["head_dim"] = 128
    found = import_hf(write(tmp_path, base, **changes))
    assert found.parameters == total
    assert "published" in found.report[1] and "unchecked" not in found.report[1]
