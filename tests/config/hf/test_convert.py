"""From a config to a model: dimensions, layers in order, rules, names."""

from pathlib import Path

import pytest
from config.hf.configs import CONFIGS, NAMES, write
from hypothesis import given
from hypothesis import strategies as st

import dsx
from dsx.config.hf_config import load_config, model_name, model_source, to_model
from dsx.config.hf_family import load_family
from dsx.config.model_file import LayerKind, load_model
from dsx.config.search_path import names
from dsx.errors import SpecError


def model(file: Path):
    return to_model(load_config(file), "tried", "a test")


def layers(file: Path) -> list[LayerKind]:
    return [entry.layer for entry in model(file).sequence for _ in range(entry.count)]


@pytest.mark.parametrize(
    ("name", "length", "sizes", "num_layers"),
    [
        ("llama-3-8b", 8192, {"e": 4096, "h": 32, "g": 8, "k": 128, "f": 14336, "v": 128256}, 32),
        ("llama-3.2-1b", 8192, {"e": 2048, "h": 32, "g": 8, "k": 64, "f": 8192}, 16),
        ("mistral-7b", 4096, {"g": 8, "k": 128, "window": 4096}, 32),
        ("phi-3-mini", 4096, {"g": 32, "k": 96, "window": 2047}, 32),
        ("mixtral-8x7b", 4096, {"fx": 14336, "x": 8, "topk": 2}, 32),
        ("qwen2-7b", 4096, {"e": 3584, "g": 4, "k": 128}, 28),
        ("qwen3-8b", 4096, {"k": 128}, 36),
        ("qwen3-30b-a3b", 4096, {"h": 32, "k": 128, "fx": 768, "x": 128, "topk": 8}, 48),
        ("gemma-2-9b", 8192, {"e": 3584, "h": 16, "k": 256}, 42),
        ("gemma-3-1b", 4096, {"g": 1}, 26),
        ("gemma-3-4b", 4096, {"e": 2560, "h": 8, "g": 4, "k": 256, "f": 10240, "v": 262208}, 34),
        ("gpt2", 1024, {"e": 768, "h": 12, "g": 12, "k": 64, "f": 3072, "v": 50257}, 12),
        ("gpt-neox-20b", 2048, {"k": 96, "f": 24576}, 44),
        ("gpt-oss-20b", 4096, {"e": 2880, "h": 64, "g": 8, "k": 64, "x": 32, "window": 128}, 24),
        ("falcon-7b", 2048, {"e": 4544, "h": 71, "g": 1, "k": 64, "f": 18176}, 32),
        ("falcon-40b", 2048, {"g": 8, "k": 64, "f": 32768}, 60),
        ("deepseek-v3", 4096, {"h": 128, "f": 18432, "rq": 1536, "nope": 128, "fx": 2048, "fs": 2048, "x": 256}, 61),
        ("llama-4-scout", 4096, {"fx": 8192, "fs": 8192, "x": 16, "topk": 1, "attention_chunk": 8192}, 48),
        ("llama-4-maverick", 4096, {"f": 16384, "fx": 8192, "x": 128}, 48),
        ("glm-4.5", 4096, {"h": 96, "g": 8, "k": 128, "f": 12288, "fx": 1536, "fs": 1536, "x": 160, "topk": 8}, 92),
        ("olmo-2-7b", 4096, {"h": 32, "g": 32, "k": 128}, 32),
        ("olmo-2-32b", 4096, {"h": 40, "g": 8, "k": 128}, 64),
        ("qwen3-next-80b-a3b", 4096, {"h": 16, "k": 256, "lg": 16, "lh": 32, "lk": 128, "lv": 128, "fs": 512}, 48),
        ("vit-l-16", 197, {"e": 1024, "patch": 16, "positions": 197, "classes": 1000}, 24),
        ("mamba2-2.7b", 2048, {"e": 2560, "h": 80, "g": 1, "state": 128, "conv": 4, "chunk": 256}, 64),
    ],
)
def test_sizes_of_published_configs(name, length, sizes, num_layers):
    found = model(CONFIGS / f"{name}.json")
    assert found.default_sequence_length == length
    assert found.dimensions | sizes == found.dimensions
    first, *body, last = layers(CONFIGS / f"{name}.json")
    assert len(body) == num_layers
    assert "embedding" in first.kind
    assert "head" in last.kind


