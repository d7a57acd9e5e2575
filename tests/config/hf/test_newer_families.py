"""Families of newer models, and values that each layer has of its own."""

import json

import pytest
from config.hf.configs import CONFIGS, published, write

import dsx
from dsx.errors import SpecError, UnknownNameError
from dsx.verbs.import_hf import import_hf


@pytest.mark.slow
def test_families_that_say_the_same_in_other_ways(tmp_path):
    found = import_hf(CONFIGS / "nemotron-3-super-120b-a12b.json")
    assert found.model.dimensions["le"] == 1024
    assert round(found.parameters / 1e9) == 121  # published as 120B
    # A word for each layer says what a letter says.
    words = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    for name in ("nemotron-h-8b", "nemotron-3-nano-30b-a3b"):
        by_letter = import_hf(CONFIGS / f"{name}.json")
        pattern = by_letter.config.values["hybrid_override_pattern"]
        changes = {"layers_block_type": [words[letter] for letter in pattern]}
        by_word = import_hf(write(tmp_path, name, ("hybrid_override_pattern",), **changes))
        assert by_word.model.sequence == by_letter.model.sequence
        assert by_word.model.dimensions == by_letter.model.dimensions
    # An older config has the keys of the language model outside of a section.
    stated = import_hf(CONFIGS / "qwen3-vl-32b.json")
    text = stated.config.document.data["text_config"]
    found = import_hf(write(tmp_path, "qwen3-vl-32b", ("text_config",), **text | {"model_type": "qwen3_vl"}))
    assert (found.parameters, found.model.dimensions) == (stated.parameters, stated.model.dimensions)
    # The language model of an unknown family is that of its section.
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


@pytest.mark.slow
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


def sequence(found):
    return [entry.layer for entry in found.model.sequence for _ in range(entry.count)][1:-1]


def test_which_layers_have_experts_as_a_list(tmp_path):
    usual = import_hf(CONFIGS / "deepseek-v3.json")
    pattern = [0] * 3 + [1] * 58
    as_list = import_hf(write(tmp_path, "deepseek-v3", moe_layer_freq=pattern))
    assert as_list.model.sequence == usual.model.sequence and as_list.parameters == usual.parameters
    other = import_hf(write(tmp_path, "deepseek-v3", moe_layer_freq=[1, 0, *pattern[2:]]))
    found = ["experts" in dict(kind.blocks).values() for kind in sequence(other)]
    assert found == [True, False, False, *[True] * 58]
    # By hand: experts of 2048 with one shared, a router with biases, in place of a dense width of 18432.
    e, width = 7168, 2048
    assert other.parameters - usual.parameters == 257 * 3 * e * width + 256 * (e + 1) - 3 * e * 18432


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("deepseek-v3", {"moe_layer_freq": [0, 1]}, "moe_layer_freq, as a list, must have 0 or 1 for each of"),
        ("deepseek-v3", {"moe_layer_freq": [2] * 61}, "(moe_layers = 61 from 2 to 2, num_hidden_layers = 61)"),
        ("deepseek-v3", {"moe_layer_freq": "1"}, "moe_layer_freq: expected a whole number from 1, got '1'"),
        (
            "qwen3-30b-a3b",
            {"mlp_only_layers": [0, 48]},
            "below num_hidden_layers (mlp_only_layers = [0, 48], num_hidden",
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": [-1]}, "from 0 on and below num_hidden_layers"),
        ("bamba-9b", {"attn_layer_indices": [9, 99]}, "(attn_layer_indices = [9, 99], num_hidden_layers = 32)"),
        ("llama-4-scout", {"moe_layers": [1, 480]}, "moe_layers must have numbers of layers"),
        (
            "llama-3-8b",
            {"intermediate_size": [14336] * 31 + [1]},
            "intermediate_size: has a value for each of 32 layers, from",
        ),
        ("llama-3-8b", {"intermediate_size": [14336] * 7}, "or one for each of 32 layers, got 7"),
        ("gpt2", {"n_head": [12]}, "n_head: expected one value, or one for each of 12 layers, got 1"),
        (
            "gemma-3-1b",
            {"num_hidden_layers": None, "num_attention_heads": [4] * 3},
            "or one for each of 26 layers, got 3",
        ),
        ("nemotron-h-8b", {"num_hidden_layers": 53}, "= 52 layers, and num_hidden_layers = 53: they differ"),
        ("nemotron-h-8b", {"num_attention_heads": [32] * 3}, "num_attention_heads: expected one value, got 3"),
        ("vit-l-16", {"image_size": [224, 196]}, "image_size: has a value for each of two sides, from"),
        ("llama-3-8b", {"num_hidden_layers": [32]}, "num_hidden_layers: expected a whole number from 1, got [32]"),
        ("llama-3-8b", {"model_type": "jamba"}, "Mamba 1, whose time steps come from a projection of low rank"),
        ("llama-3-8b", {"model_type": "nemotron-nas"}, "block_configs gives each layer key-value heads and"),
    ],
)
def test_what_cannot_be_read_is_an_error(tmp_path, name, changes, says):
    file = write(tmp_path, name, **changes)
    with pytest.raises(SpecError) as caught:
        import_hf(file)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{file}:") and "()" not in str(caught.value)


def test_sizes_that_are_lists_and_norms_without_weights(tmp_path):
    usual = import_hf(CONFIGS / "vit-l-16.json")
    found = import_hf(write(tmp_path, "vit-l-16", image_size=[224, 224], patch_size=[16, 16]))
    assert found.parameters == usual.parameters and found.model.dimensions == usual.model.dimensions
    # One width may be a list.
    usual = import_hf(CONFIGS / "llama-3-8b.json")
    found = import_hf(write(tmp_path, "llama-3-8b", intermediate_size=[14336] * 32))
    assert found.parameters == usual.parameters and found.model.dimensions == usual.model.dimensions
    # OLMo 1B by hand: the table, and per layer four projections of attention and three of the feed-forward network.
    found = import_hf(CONFIGS / "olmo-1b.json")
    assert found.parameters == 50304 * 2048 + 16 * (4 * 2048**2 + 3 * 2048 * 8192) == 1_176_764_416


def test_attention_and_a_mixer_side_by_side():
    """Falcon-H1 0.5B by hand."""
    e, ssm, heads, state, conv, width, vocabulary = 1024, 1536, 24, 128, 4, 2048, 32784
    found = import_hf(CONFIGS / "falcon-h1-0.5b.json")
    attention = 2 * e * 512 + 2 * e * 128
    mixer = e * (2 * ssm + 2 * state + heads) + (ssm + 2 * state) * (conv + 1) + 3 * heads + ssm * e
    assert found.parameters == 2 * vocabulary * e + e + 36 * (attention + mixer + 3 * e * width + 2 * e) == 521_411_104
    assert found.ignored.unpriced == {} and found.ignored.unknown == {}
    job = dsx.Job(found.model, "h100-nvs8", 16, 32)
    assert dsx.evaluate(job, "dp=16").fits
