"""Families of 2024 to 2026: what their configs say in ways of their own."""

from spec.hf.configs import CONFIGS, write

from dsx.api.import_hf import import_hf


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