def sliding(file: Path) -> list[bool]:
    return ["window" in layer.options for layer in layers(file)[1:-1]]


def dense(file: Path) -> list[bool]:
    return [("ffn", "experts") not in layer.blocks for layer in layers(file)[1:-1]]


def test_layers_that_alternate(tmp_path):
    assert sliding(CONFIGS / "gemma-2-9b.json") == [True, False] * 21
    assert sliding(CONFIGS / "gemma-3-1b.json") == ([True] * 5 + [False]) * 4 + [True] * 2
    assert sliding(CONFIGS / "gpt-oss-20b.json") == [True, False] * 12
    assert sliding(write(tmp_path, "gpt-oss-20b", ("layer_types",))) == [True, False] * 12
    stated = ["full_attention", "sliding_attention", "sliding_attention"]
    assert sliding(write(tmp_path, "gemma-2-9b", num_hidden_layers=3, layer_types=stated)) == [False, True, True]
    assert all(sliding(CONFIGS / "mistral-7b.json"))
    assert not any(sliding(write(tmp_path, "mistral-7b", sliding_window=None)))
    assert not any(sliding(CONFIGS / "mixtral-8x7b.json"))
    assert all(sliding(write(tmp_path, "mixtral-8x7b", sliding_window=4096)))


@pytest.mark.parametrize("name", ["qwen2-7b", "qwen3-8b", "qwen3-30b-a3b"])
def test_windows_that_are_switched_on(tmp_path, name):
    switched = {"num_hidden_layers": 4, "sliding_window": 1024, "max_window_layers": 3}
    on, off = switched | {"use_sliding_window": True}, switched | {"use_sliding_window": False}
    stated = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    assert sliding(write(tmp_path, name, ("layer_types",), **on)) == [False, False, False, True]
    assert sliding(write(tmp_path, name, **on | stated)) == [True, False] * 2
    assert model(tmp_path / "config.json").dimensions["window"] == 1024
    for choice in (off, off | stated):
        assert not any(sliding(write(tmp_path, name, **choice)))
        assert "window" not in model(tmp_path / "config.json").dimensions


def having(option: str, file: Path) -> list[bool]:
    return [option in layer.options for layer in layers(file)[1:-1]]


def test_layers_of_llama_4_that_alternate(tmp_path):
    """Three of four layers have chunks and positions; a list that the config states comes before the interval."""
    for name in ("llama-4-scout", "llama-4-maverick"):
        found = CONFIGS / f"{name}.json"
        assert having("chunked", found) == having("rotary", found) == having("qk_l2norm", found)
        assert having("chunked", found) == ([True] * 3 + [False]) * 12
    assert not any(dense(CONFIGS / "llama-4-scout.json"))
    assert dense(CONFIGS / "llama-4-maverick.json") == [True, False] * 24
    few = {"num_hidden_layers": 4, "moe_layers": None, "no_rope_layers": None, "interleave_moe_layer_step": 4}
    assert dense(write(tmp_path, "llama-4-maverick", **few)) == [True] * 3 + [False]
    stated = few | {"moe_layers": [0], "no_rope_layers": [1, 1, 0, 0], "layer_types": ["full_attention"] * 4}
    file = write(tmp_path, "llama-4-maverick", **stated)
    assert dense(file) == [False] + [True] * 3
    assert having("rotary", file) == [True, True, False, False]
    assert not any(having("chunked", file))
    every = {"moe_layers": list(range(4)), "num_hidden_layers": 4, "no_rope_layers": None}
    assert "f" not in model(write(tmp_path, "llama-4-maverick", **every)).dimensions


def linear(file: Path) -> list[bool]:
    return [("attention", "gated-delta-net") in layer.blocks for layer in layers(file)[1:-1]]


