"""Lists with a value for each layer, numbers of layers, and families whose layers differ."""

import pytest
from config.hf.configs import CONFIGS, write

import dsx
from dsx.errors import SpecError
from dsx.verbs.import_hf import import_hf


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


def test_sides_of_an_image_may_be_a_list(tmp_path):
    usual = import_hf(CONFIGS / "vit-l-16.json")
    found = import_hf(write(tmp_path, "vit-l-16", image_size=[224, 224], patch_size=[16, 16]))
    assert found.parameters == usual.parameters and found.model.dimensions == usual.model.dimensions


def test_one_width_may_be_a_list(tmp_path):
    usual = import_hf(CONFIGS / "llama-3-8b.json")
    found = import_hf(write(tmp_path, "llama-3-8b", intermediate_size=[14336] * 32))
    assert found.parameters == usual.parameters and found.model.dimensions == usual.model.dimensions


def test_layer_norms_without_weights():
    """OLMo 1B by hand: the table, and per layer four projections of attention and three of the feed-forward network."""
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