def test_linear_attention_in_three_of_four_layers(tmp_path):
    name = "qwen3-next-80b-a3b"
    assert linear(CONFIGS / f"{name}.json") == ([True] * 3 + [False]) * 12
    assert linear(write(tmp_path, name, full_attention_interval=2, num_hidden_layers=4)) == [True, False] * 2
    stated = ["full_attention", "linear_attention"]
    file = write(tmp_path, name, num_hidden_layers=2, layer_types=stated, attention_bias=True)
    assert linear(file) == [False, True]
    # What a gated delta net has no place for is left to full attention.
    for option in ("rotary", "qk_norm", "output_gate", "qkv_bias", "out_bias"):
        assert having(option, file) == [True, False]
    assert having("shared_gate", file) == [True, True]
    assert not any(having("shared_gate", write(tmp_path, name, shared_expert_intermediate_size=0)))


@given(st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=1, max_size=60))
def test_layers_of_any_order_are_those_of_the_config(tmp_path_factory, stated):
    file = write(tmp_path_factory.getbasetemp(), "gemma-2-9b", num_hidden_layers=len(stated), layer_types=stated)
    assert sliding(file) == [kind == "sliding_attention" for kind in stated]


def test_dense_layers_among_experts(tmp_path):
    assert dense(CONFIGS / "deepseek-v3.json") == [True] * 3 + [False] * 58
    every_other = write(tmp_path, "deepseek-v3", num_hidden_layers=8, moe_layer_freq=2)
    assert dense(every_other) == [True] * 4 + [False, True, False, True]
    assert dense(write(tmp_path, "qwen3-30b-a3b", decoder_sparse_step=2)) == [True, False] * 24
    assert dense(write(tmp_path, "qwen3-30b-a3b", mlp_only_layers=[0, 47])) == [True] + [False] * 46 + [True]


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        ("llama-3-8b", {"num_key_value_heads": 5}, "(num_attention_heads = 32, num_key_value_heads = 5)"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "the router cannot send a token to more experts than there are"),
        ("gpt-oss-20b", {"num_hidden_layers": 36}, "layer_types must have an entry for each of num_hidden_layers"),
        ("gemma-2-9b", {"layer_types": ["chunked_attention"] * 42}, "layer_types[0] = 'chunked_attention'"),
        ("gpt2", {"n_head": 13}, "n_embd / n_head = 768 / 13 leaves a remainder"),
        ("deepseek-v3", {"topk_group": 9}, "n_group must divide n_routed_experts"),
        ("deepseek-v3", {"n_group": 7, "topk_group": 3}, "n_group must divide n_routed_experts"),
        ("deepseek-v3", {"first_k_dense_replace": 62}, "there cannot be more dense layers than layers"),
        ("vit-l-16", {"patch_size": 15}, "image_size must be a multiple of patch_size"),
        ("mamba2-2.7b", {"num_heads": 40}, "num_heads * head_dim must be expand * hidden_size"),
        ("falcon-7b", {"num_ln_in_parallel_attn": 3}, "attention and the feed-forward network have one norm each"),
        ("llama-4-maverick", {"moe_layers": [], "interleave_moe_layer_step": 0}, "no layer has experts"),
        ("llama-4-maverick", {"layer_types": ["linear_attention"] * 48}, "layer_types[0] = 'linear_attention'"),
        ("llama-4-maverick", {"no_rope_layers": [1, 0]}, "no_rope_layers must have an entry for each"),
        ("glm-4.5", {"first_k_dense_replace": 93}, "there cannot be more dense layers than layers"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": 24}, "must be a multiple of linear_num_key_heads"),
        ("qwen3-next-80b-a3b", {"layer_types": ["sliding_attention"] * 48}, "layer_types[0] = 'sliding_attention'"),
        ("llama-3-8b", {"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 layers are too many"),
    ],
)
def test_configs_that_contradict_themselves(tmp_path, base, changes, says):
    file = write(tmp_path, base, **changes)
    with pytest.raises(SpecError) as caught:
        model(file)
    assert says in str(caught.value)
    assert "config.json:" in str(caught.value)


def test_what_a_model_is_called_and_where_its_faults_are(tmp_path):
    phi = CONFIGS / "phi-3-mini.json"
    config = load_config(phi)
    assert model_name(config, phi, Path("out/mine.yaml")) == "mine"
    assert model_name(config, phi, None) == "phi-3-mini-4k-instruct"
    assert model_source(config, phi) == "phi-3-mini.json of Phi-3-mini-4k-instruct, model_type phi3"
    gpt2 = CONFIGS / "gpt2.json"
    assert model_name(load_config(gpt2), gpt2, None) == "gpt2"
    (tmp_path / "My-Model").mkdir()
    usual = write(tmp_path / "My-Model", "gpt2")
    assert model_name(load_config(usual), usual, None) == "My-Model"
    # A fault is placed at its key.
    file = write(tmp_path, "llama-3-8b", num_key_value_heads=5)
    number = next(i for i, line in enumerate(file.read_text().splitlines(), 1) if '"num_attention_heads"' in line)
    with pytest.raises(SpecError, match=f"config.json:{number}: num_attention_heads must be a multiple"):
        model(file)


@pytest.mark.slow
def test_there_is_a_config_of_every_family():
    families = {load_config(CONFIGS / f"{name}.json").model_type for name in NAMES}
    named = names("families", ".yaml")
    cannot_be_read = {name for name in named if "lacks" in load_family(name).require}
    assert cannot_be_read == {"jamba", "nemotron-nas"}
    assert families == {*named} - cannot_be_read


@pytest.mark.parametrize("name", sorted({*NAMES} & {*names("models", ".yaml")}))
def test_packaged_models_are_what_their_configs_say(name):
    found, packaged = model(CONFIGS / f"{name}.json"), load_model(name)
    assert found.dimensions == packaged.dimensions
    assert [(entry.layer, entry.count) for entry in found.sequence] == [
        (entry.layer, entry.count) for entry in packaged.sequence
    ]
    assert found.parameters == packaged.parameters


# Of configs without a published total: counted from the model classes of the transformers library 5.24.0.
COUNTED = {
    "reward-llama-3-8b": 7_504_928_768,
    "nemotron-3-super-120b-a12b": 120_668_707_840,
    "deepseek-v4-flash": 283_811_158_528
    + 43 * 64,  # with sinks; without compressors, indexers, weights of residual streams
    "gemma-4-31b": 30_697_345_280,
    "gemma-4-26b-a4b": 25_233_141_760 - 30 * (4 * 2_816 + 128),  # without norms around experts, scales of routers
    "afm-4.5b": 4_619_184_640,
    "bamba-9b": 9_780_235_392,
    "falcon-h1-0.5b": 521_411_104,
    "olmo-1b": 1_176_764_416,
    "command-r7b": 8_028_033_024,
    "deepseek-v3.2": 671_026_419_200,
    "dots.llm1": 142_774_381_696,
    "ernie-4.5-0.3b": 360_748_032,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "glm-4-9b-0414": 9_400_279_040,
    "glm-4.7-flash": 29_943_393_920,
    "granite-3.0-3b-a800m": 3_298_793_472,
    "granite-3.0-3b-shared": 3_449_788_416,
    "granite-3.1-8b": 8_170_848_256,
    "granite-4.0-h-small": 32_207_337_984,
    "hunyuan-7b": 7_504_568_320,
    "ministral-3-8b": 8_489_553_920,
    "ministral-8b": 8_019_808_256,
    "mistral-small-3.1-24b": 23_572_403_200,
    "mistral-small-4": 118_972_826_624,
    "nemotron-340b": 341_029_195_776,
    "olmo-3-7b": 7_298_011_136,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen3.5-9b": 8_953_803_264,
    "solar-open-100b": 102_651_799_552,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_published(name):
    """Published totals are those of data/families, with their sources; of other configs there is a count."""
    data = dsx.import_hf(CONFIGS / f"{name}.json").to_data()
    assert data.keys() == {"schema_version", "family", "model", "output", "parameters", "ignored"}
    assert data["ignored"].keys() == {"changes_cost", "unknown", "no_cost"}
    count = data["parameters"]
    if name in COUNTED:
        assert (count["published"], count["counted"]) == (None, COUNTED[name])
    else:
        assert count["counted"] - count["published"] == count["difference"]
        assert 2 * abs(count["difference"]) < count["rounding"]
